"""``lrbi export``."""

from pathlib import Path

import click

from lrbi.cli.options import (
    PATH,
    Listed,
    chosen_layers,
    json_option,
    layer_option,
    message,
    print_json,
    progress,
    verbosity,
)
from lrbi.config import ROM_FORMATS


@click.command()
@click.argument("file", type=PATH)
@layer_option
@click.option(
    "--format",
    "formats",
    type=Listed(click.Choice(ROM_FORMATS)),
    default="mem",
    show_default=True,
    metavar="F[,F...]",
    help=f"Formats, of {', '.join(ROM_FORMATS)}.",
)
@click.option(
    "--lanes",
    type=click.INT,
    default=1,
    show_default=True,
    metavar="N",
    help="I_p rows a word.",
)
@click.option(
    "--iz-rows", type=click.INT, default=1, show_default=True, metavar="N", help="I_z rows a word."
)
@click.option(
    "--vectors",
    is_flag=True,
    help="Add each layer's mask rows and a self-checking Verilog bench for its decoder.",
)
@click.option("-o", "--output", type=PATH, required=True, help="Folder to write to.")
@json_option
@verbosity
def export(
    file: Path,
    patterns: tuple[str, ...],
    formats: list[str],
    lanes: int,
    iz_rows: int,
    vectors: bool,
    output: Path,
    as_json: bool,
    quiet: bool,
    verbose: bool,
) -> None:
    """Write the factor ROMs of a factor file.

    OUTPUT then holds, for every layer, LAYER.ip.F and LAYER.iz.F in every format F, and
    manifest.json, which tells all about them; lrbi import makes the factor file from them again.

    \b
    mem   $readmemh                    memb  $readmemb
    mif   Quartus                      coe   Vivado
    bin   bytes, the lowest first      ihex  those as Intel HEX
    h     C header

    \b
    lrbi export fc1.lrbi -o rom/
    lrbi export model.lrbi --layer 'fc*' --format mem,mif --lanes 2 -o rom/
    lrbi export fc1.lrbi --vectors -o rom/
    """
    from lrbi.factorfile import load
    from lrbi.romset import MANIFEST, export_roms

    whole = load(file)
    layers = chosen_layers(whole, patterns)
    with progress(quiet) as on_file:
        manifest = export_roms(
            layers,
            output,
            formats=formats,
            lanes=lanes,
            iz_rows=iz_rows,
            vectors=vectors,
            among=whole,
            on_file=on_file,
        )
    if as_json:
        print_json(manifest)
    lines = [
        f"\n  {entry['name']}: {entry['depth']} words of {entry['width']} bits"
        for layer in manifest["layers"].values()
        for rom in layer["roms"].values()
        for entry in rom["files"]
    ]
    count = len(lines) + vectors * len(layers)
    message(
        f"wrote {count} file(s) of {len(layers)} layer(s) and {MANIFEST} to {output}"
        f"{''.join(lines) if verbose else ''}",
        quiet=quiet,
    )
