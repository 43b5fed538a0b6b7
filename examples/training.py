"""What the examples share: a training loop, accuracy, and runs that are kept and spread out."""

import argparse
import hashlib
import json
import multiprocessing
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress

from lrbi.atomic import check_writable, replacing
from lrbi.errors import InputError

Batch = tuple[torch.Tensor, torch.Tensor]


def batches(
    images: torch.Tensor, labels: torch.Tensor, size: int, generator: torch.Generator
) -> Iterator[Batch]:
    """Batches of one size without end, the set shuffled anew each time it has been through."""
    if size > len(images):
        raise InputError(f"Batch must be at most the {len(images)} images there are, not {size}")
    while True:
        order = torch.randperm(len(images), generator=generator)
        for chosen in order[: len(order) // size * size].split(size):
            yield images[chosen], labels[chosen]


def train(
    model: torch.nn.Module,
    data: Iterator[Batch],
    iterations: Iterable[int],
    rate: Callable[[int], float],
    *,
    weight_decay: float = 5e-4,
    change: Callable[[torch.Tensor], torch.Tensor] = lambda images: images,
) -> None:
    """Stochastic gradient descent with momentum 0.9; ``rate`` is that of each iteration."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9, weight_decay=weight_decay)
    model.train()
    for iteration, (images, labels) in zip(iterations, data, strict=False):
        optimizer.param_groups[0]["lr"] = rate(iteration)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(change(images)), labels).backward()
        optimizer.step()


@torch.no_grad()
def accuracy(model: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    """Share of the images, in percent, that the model tells right."""
    model.eval()
    right = sum(
        int((model(some).argmax(1) == truth).sum())
        for some, truth in zip(images.split(500), labels.split(500), strict=True)
    )
    return 100 * right / len(labels)


def digest(*tensors: torch.Tensor) -> str:
    """Eight hex digits that tell these values from others, for the names of runs."""
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(str(tuple(tensor.shape)).encode())
        found.update(tensor.contiguous().numpy())
    return found.hexdigest()[:8]


class Runs:
    """Results of runs, each kept in a file of its own: what was run before is not run again.

    A run's name must tell all that it depends on.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, name: str, ending: str = ".json") -> Path:
        """Where a run keeps a file."""
        return self._folder / f"{name}{ending}"

    def get(self, name: str) -> Any:
        """A run's result, or None."""
        path = self.path(name)
        return json.loads(path.read_text()) if path.exists() else None

    def all(
        self, tasks: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]], jobs: int
    ) -> dict[str, Any]:
        """The results of all tasks, by name: a function and its arguments, run in any order."""
        results = {name: found for name in tasks if (found := self.get(name)) is not None}
        missing = [name for name in tasks if name not in results]
        if not missing:
            return results
        self._folder.mkdir(parents=True, exist_ok=True)
        check_writable(self.path(missing[0]))  # refused now, not after hours
        context = multiprocessing.get_context("spawn")
        console = Console(stderr=True)
        with (
            ProcessPoolExecutor(jobs, mp_context=context, initializer=_one_thread) as pool,
            Progress(console=console, disable=not console.is_terminal) as bar,
        ):
            futures = {pool.submit(_timed, *tasks[name]): name for name in missing}
            try:
                for future in bar.track(as_completed(futures), total=len(futures)):
                    name = futures[future]
                    results[name] = future.result()
                    with replacing(self.path(name)) as temporary:
                        temporary.write_text(json.dumps(results[name], indent=1) + "\n")
                    console.print(f"{name}: {results[name]}", highlight=False)
            except BaseException:
                pool.shutdown(cancel_futures=True)  # hours of runs must not go on for nothing
                raise
        return results


def _one_thread() -> None:
    torch.set_num_threads(1)


def _timed(function: Callable[..., dict[str, Any]], arguments: tuple[Any, ...]) -> dict[str, Any]:
    start = time.monotonic()
    return function(*arguments) | {"seconds": round(time.monotonic() - start, 1)}


def numbers(text: str) -> list[int]:
    """Whole numbers joined by commas, for argparse."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} must be whole numbers joined by commas"
        ) from error


def at_least_one(text: str) -> int:
    """A whole number of at least 1, for argparse."""
    [number] = numbers(text)[:1] if "," not in text else [0]
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number of at least 1")
    return number
