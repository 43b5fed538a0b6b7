"""Weights as they lie in files: what is there, and a tensor of it at a time."""

import contextlib
import fnmatch
import math
import os
import pickle
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from lrbi.arrays import Bits, Floats
from lrbi.errors import InputError, MissingToolError

FLOAT_TYPES = ("float16", "bfloat16", "float32", "float64")


@dataclass(frozen=True)
class TensorInfo:
    """What a weight file says of one tensor."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    """NumPy's name of the type, or ``bfloat16``."""

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def is_matrix(self) -> bool:
        """Whether it can be compressed: floating-point, at least two dimensions, not empty."""
        return self.dtype in FLOAT_TYPES and len(self.shape) >= 2 and self.size > 0


class WeightFile(Protocol):
    """An open weight file: its tensors in the order in which it holds them."""

    def tensors(self) -> list[TensorInfo]:
        """All tensors."""

    def read(self, name: str) -> NDArray[Any]:
        """One tensor; bfloat16 comes as float32, which holds it exactly."""


def open_weights(path: str | os.PathLike[str]) -> WeightFile:
    """Open a weight file, its kind told by its name's ending."""
    path = Path(path)
    opener = _OPENERS.get(path.suffix.lower())
    if opener is None:
        raise InputError(
            f"Weight file {path} must end in one of {' '.join(_OPENERS)} "
            "(its ending tells what is in it)"
        )
    with _refusals(path):
        if not path.exists():
            raise InputError(f"Weight file {path} must be a file (there is none of that name)")
        if not path.is_file():
            raise InputError(f"Weight file {path} must be a file, but is a folder or a pipe")
        return opener(path)


def select(
    tensors: list[TensorInfo],
    patterns: tuple[str, ...],
    *,
    every: bool = False,
    min_size: int = 0,
    reshaped: bool = False,
) -> list[TensorInfo]:
    """The tensors to compress, in the file's order: by name or glob, or every large matrix.

    With neither, the only matrix of the file, or its only tensor where that is to be reshaped.
    """
    matrices = [tensor for tensor in tensors if tensor.is_matrix]
    if every:
        chosen = [tensor for tensor in matrices if tensor.size >= min_size]
        if not chosen:
            raise InputError(f"No matrix of at least {min_size} weights is in the file")
        return chosen
    if not patterns:
        if reshaped and len(tensors) == 1:
            return tensors
        if not matrices:
            raise InputError(
                "The file must hold a floating-point matrix, but has none "
                "(--list shows what is there)"
            )
        if len(matrices) != 1:
            raise InputError(
                f"The file holds {len(matrices)} matrices "
                "(choose with --layer NAME or --all; --list shows them)"
            )
        return matrices
    names = [tensor.name for tensor in tensors]
    globbed = [tensor.name for tensor in matrices]
    wanted = {name for pattern in patterns for name in matching(pattern, names, globbed)}
    return [tensor for tensor in tensors if tensor.name in wanted]


def matching(pattern: str, names: list[str], globbed: list[str] | None = None) -> list[str]:
    """The names that a pattern means: the very name, else those (of ``globbed``) that it globs."""
    if pattern in names:
        return [pattern]
    found = fnmatch.filter(names if globbed is None else globbed, pattern)
    if not found:
        listed = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
        raise InputError(f"No layer matches {pattern!r} (there are {listed})")
    return found


def matrix_shape(
    shape: tuple[int, ...], *, reshape: tuple[int, int] | None = None, transpose: bool = False
) -> tuple[int, int]:
    """The shape of :func:`as_matrix` of a tensor of this shape; refuses what is no matrix."""
    size = math.prod(shape)
    if size == 0:
        raise InputError(f"Weights must not be empty, but their shape is {shape}")
    if reshape:
        if math.prod(reshape) != size:
            raise InputError(
                f"Reshape must keep the number of weights, {size}, "
                f"not make it {reshape[0]}x{reshape[1]} = {math.prod(reshape)}"
            )
        rows, cols = reshape
    elif len(shape) < 2:
        raise InputError(
            f"Weights must have at least 2 dimensions, not {len(shape)} (a reshape can give them)"
        )
    else:
        rows, cols = shape[0], size // shape[0]
    return (cols, rows) if transpose else (rows, cols)


def as_matrix(
    weights: NDArray[Any],
    *,
    reshape: tuple[int, int] | None = None,
    transpose: bool = False,
) -> NDArray[Any]:
    """A tensor as the matrix to compress: (out, in*kh*kw) for a convolution (out, in, kh, kw)."""
    shape = matrix_shape(weights.shape, reshape=reshape)
    matrix = weights.reshape(shape)
    return matrix.T if transpose else matrix


def plain_floats(array: NDArray[Any]) -> NDArray[Any]:
    """bfloat16, which NumPy cannot compute with, as float32, which holds it exactly."""
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


def as_mask(values: NDArray[Any]) -> Bits:
    """A mask read from a file: Boolean, or numbers that are all 0 or 1."""
    if values.dtype == np.bool_:
        return values
    if values.dtype.kind not in "iuf" or not np.isin(values, (0, 1)).all():
        raise InputError("Mask must hold only 0 and 1")
    return values != 0


def nonzero_mask(weights: Floats) -> Bits:
    """The mask of an already pruned matrix: its own zeros."""
    return weights != 0


@contextlib.contextmanager
def _refusals(path: Path) -> Iterator[None]:
    """Turn what the libraries raise on a bad file into a refusal that names it."""
    try:
        yield
    except (InputError, MissingToolError):
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise InputError(f"Weight file {path} cannot be read: {reason}") from error
    except MemoryError as error:
        raise InputError(f"Weight file {path} does not fit into memory") from error
    except Exception as error:  # each library has families of its own for a damaged file
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"Weight file {path} must be a whole {path.suffix} file, but is not: {reason}"
        ) from error


class _Npy:
    """One array, named after its file."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            if file.read(6) != b"\x93NUMPY":
                raise InputError(
                    f"Weight file {path} must be a NumPy array, but does not start like one"
                )
        self._path = path
        self._array = np.load(path, mmap_mode="r", allow_pickle=False)

    def tensors(self) -> list[TensorInfo]:
        name = os.fsencode(self._path.stem).decode("utf-8", "replace")
        return [TensorInfo(name, self._array.shape, self._array.dtype.name)]

    def read(self, name: str) -> NDArray[Any]:
        return self._array


class _Npz:
    """A zip archive of arrays."""

    def __init__(self, path: Path) -> None:
        if not zipfile.is_zipfile(path):
            raise InputError(
                f"Weight file {path} must be a NumPy .npz archive, but is no zip archive"
            )
        self._path = path
        self._archive = np.load(path, allow_pickle=False)
        with zipfile.ZipFile(path) as archive:
            members = dict.fromkeys(name for name in archive.namelist() if name.endswith(".npy"))
            self._infos = [self._info(archive, name.removesuffix(".npy")) for name in members]

    @staticmethod
    def _info(archive: zipfile.ZipFile, name: str) -> TensorInfo:
        with archive.open(f"{name}.npy") as member:
            version = np.lib.format.read_magic(member)
            read_header = {
                (1, 0): np.lib.format.read_array_header_1_0,
                (2, 0): np.lib.format.read_array_header_2_0,
            }[version]
            shape, _, dtype = read_header(member)
        return TensorInfo(name, shape, dtype.name)

    def tensors(self) -> list[TensorInfo]:
        return self._infos

    def read(self, name: str) -> NDArray[Any]:
        with _refusals(self._path):
            array: NDArray[Any] = self._archive[name]
            return array


class _Safetensors:
    """Tensors read one by one; the file is not mapped, so only what is read takes memory."""

    _NAMES: Mapping[str, str] = {
        "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "BOOL": "bool",
        "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32",
        "I32": "int32", "U64": "uint64", "I64": "int64",
    }  # fmt: skip

    def __init__(self, path: Path) -> None:
        import safetensors

        self._path = path
        self._file = safetensors.safe_open(path, framework="np", backend="pread")

    def tensors(self) -> list[TensorInfo]:
        infos = []
        for name in self._file.offset_keys():
            view = self._file.get_slice(name)
            dtype = self._NAMES.get(view.get_dtype(), view.get_dtype())
            infos.append(TensorInfo(name, tuple(view.get_shape()), dtype))
        return infos

    def read(self, name: str) -> NDArray[Any]:
        import ml_dtypes  # noqa: F401  teaches NumPy the name bfloat16

        with _refusals(self._path):
            return plain_floats(self._file.get_tensor(name))


class _Onnx:
    """The initialisers of an ONNX model; data kept outside the model file are read when asked."""

    def __init__(self, path: Path) -> None:
        try:
            import onnx
        except ImportError as error:
            raise MissingToolError(
                f"Weight file {path} needs the onnx library (pip install 'lrbi[onnx]')"
            ) from error
        self._path = path
        model = onnx.load(path, load_external_data=False)
        self._initialisers = {tensor.name: tensor for tensor in model.graph.initializer}
        if not self._initialisers:
            raise InputError(f"Weight file {path} must be an ONNX model with initialisers")
        self._infos = [
            TensorInfo(name, tuple(tensor.dims), self._dtype(tensor.data_type))
            for name, tensor in self._initialisers.items()
        ]

    @staticmethod
    def _dtype(number: int) -> str:
        import onnx

        try:
            return str(onnx.helper.tensor_dtype_to_np_dtype(number).name)
        except KeyError:
            return f"ONNX type {number}"

    def tensors(self) -> list[TensorInfo]:
        return self._infos

    def read(self, name: str) -> NDArray[Any]:
        import onnx

        with _refusals(self._path):
            # to_array looks for outside data itself, beside the model
            return plain_floats(
                onnx.numpy_helper.to_array(
                    self._initialisers[name], base_dir=str(self._path.parent)
                )
            )


class _Torch:
    """The tensors of a PyTorch checkpoint, loaded without running anything that is in it."""

    def __init__(self, path: Path) -> None:
        try:
            import torch
        except ImportError as error:
            raise MissingToolError(
                f"Weight file {path} needs PyTorch (pip install 'lrbi[torch]')"
            ) from error
        with path.open("rb") as file:
            if file.read(2) not in (b"PK", b"\x80\x02"):  # a zip archive, or a bare pickle
                raise InputError(
                    f"Weight file {path} must be a PyTorch checkpoint, but does not start like one"
                )
        try:
            content = torch.load(path, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:
            raise InputError(
                f"Weight file {path} must be a whole checkpoint of tensors only, but is damaged, "
                "or loading it could run code (save the model's state_dict() instead)"
            ) from error
        self._path = path
        self._tensors = _only_tensors(content, torch.Tensor)
        if not self._tensors:
            raise InputError(f"Weight file {path} must be a checkpoint with tensors, but has none")

    def tensors(self) -> list[TensorInfo]:
        return [
            TensorInfo(name, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
            for name, tensor in self._tensors.items()
        ]

    def read(self, name: str) -> NDArray[Any]:
        with _refusals(self._path):
            tensor = self._tensors[name].detach().resolve_conj().resolve_neg()
            if str(tensor.dtype) == "torch.bfloat16":
                tensor = tensor.float()
            return tensor.numpy()


def _only_tensors(content: Any, tensor_type: type) -> dict[str, Any]:
    """The dense tensors in nested dictionaries, names joined by dots.

    Training scripts wrap the state dict in one of their own: where only one dictionary holds
    tensors, names are as in that one.
    """
    holders: list[tuple[str, dict[str, Any]]] = []

    def visit(prefix: str, node: Any) -> None:
        if not isinstance(node, Mapping):
            return
        found = {
            str(key): value
            for key, value in node.items()
            if isinstance(value, tensor_type) and str(value.layout) == "torch.strided"  # type: ignore[attr-defined]
        }
        if found:
            holders.append((prefix, found))
        for key, value in node.items():
            visit(f"{prefix}{key}.", value)

    visit("", content)
    if len(holders) == 1:
        return holders[0][1]
    return {prefix + name: value for prefix, found in holders for name, value in found.items()}


_OPENERS: dict[str, Callable[[Path], WeightFile]] = {
    ".npy": _Npy,
    ".npz": _Npz,
    ".safetensors": _Safetensors,
    ".onnx": _Onnx,
    ".pt": _Torch,
    ".pth": _Torch,
    ".th": _Torch,
    ".bin": _Torch,
    ".ckpt": _Torch,
}
