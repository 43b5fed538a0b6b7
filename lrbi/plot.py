"""Plots, by Matplotlib."""

from pathlib import Path
from typing import Any

from lrbi.atomic import replacing
from lrbi.compare import Comparison
from lrbi.errors import InputError, MissingToolError

ENDINGS = (".png", ".svg", ".pdf")


def new_figure(width: float, height: float) -> Any:
    """An empty figure of a size in inches."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingToolError("Plots need Matplotlib (pip install 'lrbi[plot]')") from error
    return Figure(figsize=(width, height), layout="constrained")


def check_plot(path: Path) -> None:
    """Refuse a file that is no plot's, and plots without Matplotlib, before any work."""
    if path.suffix.lower() not in ENDINGS:
        raise InputError(f"Plot {path} must end in one of {' '.join(ENDINGS)}")
    new_figure(1, 1)


def save_plot(figure: Any, path: Path) -> None:
    """Write a figure; the same figure makes the same file."""
    from matplotlib import rc_context

    kind = path.suffix.lower().removeprefix(".")
    blank = {"svg": {"Date": None}, "png": {"Software": None}, "pdf": {"CreationDate": None}}
    with rc_context({"svg.hashsalt": "lrbi"}), replacing(path) as temporary:
        figure.savefig(temporary, format=kind, dpi=110, metadata=blank[kind])


def plot_formats(comparison: Comparison, title: str) -> Any:
    """The size of each format as a bar, and what lossy ones keep against the Shannon limit."""
    figure = new_figure(11, 4.6)
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    entries = sorted(comparison.formats, key=lambda entry: -entry.bits)
    ours = comparison.formats[-1]
    sizes = [entry.bits_per_weight for entry in entries]
    colours = ["#c0392b" if entry is ours else "#95a5a6" for entry in entries]
    bars = left.barh([entry.name for entry in entries], sizes, color=colours)
    left.bar_label(bars, [f" {size:.4g}" for size in sizes], fontsize=8)
    weights = ours.weights
    bound = comparison.entropy_bits / weights
    left.axvline(bound, color="black", linestyle="--", linewidth=1)
    left.text(bound, 0.01, " H(S)", transform=left.get_xaxis_transform(), fontsize=8)
    left.set(xlabel="index bits a weight", title=title)
    left.margins(x=0.15)
    for entry in entries:
        if entry.kept is None:
            continue
        colour = "#c0392b" if entry is ours else "#95a5a6"
        right.scatter(entry.bits_per_weight, entry.kept, color=colour, zorder=3)
        if entry.kept < 0.9999:
            right.annotate(f" {entry.name}", (entry.bits_per_weight, entry.kept), fontsize=8)
    if comparison.limit is not None:
        right.scatter(
            ours.bits_per_weight, comparison.limit, marker="_", color="black", s=200, zorder=4,
            label="most at this size, if weights were independent",
        )  # fmt: skip
        right.legend(fontsize=8, loc="lower right")
    right.set(
        xscale="log", ylim=(0, 1.05), xlabel="index bits a weight",
        ylabel="share of the exact mask's magnitude kept", title="What it keeps",
    )  # fmt: skip
    right.grid(alpha=0.3)
    return figure
