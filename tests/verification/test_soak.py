"""Random traffic: it finds nothing in the decoders, and planted faults in seconds."""

import math
import re
from functools import partial

import pytest
from planting import OR_FOR_AND_IN_STAGE_0, READY_IGNORED, VALID_STUCK

from lrbi.config import DecoderConfig
from verification import soak

CONFIG = DecoderConfig(rank=3, tile_rows=4, tile_cols=5, stage_ranks=2, lanes=2)
STREAM, ROM = "stream", "ROM"


def design(kind, changes=()):
    if kind == STREAM:
        return soak.stream_design(0, CONFIG, changes)
    return soak.rom_design(0, CONFIG, (11, 14), 0.6, changes)


def program(tmp_path, kind, changes=()):
    return soak.build(tmp_path / "soak", design(kind, changes), effort="-O0")


def test_designs_are_their_numbers_and_of_every_kind():
    designs = [soak.design_of(number) for number in range(6)]
    assert designs[2] == soak.design_of(2)
    assert {design.module for design in designs} == {"lrbi_decoder", "lrbi_rom_decoder"}
    assert len({design.name for design in designs}) == 6


@pytest.mark.parametrize("kind", [STREAM, ROM])
def test_nothing_is_wrong(tmp_path, kind):
    made = program(tmp_path, kind)
    found = [soak.play(made, case) for case in range(40)]
    assert {each["said"] for each in found} == {""}
    for key, least in {"bits": 10_000, "tiles": 1000, "resets": 100, "refused": 20}.items():
        assert sum(each[key] for each in found) > least, key


@pytest.mark.parametrize(
    ("kind", "changes", "said"),
    [
        (STREAM, OR_FOR_AND_IN_STAGE_0, "a mask bit is not Eq. 3's"),
        (STREAM, READY_IGNORED, "a mask beat (was taken back|is lost|came)|a mask bit"),
        (STREAM, VALID_STUCK, "a mask beat is lost"),
        (STREAM, [("decoder", "self.error.eq(1)", "self.error.eq(0)")], "error is not as it must"),
        (STREAM, [("decoder", "ip_ready.eq(playing_next & room)", "ip_ready.eq(room)")],
         "I_p is taken before its I_z"),
        (STREAM, [("decoder", "iz_ready.eq(~complete | step)", "iz_ready.eq(1)")],
         "a second I_z frame is taken ahead"),
        (STREAM, [("decoder", "Cat(ip.tlast, last[:-1])", "Cat(0, last[:-1])")],
         "a tile's end is out of place"),
        (STREAM, [("decoder", "step.eq(complete &", "step.eq(~self.error & complete &")],
         "nothing moves"),
        (STREAM, [("decoder", "(mask.tvalid & ~mask.tready)",
                   "(mask.tvalid & ~mask.tready & produced[0])")],
         "an offered mask beat was taken back"),
        (ROM, [("rom", "stop > self.tiles", "(stop > self.tiles) & (first <= self.tiles)")],
         "busy is not as|done is not as"),
        (STREAM, [("decoder", "valid = Signal(depth)", "valid = Signal(depth, reset_less=True)")],
         "a mask beat came that nobody asked for"),
        (ROM, [("rom", "with m.If(tiles_left == 1):", "with m.If(tiles_left == 0):")],
         "a mask beat|busy is not|done is not"),
        (ROM, [("rom", "go.eq(0), self.done.eq(0)]", "go.eq(0)]")], "done is not as it must be"),
        (ROM, [("rom", "with m.If(stop > self.tiles):", "with m.If(0):")], "busy is not as"),
        (ROM, [("rom", "self.error.eq(0),", "")], "error is not as it must be"),
    ],
)  # fmt: skip
def test_planted_faults_are_found_and_replayed(tmp_path, kind, changes, said):
    made = program(tmp_path, kind, changes)
    found = next(filter(lambda each: each["said"], map(partial(soak.play, made), range(200))))
    assert re.match(said, found["said"])
    assert soak.play(made, found["case"]) | {"seconds": 0} == found | {"seconds": 0}


def test_a_failure_is_reduced_to_what_it_needs(tmp_path):
    result = soak.soak_one(tmp_path / "soak", design(STREAM, READY_IGNORED), math.inf)
    without = result["again"].partition("--without ")[2].split(",")
    assert "stalls" not in without  # a beat is replaced only where the sink stalls
    assert {"resets", "long"} <= set(without)
    assert result["again"].startswith("python -m verification soak --case 0.")


def test_a_replay_writes_waves(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(soak, "BUILD", tmp_path)
    monkeypatch.setattr(soak, "design_of", lambda number: design(STREAM))
    assert soak.main(case="7.3", without="resets") == 0
    assert "nothing is wrong" in capsys.readouterr().out
    assert "$enddefinitions" in (tmp_path / "soak/replay7/waves.vcd").read_text()
