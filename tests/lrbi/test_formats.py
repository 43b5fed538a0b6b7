import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lrbi.errors import InputError
from lrbi.formats import (
    Bitmap,
    Csr,
    GolombRice,
    Index,
    LowRank,
    PaddedRelative,
    Relative,
    TwoFour,
    TwoLevel,
    Viterbi,
    Zstd,
)
from lrbi.prune import exact_mask
from lrbi.synthetic import trained_like

LOSSLESS = [Bitmap(), *(Relative(bits) for bits in (1, 2, 4, 5, 9)), Relative(4, chunk=20)]
LOSSLESS += [TwoLevel(block) for block in (1, 3, 4, 16)]
LOSSLESS += [PaddedRelative(1), PaddedRelative(5), PaddedRelative(16, reach=2)]
LOSSLESS += [Csr(16), Csr(6, 10), GolombRice(), Zstd(1)]

shapes = st.tuples(st.integers(1, 12), st.integers(1, 40))
densities = st.sampled_from([0.0, 0.01, 0.1, 0.5, 0.9, 1.0])
seeds = st.integers(0, 2**32 - 1)


def random_mask(shape, density, seed):
    return np.random.default_rng(seed).random(shape) < density


def bits(text):
    """A string of bits as it is stored, the first bit first."""
    return np.array([letter == "1" for letter in text if letter != " "])


@pytest.mark.parametrize("each", LOSSLESS, ids=lambda each: each.name)
@given(shapes, densities, seeds)
def test_every_mask_comes_back(each, shape, density, seed):
    mask = random_mask(shape, density, seed)
    before = mask.copy()
    index = each.encode(mask)
    assert index.shape == shape
    again = each.decode(index)
    assert (again.dtype, again.shape) == (np.bool_, shape)
    np.testing.assert_array_equal(again, mask)
    np.testing.assert_array_equal(mask, before)


@given(shapes, densities, seeds, st.integers(1, 6), st.integers(1, 9))
def test_sizes_are_exact(shape, density, seed, width, block):
    mask = random_mask(shape, density, seed)
    assert Bitmap().encode(mask).bits == mask.size
    blocks = [mask.reshape(-1)[start : start + block] for start in range(0, mask.size, block)]
    kept = sum(each.any() for each in blocks)
    assert TwoLevel(block).encode(mask).bits == len(blocks) + block * kept
    # Relative indexing, an entry at a time.
    entries, zeros, padding = 0, 0, 2**width - 1
    for position, keep in enumerate(mask.reshape(-1)):
        zeros += not keep
        if keep:
            entries += zeros // padding + 1
            zeros = 0
        end = mask.size - max(shape[1], padding + 1)
        last = position - zeros
    while last < end or not entries:
        entries += 1
        last += padding
    assert Relative(width).encode(mask).bits == width * entries
    kept = int(mask.sum())
    assert Csr(16).encode(mask).bits == 16 * kept + 32 * (shape[0] + 1)
    # Padded, an entry at a time: a weight of value zero where 2**width zeros follow each other.
    entries, zeros = 0, 0
    for keep in mask.reshape(-1)[: np.flatnonzero(mask)[-1] + 1 if kept else 0]:
        if keep or zeros == 2**width - 1:
            entries += 1
            zeros = 0
        else:
            zeros += 1
    assert PaddedRelative(width).encode(mask).bits == width * entries
    assert PaddedRelative(16, reach=width).encode(mask).bits == 16 * entries
    gaps = np.diff(np.flatnonzero(mask), prepend=-1) - 1
    sizes = [sum((int(gap) >> low) + 1 + low for gap in gaps) for low in range(32)]
    assert GolombRice().encode(mask).bits == 5 + min(sizes)


class TestBitmap:
    def test_row_by_row(self):
        index = Bitmap().encode(np.array([[1, 0, 0], [0, 1, 1]], dtype=bool))
        assert index.parts["index"].tolist() == bits("100 011").tolist()


class TestRelative:
    def entries(self, mask, width, chunk=None):
        stored = Relative(width, chunk).encode(mask).parts["index"].reshape(-1, width)
        return [sum(int(bit) << place for place, bit in enumerate(row)) for row in stored]

    def mask(self, positions, size):
        mask = np.zeros(size, dtype=bool)
        mask[positions] = True
        return mask.reshape(1, -1)

    def test_entries_are_zeros_before_a_kept_weight_lowest_bit_first(self):
        index = Relative(2).encode(self.mask([0, 2, 5], 6))
        assert index.parts["index"].tolist() == bits("00 10 01").tolist()

    @pytest.mark.parametrize(
        ("positions", "entries"),
        [
            ([6], [6]),  # the longest gap without padding
            ([7], [7, 0]),
            ([13], [7, 6]),
            ([14], [7, 7, 0]),
            ([0, 8, 15], [0, 7, 0, 6]),
            ([15], [7, 7, 1]),
        ],
    )
    def test_gaps_beyond_an_entry_take_padding(self, positions, entries):
        assert self.entries(self.mask(positions, 16), 3, 16) == entries

    @pytest.mark.parametrize(
        ("size", "positions", "entries"),
        [
            (8, [], [7]),  # at least one entry
            (16, [], [7, 7]),  # the last at 13, among the last 8
            (16, [0], [0, 7, 7]),
            (16, [1], [1, 7]),
            (16, [8], [7, 1]),
            (24, [8], [7, 1, 7, 7]),
        ],
    )
    def test_padding_ends_the_mask_in_its_last_chunk(self, size, positions, entries):
        assert self.entries(self.mask(positions, size), 3, 8) == entries

    def test_the_chunk_is_a_row_by_default(self):
        mask = np.zeros((3, 10), dtype=bool)
        assert Relative(3).encode(mask).bits == 3 * len(self.entries(mask, 3, 10)) == 9
        assert self.entries(mask[:, :4], 3) == self.entries(mask[:, :4], 3, 8)

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            ((0,), "Bits of an entry must be a whole number of at least 1, not 0"),
            ((17,), "Bits of an entry must be at most 16, not 17"),
            ((5, 31), "Chunk must be at least 32 for entries of 5 bits, not 31"),
            ((5, 0), "Chunk must be a whole number of at least 1, not 0"),
        ],
    )
    def test_refusals(self, words, message):
        with pytest.raises(InputError) as error:
            Relative(*words)
        assert str(error.value) == message


class TestTwoLevel:
    def test_map_and_blocks(self):
        mask = np.zeros((2, 6), dtype=bool)
        mask[0, 1] = mask[1, 5] = mask[1, 3] = True
        index = TwoLevel(4).encode(mask)
        assert index.parts["map"].tolist() == bits("101").tolist()
        assert index.parts["block"].tolist() == bits("0100 0101").tolist()
        assert index.bits == 11

    def test_a_mask_may_end_within_a_block(self):
        index = TwoLevel(4).encode(np.ones((1, 5), dtype=bool))
        assert index.parts["block"].tolist() == bits("1111 1000").tolist()

    def test_wrong_block(self):
        with pytest.raises(InputError) as error:
            TwoLevel(0)
        assert str(error.value) == "Block must be a whole number of at least 1, not 0"


@pytest.mark.parametrize("each", LOSSLESS, ids=lambda each: each.name)
@pytest.mark.parametrize("sparsity", [0.5, 0.95])
def test_masks_with_the_structure_of_trained_weights_come_back(each, sparsity):
    weights = trained_like((30, 60), np.random.default_rng(0))
    mask = exact_mask(weights, sparsity)
    np.testing.assert_array_equal(each.decode(each.encode(mask)), mask)


class TestPaddedRelative:
    def test_padding_is_a_stored_weight_of_value_zero(self):
        mask = np.zeros((1, 20), dtype=bool)
        mask[0, [3, 12, 19]] = True
        index = PaddedRelative(2).encode(mask)
        assert index.parts["index"].tolist() == bits("11 11 11 00 11 01").tolist()
        assert index.beside["zero"].tolist() == [False, True, True, False, True, False]
        assert index.bits == 12  # what is beside is not counted

    def test_the_papers_csr_is_16_5_of_its_relative_indexing(self):
        mask = random_mask((50, 80), 0.05, 0)
        assert 5 * PaddedRelative(16, reach=5).encode(mask).bits == (
            16 * PaddedRelative(5).encode(mask).bits
        )

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            ((0,), "Bits of an entry must be a whole number of at least 1, not 0"),
            ((33,), "Bits of an entry must be at most 32, not 33"),
            ((5, 6), "Reach must be at most the 5 bits of an entry, not 6"),
        ],
    )
    def test_refusals(self, words, message):
        with pytest.raises(InputError) as error:
            PaddedRelative(*words)
        assert str(error.value) == message


class TestCsr:
    def test_columns_and_pointers(self):
        mask = np.array([[0, 1, 0, 1], [0, 0, 0, 0], [1, 0, 0, 0]], dtype=bool)
        index = Csr(2, 3).encode(mask)
        assert index.parts["column"].tolist() == bits("10 11 00").tolist()
        assert index.parts["pointer"].tolist() == bits("000 010 010 110").tolist()

    def test_numbers_must_fit(self):
        with pytest.raises(InputError) as error:
            Csr(2).encode(np.zeros((1, 5), dtype=bool))
        assert str(error.value) == "Columns must be at most 4 for 2 bits, not 5"
        with pytest.raises(InputError) as error:
            Csr(4, 2).encode(np.ones((1, 4), dtype=bool))
        assert str(error.value) == (
            "Kept weights must be fewer than 4 for row pointers of 2 bits, not 4"
        )
        with pytest.raises(InputError) as error:
            Csr(33)
        assert str(error.value) == "Bits of a column must be at most 32, not 33"


class TestGolombRice:
    def test_codes(self):
        mask = np.zeros((1, 12), dtype=bool)
        mask[0, [1, 7, 8]] = True  # gaps 1, 5, 0
        index = GolombRice().encode(mask)
        assert index.parts["parameter"].tolist() == bits("10000").tolist()
        assert index.parts["unary"].tolist() == bits("1 001 1").tolist()
        assert index.parts["low"].tolist() == bits("1 1 0").tolist()

    def test_near_the_entropy_of_a_random_mask(self):
        from lrbi.limit import entropy

        mask = random_mask((800, 500), 0.05, 0)
        bound = entropy(mask.mean()) * mask.size
        assert bound < GolombRice().encode(mask).bits < 1.03 * bound


def test_zstd_level():
    with pytest.raises(InputError) as error:
        Zstd(23)
    assert str(error.value) == "Level must be at most 22, not 23"


class TestTwoFour:
    @given(st.integers(1, 8), st.integers(1, 8), seeds)
    def test_the_largest_two_of_every_four(self, rows, fours, seed):
        magnitudes = np.random.default_rng(seed).random((rows, 4 * fours))
        mask = TwoFour.mask(magnitudes)
        for values, kept in zip(magnitudes.reshape(-1, 4), mask.reshape(-1, 4), strict=True):
            assert kept.sum() == 2
            assert values[kept].min() >= values[~kept].max()
        index = TwoFour().encode(mask)
        assert index.bits == mask.size  # a bit a weight
        np.testing.assert_array_equal(TwoFour().decode(index), mask)

    def test_other_masks_are_refused(self):
        with pytest.raises(InputError) as error:
            TwoFour().encode(np.ones((2, 6), dtype=bool))
        assert str(error.value) == "Columns must be a multiple of 4, not 6"
        with pytest.raises(InputError) as error:
            TwoFour().encode(np.ones((2, 8), dtype=bool))
        assert str(error.value) == "Mask must keep two weights of every four for 2:4"


@pytest.mark.parametrize("rank", [1, 5, "auto"])
def test_low_rank_gives_the_layers_mask_and_size(weights, rank):
    import lrbi

    ratio = 3.0 if rank == "auto" else None
    config = lrbi.CompressConfig(sparsity=0.8, rank=rank, ratio=ratio, tile=(20, 15))
    layer = lrbi.compress(weights, config)
    each = LowRank.of(layer)
    index = each.encode(layer)
    assert index.bits == layer.index_bits
    np.testing.assert_array_equal(each.decode(index), layer.mask())


def expand_bit_by_bit(code, taken, shape):
    """The decompressor as its docstring tells it."""
    register, mask = [0] * code.register, []
    for bit in taken:
        for step in range(code.skip + 1):
            register = [int(bit) if step == 0 else 0, *register[:-1]]
            outputs = [sum(register[tap] for tap in taps) % 2 for taps in code.taps]
            for start in range(0, code.outputs, code.width):
                group = outputs[start : start + code.width]
                mask.append(sum(bit << i for i, bit in enumerate(group)) >= code.threshold)
    return np.array(mask).reshape(shape)


class TestViterbi:
    @pytest.mark.parametrize("skip", [0, 1, 2])
    @pytest.mark.parametrize("options", [{}, {"outputs": 12, "width": 3, "register": 7}], ids=str)
    @given(seed=seeds)
    def test_expands_as_it_is_told(self, skip, options, seed):
        code = Viterbi.of_sparsity(0.7, skip=skip, **options)
        shape = (6, 4 * code.ratio)
        taken = np.random.default_rng(seed).random(code.size(shape)) < 0.5
        mask = code.expand(Index(shape, {"index": taken}))
        assert mask.dtype == np.bool_
        np.testing.assert_array_equal(mask, expand_bit_by_bit(code, taken, shape))

    @pytest.mark.parametrize("sparsity", [0.6, 0.91, 0.95])
    def test_random_input_makes_the_sparsity(self, sparsity):
        code = Viterbi.of_sparsity(sparsity)
        taken = np.random.default_rng(0).random(code.size((800, 500))) < 0.5
        mask = code.expand(Index((800, 500), {"index": taken}))
        assert 1 - mask.mean() == pytest.approx(sparsity, abs=0.005)

    def test_zero_input_keeps_nothing(self):
        code = Viterbi(threshold=1)
        assert not code.expand(Index((4, 8), {"index": np.zeros(8, dtype=bool)})).any()

    def test_numbers(self):
        code = Viterbi.of_sparsity(0.91)
        assert (code.threshold, code.chunk, code.ratio, code.name) == (932, 4, 4, "viterbi-4")
        assert code.size((576, 512)) == 576 * 512 // 4
        assert Viterbi(threshold=9, outputs=50).ratio == 5  # what the paper's tables count
        assert Viterbi(threshold=9, skip=1).size((2, 8)) == 2

    def test_taps_are_fixed(self):
        taps = Viterbi(threshold=1).taps
        assert len(taps) == 40
        assert all(len(set(output)) == 4 for output in taps)
        assert taps[:3] == ((6, 7, 11, 15), (3, 4, 12, 13), (3, 5, 8, 9))
        assert Viterbi(threshold=1, seed=2).taps != taps

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"outputs": 41}, "Outputs must be a multiple of the comparator width 10, not 41"),
            ({"threshold": 1025}, "Threshold must be at most 1024, not 1025"),
            ({"threshold": -1}, "Threshold must be a whole number of at least 0, not -1"),
            ({"register": 10}, "Register must be longer than the comparator width 10, not 10"),
            ({"skip": -1}, "Skip must be a whole number of at least 0, not -1"),
        ],
    )
    def test_refusals(self, options, message):
        with pytest.raises(InputError) as error:
            Viterbi(**({"threshold": 9} | options))
        assert str(error.value) == message

    def test_input_must_fit_the_mask(self):
        code = Viterbi(threshold=9)
        with pytest.raises(InputError) as error:
            code.size((3, 3))
        assert str(error.value) == "Positions of a mask must be a multiple of the ratio 4, not 9"
        with pytest.raises(InputError) as error:
            code.expand(Index((2, 4), {"index": np.zeros(3, dtype=bool)}))
        assert str(error.value) == "Input of a mask of 2x4 must have 2 bits, not 3"


@pytest.mark.parametrize("each", LOSSLESS, ids=lambda each: each.name)
@pytest.mark.parametrize("shape", [(5,), (0, 4), (4, 0), (2, 2, 2)])
def test_mask_must_have_rows_and_columns(each, shape):
    with pytest.raises(InputError) as error:
        each.encode(np.zeros(shape, dtype=bool))
    assert str(error.value) == f"Mask must have rows and columns, not shape {shape}"
