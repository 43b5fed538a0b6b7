"""``lrbi demo``."""

from pathlib import Path

import click

from lrbi.cli.options import PATH, json_option, message, print_json, print_layers, verbosity


@click.command()
@click.option(
    "-o",
    "--output",
    type=PATH,
    default=Path("build/demo"),
    show_default=True,
    help="Folder to write to.",
)
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the layer."
)
@json_option
@verbosity
def demo(output: Path, seed: int, as_json: bool, quiet: bool, verbose: bool) -> None:
    """Run the whole flow on a built-in layer: compress it, show it, decode it, check it."""
    import numpy as np
    from safetensors.numpy import save_file

    from lrbi.atomic import replacing, unwritable
    from lrbi.config import CompressConfig
    from lrbi.errors import CheckFailedError
    from lrbi.factorfile import load, save
    from lrbi.pipeline import compress
    from lrbi.product import boolean_product
    from lrbi.synthetic import trained_like

    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(output, error) from error
    weights = trained_like((500, 800), np.random.default_rng(seed))
    config = CompressConfig(sparsity=0.95, rank=16, tile=(100, 100), seed=seed)
    with replacing(output / "weights.safetensors") as temporary:
        save_file({"fc1": weights}, temporary)
    message(f"compressing a {weights.shape[0]}x{weights.shape[1]} layer", quiet=quiet)
    save(output / "fc1.lrbi", {"fc1": compress(weights, config)})

    layers = load(output / "fc1.lrbi")
    if not as_json:
        print_layers(layers, as_json=False, verbose=verbose)

    layer = layers["fc1"]
    mask = layer.mask()
    with replacing(output / "mask.npy") as temporary:
        np.save(temporary, mask)
    wrong = sum(
        int(
            np.count_nonzero(
                mask[layer.tiles.bounds(tile)] != boolean_product(*layer.factors(tile))
            )
        )
        for tile in range(len(layer.tiles))
    )
    if wrong:
        raise CheckFailedError(f"{wrong} of {mask.size} mask bits differ from the Boolean product")
    files = ["weights.safetensors", "fc1.lrbi", "mask.npy"]
    if as_json:
        report = {"layers": {"fc1": layer.summary()}, "bits": mask.size, "mismatches": wrong}
        print_json(report | {"files": [str(output / name) for name in files]})
        return
    print(f"{mask.size:,} mask bits compared with Eq. 3, 0 mismatches")
    print(f"files in {output}: {' '.join(files)}")
