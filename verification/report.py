"""What the runs leave behind: figures as JSON, and tables for ``docs/verification.md``."""

import json
from pathlib import Path
from typing import Any

from benchmarks.report import fill, markdown
from lrbi.config import DecoderConfig
from verification.tools import BUILD

PAGE = Path("docs/verification.md")
RUNS = ("prove", "mutate", "coverage", "soak", "fuzz")

__all__ = ["RUNS", "described", "main", "markdown", "write"]


def described(config: DecoderConfig) -> str:
    """A configuration in a few words."""
    parts = [f"k={config.rank} d={config.stage_ranks}"]
    parts += [f"C={config.tile_cols}"] if config.tile_cols > 1 else []
    parts += [f"lanes={config.lanes}"] if config.lanes > 1 else []
    parts += [f"iz_rows={config.iz_rows}"] if config.iz_rows > 1 else []
    parts += ["block"] if config.memory == "block" else []
    parts += ["LUT6"] if config.lut_inputs == 6 else []
    return " ".join(parts)


def write(name: str, figures: Any, table: str) -> None:
    """Keep what a run found, and its tables."""
    BUILD.mkdir(parents=True, exist_ok=True)
    (BUILD / f"{name}.json").write_text(json.dumps(figures, indent=2) + "\n")
    (BUILD / f"{name}.md").write_text(table + "\n")


def main() -> int:
    """Put the tables of the last runs on the docs' page; how many runs are missing."""
    missing = [name for name in RUNS if not (BUILD / f"{name}.md").exists()]
    for name in RUNS:
        if name not in missing:
            fill(PAGE, name, (BUILD / f"{name}.md").read_text().strip())
    for name in missing:
        print(f"{name} has not been run: its table stays as it is (make {name})")
    return len(missing)
