"""A folder that ``lrbi generate`` wrote, read back."""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from lrbi.hw.emit import CLOCK_PORTS

from lrbi.config import DecoderConfig
from lrbi.errors import InputError
from lrbi.layout import row_bytes
from lrbi.romfiles import FORMATS

_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,254}")  # a file's name, in no other folder


def read_design(folder: Path, top: str | None = None) -> tuple[dict[str, Any], str]:
    """The manifest and the Verilog of the one design in a folder, or of the one with that top."""
    found = []
    if not folder.is_dir():
        raise InputError(f"Design folder {folder} cannot be used: there is none")
    try:
        for path in sorted(path for path in folder.iterdir() if path.suffix == ".json"):
            facts = json.loads(path.read_text())
            module = facts.get("module") if isinstance(facts, dict) else None
            if isinstance(module, str) and re.fullmatch(r"[A-Za-z_]\w*", module):
                found.append(facts)
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"Design folder {folder} cannot be used: {error}") from error
    if top is not None:
        found = [facts for facts in found if ("roms" in facts) == (top == "rom")]
    if len(found) != 1:
        option = f" --top {top}" if top is not None else ""
        remedy = f"lrbi generate{option} makes it" if option or not found else "--top chooses one"
        raise InputError(
            f"Design folder {folder} must hold one design{option and ' with' + option}, not "
            f"{len(found)} ({remedy})"
        )
    facts = found[0]
    name = facts["module"]
    text = _text(folder / f"{name}.v")
    try:
        config = DecoderConfig(**facts["config"])
        widths = {"m_axis_mask_tdata": row_bytes(config.mask_width) * 8}
        if "roms" in facts:
            widths["first_tile"] = facts["tiles"].bit_length()
            if not isinstance(facts["layer"], str) or len(facts["roms"]) != 2:
                raise TypeError
            for rom in facts["roms"]:
                if not (_PLAIN.fullmatch(rom["file"]) and isinstance(rom["sha256"], str)):
                    raise ValueError
        else:
            widths["s_axis_ip_tdata"] = row_bytes(config.ip_width) * 8
            widths["s_axis_iz_tdata"] = row_bytes(config.iz_width) * 8
        ports = {str(port["name"]): (port["direction"], port["width"]) for port in facts["ports"]}
        if next(iter(ports), "") != CLOCK_PORTS[config.reset][0]:
            raise ValueError
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"Design folder {folder} cannot be used: {name}.json is not as lrbi generate writes it"
        ) from error
    head, _, _ = text[text.find(f"module {name} (") :].partition(");")
    declared = {
        port: (direction, int(high or 0) + 1)
        for direction, high, port in re.findall(
            r"\b(input|output) (?:wire |reg )?(?:\[(\d+):0\] )?(\w+)", head
        )
    }
    for port, width in widths.items():
        if declared.get(port, ("", 0))[1] != width:
            raise InputError(
                f"Design folder {folder} cannot be used: {name}.v has no port {port} of {width} "
                f"bits, as {name}.json says it has"
            )
    if declared != ports:
        raise InputError(
            f"Design folder {folder} cannot be used: {name}.v has other ports than {name}.json says"
        )
    return facts, text


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise InputError(f"File {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InputError(f"File {path} cannot be read: it is no text") from error


def rom_text(folder: Path, rom: dict[str, Any]) -> str:
    """A ROM file of a design folder, whole."""
    path = folder / rom["file"]
    text = _text(path)
    try:
        FORMATS["mem"].decode(text.encode(), rom["width"], rom["depth"], "")
        if hashlib.sha256(text.encode()).hexdigest() != rom["sha256"]:
            raise InputError("it does not match its digest (lrbi generate makes it again)")
    except (InputError, KeyError, TypeError) as error:
        raise InputError(f"ROM file {path} cannot be used: {error}") from error
    return text
