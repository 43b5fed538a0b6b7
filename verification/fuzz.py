"""Mutated files for every reader: an error, or the same data, and nothing else.

A case is a number: it decides what is mutated and how, so that a failure is replayed by its number.
Half of the cases are blind: bytes are changed, and digests find them out. The others lie with
system: metadata are changed and every digest made to fit, so that what stands behind the digests is
reached. A case that takes seconds, or memory beyond all proportion to its file, is a failure.
"""

import contextlib
import copy
import hashlib
import json
import re
import resource
import signal
import struct
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from safetensors.numpy import save as serialize

import lrbi
from lrbi import factorfile
from lrbi.errors import LrbiError
from lrbi.layer import CompressedLayer
from lrbi.rom import rom_images
from lrbi.romfiles import FORMATS
from verification.report import markdown, write

SECONDS = 10
"""That a case may take; all but none take milliseconds."""
MEMORY = 256 << 20
"""Bytes that a case may take beyond what the process has; the files have thousands."""


class _TooSlowError(Exception):
    pass


@dataclass(frozen=True)
class Corpus:
    """What is mutated."""

    layers: dict[str, CompressedLayer]
    factor_file: bytes
    roms: dict[str, bytes]
    """The files of a ROM folder by their names."""


def make_corpus(seed: int = 0) -> Corpus:
    """Two layers, tiles that do not fit, ranks that differ; every ROM format, and vectors."""
    rng = np.random.default_rng(seed)
    layers = {
        "fc1": lrbi.compress(
            rng.standard_normal((21, 30)), lrbi.CompressConfig(sparsity=0.8, rank=3, tile=(8, 13))
        ),
        "conv/2": lrbi.compress(
            rng.standard_normal((9, 10)), lrbi.CompressConfig(sparsity=0.7, rank=9)
        ),
    }
    with tempfile.TemporaryDirectory(prefix="lrbi-") as name:
        folder = Path(name)
        lrbi.save(folder / "a.lrbi", layers)
        content = (folder / "a.lrbi").read_bytes()
        rom = folder / "rom"
        lrbi.export_roms(layers, rom, formats=tuple(FORMATS), lanes=2, iz_rows=2, vectors=True)
        roms = {path.name: path.read_bytes() for path in sorted(rom.iterdir())}
    return Corpus(layers, content, roms)


# -- How things are mutated

_NUMBERS = [0, 1, -1, 2, 7, 8, 255, 65535, 65536, 2**31, 2**32, 2**53, 2**63, 2**64, 10**30]
_VALUES: list[Any] = [None, True, False, 1.5, 1e308, "", "x", "../x", "\ud800", [], {}, [[[]]], [1]]


def mutate_bytes(content: bytes, rng: Random) -> bytes:
    """A few random changes."""
    data = bytearray(content)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        start = rng.randrange(len(data) + 1)
        end = min(len(data), start + rng.choice([1, 1, 2, 4, 16, 100, 1000]))
        action = rng.randrange(9)
        if action == 0 and data:
            data[min(start, len(data) - 1)] ^= 1 << rng.randrange(8)
        elif action == 1:
            data[start:end] = rng.randbytes(end - start)
        elif action == 2:
            data[start:start] = rng.randbytes(rng.choice([1, 2, 8, 50]))
        elif action == 3:
            del data[start:end]
        elif action == 4:
            data[start:start] = data[start:end] * rng.choice([1, 2, 100])
        elif action == 5:
            del data[start:]
        elif action == 6:
            runs = [found.span() for found in re.finditer(rb"[0-9]+", data)]
            if runs:
                first, last = rng.choice(runs)
                data[first:last] = str(rng.choice(_NUMBERS)).encode()
        elif action == 7:
            lines = bytes(data).split(b"\n")
            one, other = rng.randrange(len(lines)), rng.randrange(len(lines))
            lines[one], lines[other] = lines[other], lines[one]
            data = bytearray(b"\n".join(lines))
        elif len(data) >= 8:  # the length of a safetensors header
            data[:8] = struct.pack("<Q", abs(rng.choice(_NUMBERS)) % 2**64)
    return bytes(data)


def mutate_json(value: Any, rng: Random) -> Any:
    """A few random changes to a structure."""
    value = copy.deepcopy(value)
    for _ in range(rng.choice([1, 1, 1, 2])):
        places = list(_places(value))
        if not places:
            break
        parent, key = rng.choice(places)
        action = rng.randrange(6)
        if action == 0:
            parent[key] = rng.choice(_VALUES)
        elif action == 1:
            parent[key] = rng.choice(_NUMBERS)
        elif action == 2 and type(parent[key]) in (int, float):
            parent[key] = rng.choice([parent[key] + 1, parent[key] - 1, parent[key] * 1000])
        elif action == 3:
            del parent[key]
        elif action == 4 and isinstance(parent, dict):
            parent[str(key) + "x"] = parent.pop(key) if rng.random() < 0.5 else parent[key]
        else:
            other, name = rng.choice(places)
            with contextlib.suppress(KeyError, IndexError):
                parent[key] = copy.deepcopy(other[name])
    return value


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    items = (
        value.items() if isinstance(value, dict)
        else enumerate(value) if isinstance(value, list) else ()
    )  # fmt: skip
    for key, inner in list(items):
        yield value, key
        yield from _places(inner)


# -- The cases; each returns whether the reader took the file


def _same(
    read: Callable[[], dict[str, CompressedLayer]], layers: dict[str, CompressedLayer]
) -> bool:
    try:
        found = read()
    except LrbiError:
        return False
    if found != layers:
        raise AssertionError("other data were read")
    return True


def factor_file_blind(corpus: Corpus, rng: Random, folder: Path) -> bool:
    """A factor file with other bytes."""
    path = folder / "a.lrbi"
    path.write_bytes(mutate_bytes(corpus.factor_file, rng))
    return _same(lambda: lrbi.load(path), corpus.layers)


def factor_file_lying(corpus: Corpus, rng: Random, folder: Path) -> bool:
    """A factor file with other metadata or arrays, and the digest that fits them."""
    tensors, header = factorfile._contents(corpus.layers)
    header.pop("sha256")
    if rng.random() < 0.7:
        header = mutate_json(header, rng)
    if rng.random() < 0.5:
        name = rng.choice(sorted(tensors))
        array = tensors[name]
        shapes = [array.shape[::-1], (*array.shape, 1), array.shape[1:], (0, *array.shape[1:])]
        change = rng.randrange(5)
        if change == 0:
            tensors[name] = np.resize(array, rng.choice(shapes))
        elif change == 1:
            kinds = [np.uint8, np.uint16, np.int64, np.float32, np.bool_]
            tensors[name] = array.astype(rng.choice(kinds))
        elif change == 2:
            flat = array.copy()
            flat.reshape(-1)[rng.randrange(array.size)] ^= 1 << rng.randrange(8)
            tensors[name] = flat
        elif change == 3:
            del tensors[name]
        else:
            tensors[name + rng.choice(["x", "/ip", "\0"])] = array
    try:
        header["sha256"] = factorfile._digest(tensors, header)
        text = factorfile._canonical(header)
        content = serialize(tensors, metadata={"lrbi": text})
    except (LrbiError, ValueError, TypeError, UnicodeError):
        return False  # no such file can be written
    path = folder / "a.lrbi"
    path.write_bytes(content)
    try:
        layers = lrbi.load(path)
    except LrbiError:
        return False
    again = folder / "b.lrbi"  # what it says may be another truth: then it says it the same way
    lrbi.save(again, layers)
    if not _within(json.loads(_header(again)), json.loads(text)):
        raise AssertionError("what was read is not what the file says")
    for layer in layers.values():
        layer.mask()
    return True


def _within(small: Any, large: Any) -> bool:
    """Whether all that one says stands in the other too; fields that are not known are ignored."""
    if isinstance(small, dict) and isinstance(large, dict):
        return all(
            key == "sha256" or (key in large and _within(small[key], large[key])) for key in small
        )
    return (type(small), small) == (type(large), large)


def _header(path: Path) -> str:
    content = path.read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    return json.loads(content[8 : 8 + size])["__metadata__"]["lrbi"]


@contextlib.contextmanager
def _rom_folder(corpus: Corpus, folder: Path, **changed: bytes) -> Iterator[Path]:
    """The ROM folder with some files changed, for a while."""
    rom = folder / "rom"
    if not rom.exists():
        rom.mkdir()
        for name, content in corpus.roms.items():
            (rom / name).write_bytes(content)
    for name, content in changed.items():
        (rom / name).write_bytes(content)
    try:
        yield rom
    finally:
        for name in changed:
            (rom / name).write_bytes(corpus.roms[name])


def manifest_blind(corpus: Corpus, rng: Random, folder: Path) -> bool:
    """A manifest with other bytes."""
    changed = mutate_bytes(corpus.roms["manifest.json"], rng)
    with _rom_folder(corpus, folder, **{"manifest.json": changed}) as rom:
        return _same(lambda: lrbi.import_roms(rom), corpus.layers)


def manifest_lying(corpus: Corpus, rng: Random, folder: Path) -> bool:
    """A manifest that says other things."""
    manifest = mutate_json(json.loads(corpus.roms["manifest.json"]), rng)
    with _rom_folder(corpus, folder, **{"manifest.json": json.dumps(manifest).encode()}) as rom:
        return _same(lambda: lrbi.import_roms(rom), corpus.layers)


def rom_file(corpus: Corpus, rng: Random, folder: Path) -> bool:
    """A ROM file with other bytes; in half of the cases the manifest has its digest."""
    name = rng.choice([name for name in corpus.roms if name != "manifest.json"])
    changed = mutate_bytes(corpus.roms[name], rng)
    files = {name: changed}
    if rng.random() < 0.5:
        manifest = corpus.roms["manifest.json"].decode()
        before, after = (hashlib.sha256(each).hexdigest() for each in (corpus.roms[name], changed))
        files["manifest.json"] = manifest.replace(before, after).encode()
    with _rom_folder(corpus, folder, **files) as rom:
        return _same(lambda: lrbi.import_roms(rom), corpus.layers)


def rom_format(corpus: Corpus, rng: Random, folder: Path) -> bool:
    """A format's reader by itself, with sizes that are right, or claim anything."""
    layer = corpus.layers[rng.choice(sorted(corpus.layers))]
    image = rom_images(layer, lanes=2, iz_rows=3)[rng.randrange(2)]
    kind = FORMATS[rng.choice(sorted(FORMATS))]
    content = kind.encode(image, "rom")
    width, depth = image.width, image.depth
    if rng.random() < 0.7:
        content = mutate_bytes(content, rng)
    if rng.random() < 0.3:
        width = max(1, rng.choice([*_NUMBERS, width + 1, width - 1]))
    if rng.random() < 0.3:
        depth = max(1, rng.choice([*_NUMBERS, depth + 1, depth - 1]))
    try:
        found = kind.decode(content, width, depth, "rom")
    except LrbiError:
        return False
    if kind.encode(found, "rom") != content or (found.width, found.depth) != (width, depth):
        raise AssertionError("what was read is not what the file says")
    return True


TARGETS: dict[str, tuple[int, Callable[[Corpus, Random, Path], bool]]] = {
    "factor file, blind": (3, factor_file_blind),
    "factor file, lying": (3, factor_file_lying),
    "manifest, blind": (2, manifest_blind),
    "manifest, lying": (3, manifest_lying),
    "ROM file": (3, rom_file),
    "ROM format": (6, rom_format),
}
"""What is read, with its share of the cases."""


@dataclass(frozen=True)
class Case:
    """What came of a number."""

    number: int
    target: str
    taken: bool = False
    problem: str = ""


def run_case(corpus: Corpus, number: int, folder: Path) -> Case:
    """Run one case, in a folder that it may fill."""
    rng = Random(number)
    names = list(TARGETS)
    (target,) = rng.choices(names, [TARGETS[name][0] for name in names])
    try:
        with _limits():
            return Case(number, target, TARGETS[target][1](corpus, rng, folder))
    except Exception as error:
        return Case(number, target, problem=f"{type(error).__name__}: {str(error)[:200]}")


@contextlib.contextmanager
def _limits() -> Iterator[None]:
    """Memory and time that end what takes too much of them."""

    def stop(*_: object) -> None:
        raise _TooSlowError(f"more than {SECONDS} s")

    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    handler = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)


def run_cases(numbers: range) -> list[Case]:
    """Run cases one after the other."""
    corpus = make_corpus()
    with tempfile.TemporaryDirectory(prefix="lrbi-") as name:
        return [run_case(corpus, number, Path(name)) for number in numbers]


def main(count: int = 100_000, case: int | None = None) -> int:
    """Run the first ``count`` cases, or one again; the number of those that fail."""
    start = time.monotonic()
    if case is not None:
        (found,) = run_cases(range(case, case + 1))
        print(found)
        return bool(found.problem)
    block = 500
    parts = [range(first, min(first + block, count)) for first in range(0, count, block)]
    counts: Counter[tuple[str, str]] = Counter()
    failures = []
    with ProcessPoolExecutor(2) as pool:
        for cases in pool.map(run_cases, parts):
            for each in cases:
                result = "failed" if each.problem else "taken" if each.taken else "refused"
                counts[each.target, result] += 1
                if each.problem:
                    failures.append(each)
                    print(f"case {each.number}, {each.target}: {each.problem}\n"
                          f"  again: python -m verification fuzz --case {each.number}",
                          flush=True)  # fmt: skip
    report = {
        target: {result: counts[target, result] for result in ("refused", "taken", "failed")}
        for target in TARGETS
    }
    table = markdown(
        ["file", "refused", "taken", "failures"],
        [[target, *(f"{number:,}" for number in results.values())]
         for target, results in report.items()],
    )  # fmt: skip
    print(table)
    seconds = round(time.monotonic() - start)
    print(f"{count} files, {len(failures)} failures, {seconds} s")
    if count >= 100_000:
        write("fuzz", {"files": count, "seconds": seconds, "targets": report}, table)
    return len(failures)
