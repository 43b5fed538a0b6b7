"""Bit order: the one place that knows it.

A row of bits is a word whose bit ``j`` is column ``j``; bit 0 is the least significant. In bytes:
column ``j`` is bit ``j % 8`` of byte ``j // 8``, and the pad bits at the top of the last byte are
zero. I_p rows, I_z rows and mask rows are all stored this way, in files and in memory.
"""

import numpy as np

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


def to_words(rows: Bits, per_word: int = 1) -> list[int]:
    """Rows (n x width) as words of ``per_word`` rows: row i of a word stands at bit i * width.

    A last word that is not full is filled with zero rows.
    """
    count, width = rows.shape
    padded = np.zeros((-(-count // per_word) * per_word, width), dtype=np.bool_)
    padded[:count] = rows
    packed = pack_rows(padded.reshape(-1, per_word * width))
    return [int.from_bytes(word.tobytes(), "little") for word in packed]


def from_words(words: list[int], width: int, per_word: int = 1) -> Bits:
    """Undo :func:`to_words`: all rows of all words, fill included."""
    size = row_bytes(per_word * width)
    packed = np.frombuffer(b"".join(word.to_bytes(size, "little") for word in words), np.uint8)
    return unpack_rows(packed.reshape(-1, size), per_word * width).reshape(-1, width)
