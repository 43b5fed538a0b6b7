"""The factor file ``NAME.lrbi``: a safetensors file whose every bit is covered by a digest.

``docs/factor-file.md`` is the format's definition.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
from numpy.typing import NDArray

from lrbi.atomic import replacing
from lrbi.errors import InputError
from lrbi.layer import SEARCH, CompressedLayer

FORMAT = 1
_KEY = "lrbi"
_DTYPES = {"uint8": "U8", "uint16": "U16"}


def save(path: str | os.PathLike[str], layers: Mapping[str, CompressedLayer]) -> None:
    """Write layers to a factor file. The same layers always make the same bytes."""
    from safetensors.numpy import save as serialize

    if not isinstance(layers, Mapping):
        raise InputError(
            f"Layers must be a mapping of names to layers, not {type(layers).__name__}"
        )
    if not layers:
        raise InputError("A factor file must hold at least one layer, not none")
    tensors, header = _contents(layers)
    content = serialize(tensors, metadata={_KEY: _canonical(header)})
    with replacing(Path(path)) as temporary:
        temporary.write_bytes(content)


def digest(layers: Mapping[str, CompressedLayer]) -> str:
    """The digest that the factor file of these layers carries."""
    return _contents(layers)[1]["sha256"]


def _contents(
    layers: Mapping[str, CompressedLayer],
) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """The tensors and the metadata of a factor file."""
    tensors = {
        f"{name}/{kind}": np.ascontiguousarray(array)
        for name, layer in layers.items()
        for kind, array in layer.tensors().items()
    }
    header: dict[str, Any] = {
        "format": FORMAT,
        "layers": {name: layer.metadata() for name, layer in layers.items()},
    }
    header["sha256"] = _digest(tensors, header)
    return tensors, header


def load(path: str | os.PathLike[str]) -> dict[str, CompressedLayer]:
    """Read the layers of a factor file, refusing any that is damaged, foreign or too new."""
    try:
        tensors, text = _read(path)
        header = _parse(text)
        if header.pop("sha256", None) != _digest(tensors, header):
            raise InputError("its contents do not match its digest, so it is damaged")
        return _layers(header["layers"], tensors)
    except InputError as error:
        raise InputError(f"Factor file {path} cannot be used: {error}") from error


def _read(path: str | os.PathLike[str]) -> tuple[dict[str, NDArray[Any]], str]:
    try:
        if Path(path).exists() and not Path(path).is_file():
            raise InputError("it is a folder, a device or a pipe")
        Path(path).open("rb").close()  # safetensors takes any failure for a missing file
        with safetensors.safe_open(path, framework="np") as file:
            metadata = file.metadata() or {}
            if set(metadata) != {_KEY}:
                raise InputError("it is a safetensors file, but not one that lrbi wrote")
            return {name: file.get_tensor(name) for name in file.offset_keys()}, metadata[_KEY]
    except OSError as error:
        raise InputError(error.strerror or _first_line(error)) from error
    except safetensors.SafetensorError as error:
        raise InputError(
            f"it is no whole safetensors file ({_first_line(error)}); copy or make it anew"
        ) from error
    except (TypeError, ValueError, KeyError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"it holds tensors of an unknown kind ({_first_line(error)})") from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _parse(text: str) -> dict[str, Any]:
    try:
        header = json.loads(text)
        if not isinstance(header, dict) or type(header.get("format")) is not int:
            raise InputError("its metadata say no format number, so it is damaged")
        if header["format"] > FORMAT:
            raise InputError(
                f"its format is {header['format']}, and this version reads up to {FORMAT} "
                "(update lrbi)"
            )
        if (
            header["format"] < 1
            or _canonical(header) != text
            or not isinstance(header.get("layers"), dict)
        ):
            raise InputError("its metadata are not as lrbi writes them, so it is damaged")
    except (ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError("its metadata are no JSON, so it is damaged") from error
    return header


def _canonical(header: Mapping[str, Any]) -> str:
    return json.dumps(
        header, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )


def _digest(tensors: Mapping[str, NDArray[Any]], header: Mapping[str, Any]) -> str:
    """SHA-256 over the tensors in order of their UTF-8 names, then the metadata."""
    digest = hashlib.sha256()
    for name in sorted(tensors, key=lambda name: name.encode()):
        array = tensors[name]
        dtype = _DTYPES.get(array.dtype.name)
        if dtype is None:
            raise InputError(f"its tensor {name} is {array.dtype}, neither uint8 nor uint16")
        shape = ",".join(map(str, array.shape))
        for part in (name, dtype, shape):
            digest.update(part.encode() + b"\0")
        digest.update(array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes())
    digest.update(_canonical(header).encode())
    return digest.hexdigest()


def _layers(
    metadata: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]
) -> dict[str, CompressedLayer]:
    names = [f"{name}/{kind}" for name in metadata for kind in ("ip", "iz", "rank")]
    if not names or sorted(names) != sorted(tensors):
        raise InputError("its tensors are not those of its layers")
    layers = {}
    for name, fields in metadata.items():
        try:
            arrays = [tensors[f"{name}/{kind}"] for kind in ("ip", "iz", "rank")]
            layers[name] = restore_layer(fields, *arrays)
        except InputError as error:
            raise InputError(f"layer {name}: {error}") from error
        except OverflowError as error:
            raise InputError(f"layer {name}: its numbers are out of all bounds") from error
    return layers


def restore_layer(
    fields: object, row_factors: NDArray[Any], col_factors: NDArray[Any], ranks: NDArray[Any]
) -> CompressedLayer:
    """The layer of this metadata and these arrays, which are refused if they do not go together."""
    if not isinstance(fields, dict):
        raise InputError("its metadata are missing")

    def field(name: str, kind: type | tuple[type, ...], absent: Any = None) -> Any:
        value = fields.get(name, absent)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise InputError(f"metadata field {name} is missing or of the wrong type")
        return value

    def numbers(name: str, count: int | None = None) -> Any:
        value = field(name, list)
        if not all(type(item) is int for item in value) or count not in (None, len(value)):
            raise InputError(f"metadata field {name} is no list of whole numbers")
        return tuple(value)

    layer = CompressedLayer(
        shape=numbers("shape", 2),
        source_shape=numbers("source_shape"),
        transposed=field("transposed", bool),
        tile=numbers("tile", 2),
        row_factors=row_factors,
        col_factors=col_factors,
        ranks=ranks,
        sparsity_target=field("sparsity_target", (int, float)),
        sparsity=field("sparsity", (int, float)),
        cost=field("cost", (int, float)),
        kept=field("kept", (int, float)),
        method=field("method", int),
        engine=field("engine", str),
        iterations=field("iterations", int),
        sparsity_per_tile=field("sparsity_per_tile", bool),
        seed=field("seed", int),
        **{name: field(name, str, absent) for name, absent in SEARCH.items()},
    )
    if (layer.rank, layer.tiles.grid) != (field("rank", int), numbers("grid", 2)):
        raise InputError("rank or grid in the metadata is not that of the factors")
    return layer
