"""Finished tiles on disk, so that interrupted work goes on where it stopped."""

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import lrbi
from lrbi.arrays import Bits, Floats
from lrbi.atomic import replacing, unwritable
from lrbi.factorize import TileFactors
from lrbi.pipeline import LayerSource


class Checkpoint:
    """The folder ``NAME.lrbi.partial`` beside an output that is not complete.

    It holds a folder a layer: its key, a digest of the layer's weights, mask, options, seed and of
    the version that made it, and a file a tile. A layer whose key differs is discarded.
    """

    def __init__(self, output: Path, on_discard: Callable[[str], None]) -> None:
        self.folder = output.with_name(f"{output.name}.partial")
        self._on_discard = on_discard

    def open(self, layer: int, source: LayerSource, weights: Floats, mask: Bits | None) -> None:
        """Begin a layer: keep what was made from the same input, discard what was not."""
        folder = self.folder / str(layer)
        key = _key(source, weights, mask)
        try:
            if folder.exists() and not _holds(folder / "key", key):
                self._on_discard(
                    f"What {self.folder} keeps of layer {layer} is discarded: "
                    "it was made from other input, options or version"
                )
                shutil.rmtree(folder)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "key").write_bytes(key)
        except OSError as error:
            raise unwritable(folder, error) from error

    def load(self, layer: int, tile: int) -> tuple[TileFactors, ...] | None:
        """A finished tile, or None if it is not there or cannot be read."""
        try:
            with (
                self._file(layer, tile).open("rb") as file,
                np.load(file, allow_pickle=False) as archive,
            ):
                return tuple(
                    TileFactors(
                        row_factor=archive[f"ip{option}"],
                        col_factor=archive[f"iz{option}"],
                        rank=int(rank),
                        ones=int(ones),
                        cost=float(cost),
                        magnitude=float(magnitude),
                    )
                    for option, (rank, ones, cost, magnitude) in enumerate(archive["numbers"])
                )
        except Exception:  # not there, or damaged in one of many ways: the tile is made again
            return None

    def save(self, layer: int, tile: int, factors: tuple[TileFactors, ...]) -> None:
        """Keep a finished tile."""
        numbers = [(item.rank, item.ones, item.cost, item.magnitude) for item in factors]
        arrays: dict[str, NDArray[Any]] = {"numbers": np.array(numbers, dtype=np.float64)}
        for option, item in enumerate(factors):
            arrays[f"ip{option}"], arrays[f"iz{option}"] = item.row_factor, item.col_factor
        with replacing(self._file(layer, tile)) as temporary:
            np.savez(temporary, allow_pickle=False, **arrays)

    def remove(self) -> None:
        """Forget all of it."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _file(self, layer: int, tile: int) -> Path:
        return self.folder / str(layer) / f"{tile}.npz"


def _holds(file: Path, content: bytes) -> bool:
    return file.is_file() and file.read_bytes() == content


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
        for row in array:  # row by row: a transposed or mapped matrix is never copied whole
            digest.update(np.ascontiguousarray(row).data)
    return digest.hexdigest().encode()
