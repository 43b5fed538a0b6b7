"""The layers that a verb works on, and how they are compressed: options and what they mean."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from lrbi.cli.options import PATH, Extent, Listed
from lrbi.config import EFFORTS, ENGINES, OBJECTIVES

if TYPE_CHECKING:
    from lrbi.config import CompressConfig
    from lrbi.pipeline import LayerSource
    from lrbi.tiles import TileGrid
    from lrbi.weights import TensorInfo, WeightFile

_Verb = TypeVar("_Verb", bound=Callable[..., Any])


def source_options(verb: _Verb) -> _Verb:
    """Add the options of :func:`layer_sources`."""
    for option in (  # the last is shown first
        click.option(
            "--seed",
            type=click.IntRange(0),
            default=0,
            show_default=True,
            metavar="N",
            help="Seed of everything random.",
        ),
        click.option(
            "--iterations",
            type=click.IntRange(1),
            default=60,
            show_default=True,
            metavar="N",
            help="NMF iterations.",
        ),
        click.option(
            "--objective",
            type=click.Choice(OBJECTIVES),
            default="paper",
            show_default=True,
            help="Which magnitude a mask is to keep. paper: that under the exact mask; mixed: "
            "that, and the rest by a quarter; all: all of it alike.",
        ),
        click.option(
            "--effort",
            type=click.Choice(EFFORTS),
            default="normal",
            show_default=True,
            help="How long to search for better factors. fast: the paper's Algorithm 1 alone; "
            "normal: a short search from there, a few times as long; high: a long one, sixty "
            "times as long.",
        ),
        click.option(
            "--engine",
            type=click.Choice(ENGINES),
            default="hals",
            show_default=True,
            help="NMF engine.",
        ),
        click.option(
            "--method",
            type=click.IntRange(1, 3),
            default=3,
            show_default=True,
            help="Weight manipulation before NMF: 1 none, 2 squares, 3 survivors amplified by "
            "1/(1-S).",
        ),
        click.option("--transpose", is_flag=True, help="Transpose the matrix (after --reshape)."),
        click.option(
            "--reshape",
            type=Extent(),
            metavar="RxC",
            help="View layers as R x C. [default: (out, in*kh*kw) for convolutions]",
        ),
        click.option(
            "--from-zeros",
            is_flag=True,
            help="Take the layer's own zeros as the exact mask (a pruned model).",
        ),
        click.option(
            "--mask",
            "mask_file",
            type=PATH,
            metavar="FILE",
            help="Take the exact mask from FILE (same layer name, or its only array), not from "
            "--sparsity.",
        ),
        click.option(
            "--sparsity-per-tile",
            is_flag=True,
            help="Prune every tile to S, as in the paper, instead of the layer as a whole.",
        ),
        click.option(
            "--tile",
            "tiles",
            type=Listed(Extent()),
            metavar="RxC[,RxC...]",
            help="Cut layers into tiles of R rows and C columns: one size for all, or one for each "
            "in the order of --list. [default: one tile a layer]",
        ),
        click.option(
            "--ratio",
            type=click.FLOAT,
            metavar="X",
            help="With --rank auto: weights per index bit that each layer is to meet.",
        ),
        click.option(
            "-k",
            "--rank",
            "ranks",
            type=Listed(click.INT, word="auto"),
            metavar="K[,K...]|auto",
            help="Rank of the factors: one for all layers, one for each in the order of --list, or "
            "'auto' to choose a rank per tile that meets --ratio.",
        ),
        click.option(
            "-s",
            "--sparsity",
            type=Listed(click.FLOAT),
            metavar="S[,S...]",
            help="Share of weights to prune, between 0 and 1: one for all layers, or one for each "
            "in the order of --list.",
        ),
        click.option(
            "--min-size",
            type=click.IntRange(1),
            default=4096,
            show_default=True,
            metavar="N",
            help="With --all: the least number of weights.",
        ),
        click.option(
            "--all", "every", is_flag=True, help="Every matrix of at least --min-size weights."
        ),
        click.option(
            "--layer",
            "patterns",
            multiple=True,
            metavar="NAME",
            help="Layer, by name or glob; may be repeated. [default: the only matrix]",
        ),
    ):
        verb = option(verb)
    return verb


def layer_sources(
    weights: "WeightFile",
    *,
    patterns: tuple[str, ...],
    every: bool,
    min_size: int,
    sparsity: list[float] | None,
    ranks: list[Any] | None,
    ratio: float | None,
    tiles: list[tuple[int, int]] | None,
    mask_file: Path | None,
    from_zeros: bool,
    reshape: tuple[int, int] | None,
    transpose: bool,
    **shared: Any,
) -> "tuple[list[LayerSource], int]":
    """The layers that the options ask for, all checked before any is read, and their tiles."""
    from lrbi.config import CompressConfig
    from lrbi.pipeline import LayerSource
    from lrbi.tiles import TileGrid
    from lrbi.weights import as_matrix, matrix_shape, nonzero_mask, select

    if every and patterns:
        raise click.UsageError("--all and --layer cannot go together.")
    if (sparsity is not None) + (mask_file is not None) + from_zeros != 1:
        raise click.UsageError("Give one of --sparsity, --mask and --from-zeros.")
    if ranks is None:
        raise click.UsageError("Missing option '-k' / '--rank': the rank of the factors.")
    if ratio is not None and "auto" not in ranks:
        raise click.UsageError("--ratio goes with --rank auto.")
    chosen = select(
        weights.tensors(), patterns, every=every, min_size=min_size, reshaped=reshape is not None
    )
    names = [item.name for item in chosen]
    view = partial(as_matrix, reshape=reshape, transpose=transpose)
    masks = _masks(mask_file, names, view) if mask_file else {}
    sources, tile_count = [], 0
    for item, rank, share, tile in zip(
        chosen,
        _each("--rank", ranks, names),
        _each("--sparsity", sparsity or [None], names),
        _each("--tile", tiles or [None], names),
        strict=True,
    ):
        config = CompressConfig(
            rank=rank, ratio=ratio if rank == "auto" else None, sparsity=share, tile=tile, **shared
        )
        shape = matrix_shape(item.shape, reshape=reshape, transpose=transpose)
        grid = TileGrid(shape, config.tile or shape)
        _check_layer(item, grid, config, masks.get(item.name))
        tile_count += len(grid)
        sources.append(
            LayerSource(
                name=item.name,
                config=config,
                weights=partial(_read, weights, item.name, view),
                mask=nonzero_mask if from_zeros else masks.get(item.name),
                source_shape=item.shape,
                transposed=transpose,
            )
        )
    return sources, tile_count


def _read(weights: "WeightFile", name: str, view: Callable[[Any], Any]) -> Any:
    return view(weights.read(name))


@dataclass(frozen=True)
class _Mask:
    """A mask in a file, to be read when its layer's turn comes."""

    file: "WeightFile"
    info: "TensorInfo"
    view: Callable[[Any], Any]

    def __call__(self, weights: Any) -> Any:
        from lrbi.weights import as_mask

        return as_mask(self.view(self.file.read(self.info.name)))


def _masks(path: Path, names: list[str], view: Callable[[Any], Any]) -> dict[str, _Mask]:
    """The masks of all layers: by name, or the only one of the file for the only layer."""
    from lrbi.errors import InputError
    from lrbi.weights import open_weights

    file = open_weights(path)
    there = {info.name: info for info in file.tensors()}
    if len(names) == len(there) == 1:
        there = dict.fromkeys(names, next(iter(there.values())))
    for name in names:
        if name not in there:
            raise InputError(f"Mask file {path} must hold a mask for {name!r}, but has none")
    return {name: _Mask(file, there[name], view) for name in names}


def _check_layer(
    item: "TensorInfo", grid: "TileGrid", config: "CompressConfig", mask: _Mask | None
) -> None:
    """Refuse early what would be refused when the layer's turn comes, after other layers' work."""
    from lrbi.allocate import uniform_rank
    from lrbi.errors import InputError
    from lrbi.weights import FLOAT_TYPES

    if item.dtype not in FLOAT_TYPES:
        raise InputError(
            f"Weights must be {', '.join(FLOAT_TYPES)}, but {item.name} is {item.dtype} "
            "(convert them first)"
        )
    if config.ratio is not None:
        uniform_rank(grid, config.ratio)
    if mask is not None and math.prod(mask.info.shape) != math.prod(grid.shape):
        raise InputError(
            f"Mask for {item.name} must have shape {item.shape}, not {mask.info.shape}"
        )


def _each(option: str, values: list[Any], names: list[str]) -> list[Any]:
    """One value a layer: the same for all, or as many as there are layers."""
    if len(values) not in (1, len(names)):
        raise click.UsageError(
            f"{option} has {len(values)} values for {len(names)} layers: {', '.join(names)}."
        )
    return values * len(names) if len(values) == 1 else values
