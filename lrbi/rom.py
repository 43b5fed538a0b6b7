"""Factor ROMs: the words that a layer's factors make, tile after tile."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from lrbi.arrays import Packed
from lrbi.layer import CompressedLayer
from lrbi.layout import pack_words, unpack_rows


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


def _image(packed: Packed, width: int, per_word: int) -> RomImage:
    if per_word == 1:
        return RomImage(width, packed.reshape(-1, packed.shape[-1]))
    return RomImage(width * per_word, pack_words(unpack_rows(packed, width), per_word))


def hex_lines(image: RomImage) -> Iterable[str]:
    """The words in order as hexadecimal numbers of ceil(width / 4) digits."""
    digits = -(-image.width // 4)
    text = np.ascontiguousarray(image.words[:, ::-1]).tobytes().hex()
    size = 2 * image.words.shape[1]
    return (text[start - digits : start] for start in range(size, len(text) + 1, size))


def mem_text(image: RomImage) -> str:
    """The image as ``$readmemh`` reads it: a word a line."""
    return "\n".join(hex_lines(image)) + "\n"
