"""Ranks chosen per tile: the least total Cost within a budget of index bits."""

from collections.abc import Sequence

from lrbi.errors import InputError
from lrbi.factorize import TileFactors
from lrbi.tiles import TileGrid

_STEPS = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0)


def bit_budget(grid: TileGrid, ratio: float) -> int:
    """The most index bits with which the layer still meets an index ratio m*n / bits."""
    size = grid.shape[0] * grid.shape[1]
    bits = int(min(size / ratio, 1 << 62)) + 1
    while bits and size / bits < ratio:
        bits -= 1
    return bits


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


def candidate_ranks(uniform: int, richness: float, size: tuple[int, int]) -> tuple[int, ...]:
    """The ranks that a tile is tried at, ascending.

    They are the rank that would do if it were the same everywhere, and a quarter to three times
    the rank that the tile would have if ranks followed ``richness``: the share of its weights that
    are kept, against that of the layer. Ranks past the tile's smaller side stand for nothing more:
    there the mask is exact.
    """
    wanted = {round(step * richness * uniform) for step in _STEPS} | {uniform}
    return tuple(sorted({min(max(1, rank), *size, 65535) for rank in wanted}))


def choose_ranks(
    grid: TileGrid, ratio: float, tiles: Sequence[tuple[TileFactors, ...]]
) -> list[TileFactors]:
    """One of the factorizations of each tile, so that the layer meets the index ratio.

    A multiple-choice knapsack. From the smallest choice everywhere, the step that saves most Cost
    a bit is taken as long as one fits, along the lower convex hull of each tile's choices: at the
    budget where the steps run out this is the optimum, and it is never further from it than one
    step. What is left then buys single steps off the hull. It is no worse than the same rank in
    every tile, which is tried too. O(tiles * choices * log(tiles)).
    """
    budget = bit_budget(grid, ratio)
    choices = [
        [(factors.rank * sum(size), factors.cost) for factors in options]
        for options, size in zip(tiles, grid.sizes(), strict=True)
    ]
    picks = [_hull(points)[0] for points in choices]
    left = budget - sum(points[pick][0] for points, pick in zip(choices, picks, strict=True))
    for _, tile, before, after in sorted(
        (_slope(points, before, after), tile, before, after)
        for tile, points in enumerate(choices)
        for before, after in zip(_hull(points), _hull(points)[1:], strict=False)
    ):
        price = choices[tile][after][0] - choices[tile][before][0]
        if picks[tile] == before and price <= left:
            picks[tile] = after
            left -= price
    for tile, points in enumerate(choices):
        bits = points[picks[tile]][0]
        affordable = [index for index, point in enumerate(points) if point[0] - bits <= left]
        picks[tile] = min(affordable, key=lambda index: (points[index][1], points[index][0]))
        left -= points[picks[tile]][0] - bits
    chosen = [options[pick] for options, pick in zip(tiles, picks, strict=True)]
    rank = uniform_rank(grid, ratio)
    uniform = [[item for item in options if item.rank <= rank][-1] for options in tiles]
    return min(chosen, uniform, key=lambda items: sum(item.cost for item in items))


def _slope(points: list[tuple[int, float]], before: int, after: int) -> float:
    """Cost a bit of going from one choice to another; negative where it saves Cost."""
    return (points[after][1] - points[before][1]) / (points[after][0] - points[before][0])


def _hull(points: list[tuple[int, float]]) -> list[int]:
    """The choices on the lower convex hull from the fewest bits to the least Cost."""
    hull: list[int] = []
    for index in sorted(range(len(points)), key=lambda index: points[index]):
        if hull and points[index][1] >= points[hull[-1]][1]:
            continue  # more bits, or as many, for no less Cost
        while len(hull) > 1 and _slope(points, hull[-2], hull[-1]) >= _slope(
            points, hull[-1], index
        ):
            hull.pop()
        hull.append(index)
    return hull
