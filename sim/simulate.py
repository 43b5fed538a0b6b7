"""From layers to a report: the shipped files through a decoder, every mask row compared."""

import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from lrbi.hw.design import read_design, rom_text
from lrbi.hw.generate import decoder_files, rom_decoder_files
from lrbi.sim import pysim, verilog
from lrbi.sim.cycles import mask_clocks, rom_mask_clocks
from lrbi.sim.scene import PATIENCE, Outcome, Scene, Stalls

from lrbi.atomic import check_writable, replacing
from lrbi.config import DecoderConfig
from lrbi.errors import InputError, MissingToolError
from lrbi.layer import CompressedLayer
from lrbi.layout import to_words, unpack_words
from lrbi.product import boolean_product
from lrbi.rom import mem_text
from lrbi.romset import LayerRoms, export_roms, file_stems, read_roms

AMARANTH = "amaranth"
SIMULATORS = (*verilog.SIMULATORS, AMARANTH)
"""All simulators, the fastest first; the last needs no tool and is always there."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is to be simulated, and how."""

    top: str = "stream"
    """``stream`` for ``lrbi_decoder``, ``rom`` for ``lrbi_rom_decoder``."""
    simulator: str = "auto"
    """A name in :data:`SIMULATORS`, or ``auto`` for the first that can be used."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of :class:`DecoderConfig` beside rank and tile, where no ``rtl`` is given."""
    rtl: Path | None = None
    """A folder that ``lrbi generate`` wrote, to be taken as it is; None for a fresh design."""
    rom: Path | None = None
    """A folder that ``lrbi export`` wrote, to be taken as it is; None for fresh files."""
    waves: Path | None = None
    """An .fst or .vcd file to write."""
    stalls: Stalls = field(default_factory=Stalls)
    """How the ports hold back."""
    tiles: int | None = None
    """Tiles of each layer, from the first on; None for all."""


@dataclass(frozen=True)
class Mismatch:
    """A mask bit that is not as the reference says."""

    layer: str
    tile: int
    row: int
    column: int
    got: int | None
    """The bit; None if no beat came for it."""
    expected: int | None
    """What it must be; None if there must be no such beat."""


@dataclass
class Report:
    """What a simulation showed, summed over its layers."""

    simulator: str = ""
    """Its name."""
    tiles: int = 0
    """Tiles that came out."""
    rows: int = 0
    """Mask rows compared."""
    bits: int = 0
    """Mask bits compared."""
    mismatches: int = 0
    """Mask bits that differ from the reference."""
    first_mismatches: list[Mismatch] = field(default_factory=list)
    """The first of them."""
    clocks: int = 0
    """Clocks from the first factor taken, or the start, to the last mask beat."""
    model_clocks: int = 0
    """The same by the cycle model, which knows of no stalls."""
    as_modelled: bool | None = None
    """Whether every tile came on the clocks of the model; None where ports stall, or on a stop."""
    row_share: float = 0.0
    """Share of the clocks that carried a mask beat."""
    stopped: list[str] = field(default_factory=list)
    """Why layers ended before their time."""
    seconds: float = 0.0
    """Time for playing, builds apart."""
    layers: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Tiles, rows, mismatches and clocks of each layer."""

    @property
    def passed(self) -> bool:
        """Whether all was as it must be."""
        return not self.mismatches and not self.stopped and self.as_modelled is not False

    def to_json(self) -> dict[str, Any]:
        """As JSON keeps it."""
        return asdict(self) | {"passed": self.passed}


@dataclass(frozen=True)
class _Job:
    """One design, and the layers that are played on it."""

    config: DecoderConfig
    module: str
    text: str
    scenes: Mapping[str, Scene]
    files: Mapping[str, str]
    """ROM images by their file names."""
    roms: LayerRoms | None
    """What they were made of, where the design is not from a folder."""


Progress = Callable[[str, int, int], None]
"""Called with what is done, how much of it, and how much there is."""


def simulate(
    layers: Mapping[str, CompressedLayer],
    request: Request,
    *,
    tell: Callable[[str], None] = lambda text: None,
    progress: Progress = lambda name, done, total: None,
) -> Report:
    """Play layers through a decoder, and compare every mask row with the reference.

    The stimulus is read back from exported files; what must come out is the Boolean product of the
    layers' own factors.
    """
    simulator = _choose(request, tell)
    if request.waves is not None:
        check_writable(request.waves)
    if request.rom is not None:
        roms = _matching_roms(layers, request.rom)
    else:
        with tempfile.TemporaryDirectory(prefix="lrbi-") as folder:
            lanes = request.options.get("lanes", 1)
            export_roms(layers, folder, lanes=lanes, iz_rows=request.options.get("iz_rows", 1))
            roms = dict(read_roms(folder).layers)
    make_jobs = _rom_jobs if request.top == "rom" else _stream_jobs
    jobs = make_jobs(layers, roms, request, simulator)
    if request.waves is not None and (len(jobs) > 1 or len(jobs[0].scenes) > 1):
        raise InputError(
            f"Waves must be of one layer, not of {len(layers)} (choose it with --layer)"
        )
    total = sum(len(frame) for job in jobs for scene in job.scenes.values() for frame in scene.mask)
    report = Report(simulator=simulator)
    if not any((request.stalls.iz, request.stalls.ip, request.stalls.mask)):
        report.as_modelled = True
    before = beats = 0
    for job in jobs:

        def advance(done: int, before: int = before) -> None:
            progress("mask beats", before + done, total)

        outcomes = _play(simulator, job, request.waves, tell, advance, report)
        for (name, scene), outcome in zip(job.scenes.items(), outcomes, strict=True):
            _add(report, name, layers[name], job.config, request.top, scene, outcome)
            before += sum(map(len, scene.mask))
            beats += outcome.beats
    report.row_share = beats / report.clocks if report.clocks else 0.0
    return report


def usable(simulator: str, waves: str = "") -> str:
    """The simulator that a name means: ``auto`` is the fastest that can be used."""
    if simulator == "auto":
        found = (name for name in verilog.SIMULATORS if not verilog.missing(name, waves))
        return next(found, AMARANTH)
    if simulator != AMARANTH and (problem := verilog.missing(simulator, waves)):
        raise MissingToolError(problem)
    return simulator


def _choose(request: Request, tell: Callable[[str], None]) -> str:
    """The simulator to use for a request."""
    waves = request.waves.suffix.removeprefix(".") if request.waves else ""
    if waves not in ("", "fst", "vcd"):
        raise InputError(f"Waves must go to a file that ends in .fst or .vcd, not {request.waves}")
    if request.rtl is not None and request.simulator == AMARANTH:
        raise InputError(
            "A folder of Verilog must go with a Verilog simulator, not with Amaranth's"
        )
    simulator = usable(request.simulator, waves)
    faster = verilog.missing("verilator", waves)
    if simulator == AMARANTH:
        if request.rtl is not None:
            raise MissingToolError(f"A folder of Verilog needs a Verilog simulator: {faster}")
        if waves == "fst":
            raise InputError(
                f"Waves of Amaranth's simulator must go to a .vcd file, not {request.waves}"
            )
    if request.simulator == "auto" and faster:
        tell(f"using {simulator.capitalize()}; faster: {faster}")
    return simulator


def _play(
    simulator: str,
    job: _Job,
    waves: Path | None,
    tell: Callable[[str], None],
    advance: Callable[[int], None],
    report: Report,
) -> list[Outcome]:
    start = time.monotonic()
    if simulator == AMARANTH:
        tell(f"simulating in Amaranth's simulator {version('amaranth')}")
        roms = None
        if job.roms is not None:
            ip, iz = (
                [image.word(index) for index in range(image.depth)]
                for image in (job.roms.ip, job.roms.iz)
            )
            roms = (len(job.roms.ranks), ip, iz)
        done = 0

        def count(beats: int) -> None:
            nonlocal done
            done += beats
            advance(done)

        with replacing(waves) if waves else nullcontext() as file:
            outcomes = [
                pysim.play_scene(job.config, scene, roms=roms, waves=file, progress=count)
                for scene in job.scenes.values()
            ]
    else:

        def building(fresh: bool) -> None:
            what = f"building {job.module} for {simulator.capitalize()}"
            tell(what if fresh else f"simulating in {simulator.capitalize()}")

        def ready() -> None:
            nonlocal start
            start = time.monotonic()

        outcomes = verilog.play(
            simulator,
            job.module,
            job.text,
            list(job.scenes.values()),
            files=job.files,
            waves=waves,
            building=building,
            ready=ready,
            progress=advance,
        )
    report.seconds += time.monotonic() - start
    return outcomes


def _stream_jobs(
    layers: Mapping[str, CompressedLayer],
    roms: Mapping[str, LayerRoms],
    request: Request,
    simulator: str,
) -> list[_Job]:
    """A design for all layers of one tile size, or the one of the folder for all."""
    if request.rtl is not None:
        facts, text = read_design(request.rtl, "stream")
        config = DecoderConfig(**facts["config"])
        for name, layer in layers.items():
            if config.tile_cols != layer.tile[1] or config.rank < layer.rank:
                raise InputError(
                    f"Decoder {request.rtl / facts['module']}.v must have {layer.tile[1]} columns "
                    f"and a rank of at least {layer.rank} for layer {name}, not "
                    f"{config.tile_cols} and {config.rank}"
                )
        scenes = {name: _stream_scene(layers[name], roms[name], config, request) for name in layers}
        return [_Job(config, facts["module"], text, scenes, {}, None)]
    jobs = []
    for tile in sorted({layer.tile for layer in layers.values()}):
        group = {name: layer for name, layer in layers.items() if layer.tile == tile}
        rank = max(layer.rank for layer in group.values())
        config = DecoderConfig(
            rank=rank, tile_rows=tile[0], tile_cols=tile[1], **dict(request.options)
        )
        text = "" if simulator == AMARANTH else decoder_files(config)["lrbi_decoder.v"]
        scenes = {name: _stream_scene(layers[name], roms[name], config, request) for name in group}
        jobs.append(_Job(config, "lrbi_decoder", text, scenes, {}, None))
    return jobs


def _rom_jobs(
    layers: Mapping[str, CompressedLayer],
    roms: Mapping[str, LayerRoms],
    request: Request,
    simulator: str,
) -> list[_Job]:
    """A design for each layer, or the one of the folder for its layer."""
    if request.rtl is not None:
        facts, text = read_design(request.rtl, "rom")
        config, name = DecoderConfig(**facts["config"]), facts["layer"]
        if name not in layers:
            raise InputError(
                f"Decoder {request.rtl / facts['module']}.v must be for one of the layers "
                f"{', '.join(layers)}, not for {name}"
            )
        layer = layers[name]
        sizes = (config.rank, config.tile_rows, config.tile_cols, facts["tiles"])
        if sizes != (layer.rank, *layer.tile, len(layer.tiles)):
            raise InputError(
                f"Decoder {request.rtl / facts['module']}.v must be for layer {name} as it is in "
                "the factor file, but has another rank, tile or number of tiles"
            )
        images = (roms[name].ip, roms[name].iz)
        files = {
            rom["file"]: mem_text(image) if request.rom else rom_text(request.rtl, rom)
            for rom, image in zip(facts["roms"], images, strict=True)
        }
        if request.rom is not None:
            _check_words(config, roms[name], request.rom)
        scene = _rom_scene(layer, config, request)
        return [_Job(config, facts["module"], text, {name: scene}, files, roms[name])]
    jobs = []
    stems = file_stems(layers)
    for name, layer in layers.items():
        rows, cols = layer.tile
        config = DecoderConfig(
            rank=layer.rank, tile_rows=rows, tile_cols=cols, **dict(request.options)
        )
        if request.rom is not None:
            _check_words(config, roms[name], request.rom)
        stem = stems[name][0]
        text = ""
        if simulator != AMARANTH:
            texts = rom_decoder_files(layer, config, source=("FILE", name), stem=stem)
            text = texts["lrbi_rom_decoder.v"]
        files = {
            f"{stem}.ip.mem": mem_text(roms[name].ip),
            f"{stem}.iz.mem": mem_text(roms[name].iz),
        }
        scene = _rom_scene(layer, config, request)
        jobs.append(_Job(config, "lrbi_rom_decoder", text, {name: scene}, files, roms[name]))
    return jobs


def _matching_roms(layers: Mapping[str, CompressedLayer], folder: Path) -> dict[str, LayerRoms]:
    """The ROMs of a folder, which must be of layers like these; their bits are not compared."""
    found = read_roms(folder).layers
    for name, layer in layers.items():
        if name not in found:
            raise InputError(
                f"ROM folder {folder} must hold layer {name}, but holds {', '.join(found)}"
            )
        roms = found[name]
        theirs = (tuple(roms.metadata["shape"]), roms.tile, roms.rank)
        if theirs != (layer.shape, layer.tile, layer.rank):
            sizes = ["x".join(map(str, size)) for size in (*theirs[:2], layer.shape, layer.tile)]
            raise InputError(
                f"ROM folder {folder} must hold layer {name} as {sizes[2]} in tiles of {sizes[3]} "
                f"with rank {layer.rank}, not as {sizes[0]} in tiles of {sizes[1]} with rank "
                f"{roms.rank}"
            )
    return {name: found[name] for name in layers}


def _check_words(config: DecoderConfig, roms: LayerRoms, folder: Path) -> None:
    if (roms.lanes, roms.iz_rows) != (config.lanes, config.iz_rows):
        raise InputError(
            f"ROM folder {folder} must hold {config.lanes} I_p and {config.iz_rows} I_z rows a "
            f"word for this decoder, not {roms.lanes} and {roms.iz_rows}"
        )


def _stream_scene(
    layer: CompressedLayer, roms: LayerRoms, config: DecoderConfig, request: Request
) -> Scene:
    """A layer's tiles with their own heights and ranks, from its ROM images."""
    count, cols = len(roms.ranks), config.tile_cols
    row_factors = np.zeros((count, roms.tile[0], config.rank), dtype=np.bool_)
    row_factors[..., : roms.rank] = unpack_words(roms.ip.words, count, roms.rank, roms.lanes)[
        :, : roms.tile[0]
    ]
    col_factors = unpack_words(roms.iz.words, count, cols, roms.iz_rows)
    iz, ip, mask = [], [], []
    for tile in range(_tiles(layer, request)):
        rows, _ = layer.tiles.size(tile)
        ranks = max(1, roms.ranks[tile])  # a frame has at least one beat
        iz.append(to_words(col_factors[tile, :ranks], config.iz_rows))
        ip.append(to_words(row_factors[tile, :rows], config.lanes))
        mask.append(_expected(layer, tile, rows, config))
    return _scene(request, mask=mask, iz=iz, ip=ip, latency=config.latency)


def _rom_scene(layer: CompressedLayer, config: DecoderConfig, request: Request) -> Scene:
    """A layer's tiles whole, padding included."""
    tiles = _tiles(layer, request)
    mask = [_expected(layer, tile, config.tile_rows, config) for tile in range(tiles)]
    return _scene(request, mask=mask, ranges=[(0, tiles)])


def _scene(request: Request, **frames: Any) -> Scene:
    stalls = request.stalls
    moving = 1 - max(stalls.iz, stalls.ip, stalls.mask)
    return Scene(stalls=stalls, patience=round(PATIENCE / moving), **frames)


def _tiles(layer: CompressedLayer, request: Request) -> int:
    count = len(layer.tiles)
    return count if request.tiles is None else min(request.tiles, count)


def _expected(layer: CompressedLayer, tile: int, rows: int, config: DecoderConfig) -> list[int]:
    """The mask beats of a tile of so many rows, by the paper's Eq. 3."""
    product = boolean_product(*layer.factors(tile))
    mask = np.zeros((rows, config.tile_cols), dtype=np.bool_)
    mask[: product.shape[0], : product.shape[1]] = product
    return to_words(mask, config.lanes)


def _add(
    report: Report,
    name: str,
    layer: CompressedLayer,
    config: DecoderConfig,
    top: str,
    scene: Scene,
    outcome: Outcome,
) -> None:
    """Add what came of a layer to the report."""
    if top == "rom":
        model = rom_mask_clocks(config, len(scene.mask))
    else:
        model = mask_clocks(
            config, [(len(iz), len(ip)) for iz, ip in zip(scene.iz, scene.ip, strict=True)]
        )
    ends = np.cumsum([0, *map(len, scene.mask)])
    spans = [(model[a], model[b - 1]) for a, b in pairwise(ends)]
    clocks = outcome.spans[-1][1] + 1 if outcome.spans else 0
    if any(outcome.errors) and not outcome.stopped:
        outcome.stopped = "the output error was raised"
        outcome.stopped_at = (outcome.errors.index(True), 0)
    # Rows that only fill up a tile's last beat were compared too, but do not count.
    heights = [
        layer.tile[0] if top == "rom" else layer.tiles.size(tile)[0]
        for tile in range(min(len(outcome.spans), len(scene.mask)))
    ]
    rows = min(sum(heights), outcome.beats * config.lanes)
    report.tiles += len(outcome.spans)
    report.rows += rows
    report.bits += rows * config.tile_cols
    report.mismatches += outcome.wrong_bits
    report.first_mismatches += _mismatches(name, config, outcome)
    report.clocks += clocks
    report.model_clocks += model[-1] + 1
    if outcome.stopped:
        report.as_modelled = None  # it did not come to that
    elif report.as_modelled is not None:
        report.as_modelled &= outcome.spans == spans
    if outcome.stopped:
        tile, beat = outcome.stopped_at
        row = beat * config.lanes
        report.stopped.append(f"layer {name}: {outcome.stopped}, at tile {tile}, row {row}")
    report.layers[name] = {
        "tiles": len(outcome.spans),
        "rows": rows,
        "bits": rows * config.tile_cols,
        "mismatches": outcome.wrong_bits,
        "clocks": clocks,
        "model_clocks": model[-1] + 1,
        "config": config.as_dict(),
    }


_SHOWN = 20


def _mismatches(name: str, config: DecoderConfig, outcome: Outcome) -> list[Mismatch]:
    """The first wrong bits, located."""
    found: list[Mismatch] = []
    for wrong in outcome.wrong:
        if wrong.got is None or wrong.expected is None:
            bits = [None if word is None else word & 1 for word in (wrong.got, wrong.expected)]
            found.append(Mismatch(name, wrong.frame, wrong.beat * config.lanes, 0, *bits))
            continue
        differing = wrong.got ^ wrong.expected
        while differing and len(found) < _SHOWN:
            position = (differing & -differing).bit_length() - 1
            differing &= differing - 1
            lane, column = divmod(position, config.tile_cols)
            row = wrong.beat * config.lanes + lane
            bits = [wrong.got >> position & 1, wrong.expected >> position & 1]
            found.append(Mismatch(name, wrong.frame, row, column, *bits))
    return found[:_SHOWN]
