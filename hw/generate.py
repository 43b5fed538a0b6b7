"""What ``lrbi generate`` writes: the files of a decoder, as texts by their names."""

import hashlib
import json
import shlex
from typing import Any

from amaranth.lib import wiring
from lrbi.hw.decoder import Decoder
from lrbi.hw.emit import core_file, instance, manifest, rom_macro, verilog
from lrbi.hw.rom import START_CLOCKS, RomDecoder

from lrbi.config import DecoderConfig
from lrbi.layer import CompressedLayer
from lrbi.rom import mem_text, rom_images


def decoder_files(
    config: DecoderConfig, *, prefix: str = "", vivado: bool = False
) -> dict[str, str]:
    """The stream decoder ``lrbi_decoder``: Verilog, manifest, template and FuseSoC core."""
    words = ["--top", "stream", "--rank", config.rank]
    words += ["--tile", f"{config.tile_rows}x{config.tile_cols}"]
    command = _command(words, config, prefix, vivado)
    decoder = Decoder(config=config)
    name = f"{prefix}lrbi_decoder"
    facts = manifest(decoder, name=name, config=config, command=command)
    return _files(decoder, facts, {}, vivado)


def rom_decoder_files(
    layer: CompressedLayer,
    config: DecoderConfig,
    *,
    source: tuple[str, str],
    stem: str,
    prefix: str = "",
    vivado: bool = False,
) -> dict[str, str]:
    """The ROM-backed decoder ``lrbi_rom_decoder`` of a layer, and its two ROM images.

    ``source`` is the factor file's name and the layer's; the images' names begin with the prefix
    and ``stem``.
    """
    file, layer_name = source
    command = _command([file, "--top", "rom", "--layer", layer_name], config, prefix, vivado)
    decoder = RomDecoder(config=config, tiles=len(layer.tiles))
    name = f"{prefix}lrbi_rom_decoder"
    facts = manifest(decoder, name=name, config=config, command=command)
    images = dict(
        zip(
            ("ip", "iz"), rom_images(layer, lanes=config.lanes, iz_rows=config.iz_rows), strict=True
        )
    )
    files = {kind: f"{prefix}{stem}.{kind}.mem" for kind in images}
    texts = {kind: mem_text(image) for kind, image in images.items()}
    facts |= {
        "layer": layer_name,
        "tiles": len(layer.tiles),
        "start_clocks": START_CLOCKS,
        "roms": [
            {
                "file": files[kind],
                "define": rom_macro(name, f"{kind}_rom"),
                "width": image.width,
                "depth": image.depth,
                "sha256": hashlib.sha256(texts[kind].encode()).hexdigest(),
            }
            for kind, image in images.items()
        ],
    }
    roms = {f"{kind}_rom": file for kind, file in files.items()}
    return _files(decoder, facts, roms, vivado) | {files[kind]: texts[kind] for kind in files}


def _files(
    component: wiring.Component, facts: dict[str, Any], roms: dict[str, str], vivado: bool
) -> dict[str, str]:
    name = facts["module"]
    text = verilog(
        component,
        name=name,
        reset=facts["config"]["reset"],
        command=facts["command"],
        roms=roms,
        vivado=vivado,
    )
    return {
        f"{name}.v": text,
        f"{name}.json": json.dumps(facts, indent=2) + "\n",
        f"{name}.veo": instance(facts),
        f"{name}.core": core_file(facts),
    }


def _command(words: list[Any], config: DecoderConfig, prefix: str, vivado: bool) -> str:
    """The command that makes the same files again, all options spelled out, on one line."""
    options: list[Any] = ["--stage-ranks", config.stage_ranks, "--lanes", config.lanes]
    options += ["--iz-rows", config.iz_rows, "--reset", config.reset]
    options += ["--memory", config.memory, "--lut-inputs", config.lut_inputs]
    options += ["--prefix", prefix]
    options += ["--vivado"] * vivado
    return " ".join(map(_quoted, ["lrbi", "generate", *map(str, words + options), "-o", "DIR"]))


def _quoted(word: str) -> str:
    """A word for a shell, on one line and in ASCII."""
    if word.isascii() and word.isprintable():
        return shlex.quote(word)
    letters = (
        "\\" + letter
        if letter in "\\'"
        else letter
        if letter.isascii() and letter.isprintable()
        else f"\\U{ord(letter):08x}"
        for letter in word
    )
    return f"$'{''.join(letters)}'"
