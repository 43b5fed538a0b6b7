"""``python -m benchmarks.peers``: other Boolean factorizations on the same problem, beside lrbi.

Each peer gets the same weights, rank and number of ones. Left alone, methods that count mismatches
return masks that are nearly empty, so all are pushed to S_a = S: real-valued factors by the sweep
of Algorithm 1, binary ones by the peer's own price of a wrong one, and both by single bits at the
end. Each is run with several settings, of which the best counts; its seconds are those of that
setting, and beside them those of all. Seconds are processor time, without imports.
"""

import argparse
import contextlib
import functools
import importlib
import importlib.util
import json
import math
import multiprocessing
import os
import platform
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from rich.console import Console
from rich.table import Table
from threadpoolctl import threadpool_limits

import lrbi
from lrbi.arrays import Bits, Floats
from lrbi.factorize import EFFORTS, gains_of, manipulate, settle, threshold
from lrbi.nmf import Matrix, _load_nimfa
from lrbi.prune import exact_mask

LIMIT = 120.0
"""Seconds for a peer on a case, by the clock on the wall."""

GRACE = 2.5
"""Times the limit that a peer may take for its first result."""

Factors: TypeAlias = tuple[Bits, Bits]
Attempts: TypeAlias = Iterator[tuple[str, Factors | None]]


@dataclass(frozen=True)
class Problem:
    """What a peer is asked for: the best mask of ``ones`` ones at this rank."""

    magnitudes: Matrix
    """Magnitudes (m x n) as shares of the largest."""
    exact: Bits
    """The exact mask I."""
    rank: int
    sparsity: float

    @property
    def gains(self) -> Matrix:
        """Magnitudes under the exact mask, else 0."""
        return gains_of(self.magnitudes, self.exact, "paper")

    @property
    def ones(self) -> int:
        """Ones of the exact mask, and of the one that is sought."""
        return int(np.count_nonzero(self.exact))

    @property
    def relative(self) -> Matrix:
        """Gains as multiples of the least that the exact mask keeps: 1 or more, else 0."""
        return self.gains / (self.magnitudes[self.exact].min() or np.float32(1))

    def kept(self, mask: Bits) -> float:
        """The share of the exact mask's magnitude under ``mask``."""
        gains = self.gains
        return float(gains[mask].sum(dtype=np.float64) / gains.sum(dtype=np.float64))


def pose(weights: Floats, rank: int, sparsity: float) -> Problem:
    """The problem of a matrix."""
    magnitudes = np.abs(weights).astype(np.float32)
    magnitudes /= magnitudes.max() or 1
    return Problem(magnitudes, exact_mask(weights, sparsity), rank, sparsity)


@dataclass(frozen=True)
class Peer:
    """A method, with what it is tried with."""

    name: str
    attempts: Callable[[Problem, np.random.Generator], Attempts]
    """Runs it; a setting's name and factors, or None where they are not worth settling."""
    package: str = ""
    """The package that it comes from, which must be installed."""

    def run(self, weights: Floats, rank: int, sparsity: float, rng: np.random.Generator) -> Factors:
        """I_p (m x k) and I_z (k x n) of the setting that keeps most."""
        problem = pose(weights, rank, sparsity)
        found = (factors for _, factors in self.attempts(problem, rng) if factors is not None)
        settled = [settle(*factors, problem.gains, problem.ones) for factors in found]
        return max(settled, key=lambda factors: problem.kept(lrbi.boolean_product(*factors)))


def swept(row_scores: Matrix, col_scores: Matrix, problem: Problem) -> Factors:
    """Real factors, thresholded as Algorithm 1 does it."""
    scores = (np.nan_to_num(np.asarray(part, np.float32)) for part in (row_scores, col_scores))
    return threshold(*scores, problem.gains, problem.ones)


@dataclass(frozen=True)
class Fit:
    """What a binary method made of a price."""

    row_factor: Bits
    col_factor: Bits
    ones: float
    """Ones of the product; where the method was stopped half-way, an estimate."""
    complete: bool = True


def priced(
    fit: Callable[[float], Fit], ones: int, price: float, fits: int
) -> Iterator[tuple[float, Fit | None]]:
    """Search the price of a wrong one at which ``fit`` has ``ones`` ones: false position on logs.

    Each price tried, with its fit if that is the nearest so far and at most a third off.
    """
    place, nearest = math.log(price), math.log(1.5)
    low: tuple[float, float] | None = None  # too many ones: place, log of how many times too many
    high: tuple[float, float] | None = None
    for _ in range(fits):
        found = fit(math.exp(place))
        surplus = math.log(max(found.ones, ones / 100) / ones)
        better = found.complete and abs(surplus) < nearest
        nearest = abs(surplus) if better else nearest
        yield math.exp(place), found if better else None
        if abs(surplus) < 0.01:
            return
        if surplus > 0:
            low = place, surplus
        else:
            high = place, surplus
        if low and high:
            share = min(0.9, max(0.1, low[1] / (low[1] - high[1])))
            place = low[0] + share * (high[0] - low[0])
        else:
            place += min(1.5, max(-1.5, 1.2 * surplus))


def asso_candidates(cells: Matrix, density: float) -> tuple[float, Matrix]:
    """Asso's tau at which its candidates have this density of ones, and the candidates."""
    confidence = cells.T @ cells / np.maximum(cells.sum(axis=0), np.float32(1e-9))[:, np.newaxis]
    tau = float(np.quantile(confidence, 1 - density))
    return tau, (confidence > tau).astype(np.float32)


def asso(cells: Matrix, rank: int, candidates: Matrix, price: float) -> Fit:
    """Asso (Miettinen et al. 2008), all candidates of a rank in one product.

    Rank by rank, take the candidate that covers most, on the rows where it is worth it: what it
    newly covers of ``cells`` (m x n, not negative) less the price of each 0 among them.
    """
    worth = np.where(cells > 0, cells, np.float32(-price))
    row_factor = np.zeros((cells.shape[0], rank), dtype=np.bool_)
    col_factor = np.zeros((rank, cells.shape[1]), dtype=np.bool_)
    for number in range(rank):
        sums = worth @ candidates.T
        totals = np.maximum(sums, 0).sum(axis=0)
        best = int(totals.argmax())
        if totals[best] <= 0:
            break
        row_factor[:, number], col_factor[number] = sums[:, best] > 0, candidates[best] > 0
        worth[np.ix_(row_factor[:, number], col_factor[number])] = 0
    return Fit(row_factor, col_factor, lrbi.boolean_product(row_factor, col_factor).sum())


def _turned(cells: Matrix, turn: bool) -> Matrix:
    return np.ascontiguousarray(cells.T) if turn else cells


def _turned_back(factors: Factors, turn: bool) -> Factors:
    return (factors[1].T.copy(), factors[0].T.copy()) if turn else factors


def asso_attempts(problem: Problem, _: np.random.Generator) -> Attempts:
    """Asso as written here: candidates from columns or rows, their density, magnitudes or not."""
    for density in (0.05, 0.1, 0.02, 0.2):
        for turn in (False, True):
            for weighted in (True, False):
                cells = problem.relative if weighted else problem.exact.astype(np.float32)
                cells = _turned(cells, turn)
                tau, candidates = asso_candidates(cells, density)
                name = f"tau {tau:.3f}, {'rows' if turn else 'columns'}"
                name += ", magnitudes" if weighted else ""
                fit = functools.partial(asso, cells, problem.rank, candidates)
                for _price, found in priced(fit, problem.ones, 0.3, 8):
                    yield name, found and _turned_back((found.row_factor, found.col_factor), turn)


class _TooManyError(Exception):
    """More ones than could become of use."""


def _pybmf(name: str, cells: Matrix, rank: int, most: float = math.inf, **knobs: Any) -> Any:
    """Fit a model of PyBMF; one that covers more than ``most`` cells is stopped there.

    Its plots, and the metrics that it takes at each step, are left out, also from the time. Its
    _early_stop is called without an argument that it demands: that is mended.
    """
    models = importlib.import_module("PyBMF.models")
    models.BaseModel._early_stop.__defaults__ = (False, None)
    bars = importlib.import_module("tqdm").tqdm
    bars.set_lock(threading.RLock())  # its own is a semaphore, left behind where it is killed
    model = getattr(models, name)(k=rank, **knobs)

    def check(*_: object, **__: object) -> None:
        if most < math.inf and model.X_pd.count_nonzero() > most:
            raise _TooManyError

    model.show_matrix = lambda *_, **__: None
    model.evaluate = check
    with contextlib.suppress(_TooManyError):
        model.fit(
            cells.astype(np.float64), task="reconstruction",
            show_logs=False, show_result=False, save_model=False,
        )  # fmt: skip
    return model


def _binary_pybmf(name: str, cells: Matrix, rank: int, ones: int, **knobs: Any) -> Fit:
    """A fit of a method with binary factors, stopped once it covers far too much."""
    model = _pybmf(name, cells, rank, 1.5 * ones, **knobs)
    # Panda returns a rank more than it is asked for.
    rows, cols = (part.toarray()[:, :rank] > 0.5 for part in (model.U, model.V))
    row_factor = np.zeros((cells.shape[0], rank), dtype=np.bool_)
    col_factor = np.zeros((rank, cells.shape[1]), dtype=np.bool_)
    row_factor[:, : rows.shape[1]], col_factor[: cols.shape[1]] = rows, cols.T
    covered = float(lrbi.boolean_product(row_factor, col_factor).sum())
    if covered > 1.5 * ones:
        used = int(np.count_nonzero(row_factor.any(axis=0)))
        return Fit(row_factor, col_factor, covered * rank / used, complete=False)
    return Fit(row_factor, col_factor, covered)


def pybmf_asso_attempts(problem: Problem, _: np.random.Generator) -> Attempts:
    """PyBMF's Asso at the tau and price that suit the one written here: it does the same, slowly.

    It takes one weight for false ones and one for missed ones; magnitudes come in by a matrix that
    is 1 or more where the mask is.
    """
    turn = problem.exact.shape[1] > problem.exact.shape[0]  # fewer candidates
    cells = _turned(problem.relative, turn)
    known: list[tuple[float, float, float]] = []
    for density in (0.02, 0.05, 0.1):
        tau, candidates = asso_candidates(cells, density)
        fit = functools.partial(asso, cells, problem.rank, candidates)
        nearest = [(price, found) for price, found in priced(fit, problem.ones, 0.3, 8) if found]
        if nearest:
            price, found = nearest[-1]
            factors = _turned_back((found.row_factor, found.col_factor), turn)
            known.append((problem.kept(lrbi.boolean_product(*factors)), tau, price))
    yield "", None  # so far our own time, of no setting
    for _kept, tau, price in sorted(known, reverse=True):
        found = _binary_pybmf(
            "Asso", cells, problem.rank, problem.ones, tau=tau, w_fp=price, w_fn=1.0, tol=-1e9
        )
        factors = _turned_back((found.row_factor, found.col_factor), turn)
        yield f"tau {tau:.3f}, w_fp {price:.3f}, magnitudes", factors if found.complete else None


def panda_attempts(problem: Problem, _: np.random.Generator) -> Attempts:
    """PyBMF's Panda+: orders of items, weights of the model; its w_fp is the price."""
    turn = problem.exact.shape[1] > problem.exact.shape[0]  # its time is that of the columns
    cells = _turned(problem.exact.astype(np.float32), turn)
    for order, model in (("frequency", 1.0), ("correlation", 1.0), ("frequency", 0.0)):

        def fit(price: float, order: str = order, model: float = model) -> Fit:
            return _binary_pybmf(
                "Panda", cells, problem.rank, problem.ones, w_fp=price, w_fn=1.0, w_model=model,
                init_method=order, tol=-1e9,
            )  # fmt: skip

        for _price, found in priced(fit, problem.ones, 0.4, 5):
            factors = found and _turned_back((found.row_factor, found.col_factor), turn)
            yield f"{order}, w_model {model:g}", factors


def penalty_attempts(problem: Problem, rng: np.random.Generator) -> Attempts:
    """PyBMF's BinaryMFPenalty: weights of the cells, and how its penalty grows."""
    target, seed = problem.exact.astype(np.float32), int(rng.integers(2**31))
    for reg, growth, iterations in ((2.0, 3.0, 100), (0.01, 1.1, 100), (0.01, 1.03, 300)):
        for floor in (1.0, 3.0, None):
            weights = None if floor is None else np.where(problem.exact, problem.relative, floor)
            name = "W full" if floor is None else f"W of magnitudes, {floor:g} for zeros"
            model = _pybmf(
                "BinaryMFPenalty", target, problem.rank, W="full" if floor is None else weights,
                reg=reg, reg_growth=growth, max_iter=iterations, init_method="uniform", seed=seed,
            )  # fmt: skip
            factors = swept(model.U, model.V.T, problem)
            yield f"{name}, reg {reg:g} x {growth:g}, {iterations} iterations", factors


def bmf_attempts(problem: Problem, rng: np.random.Generator) -> Attempts:
    """nimfa's Bmf: the matrix that it gets to see, and how its penalty grows."""
    library = _load_nimfa()
    amplified = manipulate(problem.magnitudes, problem.exact, problem.sparsity, 3)
    targets = {"mask": problem.exact, "gains": problem.relative, "method 3": amplified}
    for name, target in targets.items():
        for growth, iterations in ((1.1, 30), (1.1, 100), (1.01, 100), (1.01, 300)):
            scale = np.sqrt(target.mean() / problem.rank)
            with warnings.catch_warnings(), np.errstate(divide="ignore", invalid="ignore"):
                warnings.simplefilter("ignore", PendingDeprecationWarning)  # np.matrix
                fitted = library.Bmf(
                    target.astype(np.float64), rank=problem.rank, max_iter=iterations,
                    W=scale * rng.random((target.shape[0], problem.rank)),
                    H=scale * rng.random((problem.rank, target.shape[1])),
                    min_residuals=None, lambda_w=growth, lambda_h=growth,
                )()  # fmt: skip
            factors = swept(fitted.basis(), fitted.coef(), problem)
            yield f"{name}, lambda x {growth:g}, {iterations} iterations", factors


PEERS = (
    Peer("Asso, in one product a rank", asso_attempts),
    Peer("PyBMF Asso", pybmf_asso_attempts, "PyBMF"),
    Peer("PyBMF Panda", panda_attempts, "PyBMF"),
    Peer("PyBMF BinaryMFPenalty", penalty_attempts, "PyBMF"),
    Peer("nimfa Bmf", bmf_attempts, "nimfa"),
)


def _work(peer: Peer, problem: Problem, seed: int, results: Connection) -> None:
    """A peer's process: send each setting's outcome as it comes, then None."""
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), 1)  # PyBMF prints, and draws progress bars
        os.dup2(nowhere.fileno(), 2)
    os.environ |= {"MPLBACKEND": "Agg", "TQDM_DISABLE": "1"}
    warnings.simplefilter("ignore")
    try:
        if peer.package:
            importlib.import_module(peer.package)
        with threadpool_limits(1):
            spent: dict[str, float] = {}
            before = time.process_time()
            for setting, factors in peer.attempts(problem, np.random.default_rng(seed)):
                outcome: dict[str, Any] = {"setting": setting, "kept": None}
                if factors is not None:
                    row_factor, col_factor = settle(*factors, problem.gains, problem.ones)
                    mask = lrbi.boolean_product(row_factor, col_factor)
                    outcome |= {"kept": problem.kept(mask), "ones": int(mask.sum())}
                    outcome["sparsity"] = 1 - outcome["ones"] / mask.size
                now = time.process_time()
                spent[setting] = spent.get(setting, 0.0) + now - before
                before = now
                results.send(outcome | {"spent": dict(spent)})
        results.send(None)
    except Exception as error:
        results.send(f"{type(error).__name__}: {error}")


def measure(
    weights: Floats,
    rank: int,
    sparsity: float,
    *,
    peers: tuple[Peer, ...] = PEERS,
    limit: float = LIMIT,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """What each peer keeps, each in a process of its own that is killed at the limit.

    ``seconds`` are those of the best setting, ``seconds_all`` of all that ended; ``kept`` is None
    where there is no result, and ``note`` says why.
    """
    problem = pose(weights, rank, sparsity)
    return [_measure(peer, problem, limit, seed) for peer in peers]


def _measure(peer: Peer, problem: Problem, limit: float, seed: int) -> dict[str, Any]:
    row: dict[str, Any] = {
        "name": peer.name, "kept": None, "sparsity": None, "ones": None, "seconds": None,
        "seconds_all": None, "settings": 0, "setting": "", "note": "",
    }  # fmt: skip
    if peer.package and importlib.util.find_spec(peer.package) is None:
        return row | {"note": f"missing (pip install {peer.package})"}
    context = multiprocessing.get_context("spawn")  # a fork of many threads may hang
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(peer, problem, seed, sender), daemon=True)
    process.start()
    sender.close()
    start, spent = time.monotonic(), {}
    try:
        while True:
            allowed = limit if row["kept"] is not None else GRACE * limit
            if not receiver.poll(max(0.0, start + allowed - time.monotonic())):
                row["note"] = f"stopped after {time.monotonic() - start:.0f} s"
                break
            outcome = receiver.recv()
            if outcome is None:
                process.join(5)
                break
            if isinstance(outcome, str):
                row["note"] = f"crashed: {outcome}"
                break
            spent = outcome.pop("spent")
            if outcome["kept"] is not None and outcome["kept"] > (row["kept"] or -1.0):
                row |= outcome
    except EOFError:
        process.join()
        row["note"] = f"crashed: exit code {process.exitcode}"
    finally:
        process.kill()
        process.join()
        receiver.close()
    if spent:
        row |= {"seconds_all": sum(spent.values()), "settings": sum(map(bool, spent))}
    if row["kept"] is not None:
        row["seconds"] = spent[row["setting"]]
    elif not row["note"]:
        row["note"] = "nothing near S"
    return row


def own(weights: Floats, rank: int, sparsity: float) -> list[dict[str, Any]]:
    """The same figures of lrbi, at each effort, with its defaults."""
    lrbi.compress(weights[:32, :32], lrbi.CompressConfig(sparsity=0.9, rank=2))  # first calls
    rows = []
    for effort in EFFORTS:
        start = time.process_time()
        config = lrbi.CompressConfig(sparsity=sparsity, rank=rank, effort=effort)
        layer = lrbi.compress(weights, config)
        seconds = time.process_time() - start
        rows.append({
            "name": f"lrbi {effort}", "kept": layer.kept, "sparsity": layer.sparsity,
            "ones": int(layer.mask().sum()), "seconds": seconds, "seconds_all": seconds,
            "settings": 1, "setting": "", "note": "",
        })  # fmt: skip
    return rows


@dataclass(frozen=True)
class Case:
    """A matrix, and what is asked of it."""

    title: str
    file: str
    """Weight file under --data; empty for Gaussian weights."""
    tensor: str
    sparsity: float
    rank: int

    def weights(self, data: Path | None) -> Floats | None:
        """The matrix; None where it needs --data and there is none."""
        if not self.file:
            rng = np.random.default_rng(0)
            return rng.standard_normal((800, 500), dtype=np.float32)
        if data is None:
            return None
        from safetensors.numpy import load_file

        return load_file(data / "weights" / f"{self.file}.safetensors")[self.tensor]


CASES = {
    "lenet16": Case("LeNet-5 FC1", "lenet5_mnist", "5.weight", 0.95, 16),
    "lenet64": Case("LeNet-5 FC1", "lenet5_mnist", "5.weight", 0.95, 64),
    "lstm": Case(
        "Resemblyzer weight_hh_l0", "resemblyzer_lstm256_f32", "lstm.weight_hh_l0", 0.9, 16
    ),
    "gaussian": Case("Gaussian", "", "", 0.95, 16),
}


def table(case: dict[str, Any]) -> Table:
    """A case's rows, as they are printed."""
    shape = "x".join(map(str, case["shape"]))
    title = f"{case['title']}, {shape}, S = {case['sparsity']}, k = {case['rank']}"
    printed = Table("method", "kept", "S_a", "s, best", "s, all", "settings", "best setting; note",
                    title=title, title_justify="left")  # fmt: skip
    for column in printed.columns[1:6]:
        column.justify = "right"
    for row in case["rows"]:
        figures = [(row["kept"], ".4f"), (row["sparsity"], ".4f"), (row["seconds"], ".2f"),
                   (row["seconds_all"], ".1f"), (row["settings"], "d")]  # fmt: skip
        cells = ["-" if figure is None else format(figure, form) for figure, form in figures]
        printed.add_row(row["name"], *cells, "; ".join(filter(None, (row["setting"], row["note"]))))
    return printed


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="case", help=f"of {', '.join(CASES)} [all]")
    parser.add_argument("--data", type=Path, metavar="DIR", help="weights/*.safetensors")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here too")
    parser.add_argument("--limit", type=float, default=LIMIT, metavar="SECONDS",
                        help=f"for a peer on a case [{LIMIT:g}]")  # fmt: skip
    options = parser.parse_args()
    for name in options.cases:
        if name not in CASES:
            parser.error(f"no case {name!r}; there are {', '.join(CASES)}")
    for package in sorted({peer.package for peer in PEERS if peer.package}):
        if importlib.util.find_spec(package) is None:
            print(f"{package} is missing, and its methods with it (pip install {package})",
                  file=sys.stderr)  # fmt: skip
    found = []
    for name in options.cases or CASES:
        case = CASES[name]
        weights = case.weights(options.data)
        if weights is None:
            print(f"{name}: left out, for it needs --data DIR", file=sys.stderr)
            continue
        rows = own(weights, case.rank, case.sparsity)
        rows += measure(weights, case.rank, case.sparsity, limit=options.limit)
        found.append({
            "case": name, "title": case.title, "shape": weights.shape, "sparsity": case.sparsity,
            "rank": case.rank, "rows": rows,
        })  # fmt: skip
        Console(width=150).print(table(found[-1]))
    if options.json:
        report = {"versions": _versions(), "python": platform.python_version(),
                  "cores": os.cpu_count(), "limit": options.limit, "cases": found}  # fmt: skip
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(report, indent=2) + "\n")


def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for name in ("lrbi", "numpy", "scipy", "PyBMF", "nimfa"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


if __name__ == "__main__":
    main()
