"""The LeNet-5 example on a handful of made images; run by ``make test-torch``."""

import gzip
import json
import re
import struct

import numpy as np
import pytest

import lrbi
from lrbi.errors import InputError

pytestmark = pytest.mark.torch


def write_idx(path, values):
    header = struct.pack(f">{1 + values.ndim}I", 0x0800 + values.ndim, *values.shape)
    content = header + values.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix else content)


@pytest.fixture
def mnist(tmp_path):
    """Digits that are told by where a bright square stands; the test set is not compressed."""
    folder = tmp_path / "mnist"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for prefix, count, ending in (("train", 400, ".gz"), ("t10k", 100, "")):
        labels = rng.integers(10, size=count)
        images = rng.integers(60, size=(count, 28, 28))
        for image, label in zip(images, labels, strict=True):
            top, left = divmod(int(label), 4)
            image[2 + 8 * top : 8 + 8 * top, 1 + 7 * left : 6 + 7 * left] += 180
        write_idx(folder / f"{prefix}-images-idx3-ubyte{ending}", images)
        write_idx(folder / f"{prefix}-labels-idx1-ubyte{ending}", labels)
    return folder


def fc1(rank, **options):
    return lrbi.CompressConfig(sparsity=0.95, rank=rank, effort="fast", **options)


def test_files(mnist):
    import lenet_mnist
    import torch

    write_idx(mnist / "t10k-images-idx3-ubyte", np.arange(100 * 784).reshape(100, 28, 28) % 256)
    data = lenet_mnist.load_mnist(mnist)
    assert data["train"].shape == (400, 1, 28, 28)
    assert data["test"].dtype == torch.float32
    assert data["test"][1, 0, 2, 3] == pytest.approx((784 + 59) % 256 / 255 - 0.5)
    assert data["test_labels"].dtype == torch.int64
    assert len(data["test_labels"]) == 100


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t10k-labels-idx1-ubyte", None, "must hold MNIST's file t10k-labels-idx1-ubyte or t10k-"),
        ("t10k-labels-idx1-ubyte", b"\0\0\x08\x01\0\0\0\x05ab", "its header does not fit"),
        ("t10k-labels-idx1-ubyte", b"\0", "must be a whole IDX file, but is not: unpack"),
        ("train-images-idx3-ubyte.gz", b"no gzip", "must be a whole IDX file, but is not: Not a g"),
        ("t10k-labels-idx1-ubyte", b"\0\0\x08\x01\0\0\0\x02ab", "must have a label for each image"),
    ],
)
def test_damaged_and_missing_files(mnist, name, content, message):
    import lenet_mnist

    if content is None:
        (mnist / name).unlink()
    else:
        (mnist / name).write_bytes(content)
    with pytest.raises(InputError) as error:
        lenet_mnist.load_mnist(mnist)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("t10k-images-idx3-ubyte", np.zeros((100, 32, 32)),
         "test images of 28 x 28 pixels, not 32 x 32"),
        ("train-images-idx3-ubyte.gz", np.zeros((400, 28, 27)),
         "train images of 28 x 28 pixels, not 28 x 27"),
        ("t10k-labels-idx1-ubyte", np.arange(100) % 13,
         "test labels of at most 9, not 12"),
    ],
)  # fmt: skip
def test_other_images_and_labels(mnist, name, values, message):
    import lenet_mnist

    write_idx(mnist / name, values)
    with pytest.raises(InputError) as error:
        lenet_mnist.load_mnist(mnist)
    assert str(error.value) == f"MNIST in {mnist} must have {message}"


def test_no_images(mnist):
    import lenet_mnist

    write_idx(mnist / "t10k-images-idx3-ubyte", np.zeros((0, 28, 28)))
    write_idx(mnist / "t10k-labels-idx1-ubyte", np.zeros(0))
    with pytest.raises(InputError) as error:
        lenet_mnist.load_mnist(mnist)
    assert str(error.value) == (
        f"MNIST in {mnist} must have test images of 28 x 28 pixels, not none"
    )


def test_the_table_from_nothing(mnist, tmp_path, capsys, monkeypatch):
    import lenet_mnist

    words = ["--data", str(mnist), "--runs", str(tmp_path / "runs"), "--pretrain", "30",
             "--retrain", "20", "--ranks", "4,64", "--seeds", "0", "--jobs", "1"]  # fmt: skip
    lenet_mnist.main(words)
    first = capsys.readouterr().out
    assert "76.9x" in first
    assert "4.8x" in first
    names = sorted(path.stem for path in (tmp_path / "runs").glob("*.json"))
    start = names[0]
    assert re.fullmatch("lenet-[0-9a-f]{8}-30-seed0", start)
    ends = ("", "-4-20", "-64-20", "-dense-20", "-magnitude-20")
    assert names == [start + end for end in ends]
    monkeypatch.setattr(lenet_mnist, "retrain", None)  # nothing is run again
    lenet_mnist.main(words)
    assert capsys.readouterr().out == first


def noting(folder, done=()):
    """Runs that are noted, not run: in ``tasks``, but for those that are done."""
    from training import Runs

    class Noting(Runs):
        def all(self, tasks, jobs):
            self.tasks |= {name: task for name, task in tasks.items() if not self.get(name)}
            return {name: {} for name in tasks}

    folder.mkdir(exist_ok=True)
    for name in done:
        (folder / f"{name}.json").write_text(json.dumps({"accuracy": 1}))
    runs = Noting(folder)
    runs.tasks = {}
    return runs


def noted(mnist, runs, **options):
    import lenet_mnist

    usual = {"before": 3, "after": 2, "ranks": [4, 16], "seeds": [0], "jobs": 1}
    lenet_mnist.study(mnist, runs, **usual | options)
    return [name.split("-", 2)[2] for name in runs.tasks]


def test_names_of_runs_tell_data_and_search(mnist, tmp_path):
    """All that a run depends on; the paper's own search goes without saying."""
    always = ["3-seed0", "3-seed0-dense-2", "3-seed0-magnitude-2"]
    for options, end in (
        ({}, ""),
        ({"effort": "normal"}, "-normal"),
        ({"objective": "mixed"}, "-mixed"),
        ({"effort": "high", "objective": "all"}, "-high-all"),
    ):
        runs = noting(tmp_path / "runs")
        expected = [*always, f"3-seed0-4{end}-2", f"3-seed0-16{end}-2"]
        assert noted(mnist, runs, **options) == expected
        configs = [task[1][-1] for task in runs.tasks.values()][1:]
        search = {"effort": "fast", "objective": "paper"} | options
        assert configs == [None, None] + [
            lrbi.CompressConfig(sparsity=0.95, rank=rank, seed=0, **search) for rank in (4, 16)
        ]


def test_digest_is_the_datas(mnist, tmp_path):
    import lenet_mnist

    def start():
        lenet_mnist._mnist.cache_clear()
        runs = noting(tmp_path / "runs")
        noted(mnist, runs)
        return next(iter(runs.tasks))

    first = start()
    packed = mnist / "train-labels-idx1-ubyte.gz"
    (mnist / "train-labels-idx1-ubyte").write_bytes(gzip.decompress(packed.read_bytes()))
    packed.unlink()
    assert start() == first
    content = bytearray((mnist / "train-labels-idx1-ubyte").read_bytes())
    content[-1] = (content[-1] + 1) % 10
    (mnist / "train-labels-idx1-ubyte").write_bytes(content)
    assert start() != first


def test_weights_that_are_gone_are_made_again_if_needed(mnist, tmp_path):
    first = noting(tmp_path / "runs")
    noted(mnist, first)
    names = [*first.tasks]
    some = noting(tmp_path / "some", names[:3])
    assert noted(mnist, some) == ["3-seed0", "3-seed0-4-2", "3-seed0-16-2"]
    with_weights = noting(tmp_path / "weights", names[:3])
    (tmp_path / "weights" / f"{names[0]}.pt").touch()
    assert noted(mnist, with_weights) == ["3-seed0-4-2", "3-seed0-16-2"]
    assert noted(mnist, noting(tmp_path / "done", names)) == []


SPARSITIES = {"conv1": 0.34, "conv2": 0.88, "fc1": 0.95, "fc2": 0.81}
"""Han et al. keep 66, 12 and 19 % of the layers but FC1; the paper 5 % of that."""


def test_magnitude_prunes_the_smallest_of_every_layer():
    import lenet_mnist
    import torch

    torch.manual_seed(0)
    model = lenet_mnist.LeNet5()
    before = {name: model.get_submodule(name).weight.detach().abs() for name in SPARSITIES}
    assert lenet_mnist.prune(model, None) == {"kept": 1.0}
    for name, share in SPARSITIES.items():
        zeros = model.get_submodule(name).weight == 0
        assert zeros.float().mean() == pytest.approx(share, abs=2e-3), name
        assert before[name][zeros].max() <= before[name][~zeros].min(), name


def test_rate():
    import lenet_mnist

    assert lenet_mnist.rate(0) == 0.01
    assert lenet_mnist.rate(10_000) == pytest.approx(0.01 * 2**-0.75)


def test_retraining_goes_on_with_the_rate(mnist, tmp_path, monkeypatch):
    import lenet_mnist

    asked = []
    monkeypatch.setattr(lenet_mnist, "rate", lambda iteration: asked.append(iteration) or 0.01)
    lenet_mnist.pretrain(mnist, 3, 0, tmp_path / "lenet.pt")
    assert asked == [0, 1, 2]
    lenet_mnist.retrain(mnist, tmp_path / "lenet.pt", 3, 2, 0, "magnitude", None)
    assert asked == [0, 1, 2, 3, 4]


def test_training_learns_and_holds_the_masks(mnist, tmp_path):
    import lenet_mnist
    import torch
    from training import accuracy

    torch.set_num_threads(1)
    result = lenet_mnist.pretrain(mnist, 60, 0, tmp_path / "lenet.pt")
    assert result["accuracy"] > 50  # chance is 10
    model = lenet_mnist.LeNet5()
    model.load_state_dict(torch.load(tmp_path / "lenet.pt", weights_only=True))
    pruned = lenet_mnist.prune(model, fc1(16))
    assert pruned["ratio"] == pytest.approx(19.23, abs=0.01)
    assert 0.05 < pruned["kept"] < 1
    data = lenet_mnist.load_mnist(mnist)
    before = model.fc1.weight.detach().clone()
    lenet_mnist._train(model, data, range(60, 90), 1)
    model(data["test"][:1])
    for name, share in SPARSITIES.items():
        weight = model.get_submodule(name).weight
        assert (weight == 0).float().mean() == pytest.approx(share, abs=2e-3), name
    assert ((model.fc1.weight == 0) == (before == 0)).all()
    assert (model.fc1.weight != before).any()
    assert accuracy(model, data["test"], data["test_labels"]) > 50


def test_dense_is_not_pruned(mnist, tmp_path):
    import lenet_mnist

    start = tmp_path / "lenet.pt"
    made = lenet_mnist.pretrain(mnist, 5, 0, start)
    found = lenet_mnist.retrain(mnist, start, 5, 2, 0, "dense", None)
    assert found["pruned"] == made["accuracy"]
    assert "kept" not in found


def test_a_failing_run_ends_the_study(tmp_path):
    from training import Runs

    with pytest.raises(InputError):
        Runs(tmp_path).all({"bad": (refuse, ("no",))}, 1)
    assert not [*tmp_path.iterdir()]


def refuse(text):
    raise InputError(text)


def test_usage(mnist, tmp_path, capsys):
    import lenet_mnist

    with pytest.raises(SystemExit) as end:
        lenet_mnist.main(["--data", str(tmp_path)])
    assert "lenet_mnist: Folder" in str(end.value)
    (tmp_path / "file").touch()
    for words, message in (
        (["--ranks", "4,0"], "Rank must be a whole number of at least 1, not 0"),
        (["--seeds", "0,-1"], "Seed must be a whole number of at least 0, not -1"),
        (["--runs", str(tmp_path / "file")], f"[Errno 20] Not a directory: '{tmp_path}/file/lenet"),
        (["--runs", "/proc/none"], "[Errno 2] No such file or directory: '/proc/none'"),
    ):
        with pytest.raises(SystemExit) as end:
            lenet_mnist.main(["--data", str(mnist), "--runs", str(tmp_path / "runs"), *words])
        assert str(end.value).startswith(f"lenet_mnist: {message}")
        assert not (tmp_path / "runs").exists()
    for words in (
        ["--pretrain", "0"], ["--seeds", "a"], ["--jobs", "1,2"], ["--effort", "low"],
        ["--objective", "none"],
    ):  # fmt: skip
        with pytest.raises(SystemExit) as end:
            lenet_mnist.main(["--data", str(mnist), *words])
        assert end.value.code == 2
    assert "'1,2' must be a whole number of at least 1" in capsys.readouterr().err


def test_a_network_is_judged_by_the_images_it_was_trained_on(mnist, tmp_path):
    """Trained on 0 ... 1, as the study's LeNet-5 is; a network that tells too little is refused."""
    import lenet_mnist
    import torch
    from safetensors.numpy import save_file
    from training import batches, train

    from benchmarks.paper import Study, _Judge

    data = lenet_mnist.load_mnist(mnist)
    torch.manual_seed(0)
    model = lenet_mnist.LeNet5()
    places = dict(zip(("conv1", "conv2", "fc1", "fc2"), "0257", strict=True))

    def judge():
        weights = {
            f"{places[name.split('.')[0]]}.{name.split('.')[1]}": value.numpy().copy()
            for name, value in model.state_dict().items()
        }
        (tmp_path / "weights").mkdir(exist_ok=True)
        save_file(weights, tmp_path / "weights/lenet5_mnist.safetensors")
        return _Judge(Study(tmp_path, None, tmp_path, tmp_path))

    with pytest.raises(InputError, match=r"LeNet-5 must tell 98 % of the images right, not \d"):
        judge()
    shuffled = batches(
        data["train"] + 0.5, data["train_labels"], 50, torch.Generator().manual_seed(0)
    )
    train(model, shuffled, range(60), lambda _: 0.02)
    found = judge()
    assert found.accuracy(np.zeros((500, 800), dtype=bool)) < 50  # nothing of FC1 is left
    pruned = (found._model.conv2.weight == 0).float().mean()
    assert pruned == pytest.approx(0.88, abs=1e-3)
