"""``lrbi show``."""

from pathlib import Path

import click

from lrbi.cli.options import PATH, json_option, print_layers, verbosity


@click.command()
@click.argument("file", type=PATH)
@json_option
@verbosity
def show(file: Path, as_json: bool, quiet: bool, verbose: bool) -> None:
    """Tell what a factor file holds: a row a layer.

    \b
    rank        ranks that the tiles use, least and most
    index bits  rank * (rows + columns) of every tile, the size as the paper counts it
    ROM bits    size of the factor ROMs, padding included
    ratio       weights per index bit
    sparsity    share of zeros in the mask, and what was asked for
    cost        magnitude that the exact mask keeps and this mask loses
    kept        share of the exact mask's magnitude that this mask keeps

    With -v also how it was made.
    """
    from lrbi.factorfile import load

    print_layers(load(file), as_json=as_json, verbose=verbose)
