"""Coverage: of the Python by the tests, branches too; of the emitted Verilog by the benches.

Verilator counts lines, branches and toggles while the scenes of ``tests/sim/test_bench.py`` play.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lrbi.sim.verilog import play
from rich.console import Console
from scenes import check

from verification.mutate import Design, rom_design, stream_design
from verification.report import markdown, write
from verification.tools import BUILD

KINDS = ("line", "branch", "toggle")
Point = tuple[str, str, int]
"""A kind, what is counted, and how often it was seen."""


def verilog_points(path: Path) -> list[Point]:
    """The points of a file that Verilator wrote."""
    points = []
    for found in re.finditer(r"^C '(.*)' (\d+)$", path.read_text("latin1"), re.MULTILINE):
        fields = dict(each.split("\2", 1) for each in found[1].split("\1") if each)
        name = fields["o"] if fields["t"] == "toggle" else f"line {fields['l']}: {fields['o']}"
        points.append((fields["t"], name, int(found[2])))
    if not points:
        raise RuntimeError(f"{path} has no coverage in it")
    return points


def measure(folder: Path, design: Design) -> list[Point]:
    """The coverage of a design by its scenes, which must pass."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{design.name}.dat"
    outcomes = play(
        "verilator", design.name, design.text, list(design.scenes.values()), files=design.files,
        coverage=path,
    )  # fmt: skip
    check(design.config, design.scenes, outcomes)
    return verilog_points(path)


def parts(design: Design, points: Sequence[Point]) -> dict[str, list[Point]]:
    """The points by the part of the design that they are in."""
    if design.name == "lrbi_decoder":
        return {design.name: list(points)}
    split: dict[str, list[Point]] = {f"{design.name}, players and control": [], "its core": []}
    lines = design.text.splitlines()
    for kind, name, count in points:
        if re.match(r"i[pz]_rom\[", name):  # what a ROM holds never changes
            continue
        line = re.match(r"line (\d+)", name)
        inner = name.startswith("decoder_") or (line and "decoder_" in lines[int(line[1]) - 1])
        split["its core" if inner else f"{design.name}, players and control"].append(
            (kind, name, count)
        )
    return split


def uncovered(points: Sequence[Point]) -> str:
    """What was never seen, by line and by net, toggles counted."""
    lines = [name for kind, name, count in points if kind != "toggle" and not count]
    nets: dict[str, set[str]] = {}
    for kind, name, count in points:
        if kind == "toggle" and not count:
            net, _, word = re.sub(r"(\[\d+\])?:[01]->[01]$", "", name).partition("[")
            nets.setdefault(net, set()).add(word.rstrip("]"))
    for net, words in nets.items():
        memory = words != {""}
        many = f" in {len(words)} words" if len(words) > 1 else f"[{min(words)}]"
        lines.append(f"{net}{many}" if memory else net)
    return ", ".join(lines) or "nothing"


def verilog(console: Console) -> tuple[dict[str, Any], str]:
    """Both decoders: figures and a table."""
    os.environ["LRBI_CACHE_DIR"] = str((BUILD / "cache").resolve())
    rows, figures = [], {}
    for design in (stream_design(), rom_design()):
        for part, points in parts(design, measure(BUILD / "coverage", design)).items():
            of = {kind: [count for each, _, count in points if each == kind] for kind in KINDS}
            seen = {kind: (sum(map(bool, of[kind])), len(of[kind])) for kind in KINDS}
            missed = uncovered(points)
            figures[part] = seen | {"uncovered": missed}
            rows.append([part, *(f"{some} of {all_}" for some, all_ in seen.values()), missed])
    table = markdown(["Verilog", "lines", "branches", "toggles", "not seen"], rows)
    console.print(table, markup=False, highlight=False, soft_wrap=True)
    return figures, table


def python(console: Console) -> tuple[dict[str, Any], str]:
    """The whole suite under coverage: figures and a table."""
    data = (BUILD / "coverage").resolve()
    data.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"COVERAGE_FILE": str(data / "python")}
    environment.pop("LRBI_CACHE_DIR", None)

    def tool(*words: str, check: bool = True) -> int:
        words = (sys.executable, "-m", "coverage", *words)
        return subprocess.run(words, env=environment, check=check).returncode

    tool("erase")
    failed = tool("run", "-m", "pytest", "-n", "2", "-q", "--durations=30", check=False)
    tool("combine", "--quiet")
    tool("json", "--quiet", "-o", str(data / "python.json"))
    report = json.loads((data / "python.json").read_text())
    titles = ["Python", "statements", "branches", "lines and branches not run"]
    rows = python_rows(report)
    console.print(markdown(titles, rows), markup=False, highlight=False, soft_wrap=True)
    # Line numbers are of use today alone.
    table = markdown(titles[:-1], [row[:-1] for row in rows])
    return {"totals": report["totals"], "failed": bool(failed)}, table


def python_rows(report: dict[str, Any]) -> list[list[str]]:
    """Files of which something was not run, and the sums of all."""
    rows = []
    for name, facts in report["files"].items():
        lines = facts["missing_lines"]
        missed = [str(first) if first == last else f"{first}-{last}"
                  for first, last in _spans(lines)]  # fmt: skip
        missed += [f"{start} -> {'end' if end < 0 else end}"
                   for start, end in facts["missing_branches"]
                   if start not in lines and end not in lines]  # fmt: skip
        if missed:
            rows.append([name, *_shares(facts["summary"]), ", ".join(missed)])
    return [*rows, ["all", *_shares(report["totals"]), ""]]


def _shares(sums: dict[str, int]) -> list[str]:
    return [
        f"{sums['covered_lines']} of {sums['num_statements']}",
        f"{sums['covered_branches']} of {sums['num_branches']}",
    ]


def _spans(lines: Sequence[int]) -> list[tuple[int, int]]:
    spans: list[tuple[int, int]] = []
    for line in lines:
        if spans and line == spans[-1][1] + 1:
            spans[-1] = (spans[-1][0], line)
        else:
            spans.append((line, line))
    return spans


def main(only: str = "") -> int:
    """Measure and print, and keep the tables if it was both; whether a test failed."""
    console = Console(width=150)
    found = {name: run(console) for name, run in (("verilog", verilog), ("python", python))
             if only in ("", name)}  # fmt: skip
    figures = {name: facts for name, (facts, _) in found.items()}
    if not only:
        write("coverage", figures, "\n\n".join(table for _, table in found.values()))
    return bool(figures.get("python", {}).get("failed"))
