import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lrbi.layout import pack_rows, pad_bits_are_zero, row_bytes, unpack_rows


def test_bit_j_of_a_row_is_column_j():
    row = np.zeros((1, 20), dtype=bool)
    row[0, [0, 3, 9, 19]] = True
    assert pack_rows(row).tolist() == [[0b0000_1001, 0b0000_0010, 0b0000_1000]]


@given(st.integers(1, 70), st.integers(0, 2**32 - 1))
def test_unpack_undoes_pack(columns, seed):
    bits = np.random.default_rng(seed).random((3, columns)) < 0.5
    packed = pack_rows(bits)
    assert packed.shape == (3, row_bytes(columns))
    assert pad_bits_are_zero(packed, columns)
    np.testing.assert_array_equal(unpack_rows(packed, columns), bits)


def test_a_set_pad_bit_is_seen():
    assert pad_bits_are_zero(np.array([[0x1F]], dtype=np.uint8), 5)
    assert not pad_bits_are_zero(np.array([[0x3F]], dtype=np.uint8), 5)
    assert pad_bits_are_zero(np.array([[0xFF]], dtype=np.uint8), 8)
