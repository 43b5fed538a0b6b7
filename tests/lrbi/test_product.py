import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lrbi.layout import pack_rows, unpack_rows
from lrbi.product import boolean_product, decode_tiles
from lrbi.tiles import TileGrid


def random_layer(grid, rank, density, rng):
    """Random factors of every tile, padded with zeros, and the mask that Eq. 3 makes of them."""
    row_factors = np.zeros((len(grid), grid.tile[0], rank), dtype=bool)
    col_factors = np.zeros((len(grid), rank, grid.tile[1]), dtype=bool)
    mask = np.zeros(grid.shape, dtype=bool)
    for tile in range(len(grid)):
        rows, cols = grid.size(tile)
        row_factors[tile, :rows] = rng.random((rows, rank)) < density
        col_factors[tile, :, :cols] = rng.random((rank, cols)) < density
        mask[grid.bounds(tile)] = boolean_product(
            row_factors[tile, :rows], col_factors[tile, :, :cols]
        )
    return pack_rows(row_factors), pack_rows(col_factors), mask


@given(
    st.tuples(st.integers(1, 90), st.integers(1, 200)),
    st.tuples(st.integers(1, 40), st.integers(1, 140)),
    st.integers(1, 35),
    st.sampled_from([0.05, 0.3, 1.0]),
    st.integers(0, 2**32 - 1),
)
def test_packed_decoder_is_the_definition(shape, tile, rank, density, seed):
    grid = TileGrid(shape, tile)
    row_factors, col_factors, mask = random_layer(grid, rank, density, np.random.default_rng(seed))
    packed = decode_tiles(row_factors, col_factors, grid)
    np.testing.assert_array_equal(packed, pack_rows(mask))
    np.testing.assert_array_equal(unpack_rows(packed, shape[1]), mask)


def test_definition_by_hand():
    row_factor = np.array([[1, 0], [1, 1], [0, 0]], dtype=bool)
    col_factor = np.array([[1, 0, 0], [0, 0, 1]], dtype=bool)
    assert boolean_product(row_factor, col_factor).tolist() == [[1, 0, 0], [1, 0, 1], [0, 0, 0]]


def test_rank_zero_keeps_nothing():
    assert not boolean_product(np.zeros((3, 0), dtype=bool), np.zeros((0, 4), dtype=bool)).any()
