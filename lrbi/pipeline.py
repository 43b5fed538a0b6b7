"""From weights to compressed layers: plan tiles, run them anywhere, put them together."""

import math
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from lrbi.allocate import candidate_ranks, choose_ranks, uniform_rank
from lrbi.arrays import Bits, Floats
from lrbi.config import CompressConfig
from lrbi.errors import InputError
from lrbi.factorize import TileFactors, TileProblem, factorize
from lrbi.layer import CompressedLayer
from lrbi.layout import row_bytes
from lrbi.prune import check_weights, magnitude_mask, zeros_at
from lrbi.tiles import TileGrid
from lrbi.weights import as_mask, as_matrix, plain_floats


@dataclass(frozen=True)
class LayerSource:
    """A layer to compress. Its weights are read only when its turn comes, then let go."""

    name: str
    """Name of the layer in the factor file."""
    config: CompressConfig
    """How to compress it."""
    weights: Callable[[], Floats]
    """Reads the weight matrix, m x n."""
    mask: Callable[[Floats], Bits] | None = None
    """The exact mask, m x n, of a layer that is pruned already, given its weights."""
    source_shape: tuple[int, ...] | None = None
    """Shape of the weights in their file; None for the matrix's own."""
    transposed: bool = False
    """Whether the matrix is the transpose of the weights in their file."""


class TileStore(Protocol):
    """Keeps finished tiles, so that interrupted work can go on where it stopped."""

    def open(self, layer: int, source: LayerSource, weights: Floats, mask: Bits | None) -> None:
        """Begin a layer: what is kept of it must have come from this input."""

    def load(self, layer: int, tile: int) -> tuple[TileFactors, ...] | None:
        """A finished tile, or None."""

    def save(self, layer: int, tile: int, factors: tuple[TileFactors, ...]) -> None:
        """Keep a finished tile."""


OnTile = Callable[[str, int, int], None]
"""Called with a layer's name, how many of its tiles are done, and how many it has."""


def compress(
    weights: ArrayLike,
    config: CompressConfig,
    *,
    mask: ArrayLike | None = None,
    executor: Executor | None = None,
    in_flight: int = 32,
    on_tile: "OnTile | None" = None,
) -> CompressedLayer:
    """Compress one layer's weights into the factors of a low-rank mask.

    ``weights`` is a matrix, or a convolution's (out, in, kh, kw), taken as (out, in*kh*kw).
    ``mask`` is the exact mask of weights that are pruned already, instead of a sparsity.
    ``executor`` runs the tiles, any :class:`concurrent.futures.Executor`, with at most
    ``in_flight`` of them out at a time; the result is the same. ``on_tile`` is told of progress.
    """
    tensor = plain_floats(np.asarray(weights))
    matrix = as_matrix(tensor)
    given = None if mask is None else as_matrix(as_mask(np.asarray(mask)))
    source = LayerSource(
        name="",
        config=config,
        weights=lambda: matrix,
        mask=None if given is None else lambda _: given,
        source_shape=tensor.shape,
    )
    [(_, layer)] = compress_layers(
        [source], executor=executor, in_flight=in_flight, on_tile=on_tile
    )
    return layer


def compress_layers(
    sources: Iterable[LayerSource],
    *,
    executor: Executor | None = None,
    in_flight: int = 32,
    store: TileStore | None = None,
    on_tile: OnTile | None = None,
) -> Iterator[tuple[str, CompressedLayer]]:
    """Compress several layers, each given back as it completes.

    Tiles of all layers go through one queue with at most ``in_flight`` of them out at a time, so
    that small layers keep all workers busy and no more than two layers' weights are in memory.
    """
    plans: dict[int, _Plan] = {}

    def problems() -> Iterator[tuple[_Key, TileProblem]]:
        for number, source in enumerate(sources):
            try:
                weights = source.weights()
                mask = source.mask(weights) if source.mask else None
                plan = plans[number] = _plan(source, weights, mask)
            except InputError as error:
                raise InputError(
                    f"Layer {source.name}: {error}" if source.name else error
                ) from error
            if store is not None:
                store.open(number, source, weights, mask)
            for tile, problem in _tile_problems(plan, weights, mask):
                yield (number, tile), problem
            del weights, mask  # before the next layer's are read

    for (number, tile), factors in _solve(problems(), executor, in_flight, store):
        plan = plans[number]
        plan.results[tile] = factors
        if on_tile:
            on_tile(plan.source.name, len(plan.results), len(plan.grid))
        if len(plan.results) == len(plan.grid):
            del plans[number]
            yield plan.source.name, _assemble(plan)


_Key: TypeAlias = tuple[int, int]  # layer, tile


@dataclass
class _Plan:
    """A layer under way."""

    source: LayerSource
    grid: TileGrid
    sparsity: float
    results: dict[int, tuple[TileFactors, ...]]


def _plan(source: LayerSource, weights: Floats, mask: Bits | None) -> _Plan:
    """Check a layer's input, and settle what holds for all its tiles."""
    config = source.config
    check_weights(weights)
    if (mask is None) == (config.sparsity is None):
        raise InputError("Either a sparsity or a mask must be given, not both or neither")
    if mask is not None and (mask.shape != weights.shape or mask.dtype != np.bool_):
        raise InputError(
            f"Mask must be bool of shape {weights.shape}, not {mask.dtype} of shape {mask.shape}"
        )
    rows, cols = weights.shape
    grid = TileGrid((rows, cols), config.tile or (rows, cols))
    sparsity = config.sparsity
    if mask is not None:
        sparsity = np.count_nonzero(~mask) / mask.size
    assert sparsity is not None
    return _Plan(source, grid, sparsity, {})


def _tile_problems(
    plan: _Plan, weights: Floats, mask: Bits | None
) -> Iterator[tuple[int, TileProblem]]:
    config = plan.source.config
    exact = mask
    if exact is None:
        exact = magnitude_mask(weights, zeros_at(plan.sparsity, weights.size))
    uniform = None if config.ratio is None else uniform_rank(plan.grid, config.ratio)
    for tile in range(len(plan.grid)):
        bounds = plan.grid.bounds(tile)
        exact_tile = exact[bounds]
        if config.sparsity_per_tile:
            zeros = zeros_at(plan.sparsity, exact_tile.size)
        else:
            zeros = exact_tile.size - int(np.count_nonzero(exact_tile))
        if uniform is None:
            ranks: tuple[int, ...] = (int(config.rank),)
        else:
            kept, of_layer = 1 - zeros / exact_tile.size, 1 - plan.sparsity
            ranks = candidate_ranks(uniform, kept / of_layer if of_layer else 1, exact_tile.shape)
        yield (
            tile,
            TileProblem(
                weights=np.ascontiguousarray(weights[bounds]),
                exact=np.ascontiguousarray(exact_tile),
                zeros=zeros,
                sparsity=plan.sparsity,
                ranks=ranks,
                method=config.method,
                engine=config.engine,
                iterations=config.iterations,
                effort=config.effort,
                objective=config.objective,
                seed=(config.seed, tile),
            ),
        )


def _solve(
    problems: Iterable[tuple[_Key, TileProblem]],
    executor: Executor | None,
    in_flight: int,
    store: TileStore | None,
) -> Iterator[tuple[_Key, tuple[TileFactors, ...]]]:
    """Each tile's factors, in the order in which they become known."""
    pending: dict[Future[tuple[TileFactors, ...]], _Key] = {}

    def finished() -> Iterator[tuple[_Key, tuple[TileFactors, ...]]]:
        for future in wait(pending, return_when=FIRST_COMPLETED).done:
            key, factors = pending.pop(future), future.result()
            if store is not None:
                store.save(*key, factors)
            yield key, factors

    try:
        for key, problem in problems:
            if store is not None and (factors := store.load(*key)) is not None:
                yield key, factors
                continue
            pending[_submit(executor, problem)] = key
            while len(pending) >= (1 if executor is None else in_flight):
                yield from finished()
        while pending:
            yield from finished()
    finally:
        for future in pending:
            future.cancel()


def _submit(executor: Executor | None, problem: TileProblem) -> Future[tuple[TileFactors, ...]]:
    """A future of the tile's factors; without an executor, one that is already done."""
    if executor is not None:
        return executor.submit(factorize, problem)
    future: Future[tuple[TileFactors, ...]] = Future()
    future.set_result(factorize(problem))
    return future


def _assemble(plan: _Plan) -> CompressedLayer:
    config, grid = plan.source.config, plan.grid
    options = [plan.results[tile] for tile in range(len(grid))]
    if config.ratio is None:
        tiles = [factors for (factors,) in options]
    else:
        tiles = choose_ranks(grid, config.ratio, options)
    rank = max(1, *(tile.rank for tile in tiles))
    row_factors = np.zeros((len(tiles), grid.tile[0], row_bytes(rank)), dtype=np.uint8)
    col_factors = np.zeros((len(tiles), rank, row_bytes(grid.tile[1])), dtype=np.uint8)
    for index, tile in enumerate(tiles):
        rows, row_width = tile.row_factor.shape
        ranks, col_width = tile.col_factor.shape
        row_factors[index, :rows, :row_width] = tile.row_factor
        col_factors[index, :ranks, :col_width] = tile.col_factor
    size = grid.shape[0] * grid.shape[1]
    cost = math.fsum(tile.cost for tile in tiles)
    magnitude = math.fsum(tile.magnitude for tile in tiles)
    return CompressedLayer(
        shape=grid.shape,
        source_shape=plan.source.source_shape or grid.shape,
        transposed=plan.source.transposed,
        tile=grid.tile,
        row_factors=row_factors,
        col_factors=col_factors,
        ranks=np.array([tile.rank for tile in tiles], dtype=np.uint16),
        sparsity_target=plan.sparsity,
        sparsity=(size - sum(tile.ones for tile in tiles)) / size,
        cost=cost,
        kept=max(0.0, 1.0 - cost / magnitude) if magnitude else 1.0,
        method=config.method,
        engine=config.engine,
        iterations=config.iterations,
        sparsity_per_tile=config.sparsity_per_tile,
        seed=config.seed,
        effort=config.effort,
        objective=config.objective,
    )
