"""The formal proofs, each with its cover and the planted faults that it must catch."""

import dataclasses
import re
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from lrbi.hw.decoder import Decoder
from lrbi.hw.emit import verilog
from lrbi.hw.rom import RomPlayer
from planting import OR_FOR_AND, OR_FOR_AND_IN_STAGE_0, READY_IGNORED, VALID_STUCK, planted
from rich.console import Console

from lrbi.config import DecoderConfig
from verification.columns import paths_through, unlike_columns
from verification.probes import decoder_constants, decoder_probes, header, probed
from verification.report import described, markdown, write
from verification.tools import BUILD, FORMAL, Change, sby

DEPTH = 12
"""Clocks of the induction, and of its base."""
COVER_DEPTH = 30
FAULT_DEPTH = 26


@dataclass(frozen=True)
class Result:
    """What came of a proof."""

    kind: str
    """``proof``, ``cover`` or ``planted fault``."""
    what: str
    """What was to be shown."""
    design: str
    """Of which design."""
    engine: str
    """By what."""
    reach: str
    """How far it reaches: ``unbounded``, or a number of clocks."""
    passed: bool
    """Whether it was shown; a planted fault, whether it was caught."""
    said: str = ""
    """The assertion that failed, the covers that were not reached."""
    trace: str = ""
    """A waveform of it."""
    seconds: float = 0.0


@dataclass(frozen=True)
class Fault:
    """A fault planted in the source."""

    changes: Sequence[Change]
    """What is changed."""
    caught_by: str
    """The assertions of which one must fail."""
    define: str = ""
    """A macro of the harness that shows the way, where it is long."""


@dataclass(frozen=True)
class Job:
    """One run of a tool."""

    name: str
    run: Callable[[Path], Result] = field(repr=False)


def config_of(
    rank: int, stage_ranks: int, lanes: int = 1, iz_rows: int = 1, memory: str = "distributed",
    columns: int = 1, lut_inputs: int = 4,
) -> DecoderConfig:  # fmt: skip
    """A configuration by its numbers."""
    return DecoderConfig(
        rank=rank, tile_rows=8, tile_cols=columns, stage_ranks=stage_ranks, lanes=lanes,
        iz_rows=iz_rows, memory=memory, lut_inputs=lut_inputs,  # type: ignore[arg-type]
    )  # fmt: skip


ONE_COLUMN = [
    config_of(1, 1),
    config_of(2, 1),
    config_of(3, 2),
    config_of(4, 2, iz_rows=2),
    config_of(5, 2, lanes=2, iz_rows=2),
    config_of(5, 3, iz_rows=4),
    config_of(7, 3),
    config_of(8, 6),
    config_of(16, 6),
    config_of(7, 5, lut_inputs=6),
    config_of(2, 1, memory="block"),
    config_of(5, 2, lanes=2, iz_rows=3, memory="block"),
    config_of(16, 6, memory="block"),
]
"""The one-column designs that are proved against Eq. 3."""

ALL_COLUMNS = [
    config_of(3, 2, columns=17),
    config_of(5, 2, lanes=2, iz_rows=2, columns=9),
    config_of(5, 2, lanes=2, iz_rows=3, memory="block", columns=20),
    config_of(16, 6, columns=64),
    config_of(16, 6, memory="block", columns=33),
]
"""The designs whose every column is proved to be the one-column design."""

PLAYERS = [(2, 1, 1), (2, 3, 3), (3, 4, 2), (1, 5, 4)]
"""Bits of a word, words of a tile and tiles of the ROM players that are proved."""

SMALL = config_of(3, 2)

STREAM_FAULTS: dict[str, Fault] = {
    "(a) OR for AND": Fault(OR_FOR_AND, "eq3"),
    "(a) OR for AND in stage 0": Fault(OR_FOR_AND_IN_STAGE_0, "eq3"),
    "(a) I_z a row late": Fault(
        [
            ("array", "with m.If(tokens[stage]):", "with m.If(late[stage]):"),
            (
                "array",
                "        half = _kept(1",
                "        late = [Signal(name=f'late{stage}') for stage in range(stages)]\n"
                "        m.d.sync += Cat(late).eq(Cat(tokens))\n        half = _kept(1",
            ),
        ],
        "eq3",
    ),
    "(a) ranks not sent are not masked": Fault(
        [(
            "decoder",
            "row & Cat(ranks for _ in range(config.lanes))",
            "row & Cat(ranks | ~0 for _ in range(config.lanes))",
        )],
        "eq3",
    ),
    "(a) one half of the memory": Fault([("decoder", "half.eq(~half)", "half.eq(half)")], "eq3"),
    "(a) token not waited for": Fault([("decoder", "& idle", "")], "eq3"),
    "(b) no room kept": Fault(
        [("decoder", "room.eq(free[2:].any())", "room.eq(1)")], "lost|order|eq3|hung",
        define="SLEEPING_SINK",
    ),
    "(b) last row forgotten": Fault(
        [("decoder", "Cat(ip.tlast, last[:-1])", "Cat(0, last[:-1])")], "order",
    ),
    "(b) tvalid never high": Fault(VALID_STUCK, "lost"),
    "(b) I_p before its I_z": Fault(
        [("decoder", "ip_ready.eq(playing_next & room)", "ip_ready.eq(room)")], "early",
    ),
    "(b) a second frame ahead": Fault(
        [("decoder", "iz_ready.eq(~complete | step)", "iz_ready.eq(1)")], "one_ahead",
    ),
    "(c) a beat replaced": Fault(READY_IGNORED, "changed"),
    "(c) tvalid dropped": Fault(
        [(
            "decoder",
            "(mask.tvalid & ~mask.tready)",
            "(mask.tvalid & ~mask.tready & produced[0])",
        )],
        "dropped",
    ),
    "(d) error on a full frame": Fault(
        [("decoder", "too_long.eq(written[-1] & ~fresh)", "too_long.eq(written[-1])")], "exact",
    ),
    "(d) error never raised": Fault(
        [("decoder", "self.error.eq(1)", "self.error.eq(0)")], "exact|in_time",
    ),
}  # fmt: skip
"""Faults in the source, and the assertions of which one must fail on each."""

RESET_FAULTS: dict[str, Fault] = {
    "(e) credits without reset": Fault(
        [(
            "decoder",
            "free = Signal(range(ram.depth), init=ram.depth - 1)",
            "free = Signal(range(ram.depth), init=ram.depth - 1, reset_less=True)",
        )],
        "takes_i_p",
    ),
    "(e) a row on its way outlives the reset": Fault(
        [("decoder", "valid = Signal(depth)", "valid = Signal(depth, reset_less=True)")], "gives",
    ),
    "(e) a frame on its way outlives the reset": Fault(
        [("decoder", "fresh = Signal(init=1)", "fresh = Signal(init=1, reset_less=True)")],
        "raises",
    ),
}  # fmt: skip

PLAYER_FAULTS: dict[str, Fault] = {
    "(f) a word skipped": Fault([("rom", "read.en.eq(advance)", "read.en.eq(1)")], "right"),
    "(f) one tile too many": Fault(
        [("rom", "with m.If(tiles_left == 1):", "with m.If(tiles_left == 0):")], "more",
    ),
    "(f) first tile ignored": Fault(
        [("rom", "address.eq(Cat(Const(0, shift), base))", "address.eq(0)")], "right",
    ),
}  # fmt: skip

PATH_FAULTS: dict[str, list[Change]] = {
    "(g) I_p is taken only while I_z is offered": [
        ("decoder", "ip.tready.eq(ip_ready)", "ip.tready.eq(ip_ready & iz.tvalid)")
    ],
}

COLUMN_FAULTS: dict[str, list[Change]] = {
    "(a) a column takes its neighbour's I_z": [(
        "array",
        "held.word_select(index, columns)",
        "held.word_select(index, columns).rotate_left(1)",
    )],
    "(a) pad bits show something": [(
        "decoder",
        "mask.tdata[: config.mask_width].eq(Cat(mask_rows))",
        "mask.tdata.eq(Cat(mask_rows, (~self.error).replicate(8)))",
    )],
    "(a) a column ORs its neighbour's mask": [(
        "array", "m.d.sync += after.eq(Cat(sums))", "m.d.sync += after.eq(Cat(sums) | partial << 1)"
    )],
}  # fmt: skip


# -- What the tools are given


def write_decoder(folder: Path, config: DecoderConfig, changes: Sequence[Change] = ()) -> None:
    """A stream decoder with probes, and the header of its harness."""
    decoder = planted(changes)[0] if changes else Decoder
    text = verilog(decoder(config=config), name="lrbi_decoder", reset="rst", command="")
    probes = decoder_probes(config, text)
    (folder / "design.v").write_text(probed(text, probes, {"slot": 4}))
    (folder / "config.vh").write_text(header(decoder_constants(config, probes), probes))


def write_player(folder: Path, sizes: tuple[int, int, int], changes: Sequence[Change] = ()) -> None:
    """A ROM player with probes, and the header of its harness."""
    width, tile_words, tiles = sizes
    player = planted_player(changes) if changes else RomPlayer
    text = verilog(
        player(width=width, tile_words=tile_words, tiles=tiles),
        name="rom_player", reset="rst", command="",
    )  # fmt: skip
    registers = re.findall(r"^  reg (?:\[\d+:0\] )?(\w+);", text, re.MULTILINE)
    data = re.search(r"assign read__data = (\w+);", text)
    probes = {
        "word": (width, "rom[probe_at]"),
        "next_word": (width, "rom[probe_next]"),
        "address": (8, "read__addr" if "read__addr" in registers else "0"),
        "words_left": (8, "words_left" if "words_left" in registers else "0"),
        "tiles_left": (8, "tiles_left"),
        "playing": (1, "playing"),
        "read_valid": (1, "read_valid"),
        "read_last": (1, "read_last" if "read_last" in registers else "1"),
        "read_word": (width, data[1] if data else "read__data"),
    }
    (folder / "design.v").write_text(probed(text, probes, {"at": 8, "next": 8}))
    constants = {"WIDTH": width, "TILE_WORDS": tile_words, "TILES": tiles}
    constants["TILE_BITS"] = tiles.bit_length()
    (folder / "config.vh").write_text(header(constants, {}))


def planted_player(changes: Sequence[Change]) -> type[RomPlayer]:
    """The ROM player with parts of its source changed."""
    return planted(changes)[1].elaborate.__globals__["RomPlayer"]


def job_text(top: str, mode: str, depth: int, define: str = "") -> str:
    """A SymbiYosys job; all that is in the memories becomes registers, which solvers like."""
    return f"""[options]
mode {mode}
depth {depth}
[engines]
smtbmc yices
[script]
read_verilog -sv design.v
read_verilog -formal -sv {f"-D{define}" if define else ""} {top}.sv
prep -flatten -top {top}
memory_map -formal
[files]
design.v
config.vh
{FORMAL.resolve() / top}.sv
"""


# -- The runs


def prove(folder: Path, top: str, what: str, design: str) -> Result:
    """Prove all assertions of a harness, without a bound, by induction."""
    (folder / "prove.sby").write_text(job_text(top, "prove", DEPTH, "LEMMAS"))
    log = sby(folder, "prove")
    passed = "DONE (PASS" in log
    return Result(
        "proof", what, design, f"induction over {DEPTH} clocks, yices",
        "unbounded" if passed else "none", passed, "" if passed else _failed(log),
        _trace(folder, log),
    )  # fmt: skip


def cover(folder: Path, top: str, what: str, design: str) -> Result:
    """Reach all covers of a harness."""
    (folder / "cover.sby").write_text(job_text(top, "cover", COVER_DEPTH))
    log = sby(folder, "cover")
    reached = len(set(re.findall(r"reached cover statement (\S+)", log)))
    missed = re.findall(r"unreached cover statement \S+ at (\S+)", log)
    passed = "DONE (PASS" in log and reached > 0 and not missed
    return Result(
        "cover", what, design, "smtbmc, yices", f"{COVER_DEPTH} clocks", passed,
        f"{reached} reached" if passed else f"not reached: {missed or _failed(log)}",
    )  # fmt: skip


def catch(folder: Path, top: str, what: str, design: str, fault: Fault) -> Result:
    """Have one of the assertions named fail on a faulty design, from reset on, without lemmas."""
    (folder / "fault.sby").write_text(job_text(top, "bmc", FAULT_DEPTH, fault.define))
    log = sby(folder, "fault")
    failed = set(re.findall(rf"[Aa]ssert failed in {top}: (?:\S+ \()?(?:{top}\.)?(\w+)", log))
    passed = "DONE (FAIL" in log and any(re.fullmatch(fault.caught_by, name) for name in failed)
    said = f"{', '.join(sorted(failed))} failed" if failed else _failed(log)
    return Result(
        "planted fault", what, design, "smtbmc, yices", f"{FAULT_DEPTH} clocks", passed, said,
        _trace(folder, log),
    )  # fmt: skip


def columns_alike(
    folder: Path, config: DecoderConfig, what: str, changes: Sequence[Change] = ()
) -> Result:
    """Prove that every column is the one-column design; or, on a faulty design, that it is not."""
    unlike = unlike_columns(folder, config, planted(changes)[0] if changes else Decoder)
    return Result(
        "planted fault" if changes else "proof", what, described(config), "partition refinement",
        "unbounded", bool(unlike) if changes else not unlike,
        f"columns {', '.join(map(str, unlike))} are unlike" if unlike else "",
    )  # fmt: skip


def registered(
    folder: Path, config: DecoderConfig, top: int, what: str, changes: Sequence[Change] = ()
) -> Result:
    """Prove that no input reaches an output within a clock; or, on a faulty design, that one does.

    ``top`` is 0 for the stream decoder and 1 for the ROM decoder.
    """
    kind = planted(changes)[top]
    sizes = {"tiles": 5} if top else {}
    found = paths_through(folder, kind(config=config, **sizes))
    return Result(
        "planted fault" if changes else "proof", what,
        f"{described(config)}{', ROMs' if top else ''}", "search of the netlist", "unbounded",
        bool(found) if changes else not found, f"to {', '.join(found)}" if found else "",
    )  # fmt: skip


def _failed(log: str) -> str:
    found = re.findall(r"([Aa]ssert failed .*|.*ERROR.*|.*Temporal induction failed.*)", log)
    return found[0].strip() if found else log.strip().splitlines()[-1]


def _trace(folder: Path, log: str) -> str:
    found = re.findall(r"counterexample trace(?: \[\w+\])?: (\S+)", log)
    return str(folder / found[0]) if found else ""


EQ3 = "(a)-(d) every mask bit is Eq. 3's; order; stable; error exact"
RESET = "(e) after reset as new"
PLAYER = "(f) the ROM player gives its words, in order"
STEP = "(a) every column is the one-column design"
PATHS = "(g) no path from an input to an output without a register"


def jobs() -> list[Job]:
    """All proofs, covers and planted faults."""
    made: list[Job] = []

    def stream(config: DecoderConfig, action: Callable[..., Result], changes: Sequence[Change],
               top: str, *words: Any) -> Callable[[Path], Result]:  # fmt: skip
        def run(folder: Path) -> Result:
            write_decoder(folder, config, changes)
            return action(folder, top, words[0], described(config), *words[1:])

        return run

    def player(sizes: tuple[int, int, int], action: Callable[..., Result],
               changes: Sequence[Change], *words: Any) -> Callable[[Path], Result]:  # fmt: skip
        def run(folder: Path) -> Result:
            write_player(folder, sizes, changes)
            design = "words of {} bits, {} a tile, {} tiles".format(*sizes)
            return action(folder, "player", words[0], design, *words[1:])

        return run

    for number, config in enumerate(ONE_COLUMN):
        made.append(Job(f"stream{number}", stream(config, prove, (), "stream", EQ3)))
        made.append(Job(f"reset{number}", stream(config, prove, (), "reset", RESET)))
    for number, config in enumerate((SMALL, config_of(2, 1, 2, 2, "block"))):
        made.append(Job(f"stream-cover{number}", stream(config, cover, (), "stream", EQ3)))
        made.append(Job(f"reset-cover{number}", stream(config, cover, (), "reset", RESET)))
    for number, sizes in enumerate(PLAYERS):
        made.append(Job(f"player{number}", player(sizes, prove, (), PLAYER)))
    made.append(Job("player-cover", player(PLAYERS[1], cover, (), PLAYER)))
    for number, config in enumerate(ALL_COLUMNS):
        run = partial(columns_alike, config=config, what=STEP)
        made.append(Job(f"columns{number}", run))
    for number, (top, config) in enumerate(product((0, 1), (SMALL, *ALL_COLUMNS))):
        run = partial(registered, config=config, top=top, what=PATHS)
        made.append(Job(f"paths{number}", run))
    for number, (name, changes) in enumerate(PATH_FAULTS.items()):
        run = partial(registered, config=SMALL, top=0, what=name, changes=changes)
        made.append(Job(f"paths-fault{number}", run))
    for top, faults in (("stream", STREAM_FAULTS), ("reset", RESET_FAULTS)):
        for number, (name, fault) in enumerate(faults.items()):
            run = stream(SMALL, catch, fault.changes, top, name, fault)
            made.append(Job(f"{top}-fault{number}", run))
    for number, (name, fault) in enumerate(PLAYER_FAULTS.items()):
        run = player(PLAYERS[1], catch, fault.changes, name, fault)
        made.append(Job(f"player-fault{number}", run))
    for number, (name, changes) in enumerate(COLUMN_FAULTS.items()):
        run = partial(columns_alike, config=ALL_COLUMNS[1], what=name, changes=changes)
        made.append(Job(f"columns-fault{number}", run))
    return made


def run_jobs(
    chosen: Sequence[Job], folder: Path, *, workers: int = 2,
    tell: Callable[[Result], None] = lambda result: None,
) -> list[Result]:  # fmt: skip
    """Run jobs, each in a folder of its own."""

    def run(job: Job) -> Result:
        place = folder / job.name
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        start = time.monotonic()
        result = dataclasses.replace(job.run(place), seconds=time.monotonic() - start)
        tell(result)
        return result

    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(run, chosen))


def main(only: str = "") -> int:
    """Run all; the number of those that did not come out as they must."""
    console = Console(width=150)
    start = time.monotonic()

    def tell(result: Result) -> None:
        mark = "ok" if result.passed else "FAILED"
        console.print(
            f"{mark:6} {result.seconds:5.1f} s  {result.kind}: {result.what} [{result.design}]",
            markup=False, highlight=False,
        )  # fmt: skip
        if not result.passed:
            console.print(f"       {result.said}\n       trace: {result.trace or 'none'}",
                          markup=False, highlight=False)  # fmt: skip

    try:
        chosen = [job for job in jobs() if re.search(only, job.name)]
    except re.error as error:
        raise SystemExit(f"Pattern must be a regular expression, not {only!r}: {error}") from None
    if not chosen:
        raise SystemExit(f"No job's name matches {only!r}: {', '.join(job.name for job in jobs())}")
    results = run_jobs(chosen, BUILD / "prove", tell=tell)
    tables = [
        markdown(titles, _grouped([result for result in results if result.kind == kind]))
        for kind, titles in _TITLES.items()
        if any(result.kind == kind for result in results)
    ]
    console.print("\n\n".join(tables), markup=False, highlight=False, soft_wrap=True)
    failed = [result for result in results if not result.passed]
    seconds = time.monotonic() - start
    console.print(
        f"{len(results) - len(failed)} of {len(results)} as they must be, {seconds:.0f} s"
    )
    if not only:
        figures = {
            "seconds": round(seconds), "results": [dataclasses.asdict(result) for result in results]
        }  # fmt: skip
        write("prove", figures, "\n\n".join(tables))
    return len(failed)


_TITLES = {
    "proof": ["proof", "designs", "engine", "reach", "result"],
    "cover": ["cover", "designs", "engine", "within", "result"],
    "planted fault": ["planted fault", "design", "engine", "within", "what failed"],
}


def _grouped(results: Sequence[Result]) -> list[list[str]]:
    """A row for each thing that was to be shown, with all designs it was shown for."""
    rows = []
    for what in dict.fromkeys(result.what for result in results):
        of = [result for result in results if result.what == what]
        said = "; ".join(dict.fromkeys(each.said for each in of if each.said))
        if not all(each.passed for each in of):
            said = f"FAILED: {said}"
        designs = "; ".join(dict.fromkeys(each.design for each in of))
        rows.append([what, designs, of[0].engine, of[0].reach, said or "proved"])
    return rows
