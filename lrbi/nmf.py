"""Non-negative matrix factorization: the engines behind one interface.

An engine takes a non-negative matrix X (m x n, float32), a rank k, a number of iterations and a
random generator, and returns M_p (m x k) and M_z (k x n) with X ~ M_p M_z.
"""

import importlib
import sys
import types
import warnings
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lrbi.errors import MissingToolError

Matrix: TypeAlias = NDArray[np.float32]
Engine: TypeAlias = Callable[[Matrix, int, int, np.random.Generator], tuple[Matrix, Matrix]]


def hals(
    matrix: Matrix, rank: int, iterations: int, rng: np.random.Generator
) -> tuple[Matrix, Matrix]:
    """Hierarchical alternating least squares: exact updates of one component after the other.

    O(mnk) an iteration, nearly all of it in two matrix products.
    """
    scale = np.sqrt(matrix.mean() / rank, dtype=np.float32)
    row_scores = scale * rng.random((rank, matrix.shape[0]), dtype=np.float32)
    col_scores = scale * rng.random((rank, matrix.shape[1]), dtype=np.float32)
    for _ in range(iterations):
        _update(row_scores, col_scores @ col_scores.T, col_scores @ matrix.T)
        _update(col_scores, row_scores @ row_scores.T, row_scores @ matrix)
    return np.ascontiguousarray(row_scores.T), col_scores


def _update(factor: Matrix, gram: Matrix, target: Matrix) -> None:
    for component in range(factor.shape[0]):
        weight = gram[component, component]
        if weight > 0:
            row = factor[component]
            row += (target[component] - gram[component] @ factor) / weight
            np.maximum(row, 0, out=row)


def nimfa(
    matrix: Matrix, rank: int, iterations: int, rng: np.random.Generator
) -> tuple[Matrix, Matrix]:
    """The paper's library: multiplicative updates of nimfa's ``Nmf``, Frobenius objective."""
    library = _load_nimfa()
    scale = np.sqrt(matrix.mean() / rank)
    row_scores = scale * rng.random((matrix.shape[0], rank))
    col_scores = scale * rng.random((rank, matrix.shape[1]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PendingDeprecationWarning)  # nimfa computes in np.matrix
        model = library.Nmf(
            matrix.astype(np.float64), W=row_scores, H=col_scores, rank=rank, max_iter=iterations,
            min_residuals=None, update="euclidean", objective="fro",
        )  # fmt: skip
        with np.errstate(divide="ignore", invalid="ignore"):
            fit = model()
    # Multiplicative updates divide zero by zero where a whole row or column of X is zero.
    return tuple(
        np.nan_to_num(np.asarray(factor, dtype=np.float32), nan=0.0)
        for factor in (fit.basis(), fit.coef())
    )  # type: ignore[return-value]


class _OldNumpy(types.ModuleType):
    """NumPy with the name that nimfa 1.4 still calls and NumPy 2 dropped."""

    mat = staticmethod(np.asmatrix)

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


def _load_nimfa() -> Any:
    """Import nimfa, and put its old NumPy names back inside its own modules only."""
    if sys.modules.get("nimfa") is None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its examples miss Matplotlib, and say so
            try:
                importlib.import_module("nimfa")
            except ImportError as error:
                raise MissingToolError(
                    "Engine nimfa needs the nimfa library (pip install 'lrbi[nimfa]')"
                ) from error
    library = sys.modules["nimfa"]
    old_numpy = _OldNumpy("numpy")
    for name, module in list(sys.modules.items()):
        if name.startswith("nimfa.") and getattr(module, "np", None) is np:
            module.np = old_numpy  # type: ignore[attr-defined]
    return library


ENGINES: dict[str, Engine] = {"hals": hals, "nimfa": nimfa}


def equalize_peaks(row_scores: Matrix, col_scores: Matrix) -> tuple[Matrix, Matrix]:
    """Rescale the components of M_p M_z so that each has the same peak in M_p and in M_z.

    NMF leaves the scale between the two factors of a component open, but one threshold on all
    of M_p compares components with each other: a component's peak is what it adds to X at most,
    and with the peaks equalized that is what the thresholds see.
    """
    row_peak, col_peak = row_scores.max(axis=0), col_scores.max(axis=1)
    alive = (row_peak > 0) & (col_peak > 0)
    ratio = np.ones_like(row_peak)
    np.sqrt(col_peak / np.where(alive, row_peak, 1), out=ratio, where=alive)
    return row_scores * ratio, col_scores / ratio[:, np.newaxis]
