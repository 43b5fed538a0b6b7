"""What no index can beat: the entropy of masks, and the rate-distortion limit of lossy ones."""

import math

import numpy as np
from numpy.typing import NDArray

from lrbi.errors import InputError
from lrbi.prune import zeros_at

_POINTS = 4096  # of the quadrature over the kept weights; more change the sixth digit


def entropy(share: float) -> float:
    """Bits a position of a random mask that has this share of ones, or of zeros: H(S)."""
    if share in (0.0, 1.0):
        return 0.0
    return -share * math.log2(share) - (1 - share) * math.log2(1 - share)


def gaussian_gains(sparsity: float) -> NDArray[np.float64]:
    """Magnitudes above the pruning threshold of Gaussian weights, as equally likely values."""
    from scipy.special import ndtri

    zeros_at(sparsity, 1)  # refuses what is no sparsity
    values: NDArray[np.float64] = -ndtri((1 - sparsity) * (1 - _shares()) / 2)
    return values


def kept_limit(sparsity: float, rate: float, gains: NDArray[np.floating] | None = None) -> float:
    """The most that an index of ``rate`` bits a weight can keep of the exact mask's magnitude.

    It holds for masks of the given sparsity on independent weights, whatever the code: Shannon's
    rate-distortion limit. ``gains`` are the magnitudes under the exact mask, equally likely each;
    Gaussian ones if None. Weights with structure, between rows and columns say, can do better.

    The best test channel keeps a weight of gain g (its magnitude if the exact mask keeps it, else
    0) with probability sigmoid(s*g + c): s is set by the rate, c by the sparsity.
    """
    from scipy.optimize import brentq
    from scipy.special import entr, expit

    zeros_at(sparsity, 1)
    if not rate >= 0:
        raise InputError(f"Rate must be a number of bits of at least 0, not {rate}")
    if rate >= entropy(sparsity):
        return 1.0
    chosen = gaussian_gains(sparsity) if gains is None else np.asarray(gains, dtype=np.float64)
    if chosen.size > _POINTS:
        chosen = np.quantile(chosen, _shares())
    chosen = chosen / chosen.max()
    density = 1 - sparsity

    def channel(slope: float) -> tuple[NDArray[np.float64], float]:
        """Probabilities of being kept: of each gain, and of a weight that the mask prunes."""

        def surplus(offset: float) -> float:
            kept = density * expit(slope * chosen + offset).mean() + sparsity * expit(offset)
            return float(kept - density)

        offset = brentq(surplus, -slope - 50.0, 50.0)
        return expit(slope * chosen + offset), float(expit(offset))

    def information(slope: float) -> float:
        kept, rest = channel(slope)
        noise = density * float((entr(kept) + entr(1 - kept)).mean()) / math.log(2)
        return entropy(density) - noise - sparsity * entropy(rest)

    if information(0.0) >= rate:  # no bits, but for rounding: a random mask
        return density
    steepest = 1.0
    while information(steepest) < rate:  # tends to H(S), which is more than the rate
        steepest *= 2
    kept, _ = channel(brentq(lambda slope: information(slope) - rate, 0.0, steepest))
    return float(kept @ chosen / chosen.sum())


def _shares() -> NDArray[np.float64]:
    shares: NDArray[np.float64] = (np.arange(_POINTS) + 0.5) / _POINTS
    return shares
