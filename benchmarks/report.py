"""What the hardware benchmarks write: JSON, CSV, plots, and the tables of the docs."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FOLDER = Path("docs/hardware")
PAGE = Path("docs/hardware-results.md")


def line(row: dict[str, Any]) -> str:
    """A decoder's figures on one line."""
    core = row["core"]
    return (
        f"{row['name']}, {row['beat']} bits a beat: {row['index_bits']:,} index bits, "
        f"{core['lut']} + {core['lut_ram']} LUT4, {core['ff']} FF, {core['fmax_mhz']} MHz, "
        f"{core['bits_per_clock']} bits a clock"
    )


def write_rivals(found: dict[str, Any], folder: Path) -> None:
    """The decoders side by side: JSON, plots, and their table on the docs' page."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rivals.json").write_text(json.dumps(found, indent=2) + "\n")
    _save(plot_rivals(found), folder / "rivals")
    if folder == FOLDER:
        for number, case in enumerate(found["cases"], 1):
            fill(PAGE, f"rivals {number}", rivals_table(case))


def rivals_table(case: dict[str, Any]) -> str:
    """A case's decoders as two tables in Markdown: each by itself, and with its index in ROMs."""
    shape = " x ".join(map(str, case["shape"]))
    head = f"**{case['case']}**, {shape}, S = {case['sparsity']}, k = {case['rank']}."
    alone = markdown(
        ["decoder", "bits a beat", "index bits", "kept", "LUT4", "+ as RAM", "FF", "MHz",
         "mask bits a clock", "mask Gbit/s", "Mbit/s for a LUT4"],
        [
            [row["name"], row["beat"], f"{row['index_bits']:,}", _number(row["kept"], ".3f"),
             *_cells(row["core"]), _clock(row["core"]), f"{row['core']['bits_per_clock']:.1f}",
             *_rates(row["core"])]
            for row in case["decoders"]
        ],
    )  # fmt: skip
    whole = markdown(
        ["with its ROMs", "bits a beat", "ROM bits", "BRAM", "LUT4", "+ as RAM", "FF", "MHz",
         "clocks from start", "mask Gbit/s", "Mbit/s for a LUT4"],
        [
            [row["name"], row["beat"], f"{row['rom_bits']:,}", row["with_rom"]["bram"],
             *_cells(row["with_rom"]), _clock(row["with_rom"]),
             f"{row['simulation']['clocks']:,}", *_rates(row["with_rom"])]
            for row in case["decoders"]
        ],
    )  # fmt: skip
    return f"{head}\n\n{alone}\n\n{whole}"


def _cells(facts: dict[str, Any]) -> list[str]:
    return [f"{facts[name]:,}" for name in ("lut", "lut_ram", "ff")]


def _rates(facts: dict[str, Any]) -> list[str]:
    """Gbit/s and Mbit/s for a LUT4; nothing of a decoder that is a wire."""
    if not facts["ff"]:
        return ["-", "-"]
    return [_number(facts["gbit_per_s"], ".1f"), _number(facts["mbit_per_s_per_lut"], ".1f")]


def markdown(titles: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table in Markdown."""
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join("| " + " | ".join(map(str, cells)) + " |" for cells in lines)


def fill(page: Path, name: str, text: str) -> None:
    """Put a text between the marks of its name on a page."""
    begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    before, found, rest = page.read_text().partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise ValueError(f"{page} has no place marked {name!r}")
    page.write_text(f"{before}{begin}\n{text}\n{end}{after}")


def _clock(facts: dict[str, Any]) -> str:
    clocks = facts["fmax_mhz_seeds"]
    if not clocks or not facts["ff"]:
        return "-"
    spread = f" ({min(clocks):.0f}-{max(clocks):.0f})" if len(clocks) > 1 else ""
    return f"{facts['fmax_mhz']:.0f}{spread}"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def plot_rivals(found: dict[str, Any]) -> Any:
    """Mask rate of whole decoders against the size of the index, and against the LUTs."""
    from matplotlib.figure import Figure

    colours = {"lrbi": "#c0392b", "bitm": "#7f8c8d", "rela": "#2980b9", "two-": "#27ae60"}
    figure = Figure(figsize=(11, 4.4 * len(found["cases"])), layout="constrained")
    axes = figure.subplots(len(found["cases"]), 2, squeeze=False)
    for case, (left, right) in zip(found["cases"], axes, strict=True):
        weights = case["shape"][0] * case["shape"][1]
        for row in case["decoders"]:
            facts = row["with_rom"]
            if facts["gbit_per_s"] is None:
                continue
            whole = row["beat"] == case["shape"][1]
            style = {
                "color": colours.get(row["name"][:4], "#8e44ad"),
                "marker": "o" if whole else "^",
                "s": 60, "zorder": 3, "alpha": 0.7,
            }  # fmt: skip
            luts = facts["lut"] + facts["lut_ram"]
            left.scatter(row["index_bits"] / weights, facts["gbit_per_s"], **style)
            label = f"{row['name']}, {row['beat']} bits a beat"
            right.scatter(luts, facts["gbit_per_s"], label=label, **style)
        for axis in (left, right):
            axis.set(xscale="log", yscale="log", ylabel="mask Gbit/s")
            axis.grid(which="both", alpha=0.25)
            axis.margins(x=0.1, y=0.1)
        shape = " x ".join(map(str, case["shape"]))
        left.set(xlabel="index bits for a weight", title=f"{case['case']}, {shape}")
        right.set(xlabel="LUT4s, those that stand as RAM included", title="with its ROMs, ECP5")
        right.legend(fontsize=7, loc="lower right")
    return figure


def write_sweep(rows: list[dict[str, Any]], fields: Sequence[str], folder: Path) -> None:
    """The sweep: CSV and a plot, and its best points on the docs' page."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "sweep.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, fields, extrasaction="ignore", lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
    _save(plot_sweep(rows), folder / "sweep")
    if folder == FOLDER:
        fill(PAGE, "sweep", sweep_table(rows))


def sweep_table(rows: list[dict[str, Any]]) -> str:
    """For every rank and width with one lane, each d: LUT4s, flip-flops, clock and rate."""
    stages = sorted({row["stage_ranks"] for row in rows})
    titles = ["k", "C", *(f"d = {stage}" for stage in stages)]
    cells = []
    for rank, columns in sorted({(row["rank"], row["columns"]) for row in rows}):
        here = [row for row in rows if (row["rank"], row["columns"]) == (rank, columns)]
        found = {row["stage_ranks"]: row for row in here if row["lanes"] == 1}
        rates = [row["mbit_per_s_per_lut"] or 0 for row in found.values()]
        best = max(rates, default=0)
        cells.append([rank, columns, *(_point(found.get(stage), best) for stage in stages)])
    return markdown(titles, cells)


def _point(row: dict[str, Any] | None, best: float) -> str:
    if row is None or row["fmax_mhz"] is None:
        return "-"
    rate = f"{row['mbit_per_s_per_lut']:.1f}"
    rate = f"**{rate}**" if row["mbit_per_s_per_lut"] == best else rate
    return f"{row['lut']} + {row['lut_ram']} / {row['ff']} / {row['fmax_mhz']:.0f} / {rate}"


def plot_sweep(rows: list[dict[str, Any]]) -> Any:
    """Mask rate for a LUT over the rank: a panel a width, a colour a d, a line style a lane."""
    from matplotlib.figure import Figure

    widths = sorted({row["columns"] for row in rows})
    stages = sorted({row["stage_ranks"] for row in rows})
    styles = {1: "-", 2: "--", 4: ":"}
    figure = Figure(figsize=(4.2 * len(widths), 4.6), layout="constrained")
    (axes,) = figure.subplots(1, len(widths), sharey=True, squeeze=False)
    for axis, width in zip(axes, widths, strict=True):
        for colour, stage in enumerate(stages):
            for lanes, style in styles.items():
                points = sorted(
                    (row["rank"], row["mbit_per_s_per_lut"])
                    for row in rows
                    if (row["columns"], row["stage_ranks"], row["lanes"]) == (width, stage, lanes)
                    and row["fmax_mhz"] is not None
                )
                if points:
                    axis.plot(
                        *zip(*points, strict=True), style, marker=".", color=f"C{colour}",
                        label=f"d = {stage}, {lanes} lane{'s' * (lanes > 1)}",
                    )  # fmt: skip
        axis.set(xscale="log", yscale="log", xlabel="rank k", title=f"C = {width} columns")
        axis.set_xticks(sorted({row["rank"] for row in rows}), minor=False)
        axis.xaxis.set_major_formatter("{x:.0f}")
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    first, last = figure.axes[0], figure.axes[-1]
    first.set_ylabel("mask Mbit/s for a LUT4, those that stand as RAM included")
    first.yaxis.set_major_formatter("{x:.0f}")
    first.set_yticks([5, 10, 20, 50, 100])
    last.legend(fontsize=7, ncols=1)
    return figure


def _save(figure: Any, path: Path) -> None:
    from matplotlib import rc_context

    with rc_context({"svg.hashsalt": "lrbi"}):  # the same figures make the same files
        figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
        figure.savefig(path.with_suffix(".png"), dpi=110, metadata={"Software": None})
