"""Exact magnitude pruning: which weights the mask should keep."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lrbi.arrays import Bits, Floats
from lrbi.errors import InputError

_DIGIT = 16  # bits that one pass of the radix selection looks at
_LARGEST = 1e300
_BLOCK = 1 << 20  # weights looked at together, so that no pass copies the layer


def zeros_at(sparsity: float, size: int) -> int:
    """How many of ``size`` weights are pruned at ``sparsity``: round(S*size)."""
    if not 0.0 < sparsity < 1.0:
        raise InputError(f"Sparsity must be between 0 and 1, both excluded, not {sparsity}")
    return round(sparsity * size)


def exact_mask(weights: Floats, sparsity: float) -> Bits:
    """The magnitude mask I of ``weights`` (m x n): exactly round(S*m*n) zeros.

    Among equal magnitudes the earlier in row-major order is pruned first.
    """
    check_weights(weights)
    return magnitude_mask(weights, zeros_at(sparsity, weights.size))


def magnitude_mask(weights: Floats, zeros: int) -> Bits:
    """Mask of the shape of ``weights`` (m x n) whose ``zeros`` zeros are the least magnitudes.

    Time O(mn); memory that of the mask and one block of rows. The threshold is found by radix
    selection: the bit patterns of non-negative floats, read as integers, sort like the floats.
    """
    if zeros >= weights.size:
        return np.zeros(weights.shape, dtype=np.bool_)
    threshold, ties = _select(weights, zeros)
    mask = np.empty(weights.shape, dtype=np.bool_)
    for rows, patterns in _patterns(weights):
        np.greater(patterns, threshold, out=mask[rows])
        equal = np.flatnonzero(patterns == threshold)
        mask[rows].ravel()[equal[ties:]] = True
        ties = max(0, ties - equal.size)
    return mask


def check_weights(weights: Floats) -> None:
    """Refuse what is no non-empty matrix of finite floating-point numbers."""
    if weights.ndim != 2:
        raise InputError(f"Weights must have 2 dimensions, not {weights.ndim}")
    if weights.size == 0:
        raise InputError(f"Weights must not be empty, but their shape is {weights.shape}")
    if weights.dtype.kind != "f" or weights.dtype.itemsize > 8:
        raise InputError(
            f"Weights must be float16, float32 or float64, not {weights.dtype} (convert them first)"
        )
    for rows in row_blocks(weights):
        finite = np.isfinite(weights[rows])
        if not finite.all():
            row, column = np.argwhere(~finite)[0]
            value = weights[rows][row, column]
            raise InputError(
                f"Weights must be finite, but row {rows.start + row}, column {column} is {value}"
            )
        if weights.dtype.itemsize == 8 and np.abs(weights[rows]).max() > _LARGEST:
            raise InputError(f"Weights must be at most {_LARGEST:g}, so that their sum is finite")


def row_blocks(weights: NDArray[Any]) -> Iterator[slice]:
    """Rows of a matrix in blocks small enough to copy."""
    step = max(1, _BLOCK // weights.shape[1])
    for start in range(0, weights.shape[0], step):
        yield slice(start, min(start + step, weights.shape[0]))


def _patterns(weights: Floats) -> Iterator[tuple[slice, NDArray[np.unsignedinteger[Any]]]]:
    unsigned = f"u{weights.dtype.itemsize}"
    for rows in row_blocks(weights):
        magnitudes = np.abs(weights[rows], order="C")
        yield rows, magnitudes.astype(magnitudes.dtype.newbyteorder("="), copy=False).view(unsigned)


def _select(weights: Floats, index: int) -> tuple[Any, int]:
    """Bit pattern of the ``index``-th least magnitude, and how many equal ones come before it."""
    prefix = 0
    top = 8 * weights.dtype.itemsize - _DIGIT
    for shift in range(top, -1, -_DIGIT):
        counts = np.zeros(1 << _DIGIT, dtype=np.int64)
        for _, patterns in _patterns(weights):
            digits = patterns.ravel() >> shift
            if shift < top:
                digits = digits[digits >> _DIGIT == prefix]
            digits = (digits & ((1 << _DIGIT) - 1)).astype(np.intp)
            counts += np.bincount(digits, minlength=counts.size)
        below = np.cumsum(counts)
        digit = int(np.searchsorted(below, index, side="right"))
        index -= int(below[digit - 1]) if digit else 0
        prefix = prefix << _DIGIT | digit
    return np.dtype(f"u{weights.dtype.itemsize}").type(prefix), index
