"""``python -m benchmarks.paper``: the paper's tables and figures, into docs/paper/.

Each step leaves its figures (.png, .svg) there, and its numbers in results.json, from which the
tables of docs/paper/README.md are filled. Training runs are kept in build/paper, and not run again.
"""

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import lrbi
from benchmarks.report import fill, markdown
from lrbi.arrays import Bits
from lrbi.atomic import replacing
from lrbi.compare import compare
from lrbi.errors import LrbiError
from lrbi.factorize import Sweep, manipulate
from lrbi.limit import kept_limit
from lrbi.nmf import ENGINES, equalize_peaks
from lrbi.paper import claims, lenet_sizes
from lrbi.plot import new_figure, plot_formats, save_plot
from lrbi.prune import exact_mask

FOLDER = Path("docs/paper")
SEED = 0
SEEDS = range(5)  # where a mean is told
SPARSITY = 0.95
FINE_TUNING = 100  # iterations on CIFAR-10
METHODS = {1: "Method 1: none", 2: "Method 2: squares", 3: "Method 3: amplified by 1/(1-S)"}


class Study:
    """Where the data are, where results go, and the weights that several steps share."""

    def __init__(self, data: Path, cifar: Path | None, folder: Path, runs: Path) -> None:
        self.data, self.cifar, self.folder, self.runs = data, cifar, folder, runs

    def tensors(self, name: str) -> dict[str, np.ndarray]:
        """The tensors of a weight file."""
        from safetensors.numpy import load_file

        return load_file(self.data / "weights" / f"{name}.safetensors")

    def fc1(self) -> np.ndarray:
        """LeNet-5's FC1, as PyTorch stores it: 500 x 800."""
        return self.tensors("lenet5_mnist")["5.weight"]

    def matrices(self) -> Iterator[tuple[str, np.ndarray, float, int]]:
        """Real and Gaussian matrices, each with a sparsity and a rank, for comparisons."""
        for rank in (16, 64):
            yield "LeNet-5 FC1, 500x800", self.fc1(), SPARSITY, rank
        lstm = self.tensors("resemblyzer_lstm256_f32")
        for name in ("lstm.weight_hh_l0", "lstm.weight_ih_l1"):
            yield f"Resemblyzer {name}, 1024x256", lstm[name], 0.9, 16
        yield "Gaussian, 800x500", gaussian(), SPARSITY, 16

    def save(self, figure: Any, name: str) -> None:
        """A figure as .png and .svg."""
        for ending in (".png", ".svg"):
            save_plot(figure, self.folder / f"{name}{ending}")


def algorithm_1(weights: np.ndarray, **options: Any) -> lrbi.CompressedLayer:
    """A layer compressed as the paper does it, without any search after that."""
    options = {"sparsity": SPARSITY, "seed": SEED} | options
    return lrbi.compress(weights, lrbi.CompressConfig(effort="fast", **options))


def gaussian(shape: tuple[int, int] = (800, 500)) -> np.ndarray:
    return np.random.default_rng(SEED).standard_normal(shape, dtype=np.float32)


def sizes(study: Study) -> dict[str, Any]:
    """The size tables: the paper's figures beside ours; all formats of FC1."""
    fc1 = study.fc1()
    trained = "these weights are trained too, but not the paper's: their gaps vary more than theirs"
    comparison = compare(fc1, exact_mask(fc1, SPARSITY), algorithm_1(fc1, rank=16))
    for _, weights, sparsity, rank in study.matrices():  # each format gives each mask back
        layer = algorithm_1(weights, sparsity=sparsity, rank=rank)
        compare(weights, exact_mask(weights, sparsity), layer)
    study.save(plot_formats(comparison, "LeNet-5 FC1, S = 0.95, k = 16"), "formats")
    return {
        "claims": [claim.as_dict() for claim in claims()],
        "trained": [claim.as_dict() for claim in lenet_sizes(fc1.T.copy(), trained)],
        "formats": comparison.as_dict(),
    }


def sp(study: Study) -> dict[str, Any]:
    """S_z, Cost and accuracy over S_p: FC1 of LeNet-5 for k = 16, 64, 256."""
    judge = _Judge(study)
    weights = study.fc1()
    magnitude = float(np.abs(weights)[exact_mask(weights, SPARSITY)].sum(dtype=np.float64))
    peak = float(np.abs(weights).max())
    figure = new_figure(12, 3.8)
    axes = figure.subplots(1, 3)
    results = {}
    for rank in (16, 64, 256):
        sweep = _sweep(weights, rank)[0]
        points = sweep.points(sweep.row_bits(np.geomspace(1 / 512, 1.0, 25)))
        rows = []
        for point in points:
            row_factor, col_factor = sweep.factors(point)
            mask = lrbi.boolean_product(row_factor, col_factor)
            rows.append({
                "S_p": 1 - point.row_bits / row_factor.size,
                "S_z": 1 - point.col_bits / col_factor.size,
                "cost": magnitude - point.kept * peak,
                "accuracy": judge.accuracy(mask),
            })  # fmt: skip
        best = max(range(len(rows)), key=lambda index: -rows[index]["cost"])
        results[str(rank)] = {"points": rows, "best": rows[best]}
        for axis, key in zip(axes, ("S_z", "cost", "accuracy"), strict=True):
            line = axis.plot(
                [1 - row["S_p"] for row in rows], [row[key] for row in rows], ".-",
                label=f"k = {rank}",
            )  # fmt: skip
            axis.plot(1 - rows[best]["S_p"], rows[best][key], "o", color=line[0].get_color())
    for axis, title, label in zip(
        axes,
        ("The S_z that makes S = 0.95", "Cost (the dot: its least)", "Accuracy, not retrained"),
        ("S_z", "Cost: magnitude lost", "% of MNIST's test set"),
        strict=True,
    ):
        axis.set(xlabel="S_p, sparsity of I_p", ylabel=label, title=title, xscale="log")
        axis.set_xticks([0.5, 0.1, 0.02, 0.004], ["0.5", "0.9", "0.98", "0.996"])
        axis.minorticks_off()
        axis.invert_xaxis()  # what matters is near 1
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    study.save(figure, "sp")
    return results


class _Judge:
    """Tells the accuracy of LeNet-5 with a mask on FC1, all other layers pruned by magnitude."""

    def __init__(self, study: Study) -> None:
        import lenet_mnist
        import torch
        from torch.nn.utils import prune

        torch.set_num_threads(1)
        data = lenet_mnist.load_mnist(study.data / "mnist")
        self._model = lenet_mnist.LeNet5()
        places = {"0": "conv1", "2": "conv2", "5": "fc1", "7": "fc2"}
        tensors = study.tensors("lenet5_mnist").items()
        state = {
            f"{places[name.split('.')[0]]}.{name.split('.')[1]}": torch.from_numpy(value)
            for name, value in tensors
        }
        self._model.load_state_dict(state)
        # This network was trained on images in 0 ... 1.
        self._images, self._labels = data["test"] + 0.5, data["test_labels"]
        self._fc1 = self._model.fc1.weight.detach().clone()
        if (dense := self.accuracy(np.ones((500, 800), dtype=np.bool_))) < 98:
            raise lrbi.InputError(f"LeNet-5 must tell 98 % of the images right, not {dense} %")
        for name, share in lenet_mnist.OTHERS.items():
            prune.l1_unstructured(self._model.get_submodule(name), "weight", share)

    def accuracy(self, mask: Bits) -> float:
        """In percent, right after pruning."""
        import torch
        from training import accuracy

        with torch.no_grad():
            self._model.fc1.weight.copy_(self._fc1 * torch.from_numpy(mask))
        return accuracy(self._model, self._images, self._labels)


def _sweep(weights: np.ndarray, rank: int, method: int = 3) -> tuple[Sweep, Any, Any]:
    """The sweep of Algorithm 1 over one tile, and the M_p and M_z behind it."""
    exact = exact_mask(weights, SPARSITY)
    magnitudes = np.abs(weights) / np.abs(weights).max()
    target = manipulate(magnitudes, exact, SPARSITY, method)
    scores = equalize_peaks(*ENGINES["hals"](target, rank, 60, np.random.default_rng(SEED)))
    gains = np.where(exact, magnitudes, np.float32(0))
    return Sweep(*scores, gains, int(exact.sum())), *scores


def survivors(study: Study) -> dict[str, Any]:
    """Histograms of the weights that are left of FC1: by rank, by tiling, by method."""
    weights = study.fc1()
    tilings = {"1x1, k = 128": (500, 800, 128), "2x2, k = 64": (250, 400, 64),
               "4x4, k = 32": (125, 200, 32)}  # fmt: skip
    panels: dict[str, dict[str, dict[str, Any]]] = {
        "rank": {f"k = {rank}": {"rank": rank} for rank in (16, 64, 256)},
        "tiling": {
            f"{name}{where}": {"rank": rank, "tile": (rows, cols), "sparsity_per_tile": per_tile}
            for per_tile, where in ((True, ""), (False, ", S in the layer"))
            for name, (rows, cols, rank) in tilings.items()
        },
        "method": {name: {"rank": 64, "method": method} for method, name in METHODS.items()},
    }
    titles = {
        "rank": "LeNet-5 FC1, S = 0.95, one tile: weights left, by rank",
        "tiling": "LeNet-5 FC1, S = 0.95 in every tile: weights left, by tiling (2.4x)",
        "method": "LeNet-5 FC1, S = 0.95, k = 64: weights left, by manipulation",
    }
    results: dict[str, Any] = {}
    edges = np.linspace(-0.25, 0.25, 201)
    middles = (edges[1:] + edges[:-1]) / 2
    exact = exact_mask(weights, SPARSITY)
    for panel, configs in panels.items():
        figure = new_figure(8, 4.2)
        axis = figure.subplots()
        results[panel] = {}
        for name, options in configs.items():
            layer = algorithm_1(weights, **options)
            results[panel][name] = {
                "cost": layer.cost, "kept": layer.kept, "ratio": layer.ratio,
                "near_zero": float(np.mean(np.abs(weights[layer.mask()]) < 0.01)),
                "exact": float(np.mean(exact[layer.mask()])),
            }  # fmt: skip
            if not name.endswith("S in the layer"):
                counts, _ = np.histogram(weights[layer.mask()], edges)
                axis.plot(middles, counts, label=f"{name}: kept {layer.kept:.3f}")
        counts, _ = np.histogram(weights[exact], edges)
        axis.plot(middles, counts, color="grey", linewidth=1, linestyle=":", label="magnitude")
        axis.set(xlabel="weight", ylabel="weights left in a bin of 0.0025", title=titles[panel])
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
        study.save(figure, f"survivors-{panel}")
    return results


def spread(study: Study) -> dict[str, Any]:
    """Histograms of M_p and M_z (method 1) by the number of tiles: FC1 and Gaussian weights."""
    figure = new_figure(11, 7)
    axes = figure.subplots(2, 2)
    results: dict[str, Any] = {}
    cases = {"LeNet-5 FC1": study.fc1(), "Gaussian": gaussian((500, 800))}
    for (case, weights), pair in zip(cases.items(), axes, strict=True):
        for cut, rank in ((1, 128), (2, 64), (4, 32)):
            rows, cols = 500 // cut, 800 // cut
            parts = [
                _sweep(np.ascontiguousarray(weights[top : top + rows, left : left + cols]), rank, 1)
                for top in range(0, 500, rows)
                for left in range(0, 800, cols)
            ]
            for axis, which, name in zip(pair, (1, 2), ("M_p", "M_z"), strict=True):
                values = np.concatenate([part[which].ravel() for part in parts])
                variance, ratio = float(values.var()), float(values.std() / values.mean())
                results[f"{case}, {name}, {cut}x{cut} tiles, k = {rank}"] = {
                    "variance": variance, "deviation_by_mean": ratio,
                }  # fmt: skip
                counts, edges = np.histogram(values, np.linspace(0, 1, 61), density=True)
                middles = (edges[1:] + edges[:-1]) / 2
                label = f"{cut}x{cut} tiles, k = {rank}: variance {variance:.4f}"
                axis.semilogy(middles, np.maximum(counts, 1e-4), label=label)
                axis.set(xlabel=name, ylabel="density", title=f"{case}: {name}")
                axis.grid(alpha=0.3)
                axis.legend(fontsize=8)
    study.save(figure, "spread")
    return results


def methods(study: Study) -> dict[str, Any]:
    """Cost by manipulation method, and by tiling at one ratio, on real weights: five seeds."""
    results: dict[str, Any] = {"methods": [], "tilings": []}

    def kept(weights: np.ndarray, **options: Any) -> dict[str, float]:
        layers = [algorithm_1(weights, seed=seed, **options) for seed in SEEDS]
        values = [layer.kept for layer in layers]
        return {
            "kept": float(np.mean(values)), "deviation": float(np.std(values, ddof=1)),
            "cost": float(np.mean([layer.cost for layer in layers])), "ratio": layers[0].ratio,
        }  # fmt: skip

    for name, weights, sparsity, rank in study.matrices():
        found = {
            str(method): kept(weights, sparsity=sparsity, rank=rank, method=method)
            for method in METHODS
        }
        results["methods"].append({"weights": name, "sparsity": sparsity, "rank": rank} | found)
    for name, weights, sparsity, _ in study.matrices():
        if any(row["weights"] == name for row in results["tilings"]):
            continue
        rows, cols = weights.shape
        rank = 128 if min(rows, cols) >= 500 else 64
        found = {}
        for per_tile in (False, True):
            for cut in (1, 2, 4):
                found[f"{cut}x{cut}{' per tile' * per_tile}"] = kept(
                    weights, sparsity=sparsity, rank=rank // cut,
                    tile=(math.ceil(rows / cut), math.ceil(cols / cut)),
                    sparsity_per_tile=per_tile,
                )  # fmt: skip
        results["tilings"].append({"weights": name, "sparsity": sparsity, "rank": rank} | found)
    return results


def limit(study: Study) -> dict[str, Any]:
    """What is kept against the size of the index, and the Shannon limit."""
    lstm = study.tensors("resemblyzer_lstm256_f32")["lstm.weight_hh_l0"]
    cases = {
        "LeNet-5 FC1, S = 0.95": (study.fc1(), SPARSITY),
        "Resemblyzer LSTM weight_hh_l0, S = 0.90": (lstm, 0.9),
        "Gaussian 800x500, S = 0.95": (gaussian(), SPARSITY),
    }
    figure = new_figure(12, 4.2)
    axes = figure.subplots(1, 3, sharey=True)
    results: dict[str, Any] = {}
    for (name, (weights, sparsity)), axis in zip(cases.items(), axes, strict=True):
        gains = np.abs(weights)[exact_mask(weights, sparsity)]
        rows = []
        for rank in (4, 8, 16, 32, 64, 128):
            layer = algorithm_1(weights, sparsity=sparsity, rank=rank)
            rate = layer.index_bits / weights.size
            rows.append({
                "rank": rank, "bits_per_weight": rate, "kept": layer.kept,
                "limit_gaussian": kept_limit(sparsity, rate),
                "limit": kept_limit(sparsity, rate, gains),
            })  # fmt: skip
        results[name] = rows
        rates = np.geomspace(rows[0]["bits_per_weight"] / 2, 1, 60)
        axis.plot(rates, [kept_limit(sparsity, rate) for rate in rates], "k-",
                  label="Shannon limit, independent Gaussian")  # fmt: skip
        axis.plot(rates, [kept_limit(sparsity, rate, gains) for rate in rates], "k:",
                  label="the same, independent with these magnitudes")  # fmt: skip
        axis.plot([row["bits_per_weight"] for row in rows], [row["kept"] for row in rows], "o-",
                  color="#c0392b", label="Algorithm 1, method 3")  # fmt: skip
        axis.axhline(1 - sparsity, color="grey", linewidth=0.8, label="a random mask")
        for row in rows:
            axis.annotate(f"k = {row['rank']}", (row["bits_per_weight"], row["kept"]), fontsize=7,
                          xytext=(3, -9), textcoords="offset points")  # fmt: skip
        axis.set(xscale="log", xlabel="index bits a weight", title=name, ylim=(0, 1.02))
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("share of the exact mask's magnitude kept")
    axes[0].legend(fontsize=7, loc="upper left")
    study.save(figure, "limit")
    return results


def lenet(study: Study) -> dict[str, Any]:
    """LeNet-5 on MNIST: 5K + 5K iterations, three seeds; and 20K + 40K for k = 16."""
    import lenet_mnist
    from training import Runs

    mnist, runs = study.data / "mnist", Runs(study.runs)
    short = lenet_mnist.study(
        mnist, runs, before=5000, after=5000, ranks=lenet_mnist.RANKS, seeds=[0, 1, 2], jobs=2
    )
    long = lenet_mnist.study(
        mnist, runs, before=20_000, after=40_000, ranks=[16], seeds=[0], jobs=2
    )
    return {"short": short, "long": long}


def resnet(study: Study) -> dict[str, Any]:
    """ResNet32 on CIFAR-10: the appendix's ranks, both reshapes, a short fine-tuning."""
    import resnet_cifar
    from training import Runs

    assert study.cifar is not None
    return resnet_cifar.study(
        study.cifar, study.data / "weights/resnet32-d509ac18.th", Runs(study.runs), sparsity=0.7,
        ranks=[*resnet_cifar.PAPER_RATIO], iterations=FINE_TUNING, seed=SEED, jobs=2,
    )  # fmt: skip


STEPS: dict[str, Callable[[Study], dict[str, Any]]] = {
    step.__name__: step for step in (sizes, sp, survivors, spread, methods, limit, lenet, resnet)
}


def tables(results: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The tables of the page, by the names of their places."""
    if "sizes" in results:
        for place in ("claims", "trained"):
            yield place, markdown(
                ["table", "what", "paper", "ours", "", "why they differ"],
                [[row["table"], row["what"], f"{row['paper']:g}",
                  f"{row['ours']:.{2 if row['unit'] == 'x' else 1}f}", row["unit"], row["why"]]
                 for row in results["sizes"][place]],
            )  # fmt: skip
        found = results["sizes"]["formats"]
        weights = found["formats"][0]["bits"]
        yield "formats", markdown(
            ["format", "bits", "bits a weight", "kept", ""],
            [[row["name"], f"{row['bits']:,}", f"{row['bits_per_weight']:.4f}",
              "" if row["kept"] is None else f"{row['kept']:.4f}", row["note"]]
             for row in found["formats"]]
            + [["H(S)", f"{found['entropy_bits']:,.0f}", f"{found['entropy_bits'] / weights:.4f}",
                "", "least for random masks, lossless"]],
        )  # fmt: skip
    if "sp" in results:
        yield "sp", markdown(
            ["k", "S_p of the least Cost", "S_z there", "Cost", "accuracy, not retrained"],
            [[rank, f"{row['best']['S_p']:.3f}", f"{row['best']['S_z']:.3f}",
              f"{row['best']['cost']:.0f}", f"{row['best']['accuracy']:.1f} %"]
             for rank, row in results["sp"].items()],
        )  # fmt: skip
    if "survivors" in results:
        yield "survivors", markdown(
            ["", "", "kept", "of the weights left: below 0.01", "above the threshold"],
            [[panel, name, f"{row['kept']:.3f}", f"{row['near_zero']:.3f}", f"{row['exact']:.3f}"]
             for panel, rows in results["survivors"].items() for name, row in rows.items()],
        )  # fmt: skip
    if "spread" in results:
        yield "spread", markdown(
            ["", "variance", "deviation / mean"],
            [[name, f"{row['variance']:.4f}", f"{row['deviation_by_mean']:.2f}"]
             for name, row in results["spread"].items()],
        )  # fmt: skip
    if "methods" in results:

        def cell(row: dict[str, float]) -> str:
            return f"{row['kept']:.3f} ± {row['deviation']:.3f}"

        ways = ("1", "2", "3")
        yield "methods", markdown(
            ["weights", "S", "k", *(METHODS[int(way)] for way in ways)],
            [[row["weights"], row["sparsity"], row["rank"], *(cell(row[way]) for way in ways)]
             for row in results["methods"]["methods"]],
        )  # fmt: skip
        cuts = ("1x1", "2x2", "4x4", "1x1 per tile", "2x2 per tile", "4x4 per tile")
        yield "tilings", markdown(
            ["weights", "S", "k of 1x1", *cuts[:3], *(f"{cut[:3]}, S in each" for cut in cuts[3:])],
            [[row["weights"], row["sparsity"], row["rank"], *(cell(row[cut]) for cut in cuts)]
             for row in results["methods"]["tilings"]],
        )  # fmt: skip
    if "limit" in results:
        yield "limit", markdown(
            ["weights", "k", "bits a weight", "kept", "limit, these magnitudes", "limit, Gaussian"],
            [[name, row["rank"], f"{row['bits_per_weight']:.4f}", f"{row['kept']:.3f}",
              f"{row['limit']:.3f}", f"{row['limit_gaussian']:.3f}"]
             for name, rows in results["limit"].items() for row in rows],
        )  # fmt: skip
    if "lenet" in results:
        import lenet_mnist

        for place in ("short", "long"):
            yield (
                f"lenet {place}",
                markdown(lenet_mnist.COLUMNS, lenet_mnist.rows(results["lenet"][place])),
            )
    if "resnet" in results:
        import resnet_cifar

        yield "resnet", markdown(resnet_cifar.COLUMNS, resnet_cifar.rows(results["resnet"]))


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.paper", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="\n".join(f"  {name:10} {step.__doc__}" for name, step in STEPS.items()),
    )  # fmt: skip
    parser.add_argument("steps", nargs="*", metavar="STEP", help="of those below [all]")
    parser.add_argument("--data", type=Path, metavar="DIR", help="mnist/ and weights/")
    parser.add_argument("--cifar", type=Path, metavar="DIR", help="CIFAR-10, for resnet")
    parser.add_argument("--output", type=Path, default=FOLDER, metavar="DIR", help=f"[{FOLDER}]")
    parser.add_argument("--runs", type=Path, default=Path("build/paper"), metavar="DIR",
                        help="where training runs are kept [build/paper]")  # fmt: skip
    parser.add_argument("--tables", action="store_true", help="only fill the page's tables anew")
    options = parser.parse_args(arguments)
    for name in options.steps:
        if name not in STEPS:
            parser.error(f"no step {name!r}; there are {', '.join(STEPS)}")
    sys.path.insert(0, "examples")
    if options.tables:
        _fill(options.output)
        return
    if options.data is None:
        parser.error("--data DIR must be given (make paper DATA=DIR)")
    steps = options.steps or [*STEPS]
    if "resnet" in steps and options.cifar is None:
        told = "--cifar DIR must be given (make paper CIFAR=DIR)"
        if options.steps:
            parser.error(f"for resnet, {told}")
        print(f"resnet is left out: {told}", file=sys.stderr)
        steps.remove("resnet")
    options.output.mkdir(parents=True, exist_ok=True)
    study = Study(options.data, options.cifar, options.output, options.runs)
    for name in steps:
        print(f"{name}: {STEPS[name].__doc__}", file=sys.stderr)
        try:
            found = STEPS[name](study)
        except (LrbiError, OSError) as error:
            sys.exit(f"benchmarks.paper: {name}: {error}")
        _keep(options.output, name, found)
        _fill(options.output)


def _results(folder: Path) -> dict[str, Any]:
    file = folder / "results.json"
    return json.loads(file.read_text()) if file.exists() else {}


def _keep(folder: Path, name: str, found: dict[str, Any]) -> None:
    """Put a step's numbers beside those of the others, which may run in other processes."""
    results = _results(folder) | {name: found}
    ordered = {step: results[step] for step in STEPS if step in results}
    with replacing(folder / "results.json") as temporary:
        temporary.write_text(json.dumps(ordered, indent=1) + "\n")


def _fill(folder: Path) -> None:
    """Fill the tables of the page, if there is one."""
    if (page := folder / "README.md").exists():
        for place, text in tables(_results(folder)):
            fill(page, place, text)


if __name__ == "__main__":
    main()
