"""``lrbi demo``."""

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
    simulator_option,
    verbosity,
)

if TYPE_CHECKING:
    from lrbi.layer import CompressedLayer
    from lrbi.sim.simulate import Report


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
@simulator_option
@json_option
@verbosity
def demo(
    output: Path, seed: int, simulator: str, as_json: bool, quiet: bool, verbose: bool
) -> None:
    """Run the whole flow on a built-in layer, and check every mask bit.

    The layer is compressed and decoded, its factors go to ROM files, its decoder is written as
    Verilog, and a simulator plays the one through the other. All files stay in OUTPUT.
    """
    import numpy as np
    from safetensors.numpy import save_file

    from lrbi.atomic import replacing, unwritable
    from lrbi.config import CompressConfig, DecoderConfig
    from lrbi.errors import CheckFailedError
    from lrbi.factorfile import load, save
    from lrbi.hw.generate import decoder_files
    from lrbi.pipeline import compress
    from lrbi.product import boolean_product
    from lrbi.romset import export_roms
    from lrbi.sim.simulate import Request, simulate, usable
    from lrbi.synthetic import trained_like

    def tell(text: str) -> None:
        message(text, quiet=quiet)

    try:
        (output / "rtl").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(output, error) from error
    weights = trained_like((500, 800), np.random.default_rng(seed))
    config = CompressConfig(sparsity=0.95, rank=16, tile=(100, 100), seed=seed)
    with replacing(output / "weights.safetensors") as temporary:
        save_file({"fc1": weights}, temporary)
    tell(f"compressing a {weights.shape[0]}x{weights.shape[1]} layer to {output / 'fc1.lrbi'}")
    save(output / "fc1.lrbi", {"fc1": compress(weights, config)})
    layers = load(output / "fc1.lrbi")
    layer = layers["fc1"]
    mask = layer.mask()
    with replacing(output / "mask.npy") as temporary:
        np.save(temporary, mask)
    wrong = sum(
        int((mask[layer.tiles.bounds(tile)] != boolean_product(*layer.factors(tile))).sum())
        for tile in range(len(layer.tiles))
    )
    if wrong:
        raise CheckFailedError(f"{wrong} of {mask.size} mask bits differ from the Boolean product")

    tell(f"exporting its ROM images to {output / 'rom'}")
    formats = ("mem", "mif", "coe", "bin", "ihex", "h")
    export_roms(layers, output / "rom", formats=formats, vectors=True)
    tell(f"generating its decoder in {output / 'rtl'}")
    decoder = DecoderConfig(rank=layer.rank, tile_rows=layer.tile[0], tile_cols=layer.tile[1])
    for name, text in decoder_files(decoder).items():
        with replacing(output / "rtl" / name) as temporary:
            temporary.write_text(text)

    # Amaranth's simulator plays the same design from its source; it reads no Verilog.
    verilog_folder = output / "rtl" if usable(simulator) != "amaranth" else None
    request = Request(simulator=simulator, rom=output / "rom", rtl=verilog_folder)
    with progress(quiet) as bar:
        report = simulate(layers, request, tell=tell, progress=bar)
    if as_json:
        summary = {"index_bytes": _index_bytes(layer, weights), "output": str(output)}
        print_json(report.to_json() | summary | {"layers": {"fc1": layer.summary()}})
    else:
        print_layers(layers, as_json=False, verbose=verbose)
        print()
        print_table({"demo": "left", "": "left"}, _rows(layer, weights, decoder, report, output))
    if not report.passed:
        raise CheckFailedError(
            "; ".join(report.stopped) or f"{report.mismatches} of {report.bits} mask bits differ"
        )


def _index_bytes(layer: "CompressedLayer", weights: Any) -> dict[str, int]:
    """Bytes that say which weights are kept: as a bitmap, as CSR, and as factors."""
    from lrbi.prune import exact_mask

    rows, cols = layer.shape
    kept = int(exact_mask(weights, layer.sparsity_target).sum())
    return {
        "bitmap": -(-rows * cols // 8),
        "csr": 2 * kept + 4 * (rows + 1),  # 16-bit columns, 32-bit row pointers
        "lrbi": -(-layer.index_bits // 8),
    }


def _rows(
    layer: "CompressedLayer", weights: Any, decoder: Any, report: "Report", output: Path
) -> list[tuple[str, str]]:
    sizes = _index_bytes(layer, weights)
    clocks = f"{report.clocks:,}, {report.row_share:.1%} of them with a mask row"
    if report.as_modelled:
        clocks += ", as the cycle model says"
    return [
        ("index as a bitmap", f"{sizes['bitmap']:,} bytes"),
        ("index as CSR, 16-bit columns", f"{sizes['csr']:,} bytes, of the exact mask"),
        ("index as factors", f"{sizes['lrbi']:,} bytes, {layer.ratio:.1f}x less than a bitmap"),
        ("magnitude kept", f"{layer.kept:.1%} of the exact mask's"),
        (
            "decoder",
            f"k = {decoder.rank}, {decoder.tile_cols} columns, {decoder.stage_ranks} ranks a "
            f"stage: {decoder.mask_width} mask bits a clock, latency {decoder.latency}",
        ),
        ("simulated in", report.simulator.capitalize()),
        ("compared", f"{report.tiles} tiles, {report.rows:,} rows, {report.bits:,} bits"),
        ("clocks", clocks),
        ("mismatches", f"{report.mismatches}"),
        (f"files in {output}", "fc1.lrbi, mask.npy, weights.safetensors, rom/, rtl/"),
    ]
