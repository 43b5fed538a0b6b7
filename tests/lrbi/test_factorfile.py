import dataclasses
import hashlib
import itertools
import json
import os
import struct

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lrbi
from lrbi import CompressConfig, InputError
from lrbi.layout import pack_rows


@pytest.fixture(scope="module")
def layers():
    rng = np.random.default_rng(0)
    return {
        "conv/1": lrbi.compress(
            rng.standard_normal((9, 13)), CompressConfig(sparsity=0.7, rank=3, tile=(4, 5))
        ),
        "é": lrbi.compress(rng.standard_normal((6, 6)), CompressConfig(sparsity=0.5, rank=2)),
    }


@pytest.fixture(scope="module")
def saved(layers, tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "two.lrbi"
    lrbi.save(path, layers)
    return path


def rewrite(source, target, change_tensors=None, change_header=None, fix_digest=True):
    """A copy of a factor file with other contents and, unless told otherwise, a right digest."""
    from lrbi.factorfile import _canonical, _digest

    with safetensors.safe_open(source, framework="np") as file:
        header = json.loads(file.metadata()["lrbi"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    digest = header.pop("sha256")
    if change_tensors:
        change_tensors(tensors)
    if change_header:
        change_header(header)
    header["sha256"] = _digest(tensors, header) if fix_digest else digest
    safetensors.numpy.save_file(tensors, target, metadata={"lrbi": _canonical(header)})


def test_round_trip(saved, layers):
    loaded = lrbi.load(saved)
    assert loaded == layers
    for name, layer in loaded.items():
        np.testing.assert_array_equal(layer.mask(), layers[name].mask())
        assert layer.metadata() == layers[name].metadata()


@pytest.mark.parametrize(
    ("effort", "objective", "told"),
    [
        ("fast", "paper", {}),
        ("normal", "paper", {"effort": "normal"}),
        ("high", "all", {"effort": "high", "objective": "all"}),
    ],
)
def test_a_file_tells_of_a_search_where_there_was_one(tmp_path, effort, objective, told):
    """Files from before there was any are read as what they are."""
    weights = np.random.default_rng(0).standard_normal((9, 13))
    config = lrbi.CompressConfig(sparsity=0.7, rank=2, effort=effort, objective=objective)
    layer = lrbi.compress(weights, config)
    lrbi.save(tmp_path / "x.lrbi", {"x": layer})
    fields = layer.metadata()
    assert {name: fields[name] for name in ("effort", "objective") if name in fields} == told
    found = lrbi.load(tmp_path / "x.lrbi")["x"]
    assert found == layer
    assert (found.effort, found.objective) == (effort, objective)
    assert found.summary().items() >= {"effort": effort, "objective": objective}.items()


def test_same_layers_same_bytes_in_any_order(saved, layers, tmp_path):
    lrbi.save(tmp_path / "again.lrbi", dict(reversed(layers.items())))
    assert (tmp_path / "again.lrbi").read_bytes() == saved.read_bytes()


def test_file_is_what_the_format_page_says(saved, layers):
    """Read with nothing but safetensors, NumPy and the page: names, shapes, bits and digest."""
    content = saved.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    head = json.loads(content[8 : 8 + length])
    assert list(head["__metadata__"]) == ["lrbi"]
    text = head["__metadata__"]["lrbi"]
    header = json.loads(text)
    assert header["format"] == 1
    fields = header["layers"]["conv/1"]
    assert fields["shape"] == fields["source_shape"] == [9, 13]
    assert (fields["tile"], fields["grid"], fields["rank"]) == ([4, 5], [3, 3], 3)

    tensors = safetensors.numpy.load(content)
    row_factors, col_factors = tensors["conv/1/ip"], tensors["conv/1/iz"]
    assert row_factors.shape == (9, 4, 1)
    assert col_factors.shape == (9, 3, 1)
    assert tensors["conv/1/rank"].dtype == np.uint16
    mask = np.zeros((12, 15), dtype=bool)
    for tile, row, col, rank in np.ndindex(9, 4, 5, 3):
        on = row_factors[tile, row, 0] >> rank & col_factors[tile, rank, 0] >> col & 1
        mask[tile // 3 * 4 + row, tile % 3 * 5 + col] |= bool(on)
    np.testing.assert_array_equal(mask[:9, :13], layers["conv/1"].mask())

    digest = hashlib.sha256()
    for name in sorted(tensors, key=str.encode):
        shape = ",".join(str(side) for side in tensors[name].shape)
        digest.update(f"{name}\0{head[name]['dtype']}\0{shape}\0".encode())
        digest.update(tensors[name].tobytes())
    found = header.pop("sha256")
    digest.update(json.dumps(header, sort_keys=True, separators=(",", ":")).encode())
    assert found == digest.hexdigest()


def test_worked_example_of_the_format_page():
    """The factors of the paper's Eq. 5, whose product is Eq. 6."""
    rank_two = np.array([[0, 1], [1, 0], [0, 1], [0, 1], [1, 0]], dtype=bool)
    pattern = np.array([[1, 0, 1, 1, 0], [0, 1, 1, 0, 1]], dtype=bool)
    mask = lrbi.boolean_product(rank_two, pattern)
    layer = lrbi.compress(np.ones((5, 5)), CompressConfig(rank=2), mask=mask)
    assert pack_rows(rank_two).tobytes().hex(" ") == "02 01 02 02 01"
    assert pack_rows(pattern).tobytes().hex(" ") == "0d 16"
    assert layer.ranks.tobytes().hex(" ") == "02 00"
    assert layer.row_factors.shape == (1, 5, 1)
    assert layer.col_factors.shape == (1, 2, 1)
    assert layer.packed_mask()[0].tolist() == [0x16]


def test_every_flipped_bit_is_refused(saved, tmp_path):
    content = saved.read_bytes()
    path = tmp_path / "flipped.lrbi"
    for position, bit in itertools.product(range(len(content)), range(8)):
        damaged = bytearray(content)
        damaged[position] ^= 1 << bit
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=r"^Factor file .*flipped.lrbi cannot be used: "):
            lrbi.load(path)


def test_every_truncation_is_refused(saved, tmp_path):
    content = saved.read_bytes()
    path = tmp_path / "short.lrbi"
    for length in [*range(0, len(content), 7), len(content) - 1]:
        path.write_bytes(content[:length])
        with pytest.raises(InputError, match="cannot be used"):
            lrbi.load(path)
    path.write_bytes(content + b"\0")
    with pytest.raises(InputError, match="cannot be used"):
        lrbi.load(path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
@given(st.data())
def test_no_bytes_crash_the_reader(saved, layers, tmp_path, data):
    content = bytearray(saved.read_bytes())
    kind = data.draw(st.sampled_from(["random", "overwrite", "insert", "delete", "swap"]))
    if kind == "random":
        content = bytearray(data.draw(st.binary(max_size=300)))
    else:
        start = data.draw(st.integers(0, len(content) - 1))
        stop = min(len(content), start + data.draw(st.integers(1, 40)))
        if kind == "overwrite":
            content[start:stop] = data.draw(st.binary(min_size=stop - start, max_size=stop - start))
        elif kind == "insert":
            content[start:start] = data.draw(st.binary(min_size=1, max_size=40))
        elif kind == "delete":
            del content[start:stop]
        else:
            content[start:stop] = content[start:stop][::-1]
    path = tmp_path / "fuzzed.lrbi"
    path.write_bytes(content)
    try:
        assert lrbi.load(path) == layers  # a mutation may change nothing
    except InputError as error:
        assert str(error).startswith(f"Factor file {path} cannot be used: ")
        assert "\n" not in str(error)


def test_newer_format(saved, tmp_path):
    rewrite(saved, tmp_path / "new.lrbi", change_header=lambda header: header.update(format=2))
    message = r"its format is 2, and this version reads up to 1 \(update lrbi\)$"
    with pytest.raises(InputError, match=message):
        lrbi.load(tmp_path / "new.lrbi")


@pytest.mark.parametrize("number", [0, -1, True, 1.0, None])
def test_format_that_is_no_format(saved, tmp_path, number):
    rewrite(saved, tmp_path / "f.lrbi", change_header=lambda header: header.update(format=number))
    with pytest.raises(InputError, match="its metadata "):
        lrbi.load(tmp_path / "f.lrbi")


def test_foreign_files(tmp_path):
    foreign = tmp_path / "foreign.lrbi"
    safetensors.numpy.save_file({"w": np.ones(3)}, foreign)
    with pytest.raises(InputError, match="a safetensors file, but not one that lrbi wrote"):
        lrbi.load(foreign)
    np.save(tmp_path / "array.npy", np.ones(3))
    with pytest.raises(InputError, match="it is no whole safetensors file"):
        lrbi.load(tmp_path / "array.npy")
    with pytest.raises(InputError, match="it is a folder, a device or a pipe$"):
        lrbi.load(tmp_path)
    with pytest.raises(InputError, match="No such file"):
        lrbi.load(tmp_path / "absent.lrbi")
    os.mkfifo(tmp_path / "pipe.lrbi")  # must not wait for a writer
    with pytest.raises(InputError, match="it is a folder, a device or a pipe$"):
        lrbi.load(tmp_path / "pipe.lrbi")


def test_a_file_without_layers(saved, tmp_path):
    rewrite(
        saved,
        tmp_path / "none.lrbi",
        change_tensors=lambda tensors: tensors.clear(),
        change_header=lambda header: header["layers"].clear(),
    )
    with pytest.raises(InputError, match="its tensors are not those of its layers"):
        lrbi.load(tmp_path / "none.lrbi")


def set_field(name, value):
    return lambda header: header["layers"]["conv/1"].__setitem__(name, value)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("shape", [9, 14], "Source shape must hold 9 x 14 weights"),
        ("shape", [9, 13, 1], "metadata field shape is no list of whole numbers"),
        ("source_shape", [-9, -13], "Source shape must hold 9 x 13 weights"),
        ("shape", [9.0, 13], "metadata field shape is no list of whole numbers"),
        ("shape", None, "metadata field shape is missing or of the wrong type"),
        ("tile", [4, 6], "Factor "),
        ("tile", [0, 5], "Tile must be at least 1x1, not 0x5"),
        ("tile", [10**30, 10**30], "Factor ip must be"),
        ("rank", 4, "rank or grid in the metadata is not that of the factors"),
        ("grid", [9, 1], "rank or grid in the metadata is not that of the factors"),
        ("kept", 1.5, "Layer kept must be a share or a magnitude, not 1.5"),
        ("cost", -1, "Layer cost must be a share or a magnitude, not -1"),
        ("method", True, "metadata field method is missing or of the wrong type"),
        ("method", 9, "Method must be 1, 2 or 3, not 9"),
        ("engine", "\x1b[2J", "Engine must be a name, not "),
        ("seed", -1, "Iterations must be at least 1, and the seed at least 0"),
        ("source_shape", [9, 13] + [1] * 70, "Source shape must hold 9 x 13 weights"),
        ("seed", "0", "metadata field seed is missing or of the wrong type"),
    ],
)
def test_metadata_that_lie_under_a_right_digest(saved, tmp_path, field, value, message):
    rewrite(saved, tmp_path / "lie.lrbi", change_header=set_field(field, value))
    with pytest.raises(InputError, match=f"layer conv/1: {message}"):
        lrbi.load(tmp_path / "lie.lrbi")


def test_huge_shape_is_refused_without_memory(saved, tmp_path):
    def lie(header):
        fields = header["layers"]["conv/1"]
        fields.update(shape=[10**15, 10**15], source_shape=[10**30], tile=[1, 1])

    rewrite(saved, tmp_path / "huge.lrbi", change_header=lie)
    with pytest.raises(InputError, match="cannot be used: layer conv/1"):
        lrbi.load(tmp_path / "huge.lrbi")


@pytest.mark.parametrize(
    ("tensor", "index", "bit"),
    [
        ("conv/1/ip", (8, 3, 0), 0),  # a row below the layer's last
        ("conv/1/ip", (0, 0, 0), 3),  # a rank above k
        ("conv/1/iz", (2, 0, 0), 3),  # a column beyond the layer's last
        ("conv/1/iz", (0, 0, 0), 5),  # a pad bit
    ],
)
def test_padding_that_is_not_zero_is_refused(saved, tmp_path, tensor, index, bit):
    def set_bit(tensors):
        tensors[tensor][index] |= 1 << bit

    rewrite(saved, tmp_path / "pad.lrbi", change_tensors=set_bit)
    with pytest.raises(InputError, match="beyond a tile's rows, columns or rank must be zero"):
        lrbi.load(tmp_path / "pad.lrbi")


def test_whole_padding_bytes_that_are_not_zero_are_refused(tmp_path):
    weights = np.random.default_rng(1).standard_normal((8, 25))
    layer = lrbi.compress(weights, CompressConfig(sparsity=0.5, rank=2, tile=(8, 20)))
    lrbi.save(tmp_path / "wide.lrbi", {"w": layer})

    def set_bit(tensors):  # column 24 of a tile that has 5 columns in the layer
        tensors["w/iz"][1, 0, 2] |= 1

    rewrite(tmp_path / "wide.lrbi", tmp_path / "pad.lrbi", change_tensors=set_bit)
    with pytest.raises(InputError, match="beyond a tile's rows, columns or rank must be zero"):
        lrbi.load(tmp_path / "pad.lrbi")


def test_rank_beyond_a_tiles_own_is_refused(saved, tmp_path):
    def use_less(tensors):
        busy = np.flatnonzero(tensors["conv/1/iz"][:, 2].any(axis=1))[0]
        tensors["conv/1/rank"][busy] = 2

    rewrite(saved, tmp_path / "rank.lrbi", change_tensors=use_less)
    with pytest.raises(InputError, match="beyond a tile's rows, columns or rank must be zero"):
        lrbi.load(tmp_path / "rank.lrbi")


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors: tensors.pop("conv/1/iz"),
        lambda tensors: tensors.update(extra=np.zeros(1, np.uint8)),
    ],
)
def test_missing_or_extra_tensors_are_refused(saved, tmp_path, change):
    rewrite(saved, tmp_path / "tensors.lrbi", change_tensors=change)
    with pytest.raises(InputError, match="its tensors are not those of its layers"):
        lrbi.load(tmp_path / "tensors.lrbi")


def test_other_tensor_types_are_refused(saved, tmp_path):
    path = tmp_path / "types.lrbi"
    with safetensors.safe_open(saved, framework="np") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        metadata = file.metadata()
    tensors["conv/1/ip"] = tensors["conv/1/ip"].astype(np.float32)
    safetensors.numpy.save_file(tensors, path, metadata=metadata)
    with pytest.raises(InputError, match="its tensor conv/1/ip is float32, neither uint8 nor"):
        lrbi.load(path)


def test_nothing_is_left_of_a_file_that_could_not_be_written(layers, tmp_path, monkeypatch):
    target = tmp_path / "out.lrbi"
    target.write_bytes(b"before")

    def full(self, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_bytes", full)
    message = f"^Output {target} cannot be written: No space left on device$"
    with pytest.raises(InputError, match=message):
        lrbi.save(target, layers)
    assert [path.name for path in tmp_path.iterdir()] == ["out.lrbi"]
    assert target.read_bytes() == b"before"


def test_a_file_needs_a_layer(tmp_path):
    with pytest.raises(InputError, match="^A factor file must hold at least one layer, not none$"):
        lrbi.save(tmp_path / "none.lrbi", {})


def test_layers_must_be_named(layers, tmp_path):
    message = "^Layers must be a mapping of names to layers, not CompressedLayer$"
    with pytest.raises(InputError, match=message):
        lrbi.save(tmp_path / "x.lrbi", layers["é"])


def test_files_have_the_mode_that_the_user_asks_for(layers, tmp_path):
    before = os.umask(0o027)
    try:
        lrbi.save(tmp_path / "x.lrbi", layers)
    finally:
        os.umask(before)
    assert (tmp_path / "x.lrbi").stat().st_mode & 0o777 == 0o640


def test_a_link_stays_a_link(layers, tmp_path):
    (tmp_path / "real.lrbi").touch()
    (tmp_path / "link.lrbi").symlink_to("real.lrbi")
    lrbi.save(tmp_path / "link.lrbi", layers)
    assert (tmp_path / "link.lrbi").is_symlink()
    assert lrbi.load(tmp_path / "real.lrbi") == layers


def test_a_pipe_is_no_place_for_a_file(layers, tmp_path):
    os.mkfifo(tmp_path / "pipe.lrbi")
    with pytest.raises(InputError, match="must be a regular file, but is a device or a pipe$"):
        lrbi.save(tmp_path / "pipe.lrbi", layers)
    assert (tmp_path / "pipe.lrbi").is_fifo()


def test_the_callers_arrays_stay_writable():
    ranks = np.ones(1, dtype=np.uint16)
    parts = lrbi.compress(np.eye(3), CompressConfig(sparsity=0.5, rank=1))
    layer = dataclasses.replace(parts, ranks=ranks)
    assert ranks.flags.writeable
    assert not layer.ranks.flags.writeable


def test_loaded_factors_cannot_be_changed(saved):
    layer = lrbi.load(saved)["é"]
    with pytest.raises(ValueError, match="read-only"):
        layer.row_factors[0] = 0
