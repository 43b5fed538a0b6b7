import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lrbi.allocate import bit_budget, candidate_ranks, choose_ranks, uniform_rank
from lrbi.errors import InputError
from lrbi.factorize import TileFactors
from lrbi.tiles import TileGrid


def tile(rank, cost):
    empty = np.zeros((0, 0), dtype=np.uint8)
    return TileFactors(empty, empty, rank=rank, ones=0, cost=cost, magnitude=1.0)


def bits(tiles, grid):
    return sum(item.rank * sum(size) for item, size in zip(tiles, grid.sizes(), strict=True))


@given(st.integers(0, 2**32 - 1))
def test_choice_is_the_cheapest_of_all_within_the_budget(seed):
    rng = np.random.default_rng(seed)
    grid = TileGrid((20, 25), (10, 10))  # six tiles, two of them narrow
    ratio = 500 / (4 * 110) * 0.999
    assert uniform_rank(grid, ratio) == 4
    options = [
        tuple(
            tile(rank, cost) for rank, cost in zip((2, 4, 6), -np.sort(-rng.random(3)), strict=True)
        )
        for _ in range(len(grid))
    ]
    chosen = choose_ranks(grid, ratio, options)
    affordable = (
        combination
        for combination in itertools.product(*options)
        if bits(combination, grid) <= bit_budget(grid, ratio)
    )
    best = min(sum(item.cost for item in combination) for combination in affordable)
    assert bits(chosen, grid) <= bit_budget(grid, ratio)
    assert sum(item.cost for item in chosen) == pytest.approx(best, rel=1e-5)


def test_candidates_hold_the_uniform_rank_and_stop_at_the_tile():
    grid = TileGrid((100, 100), (50, 50))
    ratio = 10000 / (400 * 12)
    assert uniform_rank(grid, ratio) == 12
    assert candidate_ranks(grid, ratio) == (3, 6, 9, 12, 15, 18, 24, 36)
    assert candidate_ranks(TileGrid((100, 100), (10, 50)), ratio)[-1] == 10


def test_ratio_out_of_reach():
    message = r"^Ratio must be at most 25 with tiles of 50x50, not 30 \(take larger tiles\)$"
    with pytest.raises(InputError, match=message):
        uniform_rank(TileGrid((100, 100), (50, 50)), 30)
