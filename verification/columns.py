"""Columns are independent and alike: every column of a design is the one-column design.

The step from one column to C, by partition refinement on the bit-level netlists of both designs.
Nets begin in one class, but for inputs and constants, which are told apart by name; a class is
split until any two nets of it are driven by cells of one kind whose inputs are in equal classes.
Nets of one class then carry the same values for ever, whatever the inputs, if the registers of each
class begin equal: by induction over the clocks. The input bits of a column are named as if it were
column 0, those of all others are told apart from everything; so a column that looked at another's
bits would be in a class of its own.
"""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from amaranth.lib import wiring
from lrbi.hw.decoder import Decoder
from lrbi.hw.emit import verilog

from lrbi.config import DecoderConfig
from verification.tools import yosys

_SCRIPT = """
read_verilog {name}.v
hierarchy -top {name}
proc
memory_nordff
memory_map
opt_clean
simplemap
dffunmap
opt_clean
write_json {name}.json
"""

Netlist = dict[str, Any]
Classes = tuple[list[int], Counter[int]]
"""The classes of a column's outputs, and of all that drives them."""


def unlike_columns(
    folder: Path, config: DecoderConfig, decoder: type[Decoder] = Decoder
) -> list[int]:
    """The columns that are not as the one-column design; none, if the step holds.

    Pad bits, which must be 0, count as one column more.
    """
    one = DecoderConfig(**(config.as_dict() | {"tile_cols": 1}))
    narrow = _netlist(folder, "narrow", decoder(config=one))
    wide = _netlist(folder, "wide", decoder(config=config))
    table: dict[Any, int] = {}
    wanted, rounds = _classes(narrow, one, 0, table)
    unlike = [
        column
        for column in range(config.tile_cols)
        if _classes(wide, config, column, table, rounds)[0] != wanted
    ]
    pads = wide["ports"]["m_axis_mask_tdata"]["bits"][config.mask_width :]
    return unlike + [config.tile_cols] * (not set(pads) <= {"0"})


def paths_through(folder: Path, top: wiring.Component) -> list[str]:
    """The outputs of a design that an input can reach without a register between."""
    netlist = _netlist(folder, "dut", top)
    ports = netlist["ports"].items()
    inputs = {bit for _, port in ports if port["direction"] == "input" for bit in port["bits"]}
    return [
        name
        for name, port in ports
        if port["direction"] == "output"
        and inputs.intersection(
            bit for _, (_, sources) in _cone(netlist, port["bits"], through=False)
            for bit in sources
        ) | inputs.intersection(port["bits"])
    ]  # fmt: skip


def _netlist(folder: Path, name: str, decoder: wiring.Component) -> Netlist:
    folder.mkdir(parents=True, exist_ok=True)
    text = verilog(decoder, name=name, reset="rst", command="")
    (folder / f"{name}.v").write_text(text)
    yosys(folder, _SCRIPT.format(name=name))
    return json.loads((folder / f"{name}.json").read_text())["modules"][name]


def _classes(
    netlist: Netlist, config: DecoderConfig, column: int, table: dict[Any, int], rounds: int = 0
) -> tuple[Classes, int]:
    """The classes of one column, after so many rounds, or as many as it takes; and how many.

    ``table`` numbers the classes, the same for all designs.
    """
    ports = {name: port["bits"] for name, port in netlist["ports"].items()}
    names = {bit: f"constant {bit}" for bit in ("0", "1", "x")}
    for name, bits in ports.items():
        for index, bit in enumerate(bits):
            at, width = name, config.tile_cols
            if name == "s_axis_iz_tdata":
                row, at_column = divmod(index, width)
                at = f"{name} of row {row}" if at_column == column else f"{name} {index} of others"
                if index >= config.iz_width:
                    at = f"{name} pad"
            elif len(bits) > 1:
                at = f"{name} {index}"
            names.setdefault(bit, at)
    outputs = [ports["m_axis_mask_tdata"][lane * config.tile_cols + column]
               for lane in range(config.lanes)]  # fmt: skip
    outputs += [
        ports[name][0]
        for name in ("m_axis_mask_tvalid", "m_axis_mask_tlast", "s_axis_iz_tready",
                     "s_axis_ip_tready", "error")
    ]  # fmt: skip
    cone = dict(_cone(netlist, outputs))
    classes = {bit: table.setdefault(name, len(table)) for bit, name in names.items()}
    fixed = dict(classes)
    classes |= {bit: table.setdefault(kind, len(table)) for bit, (kind, _) in cone.items()}
    count = done = 0
    while done < rounds if rounds else len(set(classes.values())) > count:
        count = len(set(classes.values()))
        classes = fixed | {
            bit: table.setdefault((kind, *(classes[source] for source in sources)), len(table))
            for bit, (kind, sources) in cone.items()
        }
        done += 1
    return ([classes[bit] for bit in outputs], Counter(classes[bit] for bit in cone)), done


def _cone(
    netlist: Netlist, outputs: list[Any], *, through: bool = True
) -> Iterator[tuple[Any, tuple[str, list[Any]]]]:
    """Every net that can have a say in the outputs: the cell that drives it, and from what.

    With ``through`` false, only those that have it in the same clock.
    """
    drivers = {}
    for cell in netlist["cells"].values():
        ways = cell["port_directions"]
        sources = [bit for port in sorted(ways) if ways[port] == "input"
                   for bit in cell["connections"][port]]  # fmt: skip
        for port in ways:
            if ways[port] == "output":
                if "DFF" in cell["type"] and not through:
                    continue
                for index, bit in enumerate(cell["connections"][port]):
                    drivers[bit] = (f"{cell['type']} {index}", sources)
    seen, waiting = set(outputs), list(outputs)
    while waiting:
        bit = waiting.pop()
        if bit in drivers:
            yield bit, drivers[bit]
            new = set(drivers[bit][1]) - seen
            seen |= new
            waiting += new
