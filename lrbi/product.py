"""The Boolean product ``I_a = I_p (x) I_z``: its definition, and a fast way to the same bits."""

import numpy as np
from numpy.typing import NDArray

from lrbi.arrays import Bits, Packed
from lrbi.layout import pack_rows, row_bytes, unpack_rows
from lrbi.tiles import TileGrid

_TABLE_BYTES = 1 << 19  # OR tables built together: what a second-level cache holds


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
    words, starts = _word_rows(col_factors, grid, groups)
    width = words.shape[-1]
    index = row_factors.reshape(down, across, tile_rows, groups).transpose(3, 0, 1, 2).copy()
    out = np.zeros((grid.shape[0], row_bytes(grid.shape[1])), dtype=np.uint8)
    # Rows of tiles, and groups of ranks in each, that are decoded at a time.
    band = max(1, _TABLE_BYTES // (256 * across * groups * width * 8))
    some = max(1, _TABLE_BYTES // (256 * across * width * 8))
    space = np.empty((2, min(band, down) * across * tile_rows, width), dtype=np.uint64)
    for first in range(0, down, band):
        last = min(first + band, down)
        rows, more = space[:, : (last - first) * across * tile_rows]
        for start in range(0, groups, some):
            part = slice(start, min(start + some, groups))
            table = _or_tables(words[first:last, :, part])
            for group, entry in enumerate(_entries(index[part, first:last]), start):
                table.take(entry, axis=0, out=more if group else rows, mode="clip")
                if group:
                    np.bitwise_or(rows, more, out=rows)
        blocks = rows.view(np.uint8).reshape(last - first, across, tile_rows, 8 * width)
        _place(blocks, starts, out[first * tile_rows : last * tile_rows])
    return out


def _entries(index: Packed) -> NDArray[np.intp]:
    """Where in :func:`_or_tables` each row finds its entry: (groups, rows).

    ``index`` is (groups, down, across, R): a byte of I_p each.
    """
    groups, down, across, _ = index.shape
    tables = np.arange(down * across * groups).reshape(down, across, groups)
    entries = np.multiply(index, tables.size, dtype=np.intp)
    entries += tables.transpose(2, 0, 1)[..., np.newaxis]
    return entries.reshape(groups, -1)


def _or_tables(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The ORs of all subsets of eight I_z rows each, (256 * tables, words).

    ``words`` is (down, across, groups, 8, words). Entry ``e`` of table ``t`` stands at
    ``e * tables + t``: entry-major, so that each of the eight doublings is one long OR.
    """
    seeds = words.transpose(3, 0, 1, 2, 4).reshape(8, -1)
    table = np.empty((256, seeds.shape[1]), dtype=np.uint64)
    table[0] = 0
    for bit in range(8):
        half = 1 << bit
        np.bitwise_or(table[:half], seeds[bit], out=table[half : 2 * half])
    return table.reshape(-1, words.shape[-1])


def _word_rows(
    col_factors: Packed, grid: TileGrid, groups: int
) -> tuple[NDArray[np.uint64], list[int]]:
    """I_z rows as 64-bit words, (down, across, groups, 8, words), and each tile's first column.

    A tile whose first column does not start a byte has its rows shifted up to that column's bit,
    so that decoded rows can be ORed into the mask byte by byte.
    """
    (down, across), columns = grid.grid, grid.tile[1]
    rank, packed_bytes = col_factors.shape[1:]
    starts = [tile * columns for tile in range(across)]
    shifted = any(start % 8 for start in starts)
    width = -(-(columns + 7 * shifted) // 64)
    rows = np.zeros((down, across, groups * 8, 8 * width), dtype=np.uint8)
    source = col_factors.reshape(down, across, rank, packed_bytes)
    if not shifted:
        rows[:, :, :rank, :packed_bytes] = source
    else:
        bits = unpack_rows(source, columns)
        wide = np.zeros((down, across, rank, 64 * width), dtype=np.bool_)
        for tile, start in enumerate(starts):
            wide[:, tile, :, start % 8 : start % 8 + columns] = bits[:, tile]
        rows[:, :, :rank] = pack_rows(wide)
    return rows.view(np.uint64).reshape(down, across, groups, 8, width), starts


def _place(blocks: Packed, starts: list[int], out: Packed) -> None:
    """Put decoded tiles (tile rows, tile columns, R, bytes) into their band of mask rows."""
    for tile, start in enumerate(starts):
        target = out[:, start // 8 : start // 8 + blocks.shape[-1]]
        source = blocks[:, tile].reshape(-1, blocks.shape[-1])
        source = source[: target.shape[0], : target.shape[1]]
        if start % 8:
            target |= source  # the first byte is shared with the tile to the left
        else:
            target[...] = source
