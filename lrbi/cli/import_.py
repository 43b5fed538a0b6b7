"""``lrbi import``."""

from pathlib import Path

import click

from lrbi.cli.options import PATH, json_option, message, print_json, progress, verbosity
from lrbi.config import ROM_FORMATS


@click.command("import")
@click.argument("folder", type=PATH)
@click.option(
    "--format",
    "only",
    type=click.Choice(ROM_FORMATS),
    metavar="F",
    help="Read the files of this format alone. [default: all, which must agree]",
)
@click.option("-o", "--output", type=PATH, required=True, help="The factor file to write.")
@json_option
@verbosity
def import_(
    folder: Path, only: str | None, output: Path, as_json: bool, quiet: bool, verbose: bool
) -> None:
    """Make a factor file from the FOLDER that lrbi export wrote: the same, byte for byte.

    Every file that its manifest.json names must be there, whole, and in agreement with the others.

    \b
    lrbi import rom/ -o fc1.lrbi
    lrbi import rom/ --format mif -o fc1.lrbi
    """
    from lrbi.atomic import check_output
    from lrbi.factorfile import save
    from lrbi.romset import read_roms, restore

    check_output(output)
    with progress(quiet) as on_file:
        roms = read_roms(folder, only, on_file=on_file)
    check_output(output, *roms.files)
    layers = restore(roms)
    save(output, layers)
    if as_json:
        summaries = {name: layer.summary() for name, layer in layers.items()}
        print_json({"output": str(output), "layers": summaries})
    files = "".join(f"\n  read {path.name}" for path in roms.files)
    message(
        f"wrote {len(layers)} layer(s) from {folder} to {output}{files if verbose else ''}",
        quiet=quiet,
    )
