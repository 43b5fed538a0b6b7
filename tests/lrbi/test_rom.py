import numpy as np
import pytest

from lrbi import CompressConfig, compress
from lrbi.layout import unpack_rows, unpack_words
from lrbi.rom import RomImage, mem_text, rom_images


@pytest.mark.parametrize(("lanes", "iz_rows"), [(1, 1), (2, 3), (7, 4)])
def test_images_hold_every_tile_padding_included(weights, lanes, iz_rows):
    layer = compress(weights, CompressConfig(sparsity=0.8, rank=5, tile=(10, 13)))
    tiles = len(layer.tiles)
    ip, iz = rom_images(layer, lanes=lanes, iz_rows=iz_rows)
    assert (ip.width, ip.depth) == (5 * lanes, tiles * -(-10 // lanes))
    assert (iz.width, iz.depth) == (13 * iz_rows, tiles * -(-5 // iz_rows))
    np.testing.assert_array_equal(
        unpack_words(ip.words, tiles, 5, lanes)[:, :10], unpack_rows(layer.row_factors, 5)
    )
    np.testing.assert_array_equal(
        unpack_words(iz.words, tiles, 13, iz_rows)[:, :5], unpack_rows(layer.col_factors, 13)
    )


@pytest.mark.parametrize(
    ("width", "line"), [(1, "1"), (4, "d"), (5, "1d"), (8, "3d"), (9, "13d"), (12, "d3d")]
)
def test_a_word_is_a_line_of_as_many_digits_as_its_width_needs(width, line):
    number = 0b1101_0011_1101 & ((1 << width) - 1)
    words = np.frombuffer(number.to_bytes(-(-width // 8), "little"), dtype=np.uint8)
    image = RomImage(width, np.stack([words, np.zeros_like(words)]))
    assert mem_text(image) == f"{line}\n{'0' * len(line)}\n"
