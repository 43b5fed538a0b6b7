"""``python -m benchmarks.masks``: how good masks get, and by which search; into docs/masks.md.

Each step leaves its figures (.png, .svg) in docs/masks/, and its numbers in results.json there,
from which the tables of docs/masks.md are filled. Seconds are processor time of one thread.
"""

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

import lrbi
from benchmarks import peers
from benchmarks.report import fill, markdown
from lrbi.arrays import Bits
from lrbi.atomic import replacing
from lrbi.factorize import EFFORTS, settle
from lrbi.limit import kept_limit
from lrbi.plot import new_figure, save_plot
from lrbi.prune import exact_mask
from lrbi.refine import Schedule, refine

FOLDER = Path("docs/masks")
PAGE = Path("docs/masks.md")
RANKS = (4, 8, 16, 32, 64, 128)
HIGH = EFFORTS["high"]
assert HIGH is not None
GREEDY = Schedule(cycles=1, rounds=1, sweeps=0, refits=1.0, starts=16, heat=0.0)
"""From empty factors: rank after rank is put where the others leave most, then once more."""


def cases(data: Path) -> Iterator[tuple[str, peers.Case, np.ndarray]]:
    for name, case in peers.CASES.items():
        weights = case.weights(data)
        assert weights is not None
        yield name, case, weights


def compress(weights: np.ndarray, **options: Any) -> tuple[lrbi.CompressedLayer, float]:
    """A layer, and the seconds that it took."""
    start = time.process_time()
    layer = lrbi.compress(weights, lrbi.CompressConfig(**options))
    return layer, time.process_time() - start


def efforts(data: Path) -> list[dict[str, Any]]:
    """Each effort, three seeds: what is kept, and seconds; the paper's loop beside them."""
    from benchmarks.straight import straight

    noise = np.random.default_rng(0).standard_normal((32, 32))
    lrbi.compress(noise, lrbi.CompressConfig(sparsity=0.9, rank=2))  # first calls
    rows = []
    for _, case, weights in cases(data):
        row = dataclasses.asdict(case) | {"shape": weights.shape}
        start = time.process_time()
        with threadpool_limits(1):
            mask, _ = straight(weights, case.rank, case.sparsity)
        gains = np.where(exact_mask(weights, case.sparsity), np.abs(weights), 0)
        row["straight"] = {
            "kept": [float(gains[mask].sum() / gains.sum())],
            "seconds": time.process_time() - start,
        }
        for effort in EFFORTS:
            found = [
                compress(weights, rank=case.rank, sparsity=case.sparsity, effort=effort, seed=seed)
                for seed in range(3)
            ]
            row[effort] = {
                "kept": [layer.kept for layer, _ in found],
                "seconds": float(np.mean([seconds for _, seconds in found])),
            }
        rows.append(row)
    return rows


def rivals(data: Path) -> list[dict[str, Any]]:
    """Other Boolean factorizations, pushed to the same sparsity: benchmarks.peers."""
    return [
        dataclasses.asdict(case)
        | {"shape": weights.shape}
        | {"rows": peers.own(weights, case.rank, case.sparsity)
           + peers.measure(weights, case.rank, case.sparsity)}
        for _, case, weights in cases(data)
    ]  # fmt: skip


def curve(data: Path) -> dict[str, Any]:
    """What is kept against the size of the index, by effort, and the Shannon limit."""
    figure = new_figure(12, 4.4)
    axes = figure.subplots(1, 3, sharey=True)
    results: dict[str, Any] = {}
    chosen = [each for each in cases(data) if each[0] != "lenet64"]
    for (name, case, weights), axis in zip(chosen, axes, strict=True):
        gains = np.abs(weights)[exact_mask(weights, case.sparsity)]
        rates = [rank * sum(weights.shape) / weights.size for rank in RANKS]
        results[name] = {"title": case.title, "sparsity": case.sparsity, "bits_per_weight": rates}
        for effort, style in (("fast", "o-"), ("normal", "s-")):
            kept = [
                compress(weights, rank=rank, sparsity=case.sparsity, effort=effort)[0].kept
                for rank in RANKS
            ]
            results[name][effort] = kept
            axis.plot(rates, kept, style, label=f"--effort {effort}", markersize=4)
        results[name]["limit"] = [kept_limit(case.sparsity, rate, gains) for rate in rates]
        fine = np.geomspace(rates[0] / 2, 1, 60)
        axis.plot(fine, [kept_limit(case.sparsity, rate, gains) for rate in fine], "k-",
                  linewidth=1, label="Shannon limit, independent weights")  # fmt: skip
        axis.axhline(1 - case.sparsity, color="grey", linewidth=0.8, label="a random mask")
        axis.set(xscale="log", ylim=(0, 1.02), xlabel="index bits a weight",
                 title=f"{case.title}, S = {case.sparsity}")  # fmt: skip
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("share of the exact mask's magnitude kept")
    axes[-1].legend(fontsize=8, loc="upper left")
    for ending in (".png", ".svg"):
        save_plot(figure, FOLDER / f"kept{ending}")
    return results


def searched(
    start: tuple[Bits, Bits], gains: np.ndarray, ones: int, schedule: Schedule, seed: int = 0
) -> tuple[Bits, Bits]:
    """Factors refined and settled."""
    found = next(refine(*start, gains, ones, schedule, np.random.default_rng(seed)))
    return settle(*found, gains, ones)


def ideas(data: Path) -> list[dict[str, Any]]:
    """Parts of the search left out, other starts, other searches, for about as long as high."""
    return [
        dataclasses.asdict(case) | {"shape": weights.shape, "tries": _tries(case, weights)}
        for _, case, weights in cases(data)
    ]


def _tries(case: peers.Case, weights: np.ndarray) -> dict[str, dict[str, float]]:
    exact = exact_mask(weights, case.sparsity)
    gains = np.where(exact, np.abs(weights) / np.abs(weights).max(), 0).astype(np.float32)
    ones, options = int(exact.sum()), {"rank": case.rank, "sparsity": case.sparsity}
    rng = np.random.default_rng(0)
    first = compress(weights, effort="fast", **options)[0].factors(0)
    noise = (rng.random(first[0].shape) < 0.05, rng.random(first[1].shape) < 0.05)
    empty = np.zeros_like(first[0]), np.zeros_like(first[1])
    blocks = next(refine(*empty, gains, ones, GREEDY, rng))

    def search(start: tuple[Bits, Bits] = first, **changes: Any) -> float:
        factors = searched(start, gains, ones, dataclasses.replace(HIGH, **changes))
        return float(gains[lrbi.boolean_product(*factors)].sum() / gains.sum())

    def best_of(seeds: int) -> float:
        layers = (compress(weights, seed=seed, **options)[0] for seed in range(seeds))
        return max(layer.kept for layer in layers)

    tries: dict[str, Callable[[], float]] = {
        "sweeps without heat alone": lambda: search(cycles=0),
        "heat, no rank fitted anew": lambda: search(refits=0.0),
        "ranks fitted anew, no heat": lambda: search(heat=0.0),
        "both: --effort high": search,
        "... from random bits": lambda: search(noise),
        "... from greedy blocks": lambda: search(blocks),
        "... in one cycle of 300 rounds": lambda: search(cycles=1, rounds=300),
        "best of 40 seeds of --effort normal": lambda: best_of(40),
    }
    found = {}
    for name, run in tries.items():
        start = time.process_time()
        found[name] = {"kept": run(), "seconds": time.process_time() - start}
    return found


def neighbours(data: Path) -> dict[str, float]:
    """LeNet-5's FC1 in 4 x 4 tiles, k = 4: each tile from NMF, or from its left neighbour's I_p."""
    weights = peers.CASES["lenet16"].weights(data)
    assert weights is not None
    schedule = EFFORTS["normal"]
    assert schedule is not None
    exact, magnitudes = exact_mask(weights, 0.95), np.abs(weights)
    sums = {"NMF": 0.0, "the neighbour": 0.0, "the better of both": 0.0}
    for top in range(0, 500, 125):
        before: Any = None
        for left in range(0, 800, 200):
            cut = np.s_[top : top + 125, left : left + 200]
            gains = np.where(exact[cut], magnitudes[cut], 0).astype(np.float32)
            ones = int(exact[cut].sum())
            fast = compress(weights[cut], rank=4, sparsity=1 - ones / gains.size, effort="fast")
            start = fast[0].factors(0)
            found = {"NMF": searched(start, gains, ones, schedule)}
            found["the neighbour"] = found["NMF"]
            if before is not None:  # the same rows; turned, so that I_z is chosen first, by I_p
                turned = (start[1].T, before[0].T)
                cols, rows = searched(turned, np.ascontiguousarray(gains.T), ones, schedule)
                found["the neighbour"] = rows.T, cols.T
            values = {way: float(gains[lrbi.boolean_product(*each)].sum())
                      for way, each in found.items()}  # fmt: skip
            for way, value in (values | {"the better of both": max(values.values())}).items():
                sums[way] += value
            before = found["the neighbour"]
    total = float(magnitudes[exact].sum())
    return {way: value / total for way, value in sums.items()}


def objectives(data: Path) -> list[dict[str, Any]]:
    """--objective: what is kept of the exact mask's magnitude, and of all magnitude."""
    rows = []
    for _, case, weights in cases(data):
        exact, magnitudes = exact_mask(weights, case.sparsity), np.abs(weights)
        row = dataclasses.asdict(case) | {"shape": weights.shape}
        for objective in ("paper", "mixed", "all"):
            layer, _ = compress(
                weights, rank=case.rank, sparsity=case.sparsity, objective=objective
            )
            whole = magnitudes[layer.mask()].sum(dtype=np.float64)
            row[objective] = {"kept": layer.kept, "all": float(whole / magnitudes[exact].sum())}
        rows.append(row)
    return rows


STEPS: dict[str, Callable[[Path], Any]] = {
    step.__name__: step for step in (efforts, rivals, curve, ideas, neighbours, objectives)
}


def _case(row: dict[str, Any]) -> str:
    shape = "x".join(map(str, row["shape"]))
    return f"{row['title']}, {shape}, S = {row['sparsity']}, k = {row['rank']}"


def tables(results: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The tables of the page, by the names of their places."""
    if "efforts" in results:

        def cell(row: dict[str, Any], effort: str) -> str:
            kept, base = np.mean(row[effort]["kept"]), np.mean(row["fast"]["kept"])
            ratio = "" if effort == "fast" else f" ({kept / base:.3f}x)"
            return f"{kept:.4f}{ratio}, {row[effort]['seconds']:.2f} s"

        ways = ("straight", *EFFORTS)
        yield "efforts", markdown(
            ["", "the paper's loop", *EFFORTS],
            [[_case(row), *(cell(row, way) for way in ways)] for row in results["efforts"]],
        )  # fmt: skip
    if "rivals" in results:
        names = [row["name"] for row in results["rivals"][0]["rows"]]

        def rival(row: dict[str, Any]) -> str:
            if row["kept"] is None:
                return row["note"]
            stopped = ", stopped" if row["note"] else ""
            return (
                f"{row['kept']:.4f}, {row['seconds']:.1f} s ({row['seconds_all']:.0f} s{stopped})"
            )

        yield "rivals", markdown(
            ["", *(_case(case) for case in results["rivals"])],
            [[name, *(rival(case["rows"][index]) for case in results["rivals"])]
             for index, name in enumerate(names)],
        )  # fmt: skip
    if "curve" in results:
        yield "curve", markdown(
            ["", "k", "bits a weight", "fast", "normal", "limit"],
            [[case["title"], rank, f"{case['bits_per_weight'][place]:.4f}",
              *(f"{case[way][place]:.3f}" for way in ("fast", "normal", "limit"))]
             for case in results["curve"].values() for place, rank in enumerate(RANKS)],
        )  # fmt: skip
    if "ideas" in results:
        yield "ideas", markdown(
            ["", *(_case(row) for row in results["ideas"])],
            [[name, *(f"{row['tries'][name]['kept']:.4f}, {row['tries'][name]['seconds']:.0f} s"
                      for row in results["ideas"])]
             for name in results["ideas"][0]["tries"]],
        )  # fmt: skip
    if "neighbours" in results:
        yield (
            "neighbours",
            markdown(
                ["start", "kept"],
                [[way, f"{kept:.4f}"] for way, kept in results["neighbours"].items()],
            ),
        )
    if "objectives" in results:
        ways = ("paper", "mixed", "all")
        yield "objectives", markdown(
            ["", *ways],
            [[_case(row), *(f"{row[way]['kept']:.4f} / {row[way]['all']:.4f}" for way in ways)]
             for row in results["objectives"]],
        )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.masks", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="\n".join(f"  {name:10} {step.__doc__}" for name, step in STEPS.items()),
    )  # fmt: skip
    parser.add_argument("steps", nargs="*", metavar="STEP", help="of those below [all]")
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="holds weights/")
    options = parser.parse_args()
    for name in options.steps:
        if name not in STEPS:
            parser.error(f"no step {name!r}; there are {', '.join(STEPS)}")
    FOLDER.mkdir(parents=True, exist_ok=True)
    file = FOLDER / "results.json"
    for name in options.steps or STEPS:
        print(f"{name}: {STEPS[name].__doc__}", file=sys.stderr)
        found = STEPS[name](options.data)
        results = json.loads(file.read_text()) if file.exists() else {}
        results[name] = found
        with replacing(file) as temporary:
            temporary.write_text(json.dumps(results, indent=1) + "\n")
        for place, text in tables(results):
            fill(PAGE, place, text)


if __name__ == "__main__":
    main()
