"""Options and output that several verbs share."""

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from lrbi.layer import CompressedLayer

PATH = click.Path(path_type=Path, readable=False)
"""A path that is looked at by who opens it, not by the option."""

_Verb = TypeVar("_Verb", bound=Callable[..., Any])


class Extent(click.ParamType[tuple[int, int]]):
    """Rows and columns, as in ``64x128``."""

    name = "RxC"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        """Parse the option's text."""
        if isinstance(value, tuple):
            return value
        match = re.fullmatch(r"(\d{1,9})[xX](\d{1,9})", value)
        if match is None:
            self.fail(f"{value!r} must be rows x columns, as in 64x128", param, ctx)
        rows, cols = int(match[1]), int(match[2])
        if min(rows, cols) < 1:
            self.fail(f"{value!r} must have at least one row and one column", param, ctx)
        return rows, cols


class Listed(click.ParamType[list[Any]]):
    """Values joined by commas, each converted by another type; a word may stand for a value."""

    def __init__(self, item: click.ParamType[Any], word: str | None = None) -> None:
        self._item, self._word = item, word
        self.name = f"{item.name}[,...]"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> list[Any]:
        """Parse the option's text."""
        if isinstance(value, list):
            return value
        return [
            part if part == self._word else self._item.convert(part, param, ctx)
            for part in str(value).split(",")
        ]


def verbosity(verb: _Verb) -> _Verb:
    """Add ``-q`` and ``-v``."""
    verb = click.option("-q", "--quiet", is_flag=True, help="No messages, no progress bar.")(verb)
    return click.option("-v", "--verbose", is_flag=True, help="More messages.")(verb)


def layer_option(verb: _Verb) -> _Verb:
    """Add ``--layer``, by name or glob."""
    return click.option(
        "--layer",
        "patterns",
        multiple=True,
        metavar="NAME",
        help="Layer, by name or glob; may be repeated. [default: all]",
    )(verb)


def chosen_layers(
    layers: "Mapping[str, CompressedLayer]", patterns: Sequence[str]
) -> "dict[str, CompressedLayer]":
    """The layers that ``--layer`` asks for."""
    from lrbi.weights import matching

    chosen = {name for pattern in patterns for name in matching(pattern, [*layers])}
    return {name: layer for name, layer in layers.items() if not patterns or name in chosen}


def top_option(verb: _Verb) -> _Verb:
    """Add ``--top``."""
    return click.option(
        "--top",
        type=click.Choice(["stream", "rom"]),
        default="stream",
        show_default=True,
        help="The decoder between streams, or one with a layer's factor ROMs inside.",
    )(verb)


def simulator_option(verb: _Verb) -> _Verb:
    """Add ``--sim``."""
    return click.option(
        "--sim",
        "simulator",
        type=click.Choice(["auto", "verilator", "icarus", "amaranth"]),
        default="auto",
        show_default=True,
        help="Simulator; auto takes the fastest there is, and Amaranth's own needs no other tool.",
    )(verb)


def decoder_options(verb: _Verb) -> _Verb:
    """Add the decoder's own options, named as the fields of ``DecoderConfig``."""
    for option in (
        click.option(
            "--lut-inputs",
            type=click.Choice([4, 6]),
            default=4,
            show_default=True,
            help="Inputs of the device's LUTs: 4 for ECP5 and iCE40, 6 for Xilinx 7 and the like.",
        ),
        click.option(
            "--memory",
            type=click.Choice(["distributed", "block"]),
            default="distributed",
            show_default=True,
            help="I_z memory and output buffer in LUT RAM, or in block RAM (iCE40 has no other).",
        ),
        click.option(
            "--reset",
            type=click.Choice(["rst", "aresetn"]),
            default="rst",
            show_default=True,
            help="Reset port: active high beside clk, or active low beside aclk; synchronous both.",
        ),
        click.option(
            "--iz-rows",
            type=click.INT,
            default=1,
            show_default=True,
            metavar="N",
            help="I_z rows a beat.",
        ),
        click.option(
            "--lanes",
            type=click.INT,
            default=1,
            show_default=True,
            metavar="N",
            help="I_p rows taken, and mask rows given, a clock.",
        ),
        click.option(
            "-d",
            "--stage-ranks",
            type=click.INT,
            default=6,
            show_default=True,
            metavar="D",
            help="Ranks that one pipeline stage combines.",
        ),
    ):
        verb = option(verb)
    return verb


def given_options(context: click.Context, *names: str) -> list[str]:
    """The options, of those that have these names in the code, that the user gave."""
    from click.core import ParameterSource

    return [
        max(parameter.opts, key=len)
        for parameter in context.command.params
        if parameter.name in names
        and context.get_parameter_source(parameter.name) == ParameterSource.COMMANDLINE
    ]


def json_option(verb: _Verb) -> _Verb:
    """Add ``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")(
        verb
    )


def message(text: str, *, quiet: bool = False) -> None:
    """A message for the user, on stderr."""
    if not quiet:
        print("\n".join(map(printable, f"lrbi: {text}".split("\n"))), file=sys.stderr)


def print_json(value: Any) -> None:
    """Data for a program, on stdout."""
    print(json.dumps(value, indent=2, allow_nan=False))


def print_table(columns: Mapping[str, str], rows: Sequence[tuple[str, ...]]) -> None:
    """A table on stdout: column titles with ``left`` or ``right``, and the rows of cells."""
    from rich import box
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for title, side in columns.items():
        table.add_column(title, justify="left" if side == "left" else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))  # no markup in a layer's name
    unlimited = 10_000
    console = Console(width=None if sys.stdout.isatty() else unlimited)
    options = console.options.update(width=unlimited)
    if Measurement.get(console, options, table).maximum <= console.width:
        with console.capture() as text:
            console.print(table)
        sys.stdout.write(text.get())
        return
    widest = max(map(len, columns))
    for row in rows:  # a terminal too narrow for the table: a line a field
        for title, cell in zip(columns, row, strict=True):
            print(f"{title:<{widest}}  {printable(cell)}")
        print()


def printable(text: str) -> str:
    """A text with a name from a file in it, but nothing that would steer a terminal."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )


def print_layers(
    layers: "Mapping[str, CompressedLayer]", *, as_json: bool, verbose: bool = False
) -> None:
    """What is to be told of compressed layers: ``lrbi show``."""
    if as_json:
        print_json({"layers": {name: layer.summary() for name, layer in layers.items()}})
        return
    columns = {
        "layer": "left", "shape": "right", "tile": "right", "tiles": "right", "rank": "right",
        "index bits": "right", "ROM bits": "right", "ratio": "right", "sparsity": "right",
        "asked": "right", "cost": "right", "kept": "right",
    }  # fmt: skip
    if verbose:
        columns |= {"method": "right", "engine": "left", "iterations": "right", "seed": "right"}
        columns |= {"effort": "left", "objective": "left"}
    rows = [_layer_row(name, layer) for name, layer in layers.items()]
    print_table(columns, [row[: len(columns)] for row in rows])


def _layer_row(name: str, layer: "CompressedLayer") -> tuple[str, ...]:
    least, most = int(layer.ranks.min()), layer.rank
    return (
        name,
        "x".join(map(str, layer.shape)),
        "x".join(map(str, layer.tile)),
        "x".join(map(str, layer.tiles.grid)),
        str(most) if least == most else f"{least}-{most}",
        f"{layer.index_bits:,}",
        f"{layer.rom_bits:,}",
        f"{layer.ratio:.2f}x",
        f"{layer.sparsity:.5f}",
        f"{layer.sparsity_target:.5f}",
        f"{layer.cost:.6g}",
        f"{layer.kept:.4f}",
        str(layer.method),
        layer.engine,
        str(layer.iterations),
        str(layer.seed),
        layer.effort,
        layer.objective,
    )


@contextmanager
def progress(quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar on stderr, if that is a terminal; called with name, done, total."""
    if quiet or not sys.stderr.isatty():
        yield lambda name, done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as Remaining

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        Remaining(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        tasks: dict[str, Any] = {}

        def update(name: str, done: int, total: int) -> None:
            if name not in tasks:
                tasks[name] = bar.add_task(name, total=total)
            bar.update(tasks[name], completed=done, visible=done < total)

        yield update
