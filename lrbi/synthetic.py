"""Weights made for demonstrations and tests."""

import numpy as np
from numpy.typing import NDArray


def trained_like(shape: tuple[int, int], rng: np.random.Generator) -> NDArray[np.float32]:
    """A Gaussian matrix (m x n) whose scale varies in blocks of rows and columns.

    Trained layers are not white noise: some neurons and some groups of inputs carry far more
    weight than others, and that structure is what a low-rank mask can follow.
    """
    groups = 8
    rows = rng.gamma(1.0, size=(shape[0], groups)) * (rng.random((shape[0], groups)) < 0.3)
    cols = rng.gamma(1.0, size=(groups, shape[1])) * (rng.random((groups, shape[1])) < 0.3)
    scale = 0.02 + 0.1 * (rows @ cols)
    return (scale * rng.standard_normal(shape)).astype(np.float32)
