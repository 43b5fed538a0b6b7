"""``lrbi generate``."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from lrbi.cli.options import PATH, Extent, json_option, message, print_json, verbosity

if TYPE_CHECKING:
    from lrbi.config import DecoderConfig


@click.command()
@click.argument("file", type=PATH, required=False)
@click.option("-k", "--rank", type=click.INT, metavar="K", help="Largest rank. [default: FILE's]")
@click.option(
    "--tile", type=Extent(), metavar="RxC", help="Rows and columns of a tile. [default: FILE's]"
)
@click.option(
    "-d",
    "--stage-ranks",
    type=click.INT,
    default=6,
    show_default=True,
    metavar="D",
    help="Ranks that one pipeline stage combines.",
)
@click.option(
    "--lanes",
    type=click.INT,
    default=1,
    show_default=True,
    metavar="N",
    help="I_p rows taken, and mask rows given, a clock.",
)
@click.option(
    "--iz-rows", type=click.INT, default=1, show_default=True, metavar="N", help="I_z rows a beat."
)
@click.option(
    "--reset",
    type=click.Choice(["rst", "aresetn"]),
    default="rst",
    show_default=True,
    help="Reset port: active high beside clk, or active low beside aclk; synchronous both.",
)
@click.option("--prefix", default="", metavar="TEXT", help="Put before the module's name.")
@click.option("-o", "--output", type=PATH, required=True, help="Folder to write to.")
@json_option
@verbosity
def generate(
    file: Path | None,
    rank: int | None,
    tile: tuple[int, int] | None,
    stage_ranks: int,
    lanes: int,
    iz_rows: int,
    reset: str,
    prefix: str,
    output: Path,
    as_json: bool,
    quiet: bool,
    verbose: bool,
) -> None:
    """Write the Verilog of a mask decoder: for a rank and tile size, or those of a factor FILE.

    OUTPUT then holds lrbi_decoder.v, one module without parameters; lrbi_decoder.json, its
    configuration, ports, latency and throughput; lrbi_decoder.veo, an instance to copy; and
    lrbi_decoder.core, for FuseSoC.

    \b
    lrbi generate --rank 16 --tile 64x64 -o rtl/
    lrbi generate fc1.lrbi --lanes 2 -o rtl/
    """
    import json
    import re

    from lrbi.atomic import replacing, unwritable
    from lrbi.errors import InputError
    from lrbi.hw.decoder import Decoder
    from lrbi.hw.emit import core_file, instance, manifest, verilog

    if not re.fullmatch(r"([A-Za-z_]\w*)?", prefix):
        raise InputError(f"Prefix must be the beginning of a Verilog name, not {prefix!r}")
    config = _config(
        file, rank, tile, stage_ranks=stage_ranks, lanes=lanes, iz_rows=iz_rows, reset=reset
    )
    name = f"{prefix}lrbi_decoder"
    command = (
        f"lrbi generate --rank {config.rank} --tile {config.tile_rows}x{config.tile_cols} "
        f"--stage-ranks {config.stage_ranks} --lanes {config.lanes} --iz-rows {config.iz_rows} "
        f"--reset {config.reset} --prefix '{prefix}' -o DIR"
    )
    decoder = Decoder(config=config)
    facts = manifest(decoder, name=name, config=config, command=command)
    contents = {
        f"{name}.v": verilog(decoder, name=name, reset=config.reset, command=command),
        f"{name}.json": json.dumps(facts, indent=2) + "\n",
        f"{name}.veo": instance(facts),
        f"{name}.core": core_file(facts),
    }
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(output, error) from error
    for file_name, text in contents.items():
        with replacing(output / file_name) as temporary:
            temporary.write_text(text)
    if as_json:
        print_json(facts)
    message(f"wrote {', '.join(contents)} to {output}", quiet=quiet)
    detail = f"latency {config.latency} clocks; {config.mask_width} mask bits a clock"
    message(
        f"{detail}, every clock from tiles of {config.full_rate_beats} beats on",
        quiet=quiet or not verbose,
    )


def _config(
    file: Path | None, rank: int | None, tile: tuple[int, int] | None, **options: object
) -> "DecoderConfig":
    """The configuration that the options ask for, what they leave open taken from FILE."""
    from lrbi.config import DecoderConfig
    from lrbi.errors import InputError
    from lrbi.factorfile import load

    if file is not None:
        layers = load(file)
        sizes = sorted({layer.tile for layer in layers.values()})
        needed = max(layer.rank for layer in layers.values())
        if tile is None and len(sizes) > 1:
            listed = ", ".join(f"{rows}x{cols}" for rows, cols in sizes)
            raise InputError(f"Layers of {file} must have tiles of one size, not of {listed}")
        if tile is not None and [tile] != sizes:
            raise InputError(f"Tile must be that of {file}, not {tile[0]}x{tile[1]}")
        if rank is not None and rank < needed:
            raise InputError(f"Rank must be at least {needed} for {file}, not {rank}")
        rank, tile = rank or needed, sizes[0]
    if rank is None or tile is None:
        raise click.UsageError("Give a factor file, or --rank and --tile.")
    return DecoderConfig(rank=rank, tile_rows=tile[0], tile_cols=tile[1], **options)  # type: ignore[arg-type]
