import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import lrbi.pipeline
from lrbi.checkpoint import Checkpoint
from lrbi.config import CompressConfig
from lrbi.pipeline import LayerSource, compress_layers

CONFIG = CompressConfig(sparsity=0.8, rank=3, tile=(16, 10))
OPTIONS = ["-s", 0.8, "-k", 3, "--tile", "16x10"]


@pytest.fixture
def counted(monkeypatch):
    """Counts tiles that are really factorized; can be told to fail after some of them."""

    class Counter:
        calls = 0
        fail_after = None
        failure = KeyboardInterrupt

        def __call__(self, problem):
            if self.calls == self.fail_after:
                raise self.failure
            self.calls += 1
            return original(problem)

    original = lrbi.pipeline.factorize
    counter = Counter()
    monkeypatch.setattr(lrbi.pipeline, "factorize", counter)
    return counter


def run(store, weights, config=CONFIG, mask=None, name="w"):
    """Compress with a store, and leave it as an interrupt would."""
    source = LayerSource(name, config, lambda: weights, None if mask is None else lambda _: mask)
    with contextlib.suppress(KeyboardInterrupt), store:
        layers = dict(compress_layers([source], store=store))
        raise KeyboardInterrupt
    return layers


def test_finished_tiles_are_not_made_again(tmp_path, weights, counted):
    messages = []
    first = run(Checkpoint(tmp_path / "w.lrbi", messages.append), weights)
    assert counted.calls == 12
    store = Checkpoint(tmp_path / "w.lrbi", messages.append)
    assert run(store, weights) == first
    assert counted.calls == 12
    assert messages == []
    with store:
        pass
    assert list(tmp_path.iterdir()) == []


def test_auto_ranks_are_kept_too(tmp_path, weights, counted):
    config = CompressConfig(sparsity=0.8, rank="auto", ratio=1.2, tile=(16, 10))
    first = run(Checkpoint(tmp_path / "w.lrbi", print), weights, config)
    assert run(Checkpoint(tmp_path / "w.lrbi", print), weights, config) == first
    assert counted.calls == 12


@pytest.mark.parametrize("change", ["weights", "seed", "iterations", "version", "name"])
def test_what_came_from_other_input_is_discarded(tmp_path, weights, counted, monkeypatch, change):
    messages = []
    run(Checkpoint(tmp_path / "w.lrbi", messages.append), weights)
    config, name = CONFIG, "w"
    if change == "weights":
        weights = weights.copy()
        weights[44, 36] += 1
    elif change == "version":
        monkeypatch.setattr(lrbi, "__version__", "99")
    elif change == "name":
        name = "v"
    else:
        config = dataclasses.replace(CONFIG, **{change: 7})
    run(Checkpoint(tmp_path / "w.lrbi", messages.append), weights, config, name=name)
    assert counted.calls == 24
    assert messages == [
        f"What {tmp_path}/w.lrbi.partial keeps of layer {name} is discarded: "
        "it was made from other input, options or version"
    ]


def test_another_mask_is_other_input(tmp_path, weights, counted):
    messages = []
    config = CompressConfig(rank=3, tile=(16, 10))
    mask = np.abs(weights) > 1
    for given in (mask, mask, ~mask):
        run(Checkpoint(tmp_path / "w.lrbi", messages.append), weights, config, mask=given)
    assert counted.calls == 24
    assert len(messages) == 1


def test_what_others_put_into_the_folder_stays(tmp_path, weights, command):
    np.save(tmp_path / "w.npy", weights)
    (tmp_path / "w.lrbi.partial").mkdir()
    (tmp_path / "w.lrbi.partial/mine.txt").write_text("precious")
    assert command("compress", "w.npy", *OPTIONS, "-o", "w.lrbi").code == 0
    assert [path.name for path in (tmp_path / "w.lrbi.partial").iterdir()] == ["mine.txt"]


def test_a_file_in_the_folders_place(tmp_path, weights, command):
    np.save(tmp_path / "w.npy", weights)
    (tmp_path / "w.lrbi.partial").write_text("precious")
    outcome = command("compress", "w.npy", *OPTIONS, "-o", "w.lrbi")
    assert outcome.code == 2
    assert "w.lrbi.partial cannot be written: File exists" in outcome.err
    assert (tmp_path / "w.lrbi.partial").read_text() == "precious"


@pytest.mark.parametrize("damage", ["cut", "flip", "lie"])
def test_journal_goes_on_behind_its_last_whole_record(tmp_path, weights, counted, damage):
    first = run(Checkpoint(tmp_path / "w.lrbi", print), weights)
    journal = tmp_path / "w.lrbi.partial/0"
    content = bytearray(journal.read_bytes())
    size = (len(content) - 32) // 12  # of a record, near enough
    if damage == "cut":
        del content[32 + 4 * size + size // 2 :]
    elif damage == "flip":
        content[32 + 4 * size + size // 2] ^= 1
    else:
        content[32 + 8 : 32 + 16] = b"\xff" * 8  # a length beyond all memory
    journal.write_bytes(content)
    calls = counted.calls
    assert run(Checkpoint(tmp_path / "w.lrbi", print), weights) == first
    again = counted.calls - calls
    assert again == 12 if damage == "lie" else 6 <= again <= 9
    assert run(Checkpoint(tmp_path / "w.lrbi", print), weights) == first
    assert counted.calls == calls + again


def test_interrupted_command_goes_on_where_it_stopped(tmp_path, weights, counted, command):
    np.save(tmp_path / "w.npy", weights)
    assert command("compress", "w.npy", *OPTIONS, "-o", "whole.lrbi").code == 0
    counted.calls, counted.fail_after = 0, 5
    stopped = command("compress", "w.npy", *OPTIONS, "-o", "w.lrbi")
    assert stopped.code == 130
    assert stopped.out == ""
    assert stopped.err == (
        "lrbi: the same command goes on from w.lrbi.partial\nlrbi: interrupted\n"
    )
    assert not (tmp_path / "w.lrbi").exists()
    assert (tmp_path / "w.lrbi.partial").is_dir()

    counted.calls, counted.fail_after = 0, None
    assert command("compress", "w.npy", *OPTIONS, "-o", "w.lrbi").code == 0
    assert counted.calls == 12 - 5
    assert (tmp_path / "w.lrbi").read_bytes() == (tmp_path / "whole.lrbi").read_bytes()
    assert not (tmp_path / "w.lrbi.partial").exists()


def test_other_options_discard_what_an_interrupt_left(tmp_path, weights, counted, command):
    np.save(tmp_path / "w.npy", weights)
    counted.fail_after = 5
    assert command("compress", "w.npy", *OPTIONS, "-o", "w.lrbi").code == 130
    counted.calls, counted.fail_after = 0, None
    outcome = command("compress", "w.npy", *OPTIONS, "--seed", 1, "-o", "w.lrbi")
    assert outcome.code == 0
    assert "w.lrbi.partial keeps of layer w is discarded" in outcome.err
    assert counted.calls == 12


def test_two_runs_with_one_output(tmp_path, weights, command):
    np.save(tmp_path / "w.npy", weights)
    with Checkpoint(tmp_path / "w.lrbi", print):
        outcome = command("compress", "w.npy", *OPTIONS, "-o", "w.lrbi")
        assert (outcome.code, outcome.err) == (
            2,
            "lrbi: Output w.lrbi is being written by another lrbi\n",
        )
    assert command("compress", "w.npy", *OPTIONS, "-o", "w.lrbi").code == 0


def test_an_error_leaves_nothing(tmp_path, weights, counted, command):
    np.save(tmp_path / "w.npy", weights)
    counted.fail_after, counted.failure = 5, lrbi.InputError("planted")
    outcome = command("compress", "w.npy", *OPTIONS, "-o", "w.lrbi")
    assert (outcome.code, outcome.err) == (2, "lrbi: planted\n")
    assert [path.name for path in tmp_path.iterdir()] == ["w.npy"]


@pytest.fixture
def long_run(tmp_path):
    """Starts a run that takes minutes, with two workers; ends it if the test has not."""
    weights = np.random.default_rng(0).standard_normal((2000, 2000)).astype(np.float32)
    np.save(tmp_path / "w.npy", weights)
    # Where the tests run in the background of a shell, SIGINT is ignored from the start.
    start = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    start += "from lrbi.cli import main; main()"
    processes = []

    def begin(*words):
        command = [sys.executable, "-c", start, "compress", "w.npy", "-s", "0.9", "-j", "2", *words]
        process = subprocess.Popen(
            [*command, "-o", "w.lrbi"],
            cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        processes.append(process)
        journal = tmp_path / "w.lrbi.partial/0"
        while process.poll() is None and not (journal.exists() and journal.stat().st_size > 1000):
            time.sleep(0.01)
        assert process.poll() is None, process.stderr.read()
        return process

    yield begin
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def group_is_gone(leader, seconds=20):
    """Whether no process of a group is left, after a while at most."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            os.killpg(leader, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signal_to_a_real_run_with_workers(tmp_path, long_run, number):
    """A quiet end, nobody left, work kept; and impatience changes nothing."""
    process = long_run("-k", "24", "--tile", "100x100")
    for _ in range(3):  # to all of them, as a terminal does; again and again, as a person does
        os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
        time.sleep(0.05)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert err.splitlines() == [
        "lrbi: the same command goes on from w.lrbi.partial", "lrbi: interrupted"
    ]  # fmt: skip
    assert group_is_gone(process.pid)
    assert (tmp_path / "w.lrbi.partial/0").stat().st_size > 1000


def test_workers_do_not_outlive_a_parent_that_is_killed(long_run):
    process = long_run("-k", "24", "--tile", "100x100")
    process.kill()
    process.wait()
    assert group_is_gone(process.pid)


def test_a_killed_run_goes_on_too(tmp_path, long_run, command, weights):
    process = long_run("-k", "8", "--tile", "100x100")
    process.kill()
    process.wait()
    assert group_is_gone(process.pid)
    kept = (tmp_path / "w.lrbi.partial/0").stat().st_size
    words = ["compress", "w.npy", "-s", "0.9", "-k", "8", "--tile", "100x100"]
    assert kept > 1000
    assert command(*words, "-o", "w.lrbi").err == ""
    assert command(*words, "-o", "whole.lrbi").code == 0
    assert (tmp_path / "w.lrbi").read_bytes() == (tmp_path / "whole.lrbi").read_bytes()
