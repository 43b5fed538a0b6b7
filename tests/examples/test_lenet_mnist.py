"""The LeNet-5 example on a handful of made images; run by ``make test-torch``."""

import gzip
import struct

import numpy as np
import pytest

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


def test_the_table_from_nothing(mnist, tmp_path, capsys, monkeypatch):
    import lenet_mnist

    words = ["--data", str(mnist), "--runs", str(tmp_path / "runs"), "--pretrain", "30",
             "--retrain", "20", "--ranks", "4,64", "--seeds", "0", "--jobs", "1"]  # fmt: skip
    lenet_mnist.main(words)
    first = capsys.readouterr().out
    assert "76.9x" in first
    assert "4.8x" in first
    runs = sorted(path.name for path in (tmp_path / "runs").glob("*.json"))
    assert runs == [f"lenet-30-seed0{end}.json" for end in ("-4-20", "-64-20", "-dense-20",
                                                            "-magnitude-20", "")]  # fmt: skip
    monkeypatch.setattr(lenet_mnist, "retrain", None)  # nothing is run again
    lenet_mnist.main(words)
    assert capsys.readouterr().out == first


def test_training_learns_and_holds_the_masks(mnist, tmp_path):
    import lenet_mnist
    import torch
    from training import accuracy

    torch.set_num_threads(1)
    result = lenet_mnist.pretrain(mnist, 60, 0, tmp_path / "lenet.pt")
    assert result["accuracy"] > 50  # chance is 10
    model = lenet_mnist.LeNet5()
    model.load_state_dict(torch.load(tmp_path / "lenet.pt", weights_only=True))
    pruned = lenet_mnist.prune(model, "16", 0)
    assert pruned["ratio"] == pytest.approx(19.23, abs=0.01)
    assert 0.05 < pruned["kept"] < 1
    data = lenet_mnist.load_mnist(mnist)
    before = model.fc1.weight.detach().clone()
    lenet_mnist._train(model, data, range(60, 90), 1)
    model(data["test"][:1])
    for name, share in {"fc1": 0.95, **lenet_mnist.OTHERS}.items():
        weight = model.get_submodule(name).weight
        assert (weight == 0).float().mean() == pytest.approx(share, abs=2e-3), name
    assert ((model.fc1.weight == 0) == (before == 0)).all()
    assert (model.fc1.weight != before).any()
    assert accuracy(model, data["test"], data["test_labels"]) > 50


def test_dense_is_not_pruned(mnist, tmp_path):
    import lenet_mnist

    start = tmp_path / "lenet.pt"
    made = lenet_mnist.pretrain(mnist, 5, 0, start)
    found = lenet_mnist.retrain(mnist, start, 5, 2, 0, "dense")
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
    for words in (["--pretrain", "0"], ["--seeds", "a"], ["--jobs", "1,2"]):
        with pytest.raises(SystemExit) as end:
            lenet_mnist.main(["--data", str(mnist), *words])
        assert end.value.code == 2
    assert "'1,2' must be a whole number of at least 1" in capsys.readouterr().err
