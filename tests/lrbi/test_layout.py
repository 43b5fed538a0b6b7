import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lrbi.layout import (
    from_bits,
    from_number,
    from_words,
    pack_rows,
    pack_words,
    pad_bits_are_zero,
    row_bytes,
    to_bits,
    to_number,
    to_words,
    unpack_rows,
    unpack_words,
    word_sums,
)


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


@given(st.integers(1, 4), st.integers(1, 9), st.integers(1, 20), st.integers(1, 5))
def test_no_word_spans_two_tiles_and_unpack_undoes_pack(tiles, count, width, per_word):
    rows = np.random.default_rng(0).random((tiles, count, width)) < 0.5
    words = pack_words(rows, per_word)
    depth = -(-count // per_word)
    assert words.shape == (tiles * depth, row_bytes(per_word * width))
    back = unpack_words(words, tiles, width, per_word)
    np.testing.assert_array_equal(back[:, :count], rows)
    assert not back[:, count:].any()
    for tile in range(tiles):
        numbers = to_words(rows[tile], per_word)
        assert numbers == [
            int.from_bytes(word.tobytes(), "little")
            for word in words[tile * depth : (tile + 1) * depth]
        ]
        np.testing.assert_array_equal(from_words(numbers, width, per_word), back[tile])


def test_row_i_of_a_word_stands_at_bit_i_times_width():
    rows = np.array([[[1, 0, 0], [0, 1, 1], [1, 1, 1]]], dtype=bool)
    assert pack_words(rows, 2).tolist() == [[0b110_001], [0b000_111]]


@given(st.lists(st.integers(0, 2**70 - 1), min_size=1, max_size=30))
def test_word_sums(words):
    packed = np.stack([from_number(word, 9) for word in words])
    assert [to_number(word) for word in packed] == words
    weighted = sum(place * word for place, word in enumerate(words, 1))
    assert word_sums(packed) == (sum(words), weighted)


def test_word_sums_over_several_blocks():
    words = np.arange(70000, dtype="<u4").view(np.uint8).reshape(-1, 4)
    numbers = range(70000)
    assert word_sums(words) == (sum(numbers), sum((at + 1) * at for at in numbers))


@given(st.integers(1, 63), st.integers(0, 2**32 - 1))
def test_numbers_as_bits(width, seed):
    numbers = np.random.default_rng(seed).integers(0, 1 << width, 9)
    rows = to_bits(numbers, width)
    assert rows.shape == (9, width)
    assert to_words(rows) == numbers.tolist()
    assert from_bits(rows).tolist() == numbers.tolist()
