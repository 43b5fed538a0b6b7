"""What tests share: the command, run as a user would run it, and small layers."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import settings

from lrbi.cli import main

# No deadline: the machine may be shared. Derandomized, so that a run can be repeated.
settings.register_profile("lrbi", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("lrbi")


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


@pytest.fixture
def weights() -> np.ndarray:
    """A small layer whose size is no multiple of anything."""
    return np.random.default_rng(7).standard_normal((45, 37)).astype(np.float32)
