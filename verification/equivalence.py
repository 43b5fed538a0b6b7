"""Whether a mutation can ever be seen from outside, for all inputs, without a bound.

The design becomes an and-inverter graph, in which the number of the mutation is an input. Beside it
stands a mutant that has no registers of its own: it computes, from the design's state, the outputs
and what the registers would hold next. If neither ever differs, in any state that the design can
reach, then the mutant goes the design's way for ever, and nobody can tell them apart. If a register
differs, the mutant is given that register as its own, and the question is asked again; if an output
differs, the mutation can be seen. So a mutant gets the few registers that its fault shows in, and
the solver, property directed reachability, has little to do.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from verification.tools import abc, run, yosys

SECONDS = 40
"""That the solver may take for one question."""


@dataclass(frozen=True)
class Graph:
    """An and-inverter graph in AIGER's numbers: 2n is the n-th variable, 2n + 1 its complement."""

    inputs: dict[str, int]
    latches: list[tuple[str, int, int]]
    """Name, variable, and what it holds next; all begin with 0."""
    outputs: dict[str, int]
    gates: list[tuple[int, int, int]]
    """A variable, and the two whose AND it is; in order."""


def graph_of(folder: Path, netlist: str, wrapper: str) -> Graph:
    """The graph of the module ``wrapper``, which holds the netlist; memories become registers."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "mutated.v").write_text(netlist)
    (folder / "wrapper.v").write_text(wrapper)
    yosys(
        folder,
        """
read_verilog mutated.v wrapper.v
prep -flatten -top wrapper
memory_map
setundef -undriven -zero
setundef -zero
setundef -zero -init
opt -full
techmap
opt -fast
simplemap
dffunmap
write_json cells.json
aigmap
setundef -zero
opt_clean
write_aiger -ascii -symbols -zinit -no-startoffset design.aag
""",
    )
    # The graph knows no clocks: all registers must have the same one.
    modules = json.loads((folder / "cells.json").read_text())["modules"]
    clocks = {
        (cell["type"], *cell["connections"]["C"])
        for cell in modules["wrapper"]["cells"].values()
        if "_DFF_" in cell["type"]
    }
    if len(clocks) > 1:
        raise ValueError("Registers of a mutated netlist must have one clock, not several")
    return read((folder / "design.aag").read_text())


def read(text: str) -> Graph:
    """Read an ASCII AIGER file with symbols."""
    lines = iter(text.splitlines())
    _, inputs, latches, outputs, gates = map(int, next(lines).split()[1:6])
    inputs_at = [int(next(lines)) for _ in range(inputs)]
    latches_at = [[*map(int, next(lines).split()[:2])] for _ in range(latches)]
    outputs_at = [int(next(lines)) for _ in range(outputs)]
    triples = [tuple(map(int, next(lines).split())) for _ in range(gates)]
    names = dict(re.findall(r"^([ilo]\d+) (.*)$", text, re.MULTILINE))
    ordered = sorted(triples)  # a gate's number is above those that it reads
    return Graph(
        {names[f"i{place}"]: at for place, at in enumerate(inputs_at)},
        [(names.get(f"l{place}", f"l{place}"), *each) for place, each in enumerate(latches_at)],  # type: ignore[misc]
        {names[f"o{place}"]: at for place, at in enumerate(outputs_at)},
        ordered,  # type: ignore[arg-type]
    )


class _Builder:
    """A graph in the making, in which equal gates are one."""

    def __init__(self) -> None:
        self.count = 0
        self.gates: dict[tuple[int, int], int] = {}

    def variable(self) -> int:
        self.count += 1
        return 2 * self.count

    def both(self, one: int, other: int) -> int:
        one, other = min(one, other), max(one, other)
        if one == 0 or one == other ^ 1:
            return 0
        if one == 1 or one == other:
            return other
        if (one, other) not in self.gates:
            self.gates[one, other] = self.variable()
        return self.gates[one, other]

    def differ(self, one: int, other: int) -> int:
        neither = self.both(one ^ 1, other ^ 1)
        return self.both(neither ^ 1, self.both(one, other) ^ 1)

    def play(self, graph: Graph, values: dict[int, int]) -> dict[int, int]:
        """All variables of a graph, given its inputs and latches."""
        values = {0: 0, **values}
        for at, one, other in graph.gates:
            values[at] = self.both(values[one & ~1] ^ one & 1, values[other & ~1] ^ other & 1)
        return values


def question(graph: Graph, number: int, own: Iterable[str]) -> tuple[bytes, list[str]]:
    """The graph in which an output is high if the mutant differs; and what each output tells.

    The registers named in ``own`` are the mutant's own.
    """
    own = set(own)
    made = _Builder()
    inputs = {at: made.variable() for name, at in graph.inputs.items() if not _selects(name)}
    chosen = {
        at: number >> int(re.sub(r"\D", "", name) or 0) & 1
        for name, at in graph.inputs.items()
        if _selects(name)
    }
    states = {at: made.variable() for _, at, _ in graph.latches}
    others = {at: made.variable() for name, at, _ in graph.latches if _register(name) in own}
    design = made.play(graph, inputs | states | dict.fromkeys(chosen, 0))
    mutant = made.play(graph, inputs | states | others | chosen)

    def value(of: dict[int, int], literal: int) -> int:
        return of[literal & ~1] ^ (literal & 1)

    tells, outputs = [], []
    for kind, name, literal in [
        *(("output", name, literal) for name, literal in graph.outputs.items()),
        *(("register", _register(name), after) for name, at, after in graph.latches
          if at not in others),
    ]:  # fmt: skip
        differs = made.differ(value(design, literal), value(mutant, literal))
        if differs:
            tells.append(f"{kind} {name}")
            outputs.append(differs)
    # Variables were numbered as the binary form wants it: inputs, latches, gates.
    after = [value(design, literal) for _, _, literal in graph.latches]
    after += [value(mutant, literal) for _, at, literal in graph.latches if at in others]
    head = f"aig {made.count} {len(inputs)} {len(after)} {len(outputs)} {len(made.gates)}"
    lines = "\n".join(map(str, [head, *after, *outputs])) + "\n"
    gates = b"".join(
        _packed(at - other) + _packed(other - one) for (one, other), at in made.gates.items()
    )
    return lines.encode() + gates, tells


def _packed(number: int) -> bytes:
    """A number as AIGER packs it: seven bits a byte, the lowest first."""
    parts = []
    while number >= 0x80:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])


def _selects(name: str) -> bool:
    """Whether an input is a bit of the mutation's number."""
    return re.fullmatch(r"mutation(\[\d+\])?", name) is not None


def _register(name: str) -> str:
    """The register or memory that a bit belongs to, of all its names the plainest."""
    names = [re.sub(r"\[\d+\]$", "", each).removeprefix("mutated.") for each in name.split()]
    return min(names, key=lambda each: (re.fullmatch(r"_\d+_", each) is not None, len(each), each))


def seen(folder: Path, graph: Graph, number: int) -> tuple[str, Sequence[str]]:
    """Whether a mutation can be seen: ``never``, ``output NAME in clock N`` or ``unknown``.

    And the registers that it shows in.
    """
    folder.mkdir(parents=True, exist_ok=True)
    own: list[str] = []
    while True:
        content, tells = question(graph, number, own)
        if not tells:
            return "never", own
        (folder / "question.aig").write_bytes(content)
        script = f"read_aiger question.aig; strash; pdr -T {SECONDS}"
        said = run(folder, abc(), "-c", script, check=False)
        if "Property proved" in said:
            return "never", own
        found = re.search(r"Output (\d+) .*asserted in frame (\d+)", said)
        if found is None:
            return "unknown", own
        kind, _, name = tells[int(found[1])].partition(" ")
        if kind == "output":
            return f"output {name} in clock {found[2]}", own
        own.append(name)
