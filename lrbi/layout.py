"""Bit order: the one place that knows it.

A row of bits is a word whose bit ``j`` is column ``j``; bit 0 is the least significant. In bytes:
column ``j`` is bit ``j % 8`` of byte ``j // 8``, and the pad bits at the top of the last byte are
zero. I_p rows, I_z rows and mask rows are all stored this way, in files and in memory.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lrbi.arrays import Bits, Packed


def row_bytes(columns: int) -> int:
    """Bytes that a packed row of ``columns`` bits takes."""
    return -(-columns // 8)


def pack_rows(bits: Bits) -> Packed:
    """Pack the last axis of ``bits`` into bytes."""
    return np.packbits(bits, axis=-1, bitorder="little")


def unpack_rows(packed: Packed, columns: int) -> Bits:
    """Undo :func:`pack_rows`: the first ``columns`` bits of each packed row."""
    return np.unpackbits(packed, axis=-1, count=columns, bitorder="little").view(np.bool_)


def pad_bits_are_zero(packed: Packed, columns: int) -> bool:
    """Whether the bits above the ``columns``-th of each packed row are all zero."""
    spare = 8 * packed.shape[-1] - columns
    return spare == 0 or not np.any(packed[..., -1] >> (8 - spare))


def pack_words(rows: Bits, per_word: int = 1) -> Packed:
    """Tiles of rows (tiles x n x width) as packed words of ``per_word`` rows, tile after tile.

    Row i of a word stands at bit i * width. No word spans two tiles: a tile's last word that is
    not full is filled with zero rows. A word takes ``row_bytes(per_word * width)`` bytes.
    """
    tiles, count, width = rows.shape
    fill = -count % per_word
    if fill:
        rows = np.concatenate([rows, np.zeros((tiles, fill, width), dtype=np.bool_)], axis=1)
    return pack_rows(rows.reshape(-1, per_word * width))


def unpack_words(words: Packed, tiles: int, width: int, per_word: int = 1) -> Bits:
    """Undo :func:`pack_words`: tiles x n x width, fill rows included."""
    return unpack_rows(words, per_word * width).reshape(tiles, -1, width)


def to_words(rows: Bits, per_word: int = 1) -> list[int]:
    """One tile's rows (n x width) as words, see :func:`pack_words`."""
    return [to_number(word) for word in pack_words(rows[np.newaxis], per_word)]


def from_words(words: list[int], width: int, per_word: int = 1) -> Bits:
    """Undo :func:`to_words`: all rows of all words, fill included."""
    size = row_bytes(per_word * width)
    packed = np.frombuffer(b"".join(word.to_bytes(size, "little") for word in words), np.uint8)
    return unpack_words(packed.reshape(-1, size), 1, width, per_word)[0]


def to_number(word: Packed) -> int:
    """A packed word as a number."""
    return int.from_bytes(word.tobytes(), "little")


def from_number(number: int, size: int) -> Packed:
    """A number as a packed word of ``size`` bytes."""
    return np.frombuffer(number.to_bytes(size, "little"), dtype=np.uint8)


def to_bits(numbers: NDArray[np.integer[Any]], width: int) -> Bits:
    """Numbers below 2**width as rows of bits, one row a number; widths of at most 63."""
    octets = numbers.astype("<i8").view(np.uint8).reshape(len(numbers), 8)
    return unpack_rows(octets[:, : row_bytes(width)], width)


def from_bits(rows: Bits) -> NDArray[np.int64]:
    """Undo :func:`to_bits`; rows of at most 63 bits."""
    return rows @ (np.int64(1) << np.arange(rows.shape[-1]))


def word_sums(words: Packed) -> tuple[int, int]:
    """The sum of packed words, and their sum weighted by position, the first word once.

    One wrong word moves the second sum by its position times what it moves the first.
    """
    plain, weighted = np.zeros((2, words.shape[1]), dtype=np.uint64)
    for start in range(0, len(words), 1 << 16):
        block = words[start : start + (1 << 16)].astype(np.uint64)
        plain += block.sum(axis=0)
        # Sums of bytes by column: below 2^64 up to a depth of 2^28.
        weighted += np.arange(start + 1, start + 1 + len(block), dtype=np.uint64) @ block
    return _from_columns(plain), _from_columns(weighted)


def _from_columns(sums: NDArray[np.uint64]) -> int:
    """The number whose bytes are these sums, carries taken along."""
    return sum(to_number((sums >> shift).astype(np.uint8)) << shift for shift in range(0, 64, 8))
