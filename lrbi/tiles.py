"""How a layer is cut into tiles."""

from collections.abc import Iterator
from dataclasses import dataclass

from lrbi.errors import InputError


@dataclass(frozen=True)
class TileGrid:
    """The tiles of an (m, n) layer, numbered row by row.

    Tiles at the right and bottom edge may be smaller; a layer smaller than its tile has one tile.
    """

    shape: tuple[int, int]
    """Rows and columns of the layer."""
    tile: tuple[int, int]
    """Rows and columns of a whole tile."""

    def __post_init__(self) -> None:
        if min(self.tile) < 1:
            raise InputError(f"Tile must be at least 1x1, not {self.tile[0]}x{self.tile[1]}")

    @property
    def grid(self) -> tuple[int, int]:
        """Tiles down and across."""
        return (-(-self.shape[0] // self.tile[0]), -(-self.shape[1] // self.tile[1]))

    def __len__(self) -> int:
        return self.grid[0] * self.grid[1]

    def bounds(self, index: int) -> tuple[slice, slice]:
        """The rows and columns of the layer that tile ``index`` covers."""
        down, across = divmod(index, self.grid[1])
        top, left = down * self.tile[0], across * self.tile[1]
        return (
            slice(top, min(top + self.tile[0], self.shape[0])),
            slice(left, min(left + self.tile[1], self.shape[1])),
        )

    def size(self, index: int) -> tuple[int, int]:
        """Rows and columns of tile ``index`` without padding."""
        rows, cols = self.bounds(index)
        return (rows.stop - rows.start, cols.stop - cols.start)

    def sizes(self) -> Iterator[tuple[int, int]]:
        """The size of every tile, in order."""
        return (self.size(index) for index in range(len(self)))
