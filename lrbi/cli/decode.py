"""``lrbi decode``."""

from pathlib import Path

import click

from lrbi.cli.options import (
    PATH,
    chosen_layers,
    json_option,
    layer_option,
    message,
    print_json,
    verbosity,
)


@click.command()
@click.argument("file", type=PATH)
@layer_option
@click.option(
    "-o",
    "--output",
    required=True,
    type=PATH,
    help="Where to write: .npy for one layer, .npz for several.",
)
@click.option(
    "--source-shape", is_flag=True, help="Give masks the shape that the weights had in their file."
)
@click.option(
    "--packed",
    is_flag=True,
    help="Write rows packed into bytes, column j in bit j % 8 of byte j // 8.",
)
@json_option
@verbosity
def decode(
    file: Path,
    patterns: tuple[str, ...],
    output: Path,
    source_shape: bool,
    packed: bool,
    as_json: bool,
    quiet: bool,
    verbose: bool,
) -> None:
    """Rebuild masks from a factor file: True (1) where a weight is kept.

    \b
    lrbi decode fc1.lrbi -o mask.npy
    lrbi decode model.lrbi --layer 'conv*' --source-shape -o masks.npz
    """
    import io
    import zipfile

    import numpy as np

    from lrbi.atomic import check_output, replacing
    from lrbi.errors import InputError
    from lrbi.factorfile import load

    if packed and source_shape:
        raise click.UsageError("--packed goes with the matrix's own rows, not with --source-shape.")
    if output.suffix not in (".npy", ".npz"):
        raise InputError(f"Output {output} must end in .npy or .npz")
    check_output(output, file)
    layers = chosen_layers(load(file), patterns)
    masks = {
        name: layer.packed_mask()
        if packed
        else layer.source_mask()
        if source_shape
        else layer.mask()
        for name, layer in layers.items()
    }
    if output.suffix == ".npy" and len(masks) > 1:
        raise InputError(
            f"Output {output} must end in .npz to hold {len(masks)} layers "
            "(or choose one with --layer)"
        )
    with replacing(output) as temporary:
        if output.suffix == ".npy":
            content = io.BytesIO()  # np.save to a file would not see that a disk is full
            np.save(content, next(iter(masks.values())))
            temporary.write_bytes(content.getbuffer())
        else:
            with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
                for name, mask in masks.items():
                    with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                        np.lib.format.write_array(member, mask, allow_pickle=False)
    shapes = {name: list(mask.shape) for name, mask in masks.items()}
    if as_json:
        print_json({"output": str(output), "layers": shapes})
    detail = "".join(f"\n  {name}: {'x'.join(map(str, shape))}" for name, shape in shapes.items())
    message(f"wrote {len(masks)} mask(s) to {output}{detail if verbose else ''}", quiet=quiet)
