"""Every figure of the paper that follows from arithmetic."""

import pytest

from lrbi.paper import ALEXNET, LENET_FC1, claims, index_bits, resnet_ratio


def test_index_bits():
    assert index_bits(LENET_FC1, 16) == 20_800  # 2.6 kB
    assert index_bits(*ALEXNET["FC5"][:1], 32, ALEXNET["FC5"][1]) == 128 * 32 * 1088  # 544 KiB
    assert index_bits(*ALEXNET["FC6"][:1], 32, ALEXNET["FC6"][1]) == 256 * 8192
    assert index_bits((5, 7), 2, (3, 4)) == 2 * ((3 + 4) + (3 + 3) + (2 + 4) + (2 + 3))


@pytest.mark.parametrize(
    ("ranks", "factor", "ratio"),
    [
        ((8, 8, 8), 9, 5.35), ((8, 16, 32), 9, 1.84), ((16, 32, 64), 9, 0.92),
        ((8, 8, 8), 3, 8.76), ((8, 16, 32), 3, 3.04), ((16, 32, 64), 3, 1.52),
    ],
)  # fmt: skip
def test_resnet32(ranks, factor, ratio):
    assert resnet_ratio(ranks, factor) == pytest.approx(ratio, abs=0.005)


def test_claims_agree_or_say_why():
    found = list(claims())
    agreeing = {(claim.table, claim.what) for claim in found if not claim.why}
    assert {
        claim.why for claim in found if claim.table.startswith("AlexNet") and "CSR(5" in claim.what
    } == {"the paper's weights are trained, ours Gaussian, seed 0: other gaps, other paddings"}
    for claim in found:
        digits = 2 if claim.unit == "x" and claim.paper < 76 and "LeNet" not in claim.table else 1
        digits = 0 if claim.unit == "KiB" else digits
        near = abs(claim.ours - claim.paper) <= 0.5 * 10**-digits + 1e-9
        assert near == (not claim.why), claim
    assert len([what for table, what in agreeing if table == "LeNet-5 FC1, ratio"]) == 7
    ours = {(claim.table, claim.what): claim.ours for claim in found}
    assert ours["AlexNet FC5, S = 0.91", "Proposed, k = 32"] == 544
    assert ours["AlexNet FC5 + FC6, ratio", "k = 32, tiled"] == pytest.approx(8.32)
    assert ours["AlexNet FC5 + FC6, S = 0.91", "Proposed, k = 32"] == 800
    assert ours["LeNet-5 FC1, S = 0.95", "Viterbi, as the text has it"] == 12.5
    assert ours["LSTM(300) on PTB, ratio", "k = 145 on 10000 x 300"] == pytest.approx(
        2.009, abs=5e-4
    )
    # Row pointers are 32 bits, one more than there are rows.
    kept = 9216 * 4096 - round(0.91 * 9216 * 4096)
    pointers = 32 * 9217
    assert ours["AlexNet FC5, S = 0.91", "CSR(16bit), with row pointers"] == (
        (16 * kept + pointers) / 8192
    )
    # A random mask's entries by probability: a padding for every 32 zeros in a row.
    entries = 9216 * 4096 * 0.09 / (1 - 0.91**32)
    assert ours["AlexNet FC5, S = 0.91", "CSR(5bit)"] == pytest.approx(5 * entries / 8192, rel=1e-3)
