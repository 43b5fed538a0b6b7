"""``lrbi simulate``."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lrbi.cli.options import (
    PATH,
    Listed,
    chosen_layers,
    decoder_options,
    given_options,
    json_option,
    layer_option,
    message,
    print_json,
    progress,
    simulator_option,
    top_option,
    verbosity,
)

if TYPE_CHECKING:
    from lrbi.sim.simulate import Report


@click.command()
@click.argument("file", type=PATH)
@layer_option
@top_option
@simulator_option
@click.option("--rom", type=PATH, metavar="DIR", help="ROM files of lrbi export. [default: fresh]")
@click.option("--rtl", type=PATH, metavar="DIR", help="Verilog of lrbi generate. [default: fresh]")
@click.option(
    "--waves", type=PATH, metavar="FILE", help="Write all signals to FILE, an .fst or a .vcd."
)
@click.option(
    "--stall",
    type=Listed(click.FLOAT),
    default="0",
    show_default=True,
    metavar="P[,P,P]",
    help="How often a port holds back a beat: all alike, or I_z, I_p and mask.",
)
@click.option(
    "--tiles", type=click.IntRange(1), metavar="N", help="Only the first tiles of each layer."
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the stalls.")
@decoder_options
@json_option
@verbosity
@click.pass_context
def simulate(
    context: click.Context,
    /,
    file: Path,
    patterns: tuple[str, ...],
    top: str,
    simulator: str,
    rom: Path | None,
    rtl: Path | None,
    waves: Path | None,
    stall: list[float],
    tiles: int | None,
    seed: int,
    as_json: bool,
    quiet: bool,
    verbose: bool,
    **options: Any,
) -> None:
    """Play a factor FILE through its decoder in a simulator, and compare every mask row.

    What goes in is read back from exported ROM files; what must come out is the Boolean product of
    FILE's own factors. Ends with 1 if a bit differs, if a clock is not as the cycle model says, or
    if the design hangs.

    \b
    lrbi simulate fc1.lrbi
    lrbi simulate fc1.lrbi --top rom --sim icarus --waves fc1.fst --stall 0.3 --tiles 8 --json
    lrbi simulate fc1.lrbi --rom rom/ --rtl rtl/
    """
    from lrbi.atomic import check_output
    from lrbi.errors import CheckFailedError
    from lrbi.factorfile import load
    from lrbi.sim.scene import Stalls
    from lrbi.sim.simulate import Request
    from lrbi.sim.simulate import simulate as run

    if len(stall) not in (1, 3):
        raise click.UsageError("--stall takes one share, or three: of I_z, I_p and mask.")
    if not all(0 <= share <= 0.99 for share in stall):
        raise click.UsageError("--stall must be from 0 to 0.99.")
    iz, ip, mask = stall if len(stall) == 3 else stall * 3
    if rtl is not None and (given := given_options(context, *options)):
        raise click.UsageError(f"{given[0]} goes with a fresh design, not with --rtl.")
    if waves is not None:
        check_output(waves, file)
    layers = chosen_layers(load(file), patterns)
    request = Request(
        top=top,
        simulator=simulator,
        options=options,
        rtl=rtl,
        rom=rom,
        waves=waves,
        stalls=Stalls(iz, ip, mask, seed),
        tiles=tiles,
    )
    with progress(quiet) as bar:
        report = run(layers, request, tell=lambda text: message(text, quiet=quiet), progress=bar)
    if as_json:
        print_json(report.to_json())
    else:
        print(_line(report))
        for wrong in report.first_mismatches:
            print(
                f"  layer {wrong.layer}, tile {wrong.tile}, row {wrong.row}, column "
                f"{wrong.column}: got {_bit(wrong.got)}, expected {_bit(wrong.expected)}"
            )
    if report.stopped:
        raise CheckFailedError("; ".join(report.stopped))
    if report.mismatches:
        raise CheckFailedError(f"{report.mismatches} of {report.bits} mask bits differ")
    if report.as_modelled is False:
        raise CheckFailedError(
            f"The masks are right, but took {report.clocks} clocks where the cycle model says "
            f"{report.model_clocks}, or came on other clocks than it says"
        )


def _bit(value: int | None) -> str:
    return "no beat" if value is None else str(value)


def _line(report: "Report") -> str:
    model = f"{report.model_clocks:,} by the cycle model"
    if report.as_modelled:
        model = "as the cycle model says"
    elif report.as_modelled is None and not report.stopped:
        model = f"{report.model_clocks:,} without stalls"
    return (
        f"{report.tiles:,} tiles, {report.rows:,} rows, {report.bits:,} bits compared, "
        f"{report.mismatches:,} mismatches; {report.clocks:,} clocks ({model}), "
        f"{report.row_share:.1%} of them with a mask row"
    )
