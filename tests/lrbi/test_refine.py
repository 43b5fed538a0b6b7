import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lrbi
from lrbi.factorize import EFFORTS, SPARSITY_TOLERANCE, gains_of, settle_by_pairs
from lrbi.product import boolean_product
from lrbi.prune import exact_mask
from lrbi.refine import Schedule, _best_block, _Search, _starts, refine
from lrbi.synthetic import trained_like

SHORT = Schedule(cycles=2, rounds=2, sweeps=3, refits=0.5, starts=2, heat=0.2)


def compress(weights, sparsity, rank, effort, **options):
    config = lrbi.CompressConfig(sparsity=sparsity, rank=rank, effort=effort, **options)
    return lrbi.compress(weights, config)


@settings(deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.tuples(st.integers(1, 40), st.integers(1, 40)),
    st.integers(1, 6),
    st.floats(0.05, 0.95),
    st.sampled_from(["gaussian", "structured", "ties"]),
)
def test_never_worse_than_where_it_began(seed, shape, rank, sparsity, kind):
    rng = np.random.default_rng(seed)
    weights = trained_like(shape, rng) if kind == "structured" else rng.standard_normal(shape)
    if kind == "ties":
        weights = np.round(weights)
    fast = compress(weights, sparsity, rank, "fast", seed=seed % 100)
    found = compress(weights, sparsity, rank, "normal", seed=seed % 100)
    assert found.cost <= fast.cost * (1 + 1e-6)
    miss, before = (abs(layer.sparsity - layer.sparsity_target) for layer in (found, fast))
    assert miss <= max(SPARSITY_TOLERANCE, before, 0.51 / weights.size) + 1e-12
    mask = found.mask()
    assert found.sparsity == pytest.approx(1 - mask.mean())
    lost = np.abs(weights)[exact_mask(weights, sparsity) & ~mask].sum()
    assert found.cost == pytest.approx(lost, abs=1e-6)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("shape", "rank"), [((40, 60), 3), ((80, 50), 5), ((90, 70), 10)])
def test_planted_factors_are_found_at_low_noise(seed, shape, rank):
    """The mask itself must come back; at the highest rank, NMF alone does not give it."""
    rng = np.random.default_rng(seed)
    planted = boolean_product(
        rng.random((shape[0], rank)) < 0.3, rng.random((rank, shape[1])) < 0.3
    )
    weights = np.where(planted, 1 + rng.random(shape), 0.05 * rng.random(shape))
    found = compress(weights, 1 - planted.mean(), rank, "normal")
    np.testing.assert_array_equal(found.mask(), planted)
    assert found.cost == 0
    if rank == 10:
        assert compress(weights, 1 - planted.mean(), rank, "fast").cost > 0


def test_a_search_is_worth_its_time():
    means = {}
    for effort in EFFORTS:
        kept = [
            compress(
                trained_like((80, 100), np.random.default_rng(seed)), 0.9, 6, effort, seed=seed
            ).kept
            for seed in range(5)
        ]
        means[effort] = np.mean(kept)
    assert means["normal"] > 1.06 * means["fast"]
    assert means["high"] > 1.005 * means["normal"]


def test_what_is_worse_or_off_s_is_not_taken(monkeypatch):
    """Whatever a search gives: what it loses, and how far it is from S, are looked at."""
    weights = np.random.default_rng(0).standard_normal((64, 64))
    start = compress(weights, 0.9, 4, "fast")
    better = compress(weights, 0.9, 4, "normal")
    assert better.cost < start.cost
    worse = compress(np.random.default_rng(1).standard_normal((64, 64)), 0.9, 4, "fast").factors(0)
    rows, cols = better.factors(0)
    off = (np.ones_like(rows), np.ones_like(cols))  # keeps all, but prunes nothing
    real = lrbi.factorize.settle

    def taken(*results):
        def settle(row, col, gains, ones):  # what is given is judged, not what can be made of it
            given = any(row is each for each, _ in results)
            return (row, col) if given else real(row, col, gains, ones)

        monkeypatch.setattr("lrbi.factorize.refine", lambda *_: iter(results))
        monkeypatch.setattr("lrbi.factorize.settle", settle)
        monkeypatch.setattr("lrbi.factorize.settle_by_pairs", settle)
        return compress(weights, 0.9, 4, "normal").mask()

    np.testing.assert_array_equal(taken(worse), start.mask())
    np.testing.assert_array_equal(taken(off), start.mask())
    np.testing.assert_array_equal(taken(worse, off, (rows, cols)), better.mask())
    np.testing.assert_array_equal(taken((rows, cols), worse), better.mask())


def test_the_same_seed_finds_the_same_bits():
    weights = np.random.default_rng(0).standard_normal((60, 50))
    one, two = (compress(weights, 0.8, 4, "normal", seed=7) for _ in range(2))
    assert one == two
    assert one != compress(weights, 0.8, 4, "normal", seed=8)


@pytest.mark.parametrize(("shape", "rank"), [((30, 40), 1), ((30, 40), 5), ((12, 9), 300)])
def test_the_search_keeps_its_books(shape, rank):
    """What it knows of the mask, and of its worth, is what its factors make."""
    rng = np.random.default_rng(0)
    gains = rng.random(shape, dtype=np.float32)
    density = 0.2 if rank < 100 else 0.98  # more ranks in a cell than a byte can count
    start = rng.random((shape[0], rank)) < density, rng.random((rank, shape[1])) < density
    before = [each.copy() for each in (*start, gains)]
    search = _Search(*start, gains, gains.size // 5, rng)
    np.testing.assert_array_equal(search._cover[0], start[0].astype(int) @ start[1].astype(int))
    for step in range(12):
        search.refit(0.5, 3) if step % 3 == 2 else search.sweep(0.3 * (step % 2))
        rows, cols = search.factors()
        cover = rows.astype(int) @ cols.astype(int)
        np.testing.assert_array_equal(search._cover[0], cover)
        np.testing.assert_array_equal(search._cover[1], cover.T)
    worth = (gains - np.float32(search.price))[cover > 0].sum()
    bits = np.count_nonzero(rows) + np.count_nonzero(cols)
    assert search.worth_of_a_bit() == pytest.approx(max(0, worth) / max(1, bits), rel=1e-4)
    for mine, theirs in zip((*start, gains), before, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_a_sweep_without_heat_never_loses():
    rng = np.random.default_rng(1)
    gains = np.where(rng.random((40, 50)) < 0.2, rng.random((40, 50)), 0).astype(np.float32)
    search = _Search(rng.random((40, 4)) < 0.3, rng.random((4, 50)) < 0.3, gains, 400, rng)

    def worth():
        return (gains - np.float32(search.price))[search._cover[0] > 0].sum(dtype=np.float64)

    for side, rank in itertools.product((0, 1), range(4)):
        before = worth()
        search._choose(side, rank, 0.0)
        assert worth() >= before - 1e-5
    for rank in itertools.chain(range(4), rng.integers(4, size=60)):
        before = worth()
        search._refit(rank, 1)  # so few starts that most are worse than what is there
        assert worth() >= before - 1e-5


def test_a_rank_that_is_worth_nothing_is_put_to_use():
    rng = np.random.default_rng(0)
    gains = np.zeros((30, 40), dtype=np.float32)
    gains[:10, :10], gains[15:, 20:] = 1, 2
    search = _Search(np.zeros((30, 2), bool), np.zeros((2, 40), bool), gains, 400, rng)
    assert search.price > 0
    search.refit(0.5, 4)
    rows, cols = search.factors()
    assert sorted(rows.any(axis=0)) == sorted(cols.any(axis=1)) == [False, True]
    search.refit(1.0, 4)
    np.testing.assert_array_equal(boolean_product(*search.factors()), gains > 0)


def test_the_best_is_held():
    rng = np.random.default_rng(0)
    gains = np.where(rng.random((40, 50)) < 0.2, rng.random((40, 50)), 0).astype(np.float32)
    search = _Search(rng.random((40, 4)) < 0.3, rng.random((4, 50)) < 0.3, gains, 300, rng)
    search.climb(20)
    search.hold_best()
    best = [each.copy() for each in search.factors()]
    for _ in range(3):
        search.sweep(1e3)  # as good as random bits
    search.hold_best()
    for mine, held in zip(search.factors(), best, strict=True):
        np.testing.assert_array_equal(mine, held)
    cover = best[0].astype(int) @ best[1].astype(int)
    np.testing.assert_array_equal(search._cover[0], cover)
    np.testing.assert_array_equal(search._cover[1], cover.T)
    # More is kept by more ones, but they are not worth their price.
    search._bits[0][:], search._bits[1][:] = 1, 1
    search._cover[0][:], search._cover[1][:] = 4, 4
    search.hold_best()
    np.testing.assert_array_equal(search.factors()[0], best[0])


def test_the_cheapest_pair_of_bits_settles_what_single_bits_cannot():
    """Three ones of four are wanted, but each bit that is on covers two cells alone."""
    gains = np.ones((4, 4), dtype=np.float32)
    gains[2, 2], gains[1, :2] = 5, 0.1
    rows = np.array([[1, 0], [1, 0], [0, 0], [0, 0]], dtype=bool)
    cols = np.array([[1, 1, 0, 0], [0, 0, 1, 0]], dtype=bool)
    new_rows, new_cols = settle_by_pairs(rows, cols, gains, 3)
    assert new_rows.tolist() == [[1, 0], [0, 0], [0, 1], [0, 0]]
    np.testing.assert_array_equal(new_cols, cols)
    assert settle_by_pairs(rows, cols, gains, 4) == (rows, cols)


@given(st.integers(0, 2**32 - 1), st.integers(2, 8), st.integers(2, 8), st.integers(1, 4))
def test_pairs_end_at_s_or_change_nothing(seed, height, width, rank):
    rng = np.random.default_rng(seed)
    rows, cols = rng.random((height, rank)) < 0.4, rng.random((rank, width)) < 0.4
    ones = int(rng.integers(1, height * width))
    found = settle_by_pairs(rows, cols, rng.random((height, width), dtype=np.float32), ones)
    changed = sum(np.count_nonzero(a != b) for a, b in zip(found, (rows, cols), strict=True))
    assert changed in (0, 2)
    if changed:
        assert boolean_product(*found).sum() == ones


def test_small_tiles_gain_too():
    """S is met to the cell there, which single bits alone often cannot."""
    for seed in range(12):
        weights = np.random.default_rng(seed).standard_normal((32, 32))
        fast, found = (compress(weights, 0.9, 2, effort) for effort in ("fast", "normal"))
        assert found.cost < fast.cost
        assert abs(found.sparsity - 0.9) * 1024 < 1


def test_the_price_steers_the_number_of_ones():
    rng = np.random.default_rng(2)
    gains = np.where(rng.random((60, 80)) < 0.2, rng.random((60, 80)), 0).astype(np.float32)
    start = rng.random((60, 6)) < 0.2, rng.random((6, 80)) < 0.2
    for ones in (300, 1500):
        factors = next(refine(*start, gains, ones, SHORT, np.random.default_rng(0)))
        assert boolean_product(*factors).sum() == pytest.approx(ones, rel=0.1)


def test_the_best_block_of_a_planted_one():
    rng = np.random.default_rng(0)
    rows, cols = rng.random(50) < 0.2, rng.random(70) < 0.2
    cells = np.outer(rows, cols) & (rng.random((50, 70)) < 0.9)
    open_ = np.where(cells, 1, -0.5).astype(np.float32)
    found = _best_block(open_, _starts(open_, 4, rng))
    assert found is not None
    np.testing.assert_array_equal(found[0], rows)
    np.testing.assert_array_equal(found[1], cols)
    assert found[2] == pytest.approx(open_[np.ix_(rows, cols)].sum())
    nothing = -np.ones((5, 6), dtype=np.float32)
    assert _best_block(nothing, _starts(nothing, 4, rng)) is None


def test_weights_of_value_zero_only():
    found = compress(np.zeros((20, 30)), 0.5, 2, "normal")
    assert (found.cost, found.kept) == (0, 1)


def test_objectives_keep_what_they_value():
    weights = trained_like((120, 100), np.random.default_rng(0))
    exact, magnitudes = exact_mask(weights, 0.9), np.abs(weights)
    masks = {name: compress(weights, 0.9, 5, "normal", objective=name) for name in ("paper", "all")}
    paper, everything = (masks[name].mask() for name in ("paper", "all"))
    assert magnitudes[exact & paper].sum() > magnitudes[exact & everything].sum()
    assert magnitudes[everything].sum() > magnitudes[paper].sum()
    # The search itself goes by it, not only where it starts.
    start = compress(weights, 0.9, 5, "fast", objective="all").mask()
    assert magnitudes[everything].sum() > 1.02 * magnitudes[start].sum()
    assert masks["all"].cost == pytest.approx(magnitudes[exact & ~everything].sum(), rel=1e-5)


def test_gains():
    magnitudes = np.array([[4, 8]], dtype=np.float32)
    goal = np.array([[False, True]])
    for objective, gains in (("paper", [0, 8]), ("mixed", [1, 8]), ("all", [4, 8])):
        assert gains_of(magnitudes, goal, objective).tolist() == [gains]


def test_ranks_are_chosen_by_what_the_search_leaves():
    weights = trained_like((96, 96), np.random.default_rng(1))
    config = {"sparsity": 0.85, "rank": "auto", "ratio": 6.0, "tile": (32, 32)}
    fast, found = (
        lrbi.compress(weights, lrbi.CompressConfig(effort=effort, **config))
        for effort in ("fast", "normal")
    )
    assert found.cost < fast.cost
    assert found.ratio >= 6
