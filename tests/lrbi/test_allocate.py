import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lrbi import CompressConfig, compress
from lrbi.allocate import bit_budget, candidate_ranks, choose_ranks, uniform_rank
from lrbi.errors import InputError
from lrbi.factorize import TileFactors
from lrbi.tiles import TileGrid


def tile(rank, cost):
    empty = np.zeros((0, 0), dtype=np.uint8)
    return TileFactors(empty, empty, rank=rank, ones=0, cost=cost, magnitude=1.0)


def bits(tiles, grid):
    return sum(item.rank * sum(size) for item, size in zip(tiles, grid.sizes(), strict=True))


def choices(rng, count, ranks=(2, 4, 6)):
    """Falling costs at ascending ranks for each tile."""
    return [tuple(map(tile, ranks, -np.sort(-rng.random(len(ranks))))) for _ in range(count)]


def cost(tiles):
    return sum(item.cost for item in tiles)


@given(st.integers(0, 2**32 - 1))
def test_choice_is_within_one_step_of_the_best_of_all(seed):
    grid = TileGrid((20, 25), (10, 10))  # six tiles, two of them narrow
    ratio = 500 / (4 * 110)
    assert uniform_rank(grid, ratio) == 4
    options = choices(np.random.default_rng(seed), len(grid))
    chosen = choose_ranks(grid, ratio, options)
    affordable = [
        combination
        for combination in itertools.product(*options)
        if bits(combination, grid) <= bit_budget(grid, ratio)
    ]
    assert bits(chosen, grid) <= bit_budget(grid, ratio)
    step = max(item[0].cost - item[-1].cost for item in options)
    assert cost(chosen) <= min(map(cost, affordable)) + step
    assert cost(chosen) <= cost(item[1] for item in options)  # rank 4 everywhere


def test_choice_is_the_best_where_steps_fill_the_budget():
    """Two tiles whose second rank pays, two whose does not, and bits for two."""
    grid = TileGrid((40, 10), (10, 10))
    rich, poor = (tile(1, 9.0), tile(3, 1.0)), (tile(1, 3.0), tile(3, 2.9))
    chosen = choose_ranks(grid, 400 / (8 * 20), [poor, rich, rich, poor])
    assert [item.rank for item in chosen] == [1, 3, 3, 1]


def test_a_choice_off_the_hull_is_taken_when_it_is_what_fits():
    """Rank 2 lies above the line from 1 to 5, but rank 5 does not fit."""
    grid = TileGrid((20, 10), (10, 10))
    options = (tile(1, 10.0), tile(2, 9.5), tile(5, 1.0))
    chosen = choose_ranks(grid, 200 / (4 * 20), [options, options])
    assert [item.rank for item in chosen] == [2, 2]


def test_a_higher_rank_that_costs_more_is_never_chosen():
    grid = TileGrid((10, 10), (10, 10))
    chosen = choose_ranks(grid, 100 / (9 * 20), [(tile(1, 5.0), tile(4, 2.0), tile(9, 3.0))])
    assert chosen[0].rank == 4


def test_thousands_of_tiles():
    grid = TileGrid((3200, 3200), (50, 50))
    options = choices(np.random.default_rng(0), len(grid), ranks=(3, 6, 9, 12, 15, 18))
    chosen = choose_ranks(grid, 2500 / (9 * 100), options)
    assert bits(chosen, grid) <= bit_budget(grid, 2500 / (9 * 100))
    assert cost(chosen) < 0.8 * cost(item[2] for item in options)


@pytest.mark.parametrize("rank", range(1, 60))
def test_the_ratio_of_a_rank_gives_that_rank(rank):
    grid = TileGrid((500, 800), (100, 100))
    ratio = 400_000 / (rank * 40 * 200)
    assert bit_budget(grid, ratio) == rank * 40 * 200
    assert uniform_rank(grid, ratio) == rank


def test_candidates_follow_richness_hold_the_uniform_rank_and_stop_at_the_tile():
    assert candidate_ranks(12, 1.0, (50, 50)) == (3, 6, 9, 12, 15, 18, 24, 36)
    assert candidate_ranks(12, 2.0, (50, 60)) == (6, 12, 18, 24, 30, 36, 48, 50)
    assert candidate_ranks(12, 0.0, (50, 50)) == (1, 12)
    assert candidate_ranks(12, 1.0, (10, 50)) == (3, 6, 9, 10)


def test_one_rich_tile_among_empty_ones_gets_what_it_needs():
    weights = np.zeros((400, 400))
    weights[:100, 100:200] = np.random.default_rng(0).standard_normal((100, 100))
    weights[np.random.default_rng(1).random((400, 400)) > 0.3] = 0
    config = CompressConfig(rank="auto", ratio=10, tile=(100, 100))
    layer = compress(weights, config, mask=weights != 0)
    assert layer.ratio >= 10
    assert layer.kept > 0.9
    assert (layer.ranks > 0).sum() == 1


def test_ratio_out_of_reach():
    message = r"^Ratio must be at most 25 with tiles of 50x50, not 30 \(take larger tiles\)$"
    with pytest.raises(InputError, match=message):
        uniform_rank(TileGrid((100, 100), (50, 50)), 30)
