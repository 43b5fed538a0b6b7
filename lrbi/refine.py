"""Better factors of the same size: a search on their bits, from where NMF left them.

What is sought is the most gain under a mask of a given number of ones. A price for every one turns
that into sum(gain - price) over the cells that the mask keeps, and steers the number of ones: it
rises while there are too many, and falls while there are too few.

Two moves make up the search. With all ranks but one fixed, the best bits of that rank in one factor
follow at once, row by row (or column by column): a *sweep* does so for every rank and both factors.
And a rank can be taken out and *fitted anew* to what the others leave uncovered, from several
starts. Sweeps climb to where no bit of either factor can be improved alone; new ranks, and the heat
that makes early sweeps inexact, lead away from there.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lrbi.arrays import Bits
from lrbi.nmf import Matrix

_STEERING = 0.3  # how far the price follows the surplus of ones
_SHARES = (0.01, 0.03, 0.08, 0.2, 0.4)  # of the columns that a start for a rank has
_FITS = 3  # times that rows and columns of a start are fitted to each other
_FINALISTS = 4  # starts that are fitted more than once


@dataclass(frozen=True)
class Schedule:
    """How long to search."""

    cycles: int
    """Times that the search is heated and cooled, each from the best that it has found."""
    rounds: int
    """Rounds of a cycle, each of which fits ranks anew and then sweeps."""
    sweeps: int
    """Sweeps in a round."""
    refits: float
    """Share of the ranks that a round fits anew."""
    starts: int
    """Columns from which a rank is fitted anew."""
    heat: float
    """Noise of a cycle's first sweeps, as a share of what a bit is worth; it falls to a tenth."""


def refine(
    row_factor: Bits,
    col_factor: Bits,
    gains: Matrix,
    ones: int,
    schedule: Schedule,
    rng: np.random.Generator,
) -> Iterator[tuple[Bits, Bits]]:
    """I_p and I_z (m x k, k x n) that keep more of ``gains`` (m x n), from those given.

    Their product has about ``ones`` ones, but not exactly; after the first result come others that
    are about as good, as long as heat finds any. A sweep takes O(mnk) at most, and less the sparser
    the factors are; so does fitting all ranks anew, times the number of starts.
    """
    search = _Search(row_factor, col_factor, gains, ones, rng)
    search.climb(8)
    search.hold_best()
    for _ in range(schedule.cycles):
        for number in range(schedule.rounds):
            search.refit(schedule.refits, schedule.starts)
            cooling = 0.1 ** (number / max(1, schedule.rounds - 1))
            heat = schedule.heat * cooling * search.worth_of_a_bit()
            for _ in range(schedule.sweeps):
                search.sweep(heat)
        if schedule.refits:
            search.refit(1.0, schedule.starts)
        search.climb(12)
        search.hold_best()
    yield search.factors()
    while search.sweep(0.5 * schedule.heat * search.worth_of_a_bit()):
        search.climb(4)
        yield search.factors()


@dataclass(frozen=True)
class _Note:
    """A state of the search to come back to."""

    kept: float
    ones: int
    arrays: tuple[NDArray[Any], ...]


class _Search:
    """Factors under way, rank by rank: I_p transposed (k x m) and I_z (k x n)."""

    def __init__(
        self,
        row_factor: Bits,
        col_factor: Bits,
        gains: Matrix,
        ones: int,
        rng: np.random.Generator,
    ) -> None:
        rank = row_factor.shape[1]
        count: type[Any] = np.uint8 if rank < 1 << 8 else np.uint16  # ranks are at most 65535
        self._bits = (
            np.ascontiguousarray(row_factor.T, dtype=count),
            np.ascontiguousarray(col_factor, dtype=count),
        )
        rows, cols = (bits.astype(np.float32) for bits in self._bits)
        cover = (rows.T @ cols).astype(count)
        # How many ranks cover a cell; by rows and by columns, for either is read in stripes.
        self._cover = (cover, np.ascontiguousarray(cover.T))
        self._gains = (gains, np.ascontiguousarray(gains.T))
        self._worth = tuple(map(np.empty_like, self._gains))
        self._ones, self._rng = ones, rng
        self._noted: _Note | None = None
        # Half of what a one of the mask gains, the largest cut off: one weight must not set it.
        covered = gains[cover > 0] if gains[cover > 0].any() else gains
        cut = np.minimum(covered, np.quantile(covered, 0.95) or covered.max())
        self.price = 0.5 * float(cut.mean(dtype=np.float64))
        self._steer()

    def factors(self) -> tuple[Bits, Bits]:
        """I_p and I_z."""
        rows, cols = self._bits
        return np.ascontiguousarray(rows.T > 0), cols > 0

    def worth_of_a_bit(self) -> float:
        """What the mask is worth, shared out among the bits of both factors that are on."""
        worth = self._worth[0].sum(where=self._cover[0] > 0, dtype=np.float64)
        return max(0.0, float(worth)) / max(1, sum(map(np.count_nonzero, self._bits)))

    def hold_best(self) -> None:
        """Take note of what is found, or go back to what was noted before if that is better.

        What is compared is worth at today's price: gains that would be left at as many ones.
        """
        covered = self._cover[0] > 0
        kept = float(self._gains[0].sum(where=covered, dtype=np.float64))
        ones = int(np.count_nonzero(covered))
        noted = self._noted
        if noted is None or kept - noted.kept >= self.price * (ones - noted.ones):
            arrays = tuple(each.copy() for each in (*self._bits, *self._cover))
            self._noted = _Note(kept, ones, arrays)
        else:
            for mine, array in zip((*self._bits, *self._cover), noted.arrays, strict=True):
                mine[...] = array

    def climb(self, most: int) -> None:
        """Sweep without heat until nothing changes, ``most`` times at most."""
        for _ in range(most):
            if not self.sweep(0.0):
                break

    def sweep(self, heat: float) -> int:
        """Choose all bits of both factors anew, rank by rank; how many have changed."""
        changed = 0
        for side in (0, 1):
            for rank in self._rng.permutation(len(self._bits[0])):
                changed += self._choose(side, rank, heat)
            self._steer()
        return changed

    def _steer(self) -> None:
        """Move the price by the surplus of ones."""
        surplus = np.count_nonzero(self._cover[0]) / self._ones - 1
        self.price *= float(np.exp(_STEERING * min(surplus, 1.0)))
        for gains, worth in zip(self._gains, self._worth, strict=True):
            np.subtract(gains, np.float32(self.price), out=worth)

    def _choose(self, side: int, rank: int, heat: float) -> int:
        """The bits of one rank in one factor, given all others: those that are worth it.

        With heat, a bit is drawn from its Boltzmann distribution instead.
        """
        bits, others = self._bits[side][rank], np.flatnonzero(self._bits[1 - side][rank])
        if not others.size:
            return 0
        # A cell counts if no other rank covers it.
        worth = self._worth[1 - side].take(others, axis=0)
        worth *= self._cover[1 - side].take(others, axis=0) == bits
        sums = np.ones(others.size, dtype=np.float32) @ worth
        if heat:
            sums += heat * self._rng.logistic(size=sums.size)
        chosen = sums > 0
        changed = np.flatnonzero(chosen != bits)
        if changed.size:
            step = np.where(chosen[changed], 1, -1).astype(bits.dtype)  # wraps, and back
            self._cover[side][np.ix_(changed, others)] += step[:, np.newaxis]
            self._cover[1 - side][np.ix_(others, changed)] += step
            bits[changed] = chosen[changed]
        return changed.size

    def refit(self, share: float, starts: int) -> None:
        """Fit this share of the ranks anew, one after the other."""
        ranks = len(self._bits[0])
        for rank in self._rng.permutation(ranks)[: math.ceil(share * ranks)]:
            self._refit(rank, starts)

    def _refit(self, rank: int, starts: int) -> None:
        """Take a rank out, and put in its place the best that is found, if that is better."""
        rows, cols = (np.flatnonzero(bits[rank]) for bits in self._bits)
        self._add(rows, cols, -1)
        open_ = self._worth[0] * (self._cover[0] == 0)
        before = float(open_[np.ix_(rows, cols)].sum())
        found = _best_block(open_, _starts(open_, starts, self._rng))
        after = 0.0
        if found is not None:
            new_rows, new_cols, after = found
        if found is not None and after > before * (1 + 1e-6):
            self._bits[0][rank], self._bits[1][rank] = new_rows, new_cols
            rows, cols = np.flatnonzero(new_rows), np.flatnonzero(new_cols)
        self._add(rows, cols, 1)

    def _add(self, rows: NDArray[np.intp], cols: NDArray[np.intp], step: int) -> None:
        step_ = np.array(step).astype(self._cover[0].dtype)
        self._cover[0][np.ix_(rows, cols)] += step_
        self._cover[1][np.ix_(cols, rows)] += step_


def _starts(open_: Matrix, number: int, rng: np.random.Generator) -> Matrix:
    """Sets of columns (n x sets) of which a rank may be made: each column's nearest others."""
    positive = np.maximum(open_, 0)
    weight = positive.sum(axis=0, dtype=np.float64)
    if not weight.any():
        return np.empty((open_.shape[1], 0), dtype=np.float32)
    chosen = rng.choice(weight.size, size=number, p=weight / weight.sum())
    likeness = positive.T @ positive[:, chosen]
    order = np.argsort(-likeness, axis=0, kind="stable")
    sets = []
    for share in _SHARES:
        start = np.zeros_like(likeness)
        np.put_along_axis(start, order[: max(1, round(share * weight.size))], 1, axis=0)
        sets.append(start)
    return np.concatenate(sets, axis=1)


def _best_block(open_: Matrix, cols: Matrix) -> tuple[Bits, Bits, float] | None:
    """Rows and columns whose cells are worth the most together, fitted from sets of columns."""
    for fit in range(_FITS):
        if not cols.shape[1]:
            return None
        rows = (open_ @ cols > 0).astype(np.float32)
        sums = rows.T @ open_
        worth = np.maximum(sums, 0).sum(axis=1)
        best = np.argsort(-worth, kind="stable")[: _FINALISTS if fit < _FITS - 1 else 1]
        rows, cols = rows[:, best], (sums[best] > 0).T.astype(np.float32)
    return rows[:, 0] > 0, cols[:, 0] > 0, float(worth[best[0]])
