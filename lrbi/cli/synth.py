"""``lrbi synth``."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lrbi.cli.options import (
    PATH,
    Extent,
    Listed,
    decoder_options,
    given_options,
    json_option,
    layer_option,
    message,
    print_json,
    print_table,
    progress,
    top_option,
    verbosity,
)

if TYPE_CHECKING:
    from lrbi.config import DecoderConfig
    from lrbi.hw.synth import Design


@click.command()
@click.argument("source", type=PATH, required=False, metavar="[DIR|FILE]")
@click.option(
    "--target",
    "targets",
    type=Listed(click.STRING),
    default="ecp5",
    show_default=True,
    metavar="NAME[,...]",
    help="ecp5[:25k|45k|85k], ice40[:hx8k|hx1k|lp8k|up5k], xc7, gates.",
)
@click.option(
    "--seeds",
    type=Listed(click.IntRange(0, 2**31 - 1)),
    default="1,2,3",
    show_default=True,
    metavar="N[,...]",
    help="Seeds of placement; the clock is their mean.",
)
@click.option(
    "-j", "--jobs", type=click.IntRange(1), metavar="N", help="Tools at a time. [default: cores]"
)
@top_option
@layer_option
@click.option("-k", "--rank", type=click.INT, metavar="K", help="Largest rank. [default: FILE's]")
@click.option(
    "--tile", type=Extent(), metavar="RxC", help="Rows and columns of a tile. [default: FILE's]"
)
@decoder_options
@json_option
@verbosity
@click.pass_context
def synth(
    context: click.Context,
    /,
    source: Path | None,
    targets: list[str],
    seeds: list[int],
    jobs: int | None,
    top: str,
    patterns: tuple[str, ...],
    rank: int | None,
    tile: tuple[int, int] | None,
    as_json: bool,
    quiet: bool,
    verbose: bool,
    **options: Any,
) -> None:
    """Measure a decoder's area and clock with open tools: Yosys and nextpnr.

    The decoder is that of a DIR that lrbi generate wrote, of a factor FILE, or of --rank and
    --tile. For ecp5 and ice40 it is placed and routed, once a seed, with every port registered; for
    xc7 it is synthesised only; gates are counted in NAND2 equivalents, memories apart. Cells are
    those of the decoder alone. Beside them stand the floors: k flip-flops a column hold I_z, and
    a mask bit is a function of 2k inputs. Results are kept, and the same question is answered at
    once.

    \b
    lrbi synth --rank 16 --tile 64x64 --target ecp5
    lrbi synth rtl/ --target ice40,ecp5:85k,xc7,gates --json
    lrbi synth fc1.lrbi --top rom --seeds 1,2,3,4,5
    """
    import os

    from lrbi.hw.synth import Target, check_tools, floors, synthesize

    wanted = list(dict.fromkeys(Target.parse(text) for text in targets))
    for target in wanted:
        check_tools(target)
    seeds = list(dict.fromkeys(seeds))
    if source is not None and source.is_dir():
        if given := given_options(context, "rank", "tile", "patterns", *options):
            raise click.UsageError(f"{given[0]} goes with a fresh design, not with a folder.")
        chosen = top if given_options(context, "top") else None
        design, config = _from_folder(source, chosen)
    else:
        design, config = _fresh(source, top, patterns, rank, tile, options, quiet)
    with progress(quiet) as bar:
        results = synthesize(
            design, wanted, seeds=seeds, jobs=jobs or os.cpu_count() or 1, progress=bar
        )
    for result in results:
        if result.unplaced:
            rest = "Its cells are those of synthesis"
            if result.seeds:
                rest = f"The clock is that of seeds {', '.join(map(str, result.seeds))} alone"
            message(
                f"{design.module} could not be placed on {result.target}: {result.unplaced}. "
                f"{rest} (a larger device, a smaller tile or fewer lanes may help)",
                quiet=quiet,
            )
        if result.target.family == "ice40" and config.memory == "distributed":
            message(
                "ice40 has no LUT RAM, so that memories are made of flip-flops (--memory "
                "block puts them in block RAM)",
                quiet=quiet,
            )
        if result.target.family == "xc7" and config.lut_inputs == 4:
            message(
                "xc7 has LUTs of six inputs (--lut-inputs 6 -d 5 needs fewer of them)", quiet=quiet
            )
    facts = [
        {"module": design.module, "config": config.as_dict()}
        | result.facts(config.sustained_bits)
        | floors(result, config)
        for result in results
    ]
    if as_json:
        print_json({"results": facts})
    else:
        _print(facts, verbose)


def _from_folder(folder: Path, top: str | None) -> "tuple[Design, DecoderConfig]":
    from lrbi.config import DecoderConfig
    from lrbi.hw.design import read_design, rom_text
    from lrbi.hw.synth import Design

    facts, text = read_design(folder, top)
    files = {rom["file"]: rom_text(folder, rom) for rom in facts.get("roms", [])}
    return Design(facts["module"], text, facts["ports"], files), DecoderConfig(**facts["config"])


def _fresh(
    file: Path | None,
    top: str,
    patterns: tuple[str, ...],
    rank: int | None,
    tile: tuple[int, int] | None,
    options: dict[str, Any],
    quiet: bool,
) -> "tuple[Design, DecoderConfig]":
    import json

    from lrbi.cli.generate import decoder_texts
    from lrbi.config import DecoderConfig
    from lrbi.hw.synth import Design

    texts = decoder_texts(file, top, patterns, rank, tile, options, quiet=quiet)
    design = Design.of_files(texts)
    return design, DecoderConfig(**json.loads(texts[f"{design.module}.json"])["config"])


def _print(facts: "list[dict[str, Any]]", verbose: bool) -> None:
    columns = {"target": "left", "LUT": "right", "/ floor": "right", "LUT as RAM": "right"}
    columns |= dict.fromkeys(
        ("FF", "/ floor ", "BRAM", "NAND2", "memory bits", "Fmax MHz", "least-most", "bits/clock",
         "Gbit/s", "Mbit/s/LUT"), "right"
    )  # fmt: skip
    print_table(columns, [_row(each) for each in facts])
    for each in facts if verbose else ():
        listed = ", ".join(f"{count} {name}" for name, count in each["cells"].items())
        message(f"{each['target']}: {listed}")


def _row(facts: Mapping[str, Any]) -> tuple[str, ...]:
    def cell(value: float | None, form: str = ",") -> str:
        return "-" if value is None else format(value, form)

    clocks = facts["fmax_mhz_seeds"]
    device = f":{facts['device']}" if facts["device"] else ""
    return (
        f"{facts['target']}{device}",
        cell(facts["lut"]),
        cell(facts["lut_over_floor"], ".2f"),
        cell(facts["lut_ram"]),
        cell(facts["ff"]),
        cell(facts["ff_over_floor"], ".2f"),
        cell(facts["bram"]),
        cell(facts["nand2"]),
        cell(facts["memory_bits"]),
        cell(facts["fmax_mhz"], ".1f"),
        f"{min(clocks):.1f}-{max(clocks):.1f}" if clocks else "-",
        cell(facts["bits_per_clock"], ",g"),
        cell(facts["gbit_per_s"], ".2f"),
        cell(facts["mbit_per_s_per_lut"], ".1f"),
    )
