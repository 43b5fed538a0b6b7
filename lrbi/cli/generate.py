"""``lrbi generate``."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lrbi.cli.options import (
    PATH,
    Extent,
    chosen_layers,
    decoder_options,
    json_option,
    layer_option,
    message,
    print_json,
    top_option,
    verbosity,
)

if TYPE_CHECKING:
    from lrbi.config import DecoderConfig
    from lrbi.layer import CompressedLayer

_LARGE = 1 << 15  # ranks times mask bits a clock from which Yosys takes more than a few seconds


@click.command()
@click.argument("file", type=PATH, required=False)
@top_option
@layer_option
@click.option("-k", "--rank", type=click.INT, metavar="K", help="Largest rank. [default: FILE's]")
@click.option(
    "--tile", type=Extent(), metavar="RxC", help="Rows and columns of a tile. [default: FILE's]"
)
@decoder_options
@click.option("--prefix", default="", metavar="TEXT", help="Put before the module's name.")
@click.option(
    "--vivado", is_flag=True, help="Mark streams, clock and reset for Vivado's IP integrator."
)
@click.option("-o", "--output", type=PATH, required=True, help="Folder to write to.")
@json_option
@verbosity
def generate(
    file: Path | None,
    top: str,
    patterns: tuple[str, ...],
    rank: int | None,
    tile: tuple[int, int] | None,
    prefix: str,
    vivado: bool,
    output: Path,
    as_json: bool,
    quiet: bool,
    verbose: bool,
    **options: Any,
) -> None:
    """Write the Verilog of a mask decoder: for a rank and tile size, or those of a factor FILE.

    OUTPUT then holds lrbi_decoder.v, one module without parameters; lrbi_decoder.json, its
    configuration, ports, latency and throughput; lrbi_decoder.veo, an instance to copy; and
    lrbi_decoder.core, for FuseSoC. With --top rom the module is lrbi_rom_decoder, which plays the
    tiles of one layer from its own ROMs, and the two ROM images stand beside it.

    \b
    lrbi generate --rank 16 --tile 64x64 -o rtl/
    lrbi generate fc1.lrbi --lanes 2 -o rtl/
    lrbi generate fc1.lrbi --top rom -o rtl/
    """
    import json

    from lrbi.atomic import replacing, unwritable

    texts = decoder_texts(
        file, top, patterns, rank, tile, options, prefix=prefix, vivado=vivado, quiet=quiet
    )
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(output, error) from error
    for file_name, text in texts.items():
        with replacing(output / file_name) as temporary:
            temporary.write_text(text)
    facts = json.loads(next(text for name, text in texts.items() if name.endswith(".json")))
    if as_json:
        print_json(facts)
    message(f"wrote {', '.join(texts)} to {output}", quiet=quiet)
    detail = f"latency {facts['latency_clocks']} clocks; {facts['mask_bits_per_clock']} mask bits"
    message(
        f"{detail} a clock, every clock from tiles of {facts['full_rate_beats']} beats on",
        quiet=quiet or not verbose,
    )


def decoder_texts(
    file: Path | None,
    top: str,
    patterns: tuple[str, ...],
    rank: int | None,
    tile: tuple[int, int] | None,
    options: dict[str, Any],
    *,
    prefix: str = "",
    vivado: bool = False,
    quiet: bool = False,
) -> dict[str, str]:
    """The files of the decoder that a verb's options ask for, as texts by their names."""
    import re

    from lrbi.errors import InputError
    from lrbi.factorfile import load
    from lrbi.hw.generate import decoder_files, rom_decoder_files
    from lrbi.romset import file_stems

    if not re.fullmatch(r"([A-Za-z_][A-Za-z0-9_]*)?", prefix):
        raise InputError(f"Prefix must be the beginning of a Verilog name, not {prefix!r}")
    if file is None and patterns:
        raise click.UsageError("--layer chooses from a factor file, and none is given.")
    whole = load(file) if file is not None else {}
    layers = chosen_layers(whole, patterns)
    if top == "rom":
        if file is None or rank is not None or tile is not None:
            raise click.UsageError("--top rom takes rank and tile from a factor file.")
        if len(layers) > 1:
            raise InputError(
                f"Layer must be one for --top rom, not {len(layers)}: {', '.join(layers)} "
                "(choose it with --layer)"
            )
    config = _config(file, layers, rank, tile, options)
    if config.rank * config.mask_width > _LARGE:
        message("this takes a while: it is a large decoder", quiet=quiet)
    if top == "rom":
        assert file is not None
        ((name, chosen),) = layers.items()
        return rom_decoder_files(
            chosen,
            config,
            source=(file.name, name),
            stem=file_stems(whole)[name][0],
            prefix=prefix,
            vivado=vivado,
        )
    return decoder_files(config, prefix=prefix, vivado=vivado)


def _config(
    file: Path | None,
    layers: "Mapping[str, CompressedLayer]",
    rank: int | None,
    tile: tuple[int, int] | None,
    options: dict[str, Any],
) -> "DecoderConfig":
    """The configuration that the options ask for, what they leave open taken from FILE's layers."""
    from lrbi.config import DecoderConfig
    from lrbi.errors import InputError

    if layers:
        sizes = sorted({layer.tile for layer in layers.values()})
        needed = max(layer.rank for layer in layers.values())
        if len(sizes) > 1:
            listed = ", ".join(f"{rows}x{cols}" for rows, cols in sizes)
            raise InputError(
                f"Layers of {file} must have tiles of one size, not of {listed} "
                "(choose some with --layer)"
            )
        if tile is not None and [tile] != sizes:
            raise InputError(f"Tile must be that of {file}, not {tile[0]}x{tile[1]}")
        if rank is not None and rank < needed:
            raise InputError(f"Rank must be at least {needed} for {file}, not {rank}")
        rank, tile = rank or needed, sizes[0]
    if rank is None or tile is None:
        raise click.UsageError("Give a factor file, or --rank and --tile.")
    return DecoderConfig(rank=rank, tile_rows=tile[0], tile_cols=tile[1], **options)
