"""``python -m benchmarks.sweep``: area and clock of the decoder over ranks, columns and stages.

Every combination of rank, columns, ranks a stage and lanes, but for the largest, is placed and
routed on an ECP5; the figures go to ``docs/hardware/sweep.csv``, a plot beside them. What was
measured before is not measured again.
"""

import argparse
import itertools
import os
import sys
from pathlib import Path

from lrbi.hw.generate import decoder_files
from lrbi.hw.synth import Design, floors, synthesize

from benchmarks import report
from benchmarks.hardware import TARGET
from lrbi.config import DecoderConfig

RANKS, COLUMNS, STAGE_RANKS, LANES = (4, 8, 16, 32), (32, 64, 128), (2, 3, 4, 6), (1, 2, 4)
ROWS = 64
LARGEST = 2048  # ranks times mask bits a clock with several lanes: larger points take minutes
FIELDS = (
    "rank", "columns", "stage_ranks", "lanes", "lut", "lut_ram", "lut_over_floor", "ff",
    "ff_over_floor", "fmax_mhz", "seeds", "bits_per_clock", "gbit_per_s", "mbit_per_s_per_lut",
)  # fmt: skip


def configs() -> list[DecoderConfig]:
    """All points, the small ones first; a stage has no more ranks than there are."""
    points = [
        DecoderConfig(rank=rank, tile_rows=ROWS, tile_cols=cols, stage_ranks=stage, lanes=lanes)
        for rank, cols, stage, lanes in itertools.product(RANKS, COLUMNS, STAGE_RANKS, LANES)
        if stage <= rank and (lanes == 1 or rank * cols * lanes <= LARGEST)
    ]
    return sorted(points, key=lambda config: config.rank * config.mask_width)


def measure(config: DecoderConfig, seeds: list[int], jobs: int) -> dict[str, object]:
    """The figures of one point."""
    (result,) = synthesize(Design.of_files(decoder_files(config)), [TARGET], seeds=seeds, jobs=jobs)
    facts = result.facts(config.sustained_bits) | floors(result, config)
    return (
        {
            "rank": config.rank,
            "columns": config.tile_cols,
            "stage_ranks": config.stage_ranks,
            "lanes": config.lanes,
        }
        | facts
        | {"seeds": " ".join(map(str, seeds))}
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sweep", description=__doc__)
    parser.add_argument("--seeds", default="1", help="seeds of nextpnr, joined by commas")
    parser.add_argument("-j", "--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "-o", "--output", type=Path, default=report.FOLDER, help="folder to write to"
    )
    options = parser.parse_args()
    seeds = [int(seed) for seed in options.seeds.split(",")]
    rows = []
    points = configs()
    for number, config in enumerate(points, 1):
        rows.append(measure(config, seeds, options.jobs))
        row = rows[-1]
        print(
            f"{number} of {len(points)}: k={row['rank']} C={row['columns']} "
            f"d={row['stage_ranks']} lanes={row['lanes']}: {row['lut']} LUT4 "
            f"{row['fmax_mhz']} MHz",
            file=sys.stderr, flush=True,
        )  # fmt: skip
    rows.sort(key=lambda row: [row[field] for field in FIELDS[:4]])
    report.write_sweep(rows, FIELDS, options.output)


if __name__ == "__main__":
    main()
