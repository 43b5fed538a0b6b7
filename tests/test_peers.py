"""Other Boolean factorizations as peers: how they are pushed to S, and what is reported of them."""

import json
import operator
import sys

import numpy as np
import pytest

import lrbi
from benchmarks import peers
from benchmarks.peers import Fit, Peer

NIMFA = next(peer for peer in peers.PEERS if peer.package == "nimfa")
ASSO = peers.PEERS[0]


def blocks():
    """Two rectangles that overlap in neither rows nor columns."""
    row_factor, col_factor = np.zeros((20, 2), bool), np.zeros((2, 30), bool)
    row_factor[2:9, 0] = row_factor[12:15, 1] = True
    col_factor[0, 5:15] = col_factor[1, 20:24] = True
    return row_factor, col_factor


def test_asso_finds_planted_blocks():
    mask = lrbi.boolean_product(*blocks())
    cells = mask.astype(np.float32)
    tau, candidates = peers.asso_candidates(cells, 0.4)
    assert 0 <= tau < 1
    found = peers.asso(cells, 2, candidates, price=1.0)
    assert np.array_equal(lrbi.boolean_product(found.row_factor, found.col_factor), mask)
    assert found.ones == mask.sum()


def test_asso_leaves_ranks_empty_that_are_worth_nothing():
    cells = lrbi.boolean_product(*blocks()).astype(np.float32)
    candidates = peers.asso_candidates(cells, 0.4)[1]
    found = peers.asso(cells, 5, candidates[candidates.any(axis=1)], price=1.0)
    assert found.row_factor.any(axis=0).tolist() == [True, True, False, False, False]
    assert found.col_factor.any(axis=1).tolist() == [True, True, False, False, False]


@pytest.mark.parametrize("power", [0.7, 5])  # of the latter, steps alone overshoot for ever
@pytest.mark.parametrize("ones", [10, 1000, 5000])
def test_price_is_found(ones, power):
    def fit(price):
        return Fit(np.empty(0), np.empty(0), 300 * price**-power)

    found = [one for _, one in peers.priced(fit, ones, 0.3, 20) if one]
    assert abs(found[-1].ones / ones - 1) < 0.02
    misses = [abs(np.log(one.ones / ones)) for one in found]
    assert misses == sorted(misses, reverse=True)


def test_only_nearer_fits_are_results():
    ones = iter([110, 125, 80, 106, 95])
    fits = peers.priced(lambda _: Fit(np.empty(0), np.empty(0), next(ones)), 100, 1, 5)
    assert [one and one.ones for _, one in fits] == [110, None, None, 106, 95]


def test_stopped_fit_is_no_result():
    fits = peers.priced(lambda _: Fit(np.empty(0), np.empty(0), 100.0, complete=False), 100, 1, 3)
    assert [one for _, one in fits] == [None]


def test_scores_of_planted_factors_are_swept_to_them(weights):
    row_factor, col_factor = blocks()
    mask = lrbi.boolean_product(row_factor, col_factor)
    planted = np.where(mask, 2.0, 0.0) + 0.1 * np.abs(weights[:20, :30])
    problem = peers.pose(planted, 2, 1 - mask.mean())
    found = peers.swept(row_factor + 0.0, col_factor + 0.0, problem)
    assert np.array_equal(lrbi.boolean_product(*found), mask)


@pytest.mark.parametrize("peer", [ASSO, NIMFA])
def test_run_reaches_the_number_of_ones(peer, weights):
    row_factor, col_factor = peer.run(weights, 4, 0.9, np.random.default_rng(0))
    assert row_factor.shape == (45, 4)
    assert col_factor.shape == (4, 37)
    mask = lrbi.boolean_product(row_factor, col_factor)
    assert abs(int(mask.sum()) - (mask.size - round(0.9 * mask.size))) <= 2
    assert peers.pose(weights, 4, 0.9).kept(mask) > 0.2  # chance keeps 0.1


def test_measure_says_what_run_finds(weights):
    [row] = peers.measure(weights, 4, 0.9, peers=(ASSO,))
    mask = lrbi.boolean_product(*ASSO.run(weights, 4, 0.9, np.random.default_rng(0)))
    assert row["note"] == ""
    assert row["kept"] == peers.pose(weights, 4, 0.9).kept(mask)
    assert row["ones"] == mask.sum()
    assert row["sparsity"] == pytest.approx(1 - mask.mean())
    assert row["settings"] == 16
    assert 0 < row["seconds"] < row["seconds_all"]


def test_failures_are_reported(weights):
    broken = (
        Peer("absent", ASSO.attempts, "no_such_package"),
        Peer("crashing", operator.truediv),
    )
    absent, crashing = peers.measure(weights, 4, 0.9, peers=broken)
    [late] = peers.measure(weights, 4, 0.9, peers=(ASSO,), limit=0)
    assert absent["note"] == "missing (pip install no_such_package)"
    assert crashing["note"].startswith("crashed: TypeError: unsupported operand")
    assert late["note"] == "stopped after 0 s"
    assert [row["kept"] for row in (absent, crashing, late)] == [None, None, None]


def test_own_efforts(weights):
    rows = peers.own(weights, 4, 0.9)
    assert [row["name"] for row in rows] == ["lrbi fast", "lrbi normal", "lrbi high"]
    assert rows[0]["kept"] <= rows[1]["kept"]
    config = lrbi.CompressConfig(sparsity=0.9, rank=4, effort="normal")
    assert rows[1]["ones"] == lrbi.compress(weights, config).mask().sum()


def test_command(monkeypatch, tmp_path, capsys, weights):
    row = peers.own(weights, 4, 0.9)[0]
    lost = row | {"name": "lost", "kept": None, "note": "crashed: why"}
    monkeypatch.setattr(peers, "own", lambda *_: [row])
    monkeypatch.setattr(peers, "measure", lambda *_, **__: [lost])
    monkeypatch.setattr(sys, "argv", ["peers", "gaussian", "lstm", "--json", f"{tmp_path}/a.json"])
    peers.main()
    out, err = capsys.readouterr()
    assert f"{row['kept']:.4f}" in out
    assert "crashed: why" in out
    assert "lstm: left out, for it needs --data DIR" in err
    report = json.loads((tmp_path / "a.json").read_text())
    assert [case["case"] for case in report["cases"]] == ["gaussian"]
    assert report["cases"][0]["rows"][1]["kept"] is None
    assert set(report["versions"]) == {"lrbi", "numpy", "scipy", "PyBMF", "nimfa"}


def test_wrong_case(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["peers", "alexnet"])
    with pytest.raises(SystemExit):
        peers.main()
    assert (
        "no case 'alexnet'; there are lenet16, lenet64, lstm, gaussian" in capsys.readouterr().err
    )
