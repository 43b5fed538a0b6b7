import dataclasses
import math
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context

import ml_dtypes
import numpy as np
import pytest

import lrbi
from lrbi import CompressConfig, InputError, LayerSource, compress, compress_layers
from lrbi.prune import exact_mask

CONFIG = CompressConfig(sparsity=0.8, rank=3, tile=(16, 10))


def whole_mask(layer):
    """The mask put together tile by tile from the definition."""
    mask = np.zeros(layer.shape, dtype=bool)
    for tile in range(len(layer.tiles)):
        mask[layer.tiles.bounds(tile)] = lrbi.boolean_product(*layer.factors(tile))
    return mask


def test_layer_says_the_truth_about_itself(weights):
    layer = compress(weights, CONFIG)
    mask = layer.mask()
    np.testing.assert_array_equal(mask, whole_mask(layer))
    exact = exact_mask(weights, 0.8)
    lost = np.abs(weights.astype(np.float64))[exact & ~mask].sum()
    assert layer.sparsity == pytest.approx(1 - mask.mean())
    assert layer.cost == pytest.approx(lost)
    assert layer.kept == pytest.approx(1 - lost / np.abs(weights)[exact].sum())
    assert layer.tiles.grid == (3, 4)
    # 45x37 in tiles of 16x10: heights 16 16 13, widths 10 10 10 7.
    assert layer.index_bits == 3 * (4 * 45 + 3 * 37)
    assert layer.rom_bits == 12 * 3 * (16 + 10)
    assert layer.ratio == 45 * 37 / layer.index_bits


def test_sparsity_holds_over_the_layer_and_rich_tiles_keep_more():
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((64, 64))
    weights[:32] *= 10
    layer = compress(weights, CompressConfig(sparsity=0.6, rank=4, tile=(32, 32)))
    assert layer.sparsity == pytest.approx(0.6, abs=2e-3)
    top, bottom = layer.mask()[:32].mean(), layer.mask()[32:].mean()
    assert top > 0.75
    assert bottom < 0.05


def test_sparsity_per_tile_is_the_same_in_every_tile():
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((64, 64))
    weights[:32] *= 10
    config = CompressConfig(sparsity=0.6, rank=4, tile=(32, 32), sparsity_per_tile=True)
    layer = compress(weights, config)
    for tile in range(4):
        assert layer.mask()[layer.tiles.bounds(tile)].mean() == pytest.approx(0.4, abs=5e-3)
    exact = exact_mask(weights, 0.6)  # Cost stays that against the layer's exact mask
    assert layer.cost == pytest.approx(np.abs(weights)[exact & ~layer.mask()].sum())


def test_tile_larger_than_the_layer_is_padded(weights):
    small = compress(weights, dataclasses.replace(CONFIG, tile=(64, 64)))
    alone = compress(weights, dataclasses.replace(CONFIG, tile=None))
    assert small.row_factors.shape == (1, 64, 1)
    np.testing.assert_array_equal(small.mask(), alone.mask())
    assert small.index_bits == alone.index_bits == 3 * (45 + 37)
    assert small.rom_bits == 3 * 128


def test_rank_of_the_layer_is_the_largest_that_its_tiles_use(weights):
    layer = compress(weights, dataclasses.replace(CONFIG, rank=100))
    assert layer.rank == layer.ranks.max() <= 10
    np.testing.assert_array_equal(layer.mask(), exact_mask(weights, 0.8))
    assert (layer.cost, layer.kept) == (0.0, 1.0)


def test_layer_that_keeps_nothing(weights):
    layer = compress(weights, CompressConfig(rank=4), mask=np.zeros(weights.shape, dtype=bool))
    assert not layer.mask().any()
    assert (layer.rank, layer.index_bits, layer.ratio, layer.kept) == (1, 0, math.inf, 1.0)
    assert layer.summary()["ratio"] is None


def test_given_mask_is_the_exact_mask(weights):
    mask = np.random.default_rng(1).random(weights.shape) < 0.25
    layer = compress(weights, CompressConfig(rank=5), mask=mask)
    assert layer.sparsity_target == pytest.approx(1 - mask.mean())
    assert layer.sparsity == pytest.approx(1 - mask.mean(), abs=1e-3)
    lost = np.abs(weights.astype(np.float64))[mask & ~layer.mask()].sum()
    assert layer.cost == pytest.approx(lost)


def test_auto_rank_meets_the_ratio_and_beats_the_same_rank_everywhere():
    rng = np.random.default_rng(2)
    weights = rng.standard_normal((96, 96)) * np.repeat(rng.random(6) ** 3, 16)[:, np.newaxis]
    config = CompressConfig(sparsity=0.7, rank="auto", ratio=2.0, tile=(32, 32))
    layer = compress(weights, config)
    uniform = compress(weights, CompressConfig(sparsity=0.7, rank=8, tile=(32, 32)))
    assert uniform.ratio == 2.0
    assert layer.ratio >= 2.0
    assert layer.cost < uniform.cost
    assert layer.rank == layer.ranks.max()
    np.testing.assert_array_equal(layer.mask(), whole_mask(layer))


@pytest.mark.parametrize(
    "rank", [{"rank": 3}, {"rank": "auto", "ratio": 1.5}], ids=["fixed", "auto"]
)
def test_executors_do_not_change_the_result(weights, rank):
    config = CompressConfig(sparsity=0.8, tile=(16, 10), **rank)
    alone = compress(weights, config)
    with ThreadPoolExecutor(3) as threads:
        assert compress(weights, config, executor=threads) == alone
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as processes:
        assert compress(weights, config, executor=processes) == alone


def test_layers_are_read_late_and_at_most_two_at_a_time(weights):
    reads, completed = [], []

    def source(name):
        def read():
            assert len(reads) - len(completed) < 2
            reads.append(name)
            return weights

        return LayerSource(name, CONFIG, read)

    with ThreadPoolExecutor(2) as threads:
        layers = compress_layers(map(source, "abcd"), executor=threads, in_flight=4)
        for name, layer in layers:
            completed.append(name)
            assert layer == compress(weights, CONFIG)
    assert sorted(completed) == reads == list("abcd")


def test_progress_is_told_tile_by_tile(weights):
    told = []
    source = LayerSource("fc", CONFIG, lambda: weights)
    list(compress_layers([source], on_tile=lambda *step: told.append(step)))
    assert told == [("fc", done, 12) for done in range(1, 13)]


def test_pending_tiles_are_cancelled_when_one_fails(weights):
    class Failing(ThreadPoolExecutor):
        futures = []  # noqa: RUF012

        def submit(self, function, /, *args):
            if len(self.futures) == 2:
                raise RuntimeError("planted")
            self.futures.append(super().submit(lambda: __import__("time").sleep(0.2)))
            return self.futures[-1]

    with Failing(1) as pool, pytest.raises(RuntimeError, match="planted"):
        compress(weights, CONFIG, executor=pool)
    assert pool.futures[1].cancelled()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"config": CompressConfig(rank=2)}, "Either a sparsity or a mask must be given"),
        ({"mask": np.ones((45, 37), dtype=bool)}, "Either a sparsity or a mask must be given"),
        (
            {"config": CompressConfig(rank=2), "mask": np.ones((4, 4), dtype=bool)},
            r"Mask must be bool of shape \(45, 37\), not bool of shape \(4, 4\)",
        ),
        ({"weights": np.ones(4)}, "Weights must have at least 2 dimensions, not 1"),
    ],
)
def test_wrong_input(weights, arguments, message):
    with pytest.raises(InputError, match=f"^{message}"):
        compress(**({"weights": weights, "config": CONFIG} | arguments))


def test_every_option_reaches_the_tiles(weights):
    """What the tiles are told is what was asked, the layer's sparsity included."""

    class Recorder(ThreadPoolExecutor):
        problems = []  # noqa: RUF012

        def submit(self, function, problem):
            self.problems.append(problem)
            return super().submit(function, problem)

    config = CompressConfig(
        sparsity=0.7, rank=5, tile=(30, 37), method=2, engine="nimfa", iterations=4, seed=9,
        effort="fast", objective="mixed",
    )  # fmt: skip
    with Recorder(1) as pool:
        layer = compress(weights, config, executor=pool)
    for number, problem in enumerate(pool.problems):
        assert problem.ranks == (5,)
        assert (problem.method, problem.engine, problem.iterations) == (2, "nimfa", 4)
        assert (problem.effort, problem.objective) == ("fast", "mixed")
        assert problem.seed == (9, number)
        assert problem.sparsity == 0.7
        exact = exact_mask(weights, 0.7)[layer.tiles.bounds(number)]
        np.testing.assert_array_equal(problem.exact, exact)
        assert problem.zeros == np.count_nonzero(~exact)
    assert (layer.method, layer.engine, layer.iterations, layer.seed) == (2, "nimfa", 4, 9)
    assert (layer.effort, layer.objective) == ("fast", "mixed")


def test_poor_tiles_with_a_sparsity_of_their_own_are_as_good_as_alone():
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((128, 64))
    weights[:64] *= 100
    config = CompressConfig(sparsity=0.6, rank=8, tile=(64, 64), sparsity_per_tile=True)
    mask = compress(weights, config).mask()[64:]
    own = exact_mask(weights[64:], 0.6)
    kept = np.abs(weights[64:])[own & mask].sum() / np.abs(weights[64:])[own].sum()
    alone = compress(weights[64:], CompressConfig(sparsity=0.6, rank=8)).kept
    assert kept > alone - 0.03


def test_convolutions_lists_and_bfloat16():
    kernel = np.random.default_rng(3).standard_normal((8, 3, 3, 3))
    layer = compress(kernel, CompressConfig(sparsity=0.5, rank=8), mask=None)
    assert (layer.shape, layer.source_shape) == ((8, 27), (8, 3, 3, 3))
    np.testing.assert_array_equal(
        layer.source_mask(), exact_mask(kernel.reshape(8, 27), 0.5).reshape(kernel.shape)
    )
    by_mask = compress(kernel, CompressConfig(rank=8), mask=np.abs(kernel) > 1)
    np.testing.assert_array_equal(by_mask.source_mask(), np.abs(kernel) > 1)
    assert (
        compress([[1.0, 2.0], [3.0, 4.0]], CompressConfig(sparsity=0.5, rank=2)).mask().sum() == 2
    )
    half = kernel.reshape(8, 27).astype(ml_dtypes.bfloat16)
    assert compress(half, CompressConfig(sparsity=0.5, rank=8)).sparsity == pytest.approx(0.5)


def test_weights_whose_sum_is_not_finite_are_refused():
    with pytest.raises(InputError, match=r"^Weights must be at most 1e\+300, so that their sum"):
        compress(np.full((3, 3), 1e308), CompressConfig(sparsity=0.5, rank=1))


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_other_float_types(weights, dtype):
    layer = compress(weights.astype(dtype), CONFIG)
    assert layer.sparsity == pytest.approx(0.8, abs=2e-3)
