import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lrbi import CompressConfig, boolean_product, compress
from lrbi.layout import from_number, unpack_rows, unpack_words, word_sums
from lrbi.rom import RomImage, mask_image, mem_text, odd_word, rom_factors, rom_images


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


@pytest.mark.parametrize(("lanes", "iz_rows"), [(1, 1), (2, 3), (7, 4)])
def test_masks_and_the_way_back(weights, lanes, iz_rows):
    layer = compress(weights, CompressConfig(sparsity=0.8, rank=5, tile=(10, 13)))
    tiles = len(layer.tiles)
    ip, iz = rom_images(layer, lanes=lanes, iz_rows=iz_rows)
    back = rom_factors(ip, iz, tiles=tiles, tile=layer.tile, rank=5, lanes=lanes, iz_rows=iz_rows)
    np.testing.assert_array_equal(back[0], layer.row_factors)
    np.testing.assert_array_equal(back[1], layer.col_factors)
    mask = mask_image(layer, lanes=lanes)
    assert (mask.width, mask.depth) == (13 * lanes, ip.depth)
    rows = unpack_words(mask.words, tiles, 13, lanes)
    assert not rows[:, 10:].any()
    for tile in range(tiles):
        left = unpack_rows(layer.row_factors[tile], 5)
        right = unpack_rows(layer.col_factors[tile], 13)
        np.testing.assert_array_equal(rows[tile, :10], boolean_product(left, right))


@given(st.integers(1, 40), st.integers(1, 100), st.data())
def test_odd_word(depth, width, data):
    words = [data.draw(st.integers(0, 2**width - 1)) for _ in range(depth)]
    size = -(-width // 8)
    image = RomImage(width, np.stack([from_number(word, size) for word in words]))
    sums = word_sums(image.words)
    assert odd_word(image, sums) is None
    at = data.draw(st.integers(0, depth - 1))
    changed = image.words.copy()
    changed[at] = from_number(words[at] ^ data.draw(st.integers(1, 2**width - 1)), size)
    assert odd_word(RomImage(width, changed), sums) == (at, words[at])
