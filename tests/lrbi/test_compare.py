import numpy as np
import pytest

import lrbi
from lrbi.compare import LOSSLESS, compare, together
from lrbi.errors import CheckFailedError, InputError
from lrbi.formats import GolombRice
from lrbi.limit import entropy, kept_limit
from lrbi.prune import exact_mask


def comparison(weights, sparsity=0.8, **options):
    exact = exact_mask(weights, sparsity)
    layer = lrbi.compress(weights, lrbi.CompressConfig(sparsity=sparsity, rank=3))
    return compare(weights, exact, layer, **options), exact, layer


@pytest.fixture
def fours():
    return np.random.default_rng(1).standard_normal((30, 40)).astype(np.float32)


def test_every_format_is_there(fours):
    found, exact, layer = comparison(fours, viterbi_ratio=4)
    entries = {entry.name: entry for entry in found.formats}
    names = [each.name for each in LOSSLESS]
    assert [*entries] == [*names, "viterbi-4", "2:4", "lrbi-k3"]
    for name in names:
        assert (entries[name].cost, entries[name].kept) == (0, 1)
        assert entries[name].sparsity == pytest.approx(0.8)
    assert entries["viterbi-4"].bits == 300
    assert (entries["viterbi-4"].cost, entries["viterbi-4"].kept) == (None, None)
    ours = entries["lrbi-k3"]
    assert (ours.bits, ours.bits_per_weight) == (3 * 70, 210 / 1200)
    assert (ours.cost, ours.kept) == (pytest.approx(layer.cost), pytest.approx(layer.kept))
    two = entries["2:4"]
    assert (two.bits, two.sparsity) == (1200, 0.5)
    magnitudes = np.abs(fours)
    kept = np.sort(np.where(exact, magnitudes, 0).reshape(-1, 4), axis=1)[:, 2:].sum()
    assert two.kept == pytest.approx(kept / magnitudes[exact].sum(), rel=1e-5)
    assert found.entropy_bits == pytest.approx(1200 * entropy(0.2))
    assert found.limit == kept_limit(0.8, 210 / 1200, magnitudes[exact])
    assert found.limit != kept_limit(0.8, 210 / 1200)  # these are Gaussian, but not all of them
    assert (ours.rom_bits, two.rom_bits) == (layer.rom_bits, None)
    assert found.left_out == ()


def test_what_does_not_apply_is_left_out(weights):
    found, _, _ = comparison(weights)
    assert found.left_out == ("2:4: Columns must be a multiple of 4, not 37",)
    assert "2:4" not in [entry.name for entry in found.formats]


def test_several_layers_are_added_up(fours, weights):
    one, two = comparison(fours)[0], comparison(weights, sparsity=0.5)[0]
    both = together([one, two])
    assert together([one]) is one
    found = {entry.name: entry for entry in both.formats}
    assert "2:4" not in found
    assert found["bitmap"].bits == fours.size + weights.size == both.shape[0]
    ours = found["lrbi"]
    assert ours.bits == one.formats[-1].bits + two.formats[-1].bits
    assert ours.cost == pytest.approx(one.formats[-1].cost + two.formats[-1].cost)
    assert min(one.formats[-1].kept, two.formats[-1].kept) < ours.kept
    assert found["viterbi-5"].cost is None
    assert both.entropy_bits == pytest.approx(one.entropy_bits + two.entropy_bits)
    assert both.left_out == ("2:4: Columns must be a multiple of 4, not 37",)
    assert both.limit is None  # bits could be shared out among layers in other ways
    assert ours.rom_bits == one.formats[-1].rom_bits + two.formats[-1].rom_bits
    zeros = sum(each.sparsity * each.weights for each in (one.formats[-1], two.formats[-1]))
    assert ours.sparsity == pytest.approx(zeros / both.shape[0])


def test_a_viterbi_index_has_whole_bits(fours):
    found, *_ = comparison(fours, viterbi_ratio=7)
    assert {entry.name: entry.bits for entry in found.formats}["viterbi-7"] == 172  # 171.4
    with pytest.raises(InputError) as error:
        comparison(fours, viterbi_ratio=0)
    assert str(error.value) == "Viterbi ratio must be a whole number of at least 1, not 0"


def test_weights_of_value_zero_under_the_exact_mask():
    weights = np.zeros((20, 30), dtype=np.float32)
    for spread in (0, 11):  # all zero; then a few that are not, fewer than the mask keeps
        weights[:, :spread:10] = 1
        found, _, layer = comparison(weights)
        assert (found.limit, found.formats[-1].kept) == (1, layer.kept)


def test_a_format_that_loses_bits_is_caught(weights, monkeypatch):
    decode = GolombRice.decode

    def wrong(self, index):
        mask = decode(self, index)
        mask[3, 5] ^= True
        return mask

    monkeypatch.setattr(GolombRice, "decode", wrong)
    with pytest.raises(CheckFailedError) as error:
        comparison(weights)
    assert str(error.value) == "Format golomb-rice does not give its mask back"


@pytest.mark.parametrize("keep", [False, True])
def test_masks_of_one_kind(weights, keep):
    exact = np.full(weights.shape, keep)
    layer = lrbi.compress(weights, lrbi.CompressConfig(rank=3), mask=exact)
    found = compare(weights, exact, layer)
    assert {entry.kept for entry in found.formats} == {1.0, None}
    assert (found.entropy_bits, found.limit) == (0, 1)


def test_shapes_must_agree(weights, fours):
    _, exact, layer = comparison(weights)
    with pytest.raises(InputError) as error:
        compare(fours, exact, layer)
    assert str(error.value) == (
        "Weights, mask and layer must have one shape, not (30, 40), (45, 37) and (45, 37)"
    )
