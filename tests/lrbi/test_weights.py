import io
import os
import sys
import zipfile

import ml_dtypes
import numpy as np
import onnx
import pytest
import safetensors.numpy
from onnx import TensorProto, helper, numpy_helper

from lrbi.errors import InputError, MissingToolError
from lrbi.weights import TensorInfo, as_mask, as_matrix, open_weights, select

MATRIX = np.arange(12, dtype=np.float32).reshape(3, 4) - 5


def onnx_model(path, tensors, **options):
    graph = helper.make_graph([], "g", [], [], initializer=tensors)
    onnx.save(helper.make_model(graph), path, **options)


def write(path, tensors):
    """Write tensors in the format that the path's ending names."""
    if path.suffix == ".npy":
        np.save(path, tensors["w"])
    elif path.suffix == ".npz":
        np.savez(path, **tensors)
    elif path.suffix == ".safetensors":
        safetensors.numpy.save_file(tensors, path)
    else:
        onnx_model(path, [numpy_helper.from_array(value, name) for name, value in tensors.items()])


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors", ".onnx"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_formats_and_types(tmp_path, suffix, dtype):
    path = tmp_path / f"w{suffix}"
    write(path, {"w": MATRIX.astype(dtype)})
    file = open_weights(path)
    assert file.tensors() == [TensorInfo("w", (3, 4), np.dtype(dtype).name)]
    read = file.read("w")
    assert read.dtype == dtype
    np.testing.assert_array_equal(read, MATRIX)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".onnx"])
def test_several_tensors(tmp_path, suffix):
    path = tmp_path / f"many{suffix}"
    tensors = {"b": MATRIX, "a": MATRIX.reshape(3, 2, 2, 1), "n": np.arange(3)}
    write(path, tensors)
    file = open_weights(path)
    infos = {info.name: info for info in file.tensors()}
    assert infos["a"] == TensorInfo("a", (3, 2, 2, 1), "float32")
    assert [infos[name].is_matrix for name in "ban"] == [True, True, False]
    for name, value in tensors.items():
        np.testing.assert_array_equal(file.read(name), value)


def test_bfloat16_of_safetensors(tmp_path):
    path = tmp_path / "w.safetensors"
    safetensors.numpy.save_file({"w": MATRIX.astype(ml_dtypes.bfloat16)}, path)
    file = open_weights(path)
    assert file.tensors() == [TensorInfo("w", (3, 4), "bfloat16")]
    assert file.tensors()[0].is_matrix
    assert file.read("w").dtype == np.float32
    np.testing.assert_array_equal(file.read("w"), MATRIX)


def test_bfloat16_and_outside_data_of_onnx(tmp_path):
    path = tmp_path / "w.onnx"
    tensors = [
        helper.make_tensor("h", TensorProto.BFLOAT16, [3, 4], MATRIX.ravel().tolist()),
        numpy_helper.from_array(MATRIX, "w"),
    ]
    onnx_model(path, tensors, save_as_external_data=True, location="w.data", size_threshold=0)
    assert (tmp_path / "w.data").exists()
    file = open_weights(path)
    for name in "hw":
        np.testing.assert_array_equal(file.read(name), MATRIX)
    (tmp_path / "w.data").unlink()
    with pytest.raises(InputError, match=r"^Weight file .*w.onnx "):
        open_weights(path).read("w")


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors", ".onnx"])
@pytest.mark.parametrize(
    "content", [b"", b"hello world", bytes(100), b"\x93NUMPY\x01\x00", b"PK\3\4"]
)
def test_file_that_is_not_what_its_name_says(tmp_path, suffix, content):
    path = tmp_path / f"bad{suffix}"
    path.write_bytes(content)
    with pytest.raises(InputError, match=rf"^Weight file .*bad\{suffix} must be ") as refusal:
        open_weights(path)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors", ".onnx"])
def test_truncated_file(tmp_path, suffix):
    path = tmp_path / f"w{suffix}"
    write(path, {"w": MATRIX})
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InputError, match=r"^Weight file .* must be "):
        open_weights(path).read("w")


def test_pickles_are_never_run(tmp_path):
    np.save(tmp_path / "o.npy", np.array([{}]), allow_pickle=True)
    with pytest.raises(InputError, match="must be a whole .npy file"):
        open_weights(tmp_path / "o.npy")
    member = io.BytesIO()
    np.save(member, np.array([{}]), allow_pickle=True)
    with zipfile.ZipFile(tmp_path / "o.npz", "w") as archive:
        archive.writestr("o.npy", member.getvalue())
    with pytest.raises(InputError, match="must be a whole .npz file"):
        open_weights(tmp_path / "o.npz").read("o")


def test_npz_damaged_inside_is_refused(tmp_path):
    path = tmp_path / "w.npz"
    np.savez(path, w=np.zeros((50, 50)))
    content = bytearray(path.read_bytes())
    content[5000] ^= 1
    path.write_bytes(content)
    with pytest.raises(InputError, match="must be a whole .npz file, but is not: Bad CRC-32"):
        open_weights(path).read("w")


def test_folders_and_pipes(tmp_path):
    (tmp_path / "d.npy").mkdir()
    os.mkfifo(tmp_path / "p.safetensors")
    for name in ("d.npy", "p.safetensors"):
        with pytest.raises(InputError, match="must be a file, but is a folder or a pipe$"):
            open_weights(tmp_path / name)


def test_other_members_of_an_npz_are_passed_over(tmp_path):
    np.savez(tmp_path / "w.npz", w=MATRIX)
    with zipfile.ZipFile(tmp_path / "w.npz", "a") as archive:
        archive.writestr("readme.txt", "hello")
    assert [info.name for info in open_weights(tmp_path / "w.npz").tensors()] == ["w"]


def test_name_of_a_file_that_is_not_utf_8(tmp_path):
    path = tmp_path / os.fsdecode(b"w\xff.npy")
    np.save(path, MATRIX)
    assert open_weights(path).tensors()[0].name == "w\ufffd"


def test_unknown_type_of_onnx(tmp_path):
    tensor = numpy_helper.from_array(MATRIX, "w")
    tensor.data_type = 99
    onnx_model(tmp_path / "w.onnx", [tensor])
    assert open_weights(tmp_path / "w.onnx").tensors() == [TensorInfo("w", (3, 4), "ONNX type 99")]
    with pytest.raises(InputError, match="must be a whole .onnx file"):
        open_weights(tmp_path / "w.onnx").read("w")


def test_unknown_ending_and_missing_file(tmp_path):
    with pytest.raises(InputError, match=r"must end in one of .npy .npz .safetensors .onnx .pt"):
        open_weights(tmp_path / "w.txt")
    with pytest.raises(InputError, match=r"w.npy must be a file \(there is none of that name\)$"):
        open_weights(tmp_path / "w.npy")


@pytest.mark.parametrize(
    ("library", "suffix", "extra"), [("onnx", ".onnx", "onnx"), ("torch", ".pt", "torch")]
)
def test_missing_library_says_which_extra_to_install(tmp_path, monkeypatch, library, suffix, extra):
    path = tmp_path / f"w{suffix}"
    path.write_bytes(b"PK")
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingToolError, match=rf"\(pip install 'lrbi\[{extra}\]'\)$"):
        open_weights(path)


class TestSelect:
    tensors = (
        TensorInfo("fc.bias", (40,), "float32"),
        TensorInfo("fc.weight", (40, 50), "float32"),
        TensorInfo("conv.weight", (4, 3, 3, 3), "float16"),
        TensorInfo("steps", (10, 10), "int64"),
        TensorInfo("[odd]", (2, 2), "float64"),
    )

    def names(self, *patterns, **options):
        return [item.name for item in select(list(self.tensors), patterns, **options)]

    def test_order_is_that_of_the_file(self):
        assert self.names("conv.weight", "fc.weight") == ["fc.weight", "conv.weight"]

    def test_glob_matches_matrices_only(self):
        assert self.names("*") == ["fc.weight", "conv.weight", "[odd]"]
        assert self.names("*.weight") == ["fc.weight", "conv.weight"]

    def test_a_name_that_looks_like_a_glob_is_a_name(self):
        assert self.names("[odd]") == ["[odd]"]

    def test_a_name_takes_anything_so_that_the_refusal_can_say_why(self):
        assert self.names("fc.bias") == ["fc.bias"]

    def test_every_matrix_above_a_size(self):
        assert self.names(every=True, min_size=100) == ["fc.weight", "conv.weight"]
        with pytest.raises(InputError, match="^No matrix of at least 9999 weights is in the file$"):
            self.names(every=True, min_size=9999)

    def test_the_only_matrix_needs_no_name(self):
        assert select(list(self.tensors[:2]), ())[0].name == "fc.weight"
        with pytest.raises(
            InputError, match="^The file must hold a floating-point matrix, but has"
        ):
            select(list(self.tensors[:1]), ())
        assert select(list(self.tensors[:1]), (), reshaped=True)[0].name == "fc.bias"
        with pytest.raises(InputError, match=r"^The file holds 3 matrices \(choose with --layer"):
            self.names()

    def test_no_match(self):
        with pytest.raises(
            InputError,
            match=r"^No layer matches 'fc2' \(there are fc.bias, fc.weight, conv.weight, ",
        ):
            self.names("fc.weight", "fc2")


def test_matrix_views():
    kernel = np.arange(24.0).reshape(2, 3, 2, 2)
    np.testing.assert_array_equal(as_matrix(kernel), kernel.reshape(2, 12))
    np.testing.assert_array_equal(as_matrix(kernel, transpose=True), kernel.reshape(2, 12).T)
    np.testing.assert_array_equal(as_matrix(kernel, reshape=(6, 4)), kernel.reshape(6, 4))
    assert as_matrix(np.arange(6.0), reshape=(2, 3)).shape == (2, 3)
    with pytest.raises(InputError, match=r"^Reshape must keep the number of weights, 24, not make"):
        as_matrix(kernel, reshape=(5, 5))
    with pytest.raises(InputError, match="^Weights must have at least 2 dimensions, not 1"):
        as_matrix(np.ones(3))


def test_masks():
    for dtype in (bool, np.uint8, np.int64, np.float32):
        mask = as_mask(np.array([[0, 1]], dtype=dtype))
        assert mask.dtype == bool
        assert mask.tolist() == [[False, True]]
    for bad in (np.array([[0.5]]), np.array([[2]]), np.array([["a"]]), np.array([[np.nan]])):
        with pytest.raises(InputError, match="^Mask must hold only 0 and 1$"):
            as_mask(bad)
