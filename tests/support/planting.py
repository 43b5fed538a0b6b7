"""Faults planted in the RTL's source, to see that checks catch them."""

import importlib
import inspect
import types

import lrbi.hw.array
import lrbi.hw.decoder
import lrbi.hw.rom

SOURCES = {
    "array": inspect.getsource(lrbi.hw.array),
    "decoder": inspect.getsource(lrbi.hw.decoder),
    "rom": inspect.getsource(lrbi.hw.rom),
}

VALID_STUCK = [("decoder", "mask.tvalid.eq(available |", "mask.tvalid.eq(0 &")]
READY_IGNORED = [("decoder", "available & (~mask.tvalid | mask.tready)", "available")]
OR_FOR_AND = [("array", "Mux(p, z[part], 0)", "(p.replicate(len(z[part])) | z[part])")]
OR_FOR_AND_IN_STAGE_0 = [
    ("array", "p.replicate(len(z[part])) & z[part]", "(p.replicate(len(z[part])) | z[part])")
]


def planted(changes):
    """The decoder and the ROM decoder with parts of their source changed.

    A change is the module, a part of its source and what to put in its place.
    """
    sources = dict(SOURCES)
    for name, old, new in changes:
        assert old in sources[name], f"{old!r} is not in hw/{name}.py"
        sources[name] = sources[name].replace(old, new)
    array, decoder, rom = (types.ModuleType(name) for name in sources)
    exec(sources["array"], vars(array))
    exec(sources["decoder"], vars(decoder))
    decoder.ColumnGroup = array.ColumnGroup
    exec(sources["rom"], vars(rom))
    rom.Decoder = decoder.Decoder
    return decoder.Decoder, rom.RomDecoder


def planted_rival(module, changes):
    """The module of a rival's core, with parts of its source changed, or of what it shares."""
    names = ("gather", "skid", module)
    parts = {name: importlib.import_module(f"lrbi.hw.rivals.{name}") for name in names}
    sources = {name: inspect.getsource(part) for name, part in parts.items()}
    for name, old, new in changes:
        assert old in sources[name], f"{old!r} is not in hw/rivals/{name}.py"
        sources[name] = sources[name].replace(old, new)
    gather, skid, core = (types.ModuleType(name) for name in names)
    for part, source in zip((gather, skid, core), sources.values(), strict=True):
        exec(source, vars(part))
    core.Gather, core.index_port = gather.Gather, skid.index_port
    return core
