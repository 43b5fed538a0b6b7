import itertools
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lrbi.factorize import (
    SPARSITY_TOLERANCE,
    Sweep,
    TileProblem,
    best_point,
    factorize,
    manipulate,
    settle,
)
from lrbi.layout import unpack_rows
from lrbi.product import boolean_product
from lrbi.prune import exact_mask


def problem(weights, sparsity=0.8, rank=3, **changes):
    exact = changes.pop("exact", None)
    if exact is None:
        exact = exact_mask(weights, sparsity)
    fields = {
        "weights": weights,
        "exact": exact,
        "zeros": int(np.count_nonzero(~exact)),
        "sparsity": sparsity,
        "ranks": (rank,),
        "method": 3,
        "engine": "hals",
        "iterations": 30,
        "effort": "normal",
        "objective": "paper",
        "seed": (0, 0),
    }
    return TileProblem(**(fields | changes))


def solve(tile):
    """The only result of a tile, and its two factors as bits."""
    (factors,) = factorize(tile)
    row_factor = unpack_rows(factors.row_factor, factors.rank)
    col_factor = unpack_rows(factors.col_factor, tile.weights.shape[1])
    return factors, row_factor, col_factor


# The paper's worked example, Eq. 1-6.
W = np.array(
    [
        [-0.1, 0.9, 1.2, -0.2, -0.6],
        [1.8, 0.2, -0.7, -1.6, 0.6],
        [-0.1, -1.7, 0.1, -0.3, 1.2],
        [-0.4, 1.4, -0.9, 0.6, 1.4],
        [-1.1, 0.5, 1.0, 1.0, -0.3],
    ]
)
I_EXACT = [[0, 1, 1, 0, 0], [1, 0, 1, 1, 0], [0, 1, 0, 0, 1], [0, 1, 1, 0, 1], [1, 0, 1, 1, 0]]
M_P = np.array([[0.2, 0.5], [1.3, 0.0], [0.0, 0.9], [0.3, 0.8], [0.8, 0.2]], dtype=np.float32)
M_Z = np.array([[1.3, 0.1, 0.7, 1.2, 0.3], [0.0, 1.8, 0.7, 0.2, 1.3]], dtype=np.float32)
I_P = [[0, 1], [1, 0], [0, 1], [0, 1], [1, 0]]
I_Z = [[1, 0, 1, 1, 0], [0, 1, 1, 0, 1]]
I_A = [[0, 1, 1, 0, 1], [1, 0, 1, 1, 0], [0, 1, 1, 0, 1], [0, 1, 1, 0, 1], [1, 0, 1, 1, 0]]


def test_worked_example_bit_for_bit():
    mask = np.abs(W) >= 0.7
    assert mask.tolist() == I_EXACT
    assert exact_mask(W, 12 / 25).tolist() == I_EXACT

    row_factor, col_factor = np.float32(0.5) <= M_P, np.float32(0.6) <= M_Z
    assert row_factor.tolist() == I_P
    assert col_factor.tolist() == I_Z
    product = boolean_product(row_factor, col_factor)
    assert product.tolist() == I_A
    assert np.argwhere(product != mask).tolist() == [[0, 4], [2, 2]]


def test_sweep_passes_through_the_worked_example():
    gains = np.where(I_EXACT, np.abs(W), 0).astype(np.float32)
    sweep = Sweep(M_P, M_Z, gains, ones=np.count_nonzero(I_A))
    (point,) = sweep.points(np.array([np.count_nonzero(I_P)]))
    assert point.col_bits == np.count_nonzero(I_Z)
    row_factor, col_factor = sweep.factors(point)
    assert row_factor.tolist() == I_P
    assert col_factor.tolist() == I_Z
    assert point.kept == pytest.approx(gains.sum())  # both mismatches are ones too many: no Cost


@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.floats(0.05, 0.95))
def test_closed_form_is_what_searching_every_threshold_finds(seed, rank, share):
    rng = np.random.default_rng(seed)
    rows, cols = rng.integers(2, 9, 2)
    # One decimal: many equal entries.
    left = rng.random((rows, rank)).round(1).astype(np.float32)
    right = rng.random((rank, cols)).round(1).astype(np.float32)
    gains = rng.random((rows, cols)).astype(np.float32)
    ones = max(1, round(share * rows * cols))
    sweep = Sweep(left, right, gains, ones)
    order = np.argsort(-right, axis=None, kind="stable")
    for point in sweep.points(np.arange(1, left.size + 1)):
        row_factor, _ = sweep.factors(point)
        curve = []  # ones and gains for every number of I_z bits
        for bits in range(right.size + 1):
            col_factor = np.zeros(right.size, dtype=bool)
            col_factor[order[:bits]] = True
            mask = boolean_product(row_factor, col_factor.reshape(right.shape))
            curve.append((np.count_nonzero(mask), gains[mask].sum()))
        counts, kept = np.array(curve).T
        assert abs(counts[point.col_bits] - ones) == np.abs(counts - ones).min()
        above = int(np.argmax(counts >= ones))
        expected = np.interp(ones, counts[[above - 1, above]], kept[[above - 1, above]])
        assert point.kept == pytest.approx(expected, rel=1e-5)


def test_sweep_leaves_out_what_cannot_reach_the_sparsity():
    left = np.array([[1.0], [0.5]], dtype=np.float32)
    sweep = Sweep(left, np.ones((1, 4), np.float32), np.ones((2, 4), np.float32), ones=6)
    assert [point.row_bits for point in sweep.points(np.array([1, 2]))] == [2]


def test_best_point_of_equals_is_the_sparsest():
    sweep = Sweep(
        np.array([[1, 0.5]], np.float32),
        np.ones((2, 1), np.float32),
        np.ones((1, 1), np.float32),
        1,
    )
    points = sweep.points(np.array([1, 2]))
    assert points[0].kept == points[1].kept
    assert best_point(points).row_bits == 1


def nearest_by_one_flip(row_factor, col_factor, ones):
    """How near to ``ones`` any single bit of either factor could bring the mask, by trying all."""
    distances = []
    for factor in (row_factor, col_factor):
        for bit in np.ndindex(factor.shape):
            factor[bit] ^= True
            count = np.count_nonzero(boolean_product(row_factor, col_factor))
            distances.append(abs(count - ones))
            factor[bit] ^= True
    return min(distances)


@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.floats(0, 1), st.floats(0, 1))
def test_settled_factors_cannot_be_brought_nearer(seed, rank, density, share):
    rng = np.random.default_rng(seed)
    rows, cols = rng.integers(1, 12, 2)
    row_factor = rng.random((rows, rank)) < density
    col_factor = rng.random((rank, cols)) < density
    gains = rng.random((rows, cols)).astype(np.float32)
    ones = round(share * rows * cols)
    before = abs(np.count_nonzero(boolean_product(row_factor, col_factor)) - ones)
    kept_row, kept_col = row_factor.copy(), col_factor.copy()
    settled = settle(row_factor, col_factor, gains, ones)
    np.testing.assert_array_equal(row_factor, kept_row)
    np.testing.assert_array_equal(col_factor, kept_col)
    distance = abs(np.count_nonzero(boolean_product(*settled)) - ones)
    assert distance <= before
    assert distance == 0 or nearest_by_one_flip(*settled, ones) >= distance


def test_settling_takes_the_cheapest_of_the_bits_that_end_it():
    row_factor = np.array([[1], [1], [1]], dtype=bool)
    col_factor = np.ones((1, 2), dtype=bool)
    gains = np.array([[3, 3], [1, 1], [2, 2]], dtype=np.float32)
    row_factor, col_factor = settle(row_factor, col_factor, gains, ones=4)
    assert row_factor.ravel().tolist() == [True, False, True]
    assert col_factor.all()


def test_settling_adds_the_most_valuable_of_the_bits_that_end_it():
    row_factor = np.array([[1], [0], [0]], dtype=bool)
    col_factor = np.ones((1, 2), dtype=bool)
    gains = np.array([[3, 3], [1, 1], [2, 2]], dtype=np.float32)
    row_factor, col_factor = settle(row_factor, col_factor, gains, ones=4)
    assert row_factor.ravel().tolist() == [True, False, True]
    assert col_factor.all()


def test_a_tile_runs_on_one_blas_thread(monkeypatch):
    """Sums of a product may depend on the number of threads, and the bits on those."""
    from threadpoolctl import threadpool_info, threadpool_limits

    import lrbi.nmf

    seen = []

    def engine(*arguments):
        seen.extend(library["num_threads"] for library in threadpool_info())
        return lrbi.nmf.hals(*arguments)

    monkeypatch.setitem(lrbi.nmf.ENGINES, "hals", engine)
    with threadpool_limits(2):
        solve(problem(np.random.default_rng(0).standard_normal((20, 20))))
    assert seen
    assert set(seen) == {1}


def test_a_blas_that_comes_later_runs_on_one_thread_too():
    """SciPy brings a BLAS of its own, which may be loaded after the first tile."""
    script = """
import numpy as np, lrbi, lrbi.nmf
from threadpoolctl import threadpool_info, threadpool_limits
config = lrbi.CompressConfig(sparsity=0.8, rank=2)
weights = np.random.default_rng(0).standard_normal((20, 20))
lrbi.compress(weights, config)
before = len(threadpool_info())
import scipy.linalg
assert len(threadpool_info()) > before, "SciPy brought no BLAS"
hals = lrbi.nmf.hals
def engine(*arguments):
    print(*(library["num_threads"] for library in threadpool_info()))
    return hals(*arguments)
lrbi.nmf.ENGINES["hals"] = engine
with threadpool_limits(2):
    lrbi.compress(weights, config)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert set(done.stdout.split()) == {"1"}


@given(
    st.integers(0, 2**32 - 1),
    st.tuples(st.integers(1, 40), st.integers(1, 40)),
    st.integers(1, 6),
    st.floats(0.02, 0.98),
    st.sampled_from([1, 2, 3]),
)
def test_result_holds_together(seed, shape, rank, sparsity, method):
    weights = np.random.default_rng(seed).standard_normal(shape)
    tile = problem(weights, sparsity, rank, method=method)
    before = weights.copy()
    factors, row_factor, col_factor = solve(tile)
    np.testing.assert_array_equal(weights, before)
    assert factors.rank <= min(rank, *shape)
    mask = boolean_product(row_factor, col_factor)
    ones = weights.size - tile.zeros
    assert factors.ones == np.count_nonzero(mask)
    distance = abs(factors.ones - ones)
    if distance > SPARSITY_TOLERANCE * weights.size:
        assert nearest_by_one_flip(row_factor.copy(), col_factor.copy(), ones) >= distance
    assert factors.cost == pytest.approx(np.abs(weights)[tile.exact & ~mask].sum())
    assert factors.magnitude == pytest.approx(np.abs(weights)[tile.exact].sum())


@pytest.mark.parametrize("engine", ["hals", "nimfa"])
def test_same_seed_same_bits_and_another_seed_others(engine):
    weights = np.random.default_rng(3).standard_normal((40, 50))
    first, again, other = (
        solve(problem(weights, 0.9, 4, engine=engine, seed=seed))[1]
        for seed in ((5, 0), (5, 0), (6, 0))
    )
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


@pytest.mark.parametrize("scale", [1e-40, 1e-20, 1e20, 1e150])
def test_scale_of_the_weights_does_not_matter(scale):
    weights = np.random.default_rng(4).standard_normal((30, 30))
    plain, scaled = solve(problem(weights, rank=4)), solve(problem(weights * scale, rank=4))
    np.testing.assert_array_equal(plain[1], scaled[1])
    np.testing.assert_array_equal(plain[2], scaled[2])


def test_planted_blocks_are_found():
    """Large weights in rank-3 blocks, noise elsewhere: the mask must be the blocks exactly."""
    rng = np.random.default_rng(5)
    row_factor, col_factor = rng.random((60, 3)) < 0.25, rng.random((3, 50)) < 0.25
    planted = boolean_product(row_factor, col_factor)
    weights = np.where(planted, 1.0, 0.05) * (1 + 0.1 * rng.random(planted.shape))
    factors, found_rows, found_cols = solve(
        problem(weights, exact=planted, sparsity=1 - planted.mean(), iterations=200)
    )
    np.testing.assert_array_equal(boolean_product(found_rows, found_cols), planted)
    assert factors.cost == 0


def test_better_than_chance_and_better_with_rank():
    weights = np.random.default_rng(6).standard_normal((100, 80))
    costs = [solve(problem(weights, 0.9, rank))[0] for rank in (1, 4, 16, 64)]
    kept = [1 - item.cost / item.magnitude for item in costs]
    assert kept == sorted(kept)
    assert kept[0] > 0.1  # what a random mask of this sparsity keeps
    assert kept[-1] > 0.8


class TestTilesWithAnExactAnswer:
    def test_zero_tile_uses_no_rank(self):
        factors, *_ = solve(problem(np.ones((8, 9)), exact=np.zeros((8, 9), dtype=bool)))
        assert (factors.rank, factors.ones, factors.cost) == (0, 0, 0.0)
        assert factors.row_factor.shape == (8, 0)
        assert factors.col_factor.shape == (0, 2)

    def test_full_tile_uses_one_rank(self):
        factors, *_ = solve(problem(np.ones((8, 9)), exact=np.ones((8, 9), dtype=bool)))
        assert (factors.rank, factors.ones, factors.cost) == (1, 72, 0.0)

    @pytest.mark.parametrize("value", [0.0, 1.0, -3.5])
    def test_constant_tile_keeps_the_end_of_the_matrix(self, value):
        tile = problem(np.full((8, 9), value), 0.45)
        factors, row_factor, col_factor = solve(tile)
        assert factors.rank == 2
        np.testing.assert_array_equal(boolean_product(row_factor, col_factor), tile.exact)

    @pytest.mark.parametrize("shape", [(1, 50), (50, 1), (1, 1), (4, 30), (30, 4)])
    def test_rank_of_the_smaller_side_is_exact(self, shape):
        tile = problem(np.random.default_rng(8).standard_normal(shape), 0.5, rank=4)
        factors, row_factor, col_factor = solve(tile)
        assert factors.rank <= min(shape)
        np.testing.assert_array_equal(boolean_product(row_factor, col_factor), tile.exact)

    def test_kept_weights_that_are_all_zero_cost_nothing(self):
        exact = np.random.default_rng(9).random((20, 20)) < 0.3
        factors, *_ = solve(problem(np.zeros((20, 20)), exact=exact, sparsity=0.7))
        assert factors.cost == factors.magnitude == 0
        assert abs(factors.ones - np.count_nonzero(exact)) <= 2

    def test_a_sparsity_of_its_own_is_met_by_its_own_mask(self):
        weights = np.random.default_rng(10).standard_normal((6, 40))
        tile = problem(weights, 0.8, rank=6, zeros=100)
        factors, row_factor, col_factor = solve(tile)
        assert factors.ones == 140
        assert factors.cost == 0  # more is kept than the exact mask keeps
        assert (np.abs(weights)[boolean_product(row_factor, col_factor)].min()
                >= np.sort(np.abs(weights), axis=None)[100])  # fmt: skip


def test_manipulation_methods():
    magnitudes = np.array([[0.1, 0.5]], dtype=np.float32)
    exact = np.array([[False, True]])
    for method, expected in ((1, [0.1, 0.5]), (2, [0.01, 0.25]), (3, [0.1, 2.5])):
        np.testing.assert_allclose(
            manipulate(magnitudes, exact, 0.8, method)[0], expected, rtol=1e-6
        )


def test_several_ranks_at_once_are_the_same_as_one_by_one():
    weights = np.random.default_rng(11).standard_normal((30, 40))
    together = factorize(problem(weights, ranks=(2, 5)))
    for factors, rank in zip(together, (2, 5), strict=True):
        alone, *_ = solve(problem(weights, rank=rank))
        np.testing.assert_array_equal(factors.row_factor, alone.row_factor)
        assert factors.cost == alone.cost


def test_threads_of_one_process_share_the_blas_limit():
    """BLAS is back at its own number of threads when the last of several threads is done."""
    from concurrent.futures import ThreadPoolExecutor

    from threadpoolctl import threadpool_info

    def threads():
        return [library["num_threads"] for library in threadpool_info()]

    before = threads()
    weights = np.random.default_rng(12).standard_normal((60, 60))
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(factorize, itertools.repeat(problem(weights), 12)))
    assert threads() == before
    assert all(result[0].cost == results[0][0].cost for result in results)
