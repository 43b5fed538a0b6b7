"""``lrbi compress``."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lrbi.cli.options import (
    PATH,
    json_option,
    message,
    print_json,
    print_layers,
    print_table,
    progress,
    verbosity,
)
from lrbi.cli.sources import layer_sources, source_options

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from lrbi.weights import TensorInfo


@click.command()
@click.argument("file", type=PATH)
@click.option("--list", "listing", is_flag=True, help="List the tensors of FILE, and stop.")
@source_options
@click.option(
    "-j",
    "--jobs",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    metavar="N",
    help="Processes to spread the tiles over; the result does not depend on it.",
)
@click.option(
    "--dask",
    metavar="ADDRESS",
    help="Run the tiles on the Dask cluster whose scheduler is at ADDRESS, as in tcp://host:8786.",
)
@click.option("-o", "--output", type=PATH, help="The factor file to write.")
@json_option
@verbosity
def compress(
    file: Path,
    listing: bool,
    output: Path | None,
    as_json: bool,
    quiet: bool,
    verbose: bool,
    jobs: int,
    dask: str | None,
    **options: Any,
) -> None:
    """Find the factors of low-rank pruning masks for the layers of a weight file.

    FILE is a .npy, .npz, .safetensors or .onnx file, or a PyTorch checkpoint (.pt .pth .th .bin
    .ckpt). Interrupted work leaves OUTPUT.partial behind; the same command then goes on from there.

    \b
    lrbi compress model.safetensors --list
    lrbi compress model.safetensors --layer fc1 -s 0.95 -k 16 --tile 100x125 -o fc1.lrbi
    lrbi compress model.safetensors --layer 'fc*' -s 0.9,0.95 -k 8,16 -j 2 -o model.lrbi
    lrbi compress pruned.npz --all --from-zeros -k auto --ratio 10 -o pruned.lrbi
    """
    from lrbi.atomic import check_output, check_writable
    from lrbi.checkpoint import Checkpoint
    from lrbi.factorfile import save
    from lrbi.pipeline import compress_layers
    from lrbi.weights import open_weights

    weights = open_weights(file)
    if listing:
        _list(weights.tensors(), as_json)
        return
    if dask and jobs > 1:
        raise click.UsageError("--dask and --jobs cannot go together.")
    if output is None:
        raise click.UsageError("Missing option '-o' / '--output': the factor file to write.")
    sources, tiles = layer_sources(weights, **options)
    check_output(output, file, options["mask_file"])
    check_writable(output)
    layers = {}
    with ExitStack() as stack:
        store = stack.enter_context(
            Checkpoint(output, on_discard=lambda text: message(text, quiet=quiet))
        )
        executor, in_flight = stack.enter_context(_executor(min(jobs, tiles), dask))
        on_tile = stack.enter_context(progress(quiet))
        try:
            for name, layer in compress_layers(
                sources, executor=executor, in_flight=in_flight, store=store, on_tile=on_tile
            ):
                layers[name] = layer
                message(f"{name}: kept {layer.kept:.4f}", quiet=quiet or not verbose)
        except KeyboardInterrupt:
            message(f"the same command goes on from {store.folder}", quiet=quiet)
            raise
        save(output, layers)
    in_order = {source.name: layers[source.name] for source in sources}
    print_layers(in_order, as_json=as_json, verbose=verbose)


def _list(tensors: "list[TensorInfo]", as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "tensors": [
                    {
                        "name": item.name,
                        "shape": list(item.shape),
                        "dtype": item.dtype,
                        "matrix": item.is_matrix,
                    }
                    for item in tensors
                ]
            }
        )
        return
    rows = [
        (
            item.name,
            "x".join(map(str, item.shape)) or "scalar",
            item.dtype,
            f"{item.size:,}",
            "yes" if item.is_matrix else "no",
        )
        for item in tensors
    ]
    columns = {
        "tensor": "left",
        "shape": "right",
        "type": "left",
        "weights": "right",
        "can be compressed": "left",
    }
    print_table(columns, rows)


@contextmanager
def _executor(jobs: int, dask: str | None) -> "Iterator[tuple[Executor | None, int]]":
    """What runs the tiles, and how many of them to have out at a time."""
    from lrbi.workers import dask_cluster, process_pool

    if dask:
        with dask_cluster(dask) as cluster:
            yield cluster
    elif jobs > 1:
        with process_pool(jobs) as pool:
            yield pool
    else:
        yield None, 1
