"""A straight implementation of the paper's Algorithm 1, to be measured against."""

import numpy as np

from lrbi.arrays import Bits, Floats
from lrbi.factorize import manipulate
from lrbi.nmf import nimfa
from lrbi.prune import exact_mask


def straight(
    weights: Floats, rank: int, sparsity: float, *, method: int = 3, iterations: int = 60
) -> tuple[Bits, float]:
    """The mask and its Cost: nimfa, 21 values of S_p, S_z by 12 bisections, ``bool @ bool``."""
    magnitudes = np.abs(weights).astype(np.float32)
    exact = exact_mask(weights, sparsity)
    target = manipulate(magnitudes, exact, sparsity, method)
    left, right = nimfa(target, rank, iterations, np.random.default_rng(0))
    best_mask, best_cost = np.zeros_like(exact), np.inf
    for row_sparsity in np.linspace(0, 1, 21):
        row_factor = left >= np.quantile(left, row_sparsity)
        low, high = 0.0, 1.0
        for _ in range(12):
            middle = (low + high) / 2
            mask = row_factor @ (right >= np.quantile(right, middle))
            if 1 - mask.mean() < sparsity:
                low = middle
            else:
                high = middle
        cost = float(magnitudes[exact & ~mask].sum())
        if abs(1 - mask.mean() - sparsity) < 0.005 and cost < best_cost:
            best_mask, best_cost = mask, cost
    return best_mask, best_cost
