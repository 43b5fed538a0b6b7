"""A compressed layer: the factors of its tiles, and what they cost."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lrbi.arrays import Bits, Packed
from lrbi.config import METHODS
from lrbi.errors import InputError
from lrbi.layout import pack_rows, pad_bits_are_zero, row_bytes, unpack_rows
from lrbi.product import decode_tiles
from lrbi.tiles import TileGrid

SEARCH = {"effort": "fast", "objective": "paper"}
"""Metadata that a file leaves out where they are these."""


@dataclass(frozen=True, kw_only=True, eq=False)
class CompressedLayer:
    """The factors of one layer, tile by tile, padded to whole tiles with zeros."""

    shape: tuple[int, int]
    """Rows m and columns n of the weight matrix."""
    source_shape: tuple[int, ...]
    """Shape that the weights had in their file; a matrix, or a convolution's four dimensions."""
    transposed: bool = False
    """Whether the matrix is the transpose of the weights as they were in their file."""
    tile: tuple[int, int]
    """Rows R and columns C of a tile."""
    row_factors: Packed
    """I_p of every tile: (tiles, R, ceil(k/8)) bytes."""
    col_factors: Packed
    """I_z of every tile: (tiles, k, ceil(C/8)) bytes."""
    ranks: NDArray[np.uint16]
    """Rank that each tile uses: (tiles,)."""
    sparsity_target: float
    """Sparsity S asked for."""
    sparsity: float
    """Sparsity S_a of the mask."""
    cost: float
    """The paper's Cost against the exact mask."""
    kept: float
    """Share of the exact mask's magnitude that the mask keeps: 1 - cost / magnitude."""
    method: int
    """Weight manipulation, 1, 2 or 3."""
    engine: str
    """NMF engine."""
    iterations: int
    """Iterations of the engine."""
    sparsity_per_tile: bool
    """Whether every tile was pruned to S by itself."""
    seed: int
    """Seed of everything random."""
    effort: str = SEARCH["effort"]
    """How long was searched; Algorithm 1 alone is ``fast``."""
    objective: str = SEARCH["objective"]
    """Which magnitude the mask was to keep."""

    def __post_init__(self) -> None:
        _check(self)
        for name in ("row_factors", "col_factors", "ranks"):
            view = getattr(self, name).view()
            view.flags.writeable = False  # of the view: the caller's array stays as it is
            object.__setattr__(self, name, view)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CompressedLayer):
            return NotImplemented
        return self.metadata() == other.metadata() and all(
            np.array_equal(mine, theirs)
            for mine, theirs in zip(self.tensors().values(), other.tensors().values(), strict=True)
        )

    __hash__ = None  # type: ignore[assignment]

    @property
    def rank(self) -> int:
        """The layer's rank k: the largest of its tiles' ranks, and at least 1."""
        return self.col_factors.shape[1]

    @property
    def tiles(self) -> TileGrid:
        """How the layer is cut."""
        return TileGrid(self.shape, self.tile)

    @property
    def index_bits(self) -> int:
        """Size of the index as the paper counts it: rank * (rows + columns) of every tile."""
        sizes = zip(self.ranks.tolist(), self.tiles.sizes(), strict=True)
        return sum(rank * (rows + cols) for rank, (rows, cols) in sizes)

    @property
    def rom_bits(self) -> int:
        """Bits in the factor ROMs, one row a word, padding included."""
        return len(self.tiles) * self.rank * sum(self.tile)

    @property
    def ratio(self) -> float:
        """Index compression ratio m*n / index_bits; infinite where no rank is used."""
        return math.prod(self.shape) / self.index_bits if self.index_bits else math.inf

    def packed_mask(self) -> Packed:
        """The mask I_a as packed rows: m x ceil(n/8) bytes."""
        return decode_tiles(self.row_factors, self.col_factors, self.tiles)

    def mask(self) -> Bits:
        """The mask I_a: m x n, True where the weight is kept."""
        return unpack_rows(self.packed_mask(), self.shape[1])

    def source_mask(self) -> Bits:
        """The mask in the shape that the weights had in their file."""
        mask = self.mask()
        return (mask.T if self.transposed else mask).reshape(self.source_shape)

    def factors(self, tile: int) -> tuple[Bits, Bits]:
        """I_p (rows x rank) and I_z (rank x columns) of one tile, without padding."""
        rank = int(self.ranks[tile])
        rows, cols = self.tiles.size(tile)
        return (
            unpack_rows(self.row_factors[tile, :rows], self.rank)[:, :rank],
            unpack_rows(self.col_factors[tile, :rank], cols),
        )

    def tensors(self) -> dict[str, NDArray[Any]]:
        """The arrays that a factor file holds of this layer."""
        return {"ip": self.row_factors, "iz": self.col_factors, "rank": self.ranks}

    def metadata(self) -> dict[str, Any]:
        """What a factor file says of this layer beside its arrays."""
        return {
            "shape": list(self.shape),
            "source_shape": list(self.source_shape),
            "transposed": self.transposed,
            "tile": list(self.tile),
            "grid": list(self.tiles.grid),
            "rank": self.rank,
            "sparsity_target": self.sparsity_target,
            "sparsity": self.sparsity,
            "sparsity_per_tile": self.sparsity_per_tile,
            "cost": self.cost,
            "kept": self.kept,
            "method": self.method,
            "engine": self.engine,
            "iterations": self.iterations,
            "seed": self.seed,
            **{name: value for name, value in self._search().items() if value != SEARCH[name]},
        }

    def _search(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in SEARCH}

    def summary(self) -> dict[str, Any]:
        """What ``lrbi show`` tells: the metadata, and the sizes that follow from it."""
        return (
            self.metadata()
            | self._search()
            | {
                "index_bits": self.index_bits,
                "rom_bits": self.rom_bits,
                "ratio": self.ratio if self.index_bits else None,
            }
        )


def _check(layer: CompressedLayer) -> None:
    """Refuse a layer whose parts do not fit together: decoders rely on every one of these."""
    (rows, cols), (tile_rows, tile_cols) = layer.shape, layer.tile
    if min(rows, cols) < 1:
        raise InputError(f"Layer shape must be at least 1x1, not {rows}x{cols}")
    sides = layer.source_shape
    if not 1 <= len(sides) <= 64 or min(sides) < 1 or math.prod(sides) != rows * cols:
        raise InputError(
            f"Source shape must hold {rows} x {cols} weights, but is {list(layer.source_shape)}"
        )
    count, rank = len(layer.tiles), max(1, int(layer.ranks.max(initial=0)))
    expected: dict[str, tuple[Any, tuple[int, ...]]] = {
        "ip": (np.uint8, (count, tile_rows, row_bytes(rank))),
        "iz": (np.uint8, (count, rank, row_bytes(tile_cols))),
        "rank": (np.uint16, (count,)),
    }
    for name, array in layer.tensors().items():
        dtype, shape = expected[name]
        if array.dtype != dtype or array.shape != shape:
            raise InputError(
                f"Factor {name} must be {np.dtype(dtype)} of shape {shape}, "
                f"not {array.dtype} of shape {array.shape}"
            )
    for name in ("sparsity_target", "sparsity", "cost", "kept"):
        value = getattr(layer, name)
        if not math.isfinite(value) or value < 0 or (name != "cost" and value > 1):
            raise InputError(f"Layer {name} must be a share or a magnitude, not {value}")
    if layer.method not in METHODS:
        raise InputError(f"Method must be 1, 2 or 3, not {layer.method!r}")
    for name in ("engine", "effort", "objective"):
        value = getattr(layer, name)
        if not (value.isascii() and value.isprintable()):
            raise InputError(f"{name.capitalize()} must be a name, not {value!r}")
    if layer.iterations < 1 or layer.seed < 0:
        raise InputError("Iterations must be at least 1, and the seed at least 0")
    if not _padding_is_zero(layer):
        raise InputError("Factor bits beyond a tile's rows, columns or rank must be zero")


def _padding_is_zero(layer: CompressedLayer) -> bool:
    """Whether all bits that stand for nothing are zero: edges, unused ranks, the tops of bytes."""
    down, across = layer.tiles.grid
    last_rows, last_cols = layer.tiles.size(len(layer.tiles) - 1)
    row_factors = layer.row_factors.reshape(down, across, *layer.row_factors.shape[1:])
    col_factors = layer.col_factors.reshape(down, across, *layer.col_factors.shape[1:])
    if row_factors[-1, :, last_rows:].any():
        return False
    whole_bytes = row_bytes(last_cols)
    edge = col_factors[:, -1]
    if edge[..., whole_bytes:].any() or not pad_bits_are_zero(edge[..., :whole_bytes], last_cols):
        return False
    if not pad_bits_are_zero(layer.col_factors, layer.tile[1]):
        return False
    unused = np.arange(layer.rank) >= layer.ranks[:, np.newaxis]
    if layer.col_factors[unused].any():
        return False
    used = pack_rows(~unused)
    return not (layer.row_factors & ~used[:, np.newaxis]).any()
