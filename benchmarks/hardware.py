"""``python -m benchmarks.hardware``: all decoders side by side, as hardware on an ECP5.

The mask of LeNet-5's FC1 (800 x 500, S = 0.95, k = 16) and of a tile of AlexNet's size (576 x 512,
S = 0.91, k = 32, Gaussian weights) goes through our decoder and through its rivals, each with the
ROMs of its index inside. All are synthesised, placed and routed by the same tools, once without
and once with their ROMs, and simulated, every mask beat compared. What was measured before, with
the same text and tools, is not measured again. With its ROMs, whose reading limits the clock, a
decoder is placed with the first seed alone.
"""

import argparse
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from lrbi.hw.generate import decoder_files, rom_decoder_files
from lrbi.hw.rivals.catalog import Rival, rivals
from lrbi.hw.synth import Design, Target, synthesize
from lrbi.sim.scene import Scene
from lrbi.sim.verilog import missing, play

import lrbi
from benchmarks import report
from lrbi.config import DecoderConfig
from lrbi.layout import to_words
from lrbi.synthetic import trained_like

TARGET = Target("ecp5", "45k")


@dataclass(frozen=True)
class Case:
    """A layer to be decoded."""

    name: str
    weights: np.ndarray
    sparsity: float
    rank: int


@dataclass(frozen=True)
class Contender:
    """A decoder of a case's mask, as hardware."""

    name: str
    beat: int
    """Mask bits of a beat."""
    index_bits: int
    rom_bits: int
    kept: float | None
    """Share of the exact mask's magnitude; None where the mask is not the layer's."""
    core: Design
    """The decoder between streams."""
    top: Design
    """The same with its ROMs."""
    frames: list[list[int]]
    """The mask beats that the top must give, a frame a tile."""


def cases(data: Path | None) -> list[Case]:
    """LeNet-5's FC1, real if there is data, and a tile of AlexNet's size."""
    if data:
        from safetensors.numpy import load_file

        file = data / "weights/lenet5_mnist.safetensors"
        name, fc1 = "LeNet-5 FC1", np.ascontiguousarray(load_file(file)["5.weight"].T)
    else:
        name, fc1 = "LeNet-5 FC1's size, made-up weights", trained_like((800, 500), rng(1))
    tile = rng(0).standard_normal((576, 512), dtype=np.float32)
    return [Case(name, fc1, 0.95, 16), Case("AlexNet's tile size, Gaussian", tile, 0.91, 32)]


def rng(seed: int) -> np.random.Generator:
    """A generator of this seed."""
    return np.random.default_rng(seed)


def contenders(case: Case) -> Iterator[Contender]:
    """Ours, in one tile and in sixteen of a quarter of its rank; rivals, a row or chunk a beat."""
    rows, cols = case.weights.shape
    yield ours(case, "lrbi, one tile", (rows, cols), case.rank)
    yield ours(case, "lrbi, 4 x 4 tiles", (rows // 4, cols // 4), case.rank // 4)
    mask = lrbi.exact_mask(case.weights, case.sparsity)
    yield from (theirs(rival) for rival in rivals(mask, beat=cols))
    yield from (theirs(rival) for rival in rivals(mask) if rival.beat < cols)


def ours(case: Case, name: str, tile: tuple[int, int], rank: int) -> Contender:
    """Our decoder of a case."""
    layer = lrbi.compress(
        case.weights,
        lrbi.CompressConfig(sparsity=case.sparsity, rank=rank, tile=tile, effort="fast"),
    )
    config = DecoderConfig(rank=layer.rank, tile_rows=tile[0], tile_cols=tile[1])
    masks = [lrbi.boolean_product(*layer.factors(tile)) for tile in range(len(layer.tiles))]
    return Contender(
        name=name,
        beat=config.mask_width,
        index_bits=layer.index_bits,
        rom_bits=layer.rom_bits,
        kept=layer.kept,
        core=Design.of_files(decoder_files(config)),
        top=Design.of_files(
            rom_decoder_files(layer, config, source=("FILE", "layer"), stem="layer")
        ),
        frames=[to_words(mask) for mask in masks],
    )


def theirs(rival: Rival) -> Contender:
    """A rival's decoder of a case."""
    return Contender(
        name=rival.name,
        beat=rival.beat,
        index_bits=rival.index_bits,
        rom_bits=rival.rom_bits,
        kept=1.0 if rival.exact else None,
        core=rival.core_design(),
        top=rival.top_design(),
        frames=[rival.mask_words],
    )


def simulated(contender: Contender) -> dict[str, Any]:
    """Clocks of the top, every mask beat compared."""
    simulator = "icarus" if not missing("icarus") else "verilator"
    scene = Scene(mask=contender.frames, ranges=[(0, len(contender.frames))])
    (outcome,) = play(
        simulator, contender.top.module, contender.top.text, [scene], files=contender.top.files
    )
    assert outcome.clean, f"{contender.name}: {outcome.stopped or outcome.wrong}"
    first, last = outcome.spans[0][0], outcome.spans[-1][1]
    beats = sum(map(len, contender.frames))
    return {
        "simulator": simulator,
        "mask_bits": beats * contender.beat,
        "clocks": last + 1,
        # From the first beat on: what a longer layer would see.
        "bits_per_clock": round((beats - 1) * contender.beat / (last - first), 2),
    }


def measure(contender: Contender, seeds: list[int], jobs: int) -> dict[str, Any]:
    """All figures of a contender."""
    clocks = simulated(contender)
    bits = clocks["bits_per_clock"]
    (core,) = synthesize(contender.core, [TARGET], seeds=seeds, jobs=jobs)
    (top,) = synthesize(contender.top, [TARGET], seeds=seeds[:1], jobs=jobs)
    return {
        "name": contender.name,
        "beat": contender.beat,
        "index_bits": contender.index_bits,
        "rom_bits": contender.rom_bits,
        "kept": None if contender.kept is None else round(contender.kept, 4),
        "simulation": clocks,
        "core": without_cache(core.facts(bits)),
        "with_rom": without_cache(top.facts(bits)),
    }


def without_cache(facts: dict[str, Any]) -> dict[str, Any]:
    """Facts that are the same on every run."""
    return {name: value for name, value in facts.items() if name != "cached"}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hardware", description=__doc__)
    parser.add_argument("--seeds", default="1,2,3", help="seeds of nextpnr, joined by commas")
    parser.add_argument("-j", "--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--data", type=Path, metavar="DIR", help="weights/*.safetensors")
    parser.add_argument(
        "-o", "--output", type=Path, default=report.FOLDER, help="folder for JSON and plots"
    )
    options = parser.parse_args()
    seeds = [int(seed) for seed in options.seeds.split(",")]
    results = []
    for case in cases(options.data):
        rows = []
        for contender in contenders(case):
            rows.append(measure(contender, seeds, options.jobs))
            print(f"{case.name}: {report.line(rows[-1])}", file=sys.stderr, flush=True)
        results.append(
            {
                "case": case.name,
                "shape": list(case.weights.shape),
                "sparsity": case.sparsity,
                "rank": case.rank,
                "decoders": rows,
            }
        )
    found = {"lrbi": version("lrbi"), "target": str(TARGET), "seeds": seeds, "cases": results}
    report.write_rivals(found, options.output)


if __name__ == "__main__":
    main()
