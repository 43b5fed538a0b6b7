import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lrbi
from lrbi.factorize import EFFORTS, SPARSITY_TOLERANCE, gains_of
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


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("shape", "rank"), [((40, 60), 3), ((80, 50), 5)])
def test_planted_factors_are_found_at_low_noise(seed, shape, rank):
    """The mask itself must come back, though NMF alone does not give it."""
    rng = np.random.default_rng(seed)
    planted = boolean_product(
        rng.random((shape[0], rank)) < 0.3, rng.random((rank, shape[1])) < 0.3
    )
    weights = np.where(planted, 1 + rng.random(shape), 0.05 * rng.random(shape))
    found = compress(weights, 1 - planted.mean(), rank, "normal")
    np.testing.assert_array_equal(found.mask(), planted)
    assert found.cost == 0


def test_a_search_is_worth_its_time():
    weights = trained_like((150, 200), np.random.default_rng(3))
    fast, normal, high = (compress(weights, 0.9, 6, effort).kept for effort in EFFORTS)
    assert normal > 1.03 * fast
    assert high > normal


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
    start = rng.random((shape[0], rank)) < 0.2, rng.random((rank, shape[1])) < 0.2
    before = [each.copy() for each in (*start, gains)]
    search = _Search(*start, gains, gains.size // 5, rng)
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
    for rank in range(4):
        before = worth()
        search._refit(rank, 4)
        assert worth() >= before - 1e-5


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
