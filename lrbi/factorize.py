"""One tile, from magnitudes to two binary factors: the paper's Algorithm 1, and a search on."""

import functools
import itertools
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from lrbi.arrays import Bits, Floats, Packed
from lrbi.layout import pack_rows, unpack_rows
from lrbi.nmf import ENGINES, Matrix, equalize_peaks
from lrbi.prune import magnitude_mask
from lrbi.refine import Schedule, refine

SPARSITY_TOLERANCE = 1e-4
"""How far S_a may stay from S, as a share of the tile, where single bits could come nearer."""

EFFORTS = {
    "fast": None,
    "normal": Schedule(cycles=1, rounds=5, sweeps=10, refits=0.5, starts=4, heat=0.12),
    "high": Schedule(cycles=10, rounds=30, sweeps=10, refits=0.5, starts=4, heat=0.15),
}
"""The search after Algorithm 1, by the names of efforts."""

_ATTEMPTS = 16  # results of a search, until one can be settled at S as nearly as Algorithm 1's
_NEAR_MISS = 0.25  # of a weight that the exact mask prunes, in the mixed objective
_COARSE_STEPS = 29  # densities of I_p on the first grid, 1/512 ... 1, a factor of 1.25 apart
_FINE_STEPS = 9  # densities between the neighbours of the best, in each of the refinements
_REFINEMENTS = 2
_BLOCK = 1 << 20  # cells counted together, to bound memory


@dataclass(frozen=True)
class TileProblem:
    """One tile to factorize, complete in itself, so that it can travel to another process."""

    weights: Floats
    """The tile's weights, rows x columns without padding."""
    exact: Bits
    """The exact mask I in this tile: what Cost is measured against."""
    zeros: int
    """Zeros that the tile's mask I_a should have."""
    sparsity: float
    """Sparsity S of the whole layer, for weight manipulation."""
    ranks: tuple[int, ...]
    """The ranks to factorize at; one result each."""
    method: int
    """Weight manipulation, 1, 2 or 3."""
    engine: str
    """Name of the NMF engine."""
    iterations: int
    """Iterations of the NMF engine."""
    effort: str
    """How long to search for better factors, a name in EFFORTS."""
    objective: str
    """Which magnitude the mask is to keep: ``paper``, ``mixed`` or ``all``."""
    seed: tuple[int, ...]
    """Entropy of this tile's random generator."""


@dataclass(frozen=True)
class TileFactors:
    """The factors of one tile, unpadded."""

    row_factor: Packed
    """I_p: rows x ceil(rank/8) bytes."""
    col_factor: Packed
    """I_z: rank x ceil(columns/8) bytes."""
    rank: int
    """Rank k of this tile; 0 for a tile that keeps nothing."""
    ones: int
    """Ones in I_a."""
    cost: float
    """The paper's Cost: magnitude that I keeps and I_a loses."""
    magnitude: float
    """Magnitude under the exact mask I."""


def factorize(problem: TileProblem) -> tuple[TileFactors, ...]:
    """Factorize one tile at each of its ranks.

    Runs on one BLAS thread: tiles are the unit of parallelism, and the sums of a matrix product
    then do not depend on how many cores there are.
    """
    magnitudes = np.abs(problem.weights)
    magnitude = float(magnitudes[problem.exact].sum(dtype=np.float64))
    goal = problem.exact
    if np.count_nonzero(goal) != goal.size - problem.zeros:
        goal = magnitude_mask(magnitudes, problem.zeros)  # the tile has a sparsity of its own
    scaled = _scaled(magnitudes)
    exact_rank, transposed = _distinct(goal)
    results = []
    with _one_blas_thread:
        for rank in problem.ranks:
            if exact_rank <= rank:
                row_factor, col_factor = _exact_factors(goal, transposed)
            else:
                row_factor, col_factor = _search(problem, scaled, goal, rank)
            mask = _cover(row_factor, col_factor) > 0
            results.append(
                TileFactors(
                    row_factor=pack_rows(row_factor),
                    col_factor=pack_rows(col_factor),
                    rank=row_factor.shape[1],
                    ones=int(np.count_nonzero(mask)),
                    cost=float(magnitudes[problem.exact & ~mask].sum(dtype=np.float64)),
                    magnitude=magnitude,
                )
            )
    return tuple(results)


class _OneBlasThread:
    """While anyone is inside, BLAS runs on one thread. Several threads may be inside at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._limit: Any = None

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._limit = _blas(len(sys.modules)).limit(limits=1)
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._limit.restore_original_limits()


@functools.lru_cache(maxsize=1)
def _blas(modules: int) -> ThreadpoolController:
    """Every BLAS that is loaded; looked for again only when there are more ``modules``."""
    return ThreadpoolController()


_one_blas_thread = _OneBlasThread()


def manipulate(magnitudes: Matrix, exact: Bits, sparsity: float, method: int) -> Matrix:
    """The magnitudes as NMF gets to see them (section 3.2 of the paper)."""
    if method == 2:
        return magnitudes**2
    if method == 3:
        return np.where(exact, magnitudes / np.float32(1.0 - sparsity), magnitudes)
    return magnitudes


def _scaled(magnitudes: Floats) -> Matrix:
    """Magnitudes as shares of the largest: neither their squares nor their sums overflow."""
    precise = magnitudes.astype(np.promote_types(magnitudes.dtype, np.float32), copy=False)
    return (precise / (precise.max() or 1)).astype(np.float32)


def _search(problem: TileProblem, magnitudes: Matrix, goal: Bits, rank: int) -> tuple[Bits, Bits]:
    """I_p and I_z by Algorithm 1, then by a search that starts there and never ends lower."""
    rng = np.random.default_rng(problem.seed)
    gains = gains_of(magnitudes, goal, problem.objective)
    start = _algorithm_1(problem, magnitudes, goal, gains, rank, rng)
    schedule = EFFORTS[problem.effort]
    if schedule is None:
        return start
    ones = magnitudes.size - problem.zeros
    lost_before, miss_before = _outcome(*start, gains, ones)
    tolerance = max(miss_before, int(SPARSITY_TOLERANCE * gains.size))
    results = refine(*start, gains, ones, schedule, rng)
    for factors in itertools.islice(results, _ATTEMPTS):
        found = settle_by_pairs(*settle(*factors, gains, ones), gains, ones)
        lost, miss = _outcome(*found, gains, ones)
        if miss <= tolerance and (lost, miss) <= (lost_before, max(miss, miss_before)):
            return found
    return start


def gains_of(magnitudes: Matrix, goal: Bits, objective: str) -> Matrix:
    """What it is worth to keep each weight, given the mask ``goal`` of the largest."""
    if objective == "all":
        return magnitudes
    rest = np.float32(_NEAR_MISS if objective == "mixed" else 0)
    return np.where(goal, magnitudes, rest * magnitudes)


def _outcome(row_factor: Bits, col_factor: Bits, gains: Matrix, ones: int) -> tuple[float, int]:
    """The gains that the product loses, and how many ones it has too many or too few."""
    mask = _cover(row_factor, col_factor) > 0
    lost = float(gains[~mask].sum(dtype=np.float64))  # what is kept may be one weight's
    return lost, abs(int(np.count_nonzero(mask)) - ones)


def _algorithm_1(
    problem: TileProblem,
    magnitudes: Matrix,
    goal: Bits,
    gains: Matrix,
    rank: int,
    rng: np.random.Generator,
) -> tuple[Bits, Bits]:
    """I_p and I_z from NMF: sweep S_p, S_z following from S, and keep the least Cost."""
    target = manipulate(magnitudes, goal, problem.sparsity, problem.method)
    scores = ENGINES[problem.engine](target, rank, problem.iterations, rng)
    ones = magnitudes.size - problem.zeros
    return settle(*threshold(*scores, gains, ones), gains, ones)


def threshold(
    row_scores: Matrix, col_scores: Matrix, gains: Matrix, ones: int
) -> tuple[Bits, Bits]:
    """I_p and I_z of about ``ones`` ones from M_p (m x k) and M_z (k x n): the sweep over S_p."""
    sweep = Sweep(*equalize_peaks(row_scores, col_scores), gains, ones)
    best = best_point(sweep.points(sweep.row_bits(np.geomspace(1 / 512, 1.0, _COARSE_STEPS))))
    for _ in range(_REFINEMENTS):
        between = np.linspace(best.before, best.after, _FINE_STEPS + 2)[1:-1].astype(np.intp)
        counts = np.union1d(between, best.row_bits)
        best = best_point(sweep.points(counts, best.before, best.after))
    return sweep.factors(best)


def best_point(points: list["Point"]) -> "Point":
    """The step that keeps most; of equals the one with the sparsest I_p."""
    return max(points, key=lambda point: point.kept)


@dataclass(frozen=True)
class Point:
    """One step of the sweep: how many bits of I_p and of I_z are on, and what that keeps."""

    kept: float
    """Gains under the mask at sparsity S."""
    row_bits: int
    """Bits of I_p that are on: (1 - S_p) m k."""
    col_bits: int
    """Bits of I_z that are on: (1 - S_z) k n."""
    before: int
    """Bits of I_p at the neighbouring step with fewer."""
    after: int
    """Bits of I_p at the neighbouring step with more."""


class Sweep:
    """The sweep over S_p for one pair (M_p, M_z).

    Thresholding M_p at S_p turns its largest entries on; likewise M_z. Numbering the entries of
    M_z from the largest on, let V_ij be the least number among the (M_z)_lj with (I_p)_il = 1:
    then cell (i, j) of I_a is on as soon as more than V_ij bits of I_z are. So for a fixed I_p
    one histogram of V gives the ones of I_a for every number of I_z bits, a second one weighted
    with the gains gives what they keep, and S_z follows from S without any search. V itself only
    falls as bits are added to I_p: a whole sweep costs no more than one product.

    Entries that are equal are told apart by their position, so that every count is attained.
    """

    def __init__(self, row_scores: Matrix, col_scores: Matrix, gains: Matrix, ones: int) -> None:
        self._row_order = np.argsort(-row_scores, axis=None, kind="stable")
        self._col_order = np.argsort(-col_scores, axis=None, kind="stable")
        entries = col_scores.size
        narrow = np.uint16 if entries < 1 << 16 else np.uint32
        number = np.empty(entries, dtype=narrow)
        number[self._col_order] = np.arange(entries, dtype=narrow)
        self._number = number.reshape(col_scores.shape)
        self._rank = row_scores.shape[1]
        self._shape = (row_scores.shape[0], col_scores.shape[1])
        self._gain_cells = np.flatnonzero(gains)
        self._gains = gains.ravel()[self._gain_cells].astype(np.float64)
        self._ones = ones

    def row_bits(self, densities: NDArray[np.float64]) -> NDArray[np.intp]:
        """Numbers of I_p bits, ascending, for densities 1 - S_p of I_p."""
        counts = np.unique(np.rint(densities * self._row_order.size).astype(np.intp))
        return counts[counts > 0]

    def points(
        self, counts: NDArray[np.intp], before: int = 0, after: int | None = None
    ) -> list[Point]:
        """The steps at ascending numbers of I_p bits, those from where S is out of reach left out.

        ``before`` and ``after`` are the neighbours of the first and the last.
        """
        after = self._row_order.size if after is None else after
        edges = [before, *map(int, counts), after]
        steps = zip(edges, edges[1:], edges[2:], self._coverage(counts), strict=False)
        return [
            Point(kept, count, col_bits, low, high)
            for low, count, high, coverage in steps
            for kept, col_bits in self._threshold(coverage)
        ]

    def factors(self, point: Point) -> tuple[Bits, Bits]:
        """I_p and I_z at a step."""
        row_factor = np.zeros(self._row_order.size, dtype=np.bool_)
        row_factor[self._row_order[: point.row_bits]] = True
        col_factor = np.zeros(self._col_order.size, dtype=np.bool_)
        col_factor[self._col_order[: point.col_bits]] = True
        return row_factor.reshape(-1, self._rank), col_factor.reshape(self._rank, -1)

    def _coverage(self, counts: NDArray[np.intp]) -> Iterator[NDArray[np.unsignedinteger[Any]]]:
        """V, flat, for each ascending number of bits in I_p."""
        entries = self._number.size
        coverage = np.full(self._shape, entries, dtype=self._number.dtype)
        done = 0
        for count in counts:
            rows, ranks = np.divmod(self._row_order[done:count], self._rank)
            by_rank = np.argsort(ranks, kind="stable")
            bounds = np.searchsorted(ranks[by_rank], np.arange(self._rank + 1))
            rows = rows[by_rank]
            for rank in np.flatnonzero(np.diff(bounds)):
                chosen = rows[bounds[rank] : bounds[rank + 1]]
                coverage[chosen] = np.minimum(coverage[chosen], self._number[rank])
            done = count
            yield coverage.ravel()

    def _threshold(self, coverage: NDArray[np.unsignedinteger[Any]]) -> Iterator[tuple[float, int]]:
        """What is kept at S, and the bits of I_z that come nearest to S; nothing if out of reach.

        A bit of I_z adds several ones at once, so what is kept is interpolated at S itself.
        """
        entries = self._number.size
        counts = np.zeros(entries + 1, dtype=np.intp)
        for start in range(0, coverage.size, _BLOCK):  # bincount widens what it counts
            counts += np.bincount(coverage[start : start + _BLOCK], minlength=entries + 1)
        ones = np.cumsum(counts[:entries])
        if ones[-1] < self._ones:
            return
        kept = np.cumsum(
            np.bincount(coverage[self._gain_cells], self._gains, minlength=entries + 1)[:entries]
        )
        above = int(np.searchsorted(ones, self._ones))
        ones_below, kept_below = (ones[above - 1], kept[above - 1]) if above else (0, 0.0)
        share = (self._ones - ones_below) / (ones[above] - ones_below)
        yield kept_below + share * (kept[above] - kept_below), above + int(share > 0.5)


def settle(row_factor: Bits, col_factor: Bits, gains: Matrix, ones: int) -> tuple[Bits, Bits]:
    """Flip single bits until I_a has ``ones`` ones, to SPARSITY_TOLERANCE or as near as they come.

    Of the bits that end the matter the one of least Cost is flipped, else the one that comes
    nearest. Each flip costs two to four products of the factors' size.
    """
    rows, cols = row_factor.astype(np.float32), col_factor.astype(np.float32)
    tolerance = int(SPARSITY_TOLERANCE * gains.size)
    while True:
        cover = rows @ cols
        surplus = int(np.count_nonzero(cover)) - ones
        if abs(surplus) <= tolerance:
            break
        # A bit turned on adds the cells that nothing covers, one turned off takes those that it
        # alone covers. Counts stay below 2**24, so float32 holds them exactly.
        bit, cells = (0, cover == 0) if surplus < 0 else (1, cover == 1)
        moved = _per_bit(rows, cols, cells.astype(np.float32))
        remaining = np.abs(abs(surplus) - moved)
        nearer = (np.concatenate([rows.ravel(), cols.ravel()]) == bit) & (remaining < abs(surplus))
        if not nearer.any():
            break
        ending = nearer & (remaining <= tolerance)
        if ending.any():
            worth = _per_bit(rows, cols, np.where(cells, gains, np.float32(0)))
            flip = int(np.argmin(np.where(ending, -worth if surplus < 0 else worth, np.inf)))
        else:
            flip = int(np.argmin(np.where(nearer, remaining, np.inf)))
        if flip < rows.size:
            rows.flat[flip] = 1 - bit
        else:
            cols.flat[flip - rows.size] = 1 - bit
    return rows > 0, cols > 0


def settle_by_pairs(
    row_factor: Bits, col_factor: Bits, gains: Matrix, ones: int
) -> tuple[Bits, Bits]:
    """Where single bits cannot settle S, turn one bit on and another off; the cheapest pair.

    Small tiles need it: a bit of theirs is worth several cells, and S is met to the cell.
    """
    rows, cols = row_factor.astype(np.float32), col_factor.astype(np.float32)
    cover = rows @ cols
    surplus = int(np.count_nonzero(cover)) - ones
    if abs(surplus) <= int(SPARSITY_TOLERANCE * gains.size):
        return row_factor, col_factor
    is_on = np.concatenate([rows.ravel(), cols.ravel()]) > 0
    best: list[dict[int, tuple[float, int]]] = []
    for bit, level in ((0, 0), (1, 1)):  # bits to turn on, and bits to turn off
        cells = cover == level
        moved = _per_bit(rows, cols, cells.astype(np.float32)).astype(np.intp)
        worth = _per_bit(rows, cols, np.where(cells, gains, np.float32(0)))
        if bit == 0:
            worth = -worth
        found: dict[int, tuple[float, int]] = {}
        for place in np.flatnonzero(is_on == bool(bit)):
            mine = (float(worth[place]), int(place))
            if moved[place] and mine < found.get(int(moved[place]), (np.inf, 0)):
                found[int(moved[place])] = mine
        best.append(found)
    pairs = sorted(
        (price + best[1][added + surplus][0], place, best[1][added + surplus][1])
        for added, (price, place) in best[0].items()
        if added + surplus in best[1]
    )
    for _, *places in pairs[:8]:  # two bits may meet in a cell, and move another number of cells
        bits = is_on.copy()
        bits[places] ^= True
        pair = bits[: rows.size].reshape(rows.shape), bits[rows.size :].reshape(cols.shape)
        if np.count_nonzero(_cover(*pair)) == ones:
            return pair
    return row_factor, col_factor


def _per_bit(rows: Matrix, cols: Matrix, cells: Matrix) -> Matrix:
    """For each bit of I_p, then of I_z: the sum of ``cells`` where the bit's other side is on."""
    return np.concatenate([(cells @ cols.T).ravel(), (rows.T @ cells).ravel()])


def _cover(row_factor: Bits, col_factor: Bits) -> Matrix:
    """How many ranks cover each cell. Exact in float32 for ranks up to 2**24."""
    product: Matrix = row_factor.astype(np.float32) @ col_factor.astype(np.float32)
    return product


def _distinct(mask: Bits) -> tuple[int, bool]:
    """The rank at which a mask is its own product, and whether columns rather than rows give it.

    A mask with r distinct rows that are not zero is the product of "which of them is row i" and
    those rows; its columns do as well. This settles tiles that keep nothing or all, constant
    tiles, vectors, and any rank of at least min(rows, columns).
    """
    rows, cols = (len(_distinct_rows(view)[0]) for view in (mask, mask.T))
    return (cols, True) if cols < rows else (rows, False)


def _distinct_rows(mask: Bits) -> tuple[Packed, NDArray[np.intp]]:
    """The distinct packed rows of ``mask`` without the zero row, and which one each row is."""
    packed = pack_rows(mask)
    distinct, which = np.unique(packed, axis=0, return_inverse=True)
    which = which.reshape(-1)
    if not distinct[0].any():  # sorted, so a zero row is the first
        return distinct[1:], which - 1
    return distinct, which


def _exact_factors(mask: Bits, transposed: bool) -> tuple[Bits, Bits]:
    """The factors that :func:`_distinct` promises."""
    view = mask.T if transposed else mask
    distinct, which = _distinct_rows(view)
    selector = which[:, np.newaxis] == np.arange(len(distinct))
    pattern = unpack_rows(distinct, view.shape[1])
    return (pattern.T, selector.T) if transposed else (selector, pattern)
