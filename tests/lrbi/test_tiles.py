import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lrbi.errors import InputError
from lrbi.tiles import TileGrid


@given(*[st.integers(1, 40)] * 4)
def test_tiles_cover_every_cell_once_row_by_row(rows, cols, tile_rows, tile_cols):
    grid = TileGrid((rows, cols), (tile_rows, tile_cols))
    seen = np.zeros((rows, cols), dtype=int)
    corners = []
    for tile in range(len(grid)):
        bounds = grid.bounds(tile)
        assert seen[bounds].shape == grid.size(tile)
        assert grid.size(tile)[0] <= tile_rows
        assert grid.size(tile)[1] <= tile_cols
        seen[bounds] += 1
        corners.append((bounds[0].start, bounds[1].start))
    assert (seen == 1).all()
    assert corners == sorted(corners)


def test_wrong_tile():
    with pytest.raises(InputError, match=r"^Tile must be at least 1x1, not 0x4$"):
        TileGrid((8, 8), (0, 4))
