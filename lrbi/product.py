"""The Boolean product ``I_a = I_p (x) I_z``: its definition, and a fast way to the same bits."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lrbi.arrays import Bits, Packed
from lrbi.layout import pack_rows, row_bytes, unpack_rows
from lrbi.tiles import TileGrid

_TABLE_BYTES = 1 << 18  # OR tables built together: as many as a second-level cache holds


def boolean_product(row_factor: Bits, col_factor: Bits) -> Bits:
    """I_a (m x n) of I_p (m x k) and I_z (k x n), straight from the paper's Eq. 3.

    (I_a)_ij = OR over l of (I_p)_il AND (I_z)_lj. This is what all else is compared with.
    """
    mask = np.zeros((row_factor.shape[0], col_factor.shape[1]), dtype=np.bool_)
    for rank in range(row_factor.shape[1]):
        mask |= row_factor[:, rank, np.newaxis] & col_factor[rank]
    return mask


def decode_tiles(row_factors: Packed, col_factors: Packed, grid: TileGrid) -> Packed:
    """Packed mask rows, m x ceil(n/8) bytes, of a layer from the packed factors of its tiles.

    ``row_factors`` is (tiles, R, ceil(k/8)), ``col_factors`` (tiles, k, ceil(C/8)), padding zero.

    A byte of an I_p row names eight ranks at once, so it is an index into a table of the 2^8 ORs
    of the eight I_z rows behind it: a mask row is the OR of ceil(k/8) table rows. The tables of
    many tiles are built at once, entry by entry, in 64-bit words.
    """
    (down, across), tile_rows = grid.grid, grid.tile[0]
    groups = row_factors.shape[2]
    words, offsets = _word_rows(col_factors, grid, groups)
    word_count = words.shape[-1]
    index = row_factors.reshape(down, across, tile_rows, groups)
    out = np.zeros((grid.shape[0], row_bytes(grid.shape[1])), dtype=np.uint8)
    band = max(1, _TABLE_BYTES // (256 * across * groups * word_count * 8))
    for first in range(0, down, band):
        last = min(first + band, down)
        tables = (last - first) * across * groups
        # Entry-major, so that each of the eight doublings is one long contiguous OR.
        seeds = words[first:last].transpose(3, 0, 1, 2, 4).reshape(8, tables * word_count)
        table = np.empty((256, tables * word_count), dtype=np.uint64)
        table[0] = 0
        for bit in range(8):
            half = 1 << bit
            np.bitwise_or(table[:half], seeds[bit], out=table[half : 2 * half])
        table = table.reshape(256 * tables, word_count)
        entry = index[first:last].astype(np.intp)
        entry *= tables
        entry += np.arange(tables).reshape(last - first, across, 1, groups)
        rows = table.take(entry[..., 0].ravel(), axis=0, mode="clip")
        for group in range(1, groups):
            rows |= table.take(entry[..., group].ravel(), axis=0, mode="clip")
        blocks = rows.view(np.uint8).reshape(last - first, across, tile_rows, 8 * word_count)
        _place(blocks, offsets, out[first * tile_rows : last * tile_rows])
    return out


def _word_rows(
    col_factors: Packed, grid: TileGrid, groups: int
) -> tuple[NDArray[np.uint64], list[int]]:
    """I_z rows as 64-bit words, (down, across, groups, 8, words), and each tile column's byte.

    A tile whose first column does not start a byte has its rows shifted up to that column's bit,
    so that decoded rows can be ORed into the mask byte by byte.
    """
    (down, across), columns = grid.grid, grid.tile[1]
    rank, packed_bytes = col_factors.shape[1:]
    starts = [tile * columns for tile in range(across)]
    shifted = any(start % 8 for start in starts)
    word_count = -(-(columns + 7 * shifted) // 64)
    rows = np.zeros((down, across, groups * 8, 8 * word_count), dtype=np.uint8)
    source = col_factors.reshape(down, across, rank, packed_bytes)
    if not shifted:
        rows[:, :, :rank, :packed_bytes] = source
    else:
        bits = unpack_rows(source, columns)
        wide = np.zeros((down, across, rank, 64 * word_count), dtype=np.bool_)
        for tile, start in enumerate(starts):
            wide[:, tile, :, start % 8 : start % 8 + columns] = bits[:, tile]
        rows[:, :, :rank] = pack_rows(wide)
    words = rows.view(np.uint64).reshape(down, across, groups, 8, word_count)
    return words, [start // 8 for start in starts]


def _place(blocks: Packed, offsets: list[int], out: NDArray[Any]) -> None:
    """OR decoded tiles (tile rows, tile columns, R, bytes) into their band of mask rows."""
    for tile, offset in enumerate(offsets):
        target = out[:, offset : offset + blocks.shape[-1]]
        source = blocks[:, tile].reshape(-1, blocks.shape[-1])
        target |= source[: target.shape[0], : target.shape[1]]
