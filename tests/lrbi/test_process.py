"""Programs side by side: all of them end, in order or by force."""

import os
import sys
import time
from pathlib import Path

import pytest

from lrbi.process import Command, run_all


def command(folder: Path, name: str, code: str) -> Command:
    return Command([sys.executable, "-c", code], folder, folder / name)


def test_codes_and_words_come_back_in_order(tmp_path):
    codes = [3, 0, 5]
    commands = [
        command(tmp_path, f"log{number}", f"print({number}); raise SystemExit({code})")
        for number, code in enumerate(codes)
    ]
    seen = []
    assert run_all(commands, 2, lambda index, code: seen.append((index, code))) == codes
    assert sorted(seen) == [(0, 3), (1, 0), (2, 5)]
    assert [(tmp_path / f"log{number}").read_text() for number in range(3)] == ["0\n", "1\n", "2\n"]


@pytest.mark.parametrize("jobs", [1, 2, 3])
def test_no_more_run_at_a_time_than_are_asked_for(tmp_path, jobs):
    """Each counts, when it begins, how many are there."""
    code = (
        "import os, pathlib, time; here = pathlib.Path('running'); here.mkdir(exist_ok=True);"
        "mine = here / str(os.getpid()); mine.touch(); print(len(list(here.iterdir())));"
        "time.sleep(0.3); mine.unlink()"
    )
    commands = [command(tmp_path, f"log{number}", code) for number in range(6)]
    run_all(commands, jobs)
    counts = [int((tmp_path / f"log{number}").read_text()) for number in range(6)]
    assert max(counts) <= jobs


def test_what_still_runs_is_ended_when_something_goes_wrong(tmp_path):
    """Also what a program has started itself."""
    child = "import time; time.sleep(600)"
    code = (
        "import subprocess, sys;"
        f"child = subprocess.Popen([sys.executable, '-c', {child!r}]);"
        "print(child.pid, flush=True); child.wait()"
    )
    commands = [command(tmp_path, "long", code), command(tmp_path, "short", "import time; time.sleep(1)")]  # noqa: E501  # fmt: skip

    def fail(index, code):
        while not (tmp_path / "long").read_text():
            time.sleep(0.05)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_all(commands, 2, fail)
    pid = int((tmp_path / "long").read_text())
    for _ in range(200):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        if "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text():
            return  # ended, and nobody has asked for its code yet
        time.sleep(0.05)
    pytest.fail("a program outlived the call")
