"""The mutation score: of faults put into the emitted netlist, the share that the benches catch.

Yosys puts all mutations into one netlist, where an input selects one of them. The netlist stands in
for the design, and reads the number of the mutation from a file, so that one build serves for all,
and the cocotb bench plays the tests' own scenes on it, unchanged. A mutation that the bench lets
pass is given to a solver: either nobody could ever see it, or a test is missing.
"""

import dataclasses
import itertools
import json
import os
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lrbi.hw.emit import CLOCK_PORTS
from lrbi.sim.scene import Scene
from lrbi.sim.verilog import play
from rich.console import Console
from scenes import check, rom_scenes, stream_scenes

from lrbi.config import DecoderConfig
from lrbi.errors import CheckFailedError
from verification import soak
from verification.equivalence import graph_of, seen
from verification.report import markdown, write
from verification.tools import BUILD, Change, yosys

NO_RESULT = "the simulator stopped"
"""What is said of a mutant with which the simulator did so, twice."""
SOAK = 20.0
"""Seconds of random traffic for a mutation that no solver could settle."""
PATIENCE = 600
"""Clocks without a mask beat after which a mutant counts as hung; the scenes need far fewer."""


@dataclass(frozen=True)
class Design:
    """What is mutated, and the bench that is measured on it."""

    made: soak.Design
    scenes: Mapping[str, Scene]
    """What the bench plays."""
    areas: Sequence[str]
    """The parts of it that are mutated."""

    @property
    def name(self) -> str:
        """The module."""
        return self.made.module

    @property
    def config(self) -> DecoderConfig:
        """Its configuration."""
        return self.made.config

    @property
    def text(self) -> str:
        """Its Verilog."""
        return self.made.text

    @property
    def files(self) -> Mapping[str, str]:
        """ROM images by their names."""
        return self.made.roms


@dataclass(frozen=True)
class Mutation:
    """One fault."""

    number: int
    """What selects it."""
    area: str
    """The part of the design that it is in."""
    near: str
    """The named nets that it acts on first."""
    mode: str
    """What is done: ``inv``, ``const0``, ``const1``, ``cnot0`` or ``cnot1``."""
    line: str
    """The Verilog that is changed."""
    command: str
    """The Yosys command."""


@dataclass(frozen=True)
class Verdict:
    """What came of a mutation."""

    mutation: Mutation
    caught_by: str
    """The scene that failed, or nothing."""
    equivalent: bool | None = None
    """Of one that was not caught: whether a solver proved that it changes nothing."""
    said: str = ""


# -- The designs


def stream_design(changes: Sequence[Change] = ()) -> Design:
    """The stream decoder and the scenes of ``tests/sim/test_bench.py``."""
    config = DecoderConfig(
        rank=7, tile_rows=8, tile_cols=20, stage_ranks=3, lanes=2, iz_rows=2, reset="aresetn"
    )
    areas = ("array", "loader", "credits", "buffers")
    return Design(soak.stream_design(0, config, changes), stream_scenes(config), areas)


def rom_design() -> Design:
    """The ROM decoder and the scenes of ``tests/sim/test_bench.py``."""
    config = DecoderConfig(rank=5, tile_rows=9, tile_cols=13, stage_ranks=2, lanes=2)
    made = soak.rom_design(2, config, (34, 30), 0.7)
    words = [int.from_bytes(beat, "little") for beat in made.masks]
    masks = [words[start : start + config.ip_depth]
             for start in range(0, len(words), config.ip_depth)]  # fmt: skip
    return Design(made, rom_scenes(config, len(masks), masks), ("ROM player",))


# -- The mutations


def mutate(folder: Path, design: Design, count: int, seed: int = 1) -> tuple[str, list[Mutation]]:
    """A netlist with ``count`` mutations, drawn evenly from the areas; and what they are.

    Its module is ``mutated``, its input ``mutation`` selects one; 0 selects none.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    # What the Verilog leaves open is 0, so that simulator and solver see the same mutant.
    (folder / "design.v").write_text(re.sub(r"'h[xX]+", "'h0", design.text))
    for name, text in design.files.items():
        (folder / name).write_text(text)
    prepare = f"read_verilog design.v\nhierarchy -top {design.name}\nproc\nopt_clean\n"
    yosys(folder, f"{prepare}mutate -list 4000 -seed {seed} -o list.txt\nwrite_json design.json\n")
    netlist = json.loads((folder / "design.json").read_text())["modules"][design.name]
    commands = (folder / "list.txt").read_text().splitlines()
    nearest = _nearest_names(netlist)
    lines = design.text.splitlines()
    drawn: dict[str, list[tuple[str, str]]] = {area: [] for area in design.areas}
    for command in commands:
        cell = re.search(r"-cell (\S+)", command)
        # A ROM's contents are no logic; and logic before a clock is no fault, but another design.
        if cell is None or cell[1].startswith("$meminit") or "-port CLK" in command:
            continue
        near = nearest[cell[1]]
        area = _area(near, design.name)
        if area in drawn:
            drawn[area].append((command, near))
    shares = {area: count // len(drawn) + (place < count % len(drawn))
              for place, area in enumerate(drawn)}  # fmt: skip
    chosen = [(area, *each) for area, found in drawn.items() for each in found[: shares[area]]]
    if len(chosen) < count:
        raise ValueError(f"Mutations must be at most {len(chosen)} of {design.name}, not {count}")
    mutations = []
    width = len(chosen).bit_length()
    script = prepare
    for number, (area, command, near) in enumerate(chosen, 1):
        script += f"{command} -ctrl mutation {width} {number}\n"
        source = re.findall(r"-src design\.v:(\d+)", command)
        line = lines[int(source[-1]) - 1].strip() if source else ""
        mode = command.split()[2]
        mutations.append(Mutation(number, area, near, mode, line, command))
    script += f"rename {design.name} mutated\nopt_clean\nwrite_verilog -noattr mutated.v\n"
    yosys(folder, script)
    text = (folder / "mutated.v").read_text()
    return text, mutations


_AREAS = {
    "array": r"columns\d+_(iz|ip|partial|pair|token|half|loading|word|read__data$|bank)|row|masked",
    "credits": r"free|returned|flipped|room|s_axis_ip_tready",
    "buffers": r"columns\d+_(produced|consumed|buffer|data|take|read__data_)|write__addr|read__addr"
    r"|available|full|buffer|valid|last|m_axis_mask|take|more",
    "loader": r"written|present|fresh|write_|word|half|step|start|playing|idle|travelling|too_long"
    r"|error|iz_|s_axis_iz|ip_taken|unused",
}


def _area(near: str, design: str) -> str:
    name = near.split()[0] if near else ""
    if design == "lrbi_rom_decoder":
        if name.startswith("decoder_") or name.startswith("columns"):
            return "decoder"
        return "ROM player"
    found = (area for area, names in _AREAS.items() if re.match(names, name))
    return next(found, "loader")


def _nearest_names(netlist: Mapping[str, Any]) -> dict[str, str]:
    """For each cell the named nets that it drives, by way of as few others as can be."""
    names: dict[int, str] = {}
    for name, net in netlist["netnames"].items():
        if not net["hide_name"] and not re.fullmatch(r"_\d+_|rst|clk", name):
            for bit in net["bits"]:
                names.setdefault(bit, name)
    readers: dict[int, list[str]] = {}
    outputs: dict[str, list[int]] = {}
    for cell, facts in netlist["cells"].items():
        for port, bits in facts["connections"].items():
            direction = facts["port_directions"].get(port)
            if direction == "input":
                for bit in bits:
                    readers.setdefault(bit, []).append(cell)
            else:
                outputs.setdefault(cell, []).extend(bits)
        memory = facts["parameters"].get("MEMID")
        if memory and "WR" in facts["type"].upper():
            names.setdefault(cell, memory.strip("\\"))  # type: ignore[call-overload]

    def nearest(cell: str) -> str:
        seen, level = {cell}, [cell]
        while level:
            memories = [names[each] for each in level if each in names]  # type: ignore[index]
            bits = [bit for each in level for bit in outputs.get(each, ())]
            found = dict.fromkeys([*memories, *(names[bit] for bit in bits if bit in names)])
            if found:
                return " ".join(found)
            level = list(dict.fromkeys(
                reader for bit in bits for reader in readers.get(bit, ()) if reader not in seen
            ))  # fmt: skip
            seen |= set(level)
        return ""

    return {cell: nearest(cell) for cell in netlist["cells"]}


def wrapped(design: Design, netlist: str, width: int) -> str:
    """The mutated netlist under the design's own name and ports."""
    ports = _ports(design)
    declared = ",\n".join(f"  {way} wire {span}{name}" for way, span, name in ports)
    connected = ", ".join(f".{name}({name})" for *_, name in ports)
    return f"""{netlist}
module {design.name} (
{declared}
);
  reg [{width - 1}:0] mutation [0:0];
  initial $readmemh("mutation.mem", mutation, 0, 0);
  mutated mutated (.mutation(mutation[0]), {connected});
endmodule
"""


# -- The bench


def bench(design: Design, text: str, number: int) -> str:
    """The scene that fails with a mutation; nothing, if all are as they must be."""
    files = {**design.files, "mutation.mem": f"{number:x}\n"}
    scenes = {
        name: dataclasses.replace(scene, patience=PATIENCE) for name, scene in design.scenes.items()
    }
    few = dict(itertools.islice(scenes.items(), 12))
    rest = {name: scene for name, scene in scenes.items() if name not in few}
    for part in (few, rest):  # most mutants die soon
        again = partial(play, "verilator", design.name, text, list(part.values()), files=files)
        try:
            outcomes = again()
        except CheckFailedError:  # a mutant that stands still; or the machine was at its end
            try:
                outcomes = again()
            except CheckFailedError as error:
                return f"{NO_RESULT}: {error}"
        try:
            check(design.config, part, outcomes)
        except AssertionError as error:
            return str(error).splitlines()[0] or "a check failed"
    return ""


# -- The equivalents


def wrapper(design: Design, width: int) -> str:
    """The mutated netlist as a solver sees it.

    All memories and registers begin with 0, and the first clock is one of reset; what is in a mask
    beat that is not valid is nobody's business.
    """
    ports = _ports(design)
    clock, reset = CLOCK_PORTS[design.config.reset]
    inputs = [(span, name) for way, span, name in ports if way == "input"]
    outputs = [(span, name) for way, span, name in ports if way == "output"]
    declared = [f"  input [{width - 1}:0] mutation"]
    declared += [f"  input {span}{name}" for span, name in inputs]
    declared += [f"  output {span}seen_{name}" for span, name in outputs]
    held = f"{reset} || !started" if reset == "rst" else f"{reset} && started"
    connected = [f".{name}({f'{held}' if name == reset else name})" for _, name in inputs]
    connected += [f".{name}({name})" for _, name in outputs]
    shown = {
        name: "started && m_axis_mask_tvalid" if re.search("mask_t(data|last)", name) else "started"
        for _, name in outputs
    }
    return (
        "module wrapper (\n" + ",\n".join(declared) + "\n);\n"
        + "".join(f"  wire {span}{name};\n" for span, name in outputs)
        + f"  reg started = 0;\n  always @(posedge {clock}) started <= 1;\n"
        + f"  mutated mutated (.mutation(mutation), {', '.join(connected)});\n"
        + "".join(f"  assign seen_{name} = {when} ? {name} : 0;\n" for name, when in shown.items())
        + "endmodule\n"
    )  # fmt: skip


def _ports(design: Design) -> list[tuple[str, str, str]]:
    """Direction, span and name of each port."""
    head = re.search(rf"module {design.name} \(\n(.*?)\n\);", design.text, re.DOTALL)
    assert head is not None
    return re.findall(r"^  (input|output) (?:wire|reg) (\[\d+:0\] )?(\w+)", head[1], re.MULTILINE)


def soaked(folder: Path, design: Design, netlist: str, number: int) -> tuple[str, bool | None]:
    """What random traffic says of a mutation that the solver could not settle; and the verdict."""
    mutant = dataclasses.replace(design.made, module="mutated", text=netlist)
    found = soak.play(soak.build(folder / "soak", mutant, mutation=number), 0, SOAK)
    if found["said"]:
        return f"{found['said']}, in random traffic", False
    return f"unknown: not in {found['clocks']:,} clocks of random traffic", None


# -- All of it


def measure(
    design: Design, count: int, folder: Path, *, seed: int = 1, workers: int = 2,
    tell: Callable[[str], None] = lambda text: None,
) -> list[Verdict]:  # fmt: skip
    """Mutate a design, and have the bench judge every mutant."""
    netlist, mutations = mutate(folder, design, count, seed)
    width = len(mutations).bit_length()
    text = wrapped(design, netlist, width)
    start = time.monotonic()
    if failed := bench(design, text, 0):  # builds, too
        raise CheckFailedError(f"The bench fails without a mutation: {failed}")
    tell(f"{design.name}: {len(mutations)} mutations, {time.monotonic() - start:.0f} s to build")
    verdicts = []
    with ProcessPoolExecutor(workers) as pool:
        numbers = [mutation.number for mutation in mutations]
        found = pool.map(partial(bench, design, text), numbers)
        for mutation, caught_by in zip(mutations, found, strict=True):
            verdicts.append(Verdict(mutation, caught_by))
            if not caught_by:
                tell(f"not caught: {mutation.number} {mutation.mode} near {mutation.near}: "
                     f"{mutation.line}")  # fmt: skip
        alive = [verdict for verdict in verdicts if not verdict.caught_by]
        graph = graph_of(folder, netlist, wrapper(design, width))
        places = [folder / f"mutation{verdict.mutation.number}" for verdict in alive]
        numbers = [verdict.mutation.number for verdict in alive]
        answers = pool.map(seen, places, itertools.repeat(graph), numbers)
        judged = {}
        for verdict, (said, own) in zip(alive, answers, strict=True):
            number, same = verdict.mutation.number, said == "never"
            if said == "unknown":
                said, same = soaked(folder / f"mutation{number}", design, netlist, number)
            tell(f"mutation {number} is seen: {said} (differs in {', '.join(own) or 'nothing'})")
            judged[number] = dataclasses.replace(verdict, equivalent=same, said=said)
    return [judged.get(verdict.mutation.number, verdict) for verdict in verdicts]


def main(count: int = 300, seed: int = 1) -> int:
    """Measure both designs; the number of mutants that a test is missing for."""
    console = Console(width=150)
    os.environ["LRBI_CACHE_DIR"] = str((BUILD / "cache").resolve())
    start = time.monotonic()

    def tell(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    designs = [(stream_design(), count - count // 3), (rom_design(), count // 3)]
    verdicts = [
        verdict
        for design, share in designs
        for verdict in measure(design, share, BUILD / "mutate" / design.name, seed=seed, tell=tell)
    ]
    survivors = [each for each in verdicts if not each.caught_by and each.equivalent is not True]
    rows = []
    for area in [*dict.fromkeys(each.mutation.area for each in verdicts), "all"]:
        of = [each for each in verdicts if area in (each.mutation.area, "all")]
        same = sum(each.equivalent is True for each in of)
        caught = sum(bool(each.caught_by) for each in of)
        stopped = sum(each.caught_by.startswith(NO_RESULT) for each in of)
        rows.append([area, len(of), same, caught, stopped, len(of) - same - caught,
                     f"{caught / max(1, len(of) - same):.1%}"])  # fmt: skip
    titles = ["area", "mutations", "never seen, proved", "caught", "of them, simulator stopped",
              "survivors", "score"]  # fmt: skip
    tables = [markdown(titles, rows)]
    quiet = [each for each in verdicts if not each.caught_by]
    if quiet:
        titles = ["not caught", "area", "what", "line", "can be seen"]
        tables.append(markdown(titles, [
            [each.mutation.number, each.mutation.area, f"{each.mutation.mode} near "
             f"{each.mutation.near}", f"`{each.mutation.line}`".replace("|", "\\|"), each.said]
            for each in quiet
        ]))  # fmt: skip
    tell("\n\n".join(tables))
    for verdict in survivors:
        tell(f"survivor {verdict.mutation.number}: {verdict.said}\n  {verdict.mutation.command}")
    by_scene = Counter(each.caught_by.splitlines()[0] for each in verdicts if each.caught_by)
    tell("caught first by: " + ", ".join(f"{name} {n}" for name, n in by_scene.most_common(12)))
    seconds = round(time.monotonic() - start)
    tell(f"{seconds} s, seed {seed}")
    figures = {
        "seconds": seconds,
        "seed": seed,
        "verdicts": [dataclasses.asdict(each) for each in verdicts],
    }
    if count >= 300 and seed == 1:
        write("mutate", figures, "\n\n".join(tables))
    return len(survivors)
