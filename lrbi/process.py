"""Programs that lrbi starts: none of them, nor what they start, outlives it."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def group(
    words: Sequence[str], cwd: Any, env: Mapping[str, str] | None, output: Any
) -> Iterator[subprocess.Popen[bytes]]:
    """A command and all that it starts, ended with the context.

    It has a session of its own, so that a Ctrl-C at the terminal reaches us alone.
    """
    process = subprocess.Popen(
        words, cwd=cwd, env=env, stdout=output, stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=_end_with_parent,
    )  # fmt: skip
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _end_with_parent() -> None:
    """Ask the kernel to end this process when its parent ends."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


@dataclass(frozen=True)
class Command:
    """A program to run, the folder to run it in, where what it says goes, and its environment."""

    words: Sequence[str]
    folder: Path
    log: Path
    environment: Mapping[str, str] | None = None


def run_all(
    commands: Sequence[Command], jobs: int, done: Callable[[int, int], None] = lambda i, code: None
) -> list[int]:
    """Run commands, at most ``jobs`` at a time, and give their exit codes in order.

    ``done`` is told of each that ends, with its exit code. If anything goes wrong here, all that
    still run are ended.
    """
    codes = [0] * len(commands)
    waiting = list(enumerate(commands))
    with contextlib.ExitStack() as everything:
        running: dict[int, tuple[subprocess.Popen[bytes], contextlib.ExitStack]] = {}
        while waiting or running:
            while waiting and len(running) < jobs:
                index, command = waiting.pop(0)
                own = everything.enter_context(contextlib.ExitStack())
                output = own.enter_context(command.log.open("wb"))
                process = own.enter_context(
                    group(command.words, command.folder, command.environment, output)
                )
                running[index] = (process, own)
            ended = {
                index: own for index, (each, own) in running.items() if each.poll() is not None
            }
            for index, own in ended.items():
                codes[index] = running.pop(index)[0].returncode
                own.close()
                done(index, codes[index])
            if not ended:
                time.sleep(0.02)
    return codes
