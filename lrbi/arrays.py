"""Names for the kinds of array that pass between modules."""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Bits: TypeAlias = NDArray[np.bool_]
"""A Boolean array: a mask or a binary factor, one element a bit."""

Packed: TypeAlias = NDArray[np.uint8]
"""Rows of bits packed into bytes as :mod:`lrbi.layout` defines it."""

Floats: TypeAlias = NDArray[np.floating[Any]]
"""Weights or magnitudes, of any floating-point type."""
