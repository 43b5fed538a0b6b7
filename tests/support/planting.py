"""Faults planted in the RTL's source, to see that checks catch them."""

import inspect
import re
import types

import lrbi.hw.array
import lrbi.hw.decoder
import lrbi.hw.rom
from lrbi.hw.array import ColumnGroup
from lrbi.hw.decoder import Decoder
from lrbi.hw.rom import RomDecoder

MODULES = {"array": lrbi.hw.array, "decoder": lrbi.hw.decoder, "rom": lrbi.hw.rom}

OR_FOR_AND = {
    "array": (
        r"Mux\((\w+\[lane \* len\(ranks\) \+ index\]), z, 0\)",
        r"(\1.replicate(columns) | z)",
    )
}
OR_FOR_AND_IN_STAGE_0 = {
    "array": (
        r"(\w+\[lane \* len\(ranks\) \+ index\]\.replicate\(columns\)) & z",
        r"(\1 | z)",
    )
}
VALID_STUCK = {"decoder": (r"mask\.tvalid\.eq\(full\)", "mask.tvalid.eq(0)")}
READY_IGNORED = {"decoder": (r"advance\.eq\(~full \| mask\.tready\)", "advance.eq(1)")}


def planted(changes: dict[str, tuple[str, str]]) -> dict[str, type]:
    """The components by name, after a pattern was replaced in the source of each module named."""
    made = {}
    for name, module in MODULES.items():
        source = inspect.getsource(module)
        if name in changes:
            pattern, new = changes[name]
            source, count = re.subn(pattern, new, source)
            assert count, f"nothing in hw/{name}.py matches {pattern}"
        made[name] = types.ModuleType(name)
        exec(source, vars(made[name]))
        for component in (ColumnGroup, Decoder, RomDecoder):
            for before in made.values():
                if hasattr(made[name], component.__name__) and component.__module__ == (
                    MODULES[before.__name__].__name__
                ):
                    setattr(made[name], component.__name__, getattr(before, component.__name__))
    return {
        "ColumnGroup": made["array"].ColumnGroup,
        "Decoder": made["decoder"].Decoder,
        "RomDecoder": made["rom"].RomDecoder,
    }
