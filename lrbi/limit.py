"""What no index can beat: the entropy of masks, and the rate-distortion limit of lossy ones."""

import math

import numpy as np
from numpy.typing import NDArray

from lrbi.errors import InputError
from lrbi.prune import zeros_at

_POINTS = 4096  # gains that a limit is computed from; more change the sixth digit


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
    Where no gain is positive there is nothing to lose, and all is kept.

    The best test channel keeps a weight of gain g (its magnitude if the exact mask keeps it, else
    0) with probability sigmoid(s*g + c): s is set by the rate, c by the sparsity.
    """
    from scipy.optimize import brentq
    from scipy.special import entr, expit

    zeros_at(sparsity, 1)
    if not rate >= 0:
        raise InputError(f"Rate must be a number of bits of at least 0, not {rate}")
    everything = gaussian_gains(sparsity) if gains is None else np.asarray(gains, dtype=np.float64)
    chosen, shares = _binned(everything[everything > 0])
    if not chosen.size:
        return 1.0
    chosen = chosen / chosen.max()
    density = 1 - sparsity
    shares = shares / max(1, everything.size) * density
    rest = 1 - shares.sum()  # what is pruned, or kept for nothing
    # Keeping all that has a gain, and as many others as are missing, takes no more than this.
    stray = min(1.0, max(0.0, (density - (1 - rest)) / rest))
    if rate >= entropy(density) - rest * entropy(stray) - 1e-12:
        return 1.0

    def channel(slope: float) -> tuple[NDArray[np.float64], float]:
        """Probabilities of being kept: of each gain, and of a weight without one."""

        def surplus(offset: float) -> float:
            return float(shares @ expit(slope * chosen + offset) + rest * expit(offset) - density)

        offset = brentq(surplus, -slope - 50.0, 50.0, maxiter=1000)
        return expit(slope * chosen + offset), float(expit(offset))

    def information(slope: float) -> float:
        kept, others = channel(slope)
        noise = float(shares @ (entr(kept) + entr(1 - kept))) / math.log(2)
        return entropy(density) - noise - rest * entropy(others)

    if information(0.0) >= rate:  # no bits, but for rounding: a random mask
        return density
    steepest = 1.0
    while information(steepest) < rate:  # tends to what was found to be more than the rate
        if steepest > 1e12:  # so near that floats do not tell them apart
            return 1.0
        steepest *= 2
    kept, _ = channel(brentq(lambda slope: information(slope) - rate, 0.0, steepest, maxiter=1000))
    return float((shares * chosen) @ kept / (shares @ chosen))


def _binned(gains: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Gains and how many there are of each: the largest singly, the others in bins, by their mean.

    A channel that treats the gains of a bin alike is a channel too, so this never tells too much.
    """
    if gains.size <= _POINTS:
        return gains, np.ones(gains.size)
    ordered = np.sort(gains)[::-1]
    half = _POINTS // 2
    edges = half + (gains.size - half) * np.arange(half + 1) // half
    counts = np.diff(edges)
    means = np.add.reduceat(ordered, edges[:-1]) / counts
    return np.concatenate([ordered[:half], means]), np.concatenate([np.ones(half), counts])


def _shares() -> NDArray[np.float64]:
    shares: NDArray[np.float64] = (np.arange(_POINTS) + 0.5) / _POINTS
    return shares
