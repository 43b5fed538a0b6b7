"""``lrbi compare``."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lrbi.cli.options import (
    PATH,
    given_options,
    json_option,
    message,
    print_json,
    print_table,
    progress,
    verbosity,
)
from lrbi.cli.sources import layer_sources, source_options

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lrbi.compare import Comparison
    from lrbi.paper import Claim


@click.command()
@click.argument("file", type=PATH, required=False)
@source_options
@click.option(
    "--viterbi-ratio",
    type=click.IntRange(1),
    default=5,
    show_default=True,
    metavar="N",
    help="Mask bits for an index bit of a Viterbi decompressor: its size is all that is told.",
)
@click.option(
    "--paper",
    is_flag=True,
    help="The paper's size tables instead: its figures, ours, and why they differ. Needs no FILE.",
)
@click.option("--plot", type=PATH, metavar="FILE", help="Draw it too: .png, .svg or .pdf.")
@json_option
@verbosity
@click.pass_context
def compare(
    context: click.Context,
    /,
    file: Path | None,
    viterbi_ratio: int,
    paper: bool,
    plot: Path | None,
    as_json: bool,
    quiet: bool,
    verbose: bool,
    **options: Any,
) -> None:
    """Tell what the index of a layer takes in every format, and what each keeps.

    The layer's exact mask is stored in each lossless format, and its low-rank mask is found as by
    lrbi compress; every index is decoded again and compared. Several layers are added up.

    \b
    bits     size of the index, exactly: no padding to bytes or words
    kept     share of the exact mask's magnitude that the format's mask keeps
    H(S)     bits that an index of random masks must take on average if nothing is to be lost
    limit    the most that any index of our size could keep, were the weights independent; of one
             layer only

    \b
    lrbi compare model.safetensors --layer fc1 -s 0.95 -k 16
    lrbi compare model.safetensors --layer fc1 -s 0.95 -k 16 --plot formats.png
    lrbi compare --paper
    """
    if paper:
        names = [parameter.name or "" for parameter in context.command.params]
        allowed = {"file", "paper", "as_json", "quiet", "verbose"}
        given = given_options(context, *(name for name in names if name not in allowed))
        if given or file is not None:
            raise click.UsageError(f"--paper cannot go with {given[0] if given else 'a FILE'}.")
        from lrbi.paper import claims

        _print_claims(claims(), as_json)
        return
    if file is None:
        raise click.UsageError("Missing argument 'FILE' (or --paper).")
    from lrbi.atomic import check_output, check_writable
    from lrbi.compare import Comparison, together
    from lrbi.compare import compare as compare_layer
    from lrbi.pipeline import compress_layers
    from lrbi.plot import check_plot, plot_formats, save_plot
    from lrbi.prune import exact_mask
    from lrbi.weights import open_weights

    if plot is not None:
        check_plot(plot)
        check_output(plot, file, options["mask_file"])
        check_writable(plot)
    sources, _ = layer_sources(open_weights(file), **options)
    found: dict[str, Comparison] = {}
    with progress(quiet) as on_tile:
        layers = compress_layers(sources, on_tile=on_tile)
        for source, (name, layer) in zip(sources, layers, strict=True):
            weights = source.weights()
            exact = source.mask(weights) if source.mask else None
            if exact is None:
                assert source.config.sparsity is not None
                exact = exact_mask(weights, source.config.sparsity)
            found[name] = compare_layer(weights, exact, layer, viterbi_ratio=viterbi_ratio)
    whole = together(list(found.values()))
    title = next(iter(found)) if len(found) == 1 else f"{len(found)} layers together"
    if as_json:
        each = {name: comparison.as_dict() for name, comparison in found.items()}
        print_json(whole.as_dict() | {"layers": each})
    else:
        if len(found) > 1 and verbose:
            for name, comparison in found.items():
                _print(name, comparison)
        _print(title, whole)
    for reason in whole.left_out:
        message(f"left out {reason}", quiet=quiet)
    if plot is not None:
        save_plot(plot_formats(whole, title), plot)
        message(f"wrote {plot}", quiet=quiet)


def _print(title: str, comparison: "Comparison") -> None:
    weights = comparison.formats[0].weights
    shape = "x".join(map(str, comparison.shape))
    print(f"{title}: {shape}{' weights' if len(comparison.shape) == 1 else ''}")
    columns = {
        "format": "left", "bits": "right", "bits/weight": "right", "ratio": "right",
        "sparsity": "right", "cost": "right", "kept": "right", "": "left",
    }  # fmt: skip
    rows = [
        (
            entry.name,
            f"{entry.bits:,}",
            f"{entry.bits_per_weight:.4f}",
            f"{weights / entry.bits:.2f}x" if entry.bits else "",
            "" if entry.sparsity is None else f"{entry.sparsity:.4f}",
            "" if entry.cost is None else f"{entry.cost:.6g}",
            "" if entry.kept is None else f"{entry.kept:.4f}",
            entry.note if entry.rom_bits is None else f"{entry.rom_bits:,} bits in ROMs",
        )
        for entry in comparison.formats
    ]
    bound = comparison.entropy_bits
    rows.append((
        "H(S)", f"{bound:,.0f}", f"{bound / weights:.4f}",
        f"{weights / bound:.2f}x" if bound else "", "", "", "", "least for random masks, lossless",
    ))  # fmt: skip
    ours = comparison.formats[-1]
    if comparison.limit is not None:
        rows.append((
            "limit", f"{ours.bits:,}", f"{ours.bits_per_weight:.4f}",
            f"{weights / ours.bits:.2f}x" if ours.bits else "", "", "", f"{comparison.limit:.4f}",
            "most at our size, were the weights independent",
        ))  # fmt: skip
    print_table(columns, rows)


def _print_claims(claims: "Iterable[Claim]", as_json: bool) -> None:
    if as_json:
        print_json({"claims": [claim.as_dict() for claim in claims]})
        return
    columns = {"table": "left", "what": "left", "paper": "right", "ours": "right", "": "left"}
    columns |= {"why they differ": "left"}
    rows = []
    for claim in claims:
        digits = 2 if claim.unit == "x" else 1
        ours = f"{claim.ours:.{digits}f}"
        rows.append((claim.table, claim.what, f"{claim.paper:g}", ours, claim.unit, claim.why))
    print_table(columns, rows)
