"""What Verilator counts, and how it is told."""

import dataclasses
import itertools

import pytest

from verification import coverage, mutate, soak
from verification.report import PAGE, RUNS


def point(**fields):
    return "C '" + "".join(f"\1{name}\2{value}" for name, value in fields.items())


@pytest.fixture
def points(tmp_path):
    path = tmp_path / "a.dat"
    lines = [
        point(f="a.v", l=3, t="line", o="block") + "' 7",
        point(f="a.v", l=4, t="branch", o="if") + "' 0",
        *(point(f="a.v", l=1, t="toggle", o=name) + "' 0"
          for name in ("word[3]:0->1", "ram[0][1]:0->1", "ram[0][2]:1->0", "flag:0->1",
                       "two[1][0]:0->1", "two[2][0]:0->1", "ip_rom[2][0]:0->1",
                       "decoder_x:1->0")),
    ]  # fmt: skip
    path.write_text("# SystemC::Coverage-3\n" + "\n".join(lines) + "\n", "latin1")
    return coverage.verilog_points(path)


def test_points_are_read_and_told_by_net(points):
    assert points[:3] == [
        ("line", "line 3: block", 7), ("branch", "line 4: if", 0), ("toggle", "word[3]:0->1", 0)
    ]  # fmt: skip
    told = coverage.uncovered(points[:-2])
    assert told == "line 4: if, word, ram[0], flag, two in 2 words"
    assert coverage.uncovered(points[:1]) == "nothing"


def test_a_rom_decoder_is_split_from_its_core(points):
    text = "\n\nalways block\n  if (decoder_x)\n"
    design = mutate.Design(soak.Design(0, "lrbi_rom_decoder", None, text), {}, ())
    outer, core = coverage.parts(design, points).values()
    assert [name for _, name, _ in core] == ["line 4: if", "decoder_x:1->0"]
    assert not any("ip_rom" in name for _, name, _ in outer)


def test_python_files_are_told_by_what_was_not_run():
    def facts(lines, branches, *sums):
        names = ("covered_lines", "num_statements", "covered_branches", "num_branches")
        summary = dict(zip(names, sums, strict=True))
        return {"missing_lines": lines, "missing_branches": branches, "summary": summary}

    whole = facts([], [], 5, 5, 2, 2)
    part = facts([3, 4, 5, 9], [[2, 3], [7, -1], [9, 10]], 6, 10, 1, 4)
    report = {"files": {"a.py": whole, "b.py": part}, "totals": part["summary"]}
    assert coverage.python_rows(report) == [
        ["b.py", "6 of 10", "1 of 4", "3-5, 9, 7 -> end"],
        ["all", "6 of 10", "1 of 4", ""],
    ]


def test_a_file_without_coverage_is_refused(tmp_path):
    (tmp_path / "a.dat").write_text("# SystemC::Coverage-3\n")
    with pytest.raises(RuntimeError, match="has no coverage in it"):
        coverage.verilog_points(tmp_path / "a.dat")


def test_scenes_cover_every_line_and_few_leave_some(tmp_path):
    design = mutate.stream_design()
    points = coverage.measure(tmp_path, design)
    assert [point for point in points if point[0] != "toggle" and not point[2]] == []
    few = dict(itertools.islice(design.scenes.items(), 1))
    fewer = coverage.measure(tmp_path, dataclasses.replace(design, scenes=few))
    assert sum(not count for *_, count in fewer) > sum(not count for *_, count in points)


def test_the_page_has_a_place_for_every_run():
    text = PAGE.read_text()
    for name in RUNS:
        table = text.partition(f"<!-- {name} -->\n")[2].partition(f"<!-- end of {name} -->")[0]
        assert table.startswith("| "), name
