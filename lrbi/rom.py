"""Factor ROMs: the words that a layer's factors make, tile after tile."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from lrbi.arrays import Packed
from lrbi.errors import InputError
from lrbi.layer import CompressedLayer
from lrbi.layout import pack_rows, pack_words, to_number, unpack_rows, unpack_words, word_sums
from lrbi.product import decode_tiles
from lrbi.tiles import TileGrid


@dataclass(frozen=True, eq=False)
class RomImage:
    """The contents of one ROM."""

    width: int
    """Bits of a word."""
    words: Packed
    """The words, depth x ceil(width / 8) bytes: bit j is bit j % 8 of byte j // 8, pads zero."""

    @property
    def depth(self) -> int:
        """Number of words."""
        return len(self.words)

    def word(self, index: int) -> int:
        """One word as a number."""
        return to_number(self.words[index])


def rom_images(
    layer: CompressedLayer, *, lanes: int = 1, iz_rows: int = 1
) -> tuple[RomImage, RomImage]:
    """The I_p and I_z ROMs of a layer.

    A tile takes ceil(R / lanes) words of I_p, ``lanes`` rows of k bits each, and
    ceil(k / iz_rows) words of I_z, ``iz_rows`` rows of C bits each; no word spans two tiles.
    """
    return (
        _image(layer.row_factors, layer.rank, lanes),
        _image(layer.col_factors, layer.tile[1], iz_rows),
    )


def mask_image(layer: CompressedLayer, *, lanes: int = 1) -> RomImage:
    """The mask of every tile, padding included: a word for each I_p word, ``lanes`` rows of C bits.

    This is what a decoder gives when it is fed from :func:`rom_images`.
    """
    tiles, (rows, cols) = len(layer.tiles), layer.tile
    tall = TileGrid((tiles * rows, cols), layer.tile)  # one tile across, so none is cut off
    packed = decode_tiles(layer.row_factors, layer.col_factors, tall)
    return _image(packed.reshape(tiles, rows, -1), cols, lanes)


def rom_factors(
    ip: RomImage,
    iz: RomImage,
    *,
    tiles: int,
    tile: tuple[int, int],
    rank: int,
    lanes: int = 1,
    iz_rows: int = 1,
) -> tuple[Packed, Packed]:
    """Undo :func:`rom_images`: the packed I_p and I_z of every tile."""
    return (
        _rows("I_p", ip, tiles, tile[0], rank, lanes),
        _rows("I_z", iz, tiles, rank, tile[1], iz_rows),
    )


def odd_word(image: RomImage, sums: tuple[int, int]) -> tuple[int, int] | None:
    """Where one word differs from the image whose :func:`lrbi.layout.word_sums` are given.

    Returns its index and the word that stood there; None if not just one word differs.
    """
    plain, weighted = (now - then for now, then in zip(word_sums(image.words), sums, strict=True))
    if plain == 0 or weighted % plain or not 1 <= weighted // plain <= image.depth:
        return None
    index = weighted // plain - 1
    word = image.word(index) - plain
    return (index, word) if 0 <= word < 1 << image.width else None


def _image(packed: Packed, width: int, per_word: int) -> RomImage:
    if per_word == 1:
        return RomImage(width, packed.reshape(-1, packed.shape[-1]))
    return RomImage(width * per_word, pack_words(unpack_rows(packed, width), per_word))


def _rows(noun: str, image: RomImage, tiles: int, count: int, width: int, per_word: int) -> Packed:
    if per_word == 1:
        return image.words.reshape(tiles, count, -1)
    rows = unpack_words(image.words, tiles, width, per_word)
    if rows[:, count:].any():
        raise InputError(f"Rows that fill a tile's last {noun} word must be zero")
    return pack_rows(rows[:, :count])


def hex_lines(image: RomImage) -> Iterable[str]:
    """The words in order as hexadecimal numbers of ceil(width / 4) digits."""
    digits = -(-image.width // 4)
    text = np.ascontiguousarray(image.words[:, ::-1]).tobytes().hex()
    size = 2 * image.words.shape[1]
    return (text[start - digits : start] for start in range(size, len(text) + 1, size))


def mem_text(image: RomImage) -> str:
    """The image as ``$readmemh`` reads it: a word a line."""
    return "\n".join(hex_lines(image)) + "\n"
