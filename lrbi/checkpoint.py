"""Finished tiles on disk, so that interrupted work goes on where it stopped."""

import contextlib
import dataclasses
import hashlib
import json
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

import lrbi
from lrbi.arrays import Bits, Floats
from lrbi.atomic import unwritable
from lrbi.errors import InputError
from lrbi.factorize import TileFactors
from lrbi.pipeline import LayerSource
from lrbi.prune import row_blocks

try:
    import fcntl
except ImportError:  # not a POSIX system: two runs with one output are the user's to avoid
    fcntl = None  # type: ignore[assignment]

_HEAD = struct.Struct("<QQI")  # of a record: tile, bytes of the payload, CRC-32 of all three


class Checkpoint:
    """The folder ``NAME.lrbi.partial`` beside an output that is not complete.

    It holds a journal a layer: first the key, a digest of the layer's weights, mask, options, seed
    and of the version that made it, then a record a tile. A journal whose key differs is discarded;
    one that breaks off in the middle of a record goes on behind the last whole one.

    As a context it holds the folder for itself alone. Only an interrupt leaves the folder behind.
    """

    def __init__(self, output: Path, on_discard: Callable[[str], None]) -> None:
        self.folder = output.with_name(f"{output.name}.partial")
        self._output = output
        self._on_discard = on_discard
        self._lock: BinaryIO | None = None
        self._kept: dict[int, dict[int, tuple[TileFactors, ...]]] = {}

    def __enter__(self) -> Self:
        try:
            self.folder.mkdir(exist_ok=True)
            self._lock = (self.folder / "lock").open("ab")
            if fcntl is not None:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._unlock()
            raise InputError(f"Output {self._output} is being written by another lrbi") from error
        except OSError as error:
            self._unlock()
            raise unwritable(self.folder, error) from error
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None or not issubclass(kind, KeyboardInterrupt):
            self._remove()
        self._unlock()

    def open(self, layer: int, source: LayerSource, weights: Floats, mask: Bits | None) -> None:
        """Begin a layer: keep what was made from the same input, discard what was not."""
        path = self.folder / str(layer)
        key = _key(source, weights, mask)
        try:
            content = path.read_bytes() if path.exists() else key
            if not content.startswith(key):
                self._on_discard(
                    f"What {self.folder} keeps of layer {source.name} is discarded: "
                    "it was made from other input, options or version"
                )
                content = key
            self._kept[layer], end = _records(content, len(key))
            if path.exists() and content is not key:
                os.truncate(path, end)
            else:
                path.write_bytes(key)
        except OSError as error:
            raise unwritable(path, error) from error

    def load(self, layer: int, tile: int) -> tuple[TileFactors, ...] | None:
        """A finished tile, or None."""
        return self._kept[layer].pop(tile, None)

    def save(self, layer: int, tile: int, factors: tuple[TileFactors, ...]) -> None:
        """Keep a finished tile."""
        payload = _pack(factors)
        try:
            with (self.folder / str(layer)).open("ab") as journal:
                journal.write(_head(tile, payload) + payload)
        except OSError as error:
            raise unwritable(self.folder / str(layer), error) from error

    def _remove(self) -> None:
        """Forget all of it; what else is in the folder is not ours to remove."""
        with contextlib.suppress(OSError):
            for path in self.folder.iterdir():
                if path.name.isdecimal() or path.name == "lock":
                    path.unlink()
            self.folder.rmdir()

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.close()


def _records(content: bytes, start: int) -> tuple[dict[int, tuple[TileFactors, ...]], int]:
    """The tiles of a journal, and where its last whole record ends."""
    tiles = {}
    while start + _HEAD.size <= len(content):
        head = content[start : start + _HEAD.size]
        tile, size, _ = _HEAD.unpack(head)
        payload = content[start + _HEAD.size : start + _HEAD.size + size]
        if head != _head(tile, payload):
            break
        tiles[tile] = _unpack(payload)
        start += _HEAD.size + size
    return tiles, start


def _head(tile: int, payload: bytes) -> bytes:
    checksum = zlib.crc32(payload, zlib.crc32(struct.pack("<QQ", tile, len(payload))))
    return _HEAD.pack(tile, len(payload), checksum)


def _pack(factors: tuple[TileFactors, ...]) -> bytes:
    numbers = [(item.rank, item.ones, item.cost, item.magnitude) for item in factors]
    arrays: dict[str, NDArray[Any]] = {"numbers": np.array(numbers, dtype=np.float64)}
    for option, item in enumerate(factors):
        arrays[f"ip{option}"] = np.ascontiguousarray(item.row_factor)
        arrays[f"iz{option}"] = np.ascontiguousarray(item.col_factor)
    return safetensors.numpy.save(arrays)


def _unpack(payload: bytes) -> tuple[TileFactors, ...]:
    arrays = safetensors.numpy.load(payload)
    return tuple(
        TileFactors(
            row_factor=arrays[f"ip{option}"],
            col_factor=arrays[f"iz{option}"],
            rank=int(rank),
            ones=int(ones),
            cost=float(cost),
            magnitude=float(magnitude),
        )
        for option, (rank, ones, cost, magnitude) in enumerate(arrays["numbers"])
    )


def _key(source: LayerSource, weights: Floats, mask: Bits | None) -> bytes:
    options = {
        "version": lrbi.__version__,
        "name": source.name,
        "config": dataclasses.asdict(source.config),
        "source_shape": source.source_shape,
        "transposed": source.transposed,
        "masked": mask is not None,
        "shape": weights.shape,
        "dtype": weights.dtype.str,
    }
    digest = hashlib.sha256(json.dumps(options, sort_keys=True).encode())
    for array in (weights,) if mask is None else (weights, mask):
        for rows in row_blocks(array):  # a transposed or mapped matrix is never copied whole
            digest.update(np.ascontiguousarray(array[rows]).data)
    return digest.digest()
