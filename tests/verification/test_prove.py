"""A slice of the proofs; ``make prove`` runs them all."""

from dataclasses import replace

import pytest
from planting import OR_FOR_AND_IN_STAGE_0, VALID_STUCK

from verification import prove

CHOSEN = ("stream1", "stream-cover0", "reset1", "player1", "player-cover", "columns1",
          "stream-fault1", "stream-fault11", "stream-fault14", "reset-fault1", "player-fault0",
          "columns-fault0", "paths2", "paths7", "paths-fault0")  # fmt: skip
JOBS = {job.name: job for job in prove.jobs()}


@pytest.mark.parametrize("name", CHOSEN)
def test_proofs_covers_and_planted_faults_are_as_they_must_be(name, tmp_path):
    (result,) = prove.run_jobs([JOBS[name]], tmp_path)
    assert result.passed, result.said


def test_every_proof_has_a_cover_and_a_planted_fault():
    kinds = {prove.EQ3: "(a)", prove.RESET: "(e)", prove.PLAYER: "(f)", prove.STEP: "(a)"}
    faults = [*prove.STREAM_FAULTS, *prove.RESET_FAULTS, *prove.PLAYER_FAULTS, *prove.COLUMN_FAULTS]
    assert all(any(fault.startswith(kind) for fault in faults) for kind in kinds.values())
    assert {fault[:3] for fault in faults} == {"(a)", "(b)", "(c)", "(d)", "(e)", "(f)"}
    for config in prove.ALL_COLUMNS:  # whose one column is proved
        assert replace(config, tile_cols=1) in prove.ONE_COLUMN
    for name in ("stream", "reset", "player"):
        assert any(job.startswith(f"{name}-cover") for job in JOBS)


def test_a_faulty_array_is_not_proved(tmp_path):
    prove.write_decoder(tmp_path, prove.SMALL, OR_FOR_AND_IN_STAGE_0)
    result = prove.prove(tmp_path, "stream", "", "")
    assert not result.passed
    assert result.reach == "none"
    assert result.said


def test_covers_are_missed_where_nothing_comes_out(tmp_path):
    prove.write_decoder(tmp_path, prove.SMALL, VALID_STUCK)
    result = prove.cover(tmp_path, "stream", "", "")
    assert not result.passed
    assert result.said.startswith("not reached")


def test_no_fault_is_found_where_none_is_planted(tmp_path, monkeypatch):
    monkeypatch.setattr(prove, "FAULT_DEPTH", 8)
    fault = prove.STREAM_FAULTS["(a) OR for AND in stage 0"]
    prove.write_decoder(tmp_path, prove.SMALL)
    assert not prove.catch(tmp_path, "stream", "", "", replace(fault, changes=())).passed
