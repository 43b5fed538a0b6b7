"""Ranks chosen per tile: the least total Cost within a budget of index bits."""

from collections.abc import Sequence

import numpy as np

from lrbi.errors import InputError
from lrbi.factorize import TileFactors
from lrbi.tiles import TileGrid

_STEPS = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0)


def bit_budget(grid: TileGrid, ratio: float) -> int:
    """Index bits that an index ratio m*n / bits leaves for the layer."""
    return int(grid.shape[0] * grid.shape[1] / ratio)


def uniform_rank(grid: TileGrid, ratio: float) -> int:
    """The largest rank that, the same in every tile, meets the index ratio."""
    per_rank = sum(rows + cols for rows, cols in grid.sizes())
    rank = bit_budget(grid, ratio) // per_rank
    if rank < 1:
        most = grid.shape[0] * grid.shape[1] / per_rank
        raise InputError(
            f"Ratio must be at most {most:.4g} with tiles of {grid.tile[0]}x{grid.tile[1]}, "
            f"not {ratio:g} (take larger tiles)"
        )
    return rank


def candidate_ranks(grid: TileGrid, ratio: float) -> tuple[int, ...]:
    """The ranks that every tile is tried at, ascending: a quarter to three times the uniform one.

    Ranks past the smaller side of a tile stand for nothing more: there the mask is exact.
    """
    uniform = uniform_rank(grid, ratio)
    most = min(65535, max(min(size) for size in grid.sizes()))
    return tuple(sorted({min(max(1, round(step * uniform)), most) for step in _STEPS}))


def choose_ranks(
    grid: TileGrid, ratio: float, tiles: Sequence[tuple[TileFactors, ...]]
) -> list[TileFactors]:
    """One of the factorizations of each tile, so that the layer meets the index ratio.

    A multiple-choice knapsack, solved to the least total Cost by branch and bound; it never does
    worse than the same rank everywhere, which is among the choices.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import block_diag, csr_array, vstack

    bits = np.array(
        [
            _bits(tile, size)
            for options, size in zip(tiles, grid.sizes(), strict=True)
            for tile in options
        ]
    )
    costs = np.array([tile.cost for options in tiles for tile in options])
    budget = bit_budget(grid, ratio)
    one_each = block_diag([np.ones((1, len(options))) for options in tiles], format="csr")
    solution = milp(
        costs / (costs.max() or 1.0),
        integrality=np.ones_like(costs),
        bounds=Bounds(0, 1),
        constraints=LinearConstraint(
            vstack([csr_array(bits[np.newaxis] / budget), one_each]).tocsc(),
            np.concatenate([[-np.inf], np.ones(len(tiles))]),
            np.concatenate([[1.0], np.ones(len(tiles))]),
        ),
        options={"mip_rel_gap": 1e-6, "node_limit": 10_000},
    )
    uniform = [_at_most(options, uniform_rank(grid, ratio)) for options in tiles]
    if solution.x is None:
        return uniform
    picks, start = [], 0
    for options in tiles:
        picks.append(options[int(np.argmax(solution.x[start : start + len(options)]))])
        start += len(options)
    spent = sum(_bits(tile, size) for tile, size in zip(picks, grid.sizes(), strict=True))
    cheaper = sum(tile.cost for tile in picks) <= sum(tile.cost for tile in uniform)
    return picks if spent <= budget and cheaper else uniform


def _bits(tile: TileFactors, size: tuple[int, int]) -> int:
    return tile.rank * sum(size)


def _at_most(options: tuple[TileFactors, ...], rank: int) -> TileFactors:
    return [tile for tile in options if tile.rank <= rank][-1]
