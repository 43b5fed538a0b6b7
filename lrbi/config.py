"""The two configurations: how a layer is compressed, and the decoder that plays it back."""

import dataclasses
import math
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Literal

from lrbi.errors import InputError

ENGINES = ("hals", "nimfa")
METHODS = (1, 2, 3)
EFFORTS = ("fast", "normal", "high")
OBJECTIVES = ("paper", "mixed", "all")
ROM_FORMATS = ("mem", "memb", "mif", "coe", "bin", "ihex", "h")


def whole_number(noun: str, value: Any, least: int) -> int:
    """A whole number of any type, NumPy's too, as an int."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise InputError(f"{noun} must be a whole number of at least {least}, not {value!r}")
    return int(value)


def _real(noun: str, constraint: str, value: Any) -> float:
    """A number of any type as a float; the constraint is for the refusal of anything else."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InputError(f"{noun} must be {constraint}, not {value!r}")
    return float(value)


def _tile(value: Any) -> tuple[int, int]:
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise InputError(f"Tile must be a pair of rows and columns, not {value!r}")
    return whole_number("Tile rows", value[0], 1), whole_number("Tile columns", value[1], 1)


@dataclass(frozen=True, kw_only=True)
class CompressConfig:
    """How :func:`lrbi.compress` turns a weight matrix into factors."""

    sparsity: float | None = None
    """Share S of weights to prune; None where the exact mask is given instead."""
    rank: int | Literal["auto"]
    """Rank k of every tile, or ``"auto"`` to choose a rank per tile that meets ``ratio``.

    A tile whose mask is exact at a smaller rank uses only that.
    """
    ratio: float | None = None
    """With rank ``"auto"``: the index ratio m*n / index_bits to meet."""
    tile: tuple[int, int] | None = None
    """Rows and columns of a tile; None for one tile of the layer's size."""
    method: int = 3
    """The paper's weight manipulation before NMF: 1 none, 2 squares, 3 amplified survivors."""
    engine: str = "hals"
    """The NMF engine, a name in :data:`ENGINES`."""
    iterations: int = 60
    """Iterations of the NMF engine."""
    effort: str = "normal"
    """How long to search: Algorithm 1 alone (``fast``), a short search from there (``normal``), or
    a long one (``high``)."""
    objective: str = "paper"
    """Which magnitude a mask is to keep: that under the exact mask (``paper``), that in full and
    the rest by a quarter (``mixed``), or all of it alike (``all``)."""
    sparsity_per_tile: bool = False
    """Prune every tile to S, as the paper does, instead of the layer as a whole."""
    seed: int = 0
    """Seed of everything random."""

    def __post_init__(self) -> None:
        if self.sparsity is not None:
            constraint = "between 0 and 1, both excluded"
            self._set("sparsity", _real("Sparsity", constraint, self.sparsity))
            if not 0.0 < self.sparsity < 1.0:
                raise InputError(f"Sparsity must be {constraint}, not {self.sparsity}")
        elif self.sparsity_per_tile:
            raise InputError("Sparsity per tile needs a sparsity, not a given mask")
        if self.rank == "auto":
            constraint = "a positive number with rank 'auto'"
            self._set("ratio", _real("Ratio", constraint, self.ratio))
            if not 0.0 < (self.ratio or 0.0) < math.inf:
                raise InputError(f"Ratio must be {constraint}, not {self.ratio}")
        else:
            self._set("rank", whole_number("Rank", self.rank, 1))
            if self.rank > 65535:
                raise InputError(f"Rank must be at most 65535, not {self.rank}")
            if self.ratio is not None:
                raise InputError(f"Ratio goes with rank 'auto' only, not with rank {self.rank}")
        if self.tile is not None:
            self._set("tile", _tile(self.tile))
        if self.method not in METHODS:
            raise InputError(f"Method must be 1, 2 or 3, not {self.method!r}")
        self._set("method", whole_number("Method", self.method, 1))
        for noun, name, names in (
            ("Engine", "engine", ENGINES),
            ("Effort", "effort", EFFORTS),
            ("Objective", "objective", OBJECTIVES),
        ):
            if getattr(self, name) not in names:
                raise InputError(
                    f"{noun} must be one of {', '.join(names)}, not {getattr(self, name)!r}"
                )
        self._set("iterations", whole_number("Iterations", self.iterations, 1))
        self._set("seed", whole_number("Seed", self.seed, 0))

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """The decoder's numbers, and every width and depth that follows from them.

    One object stands behind the software reference, the ROM images and the RTL.
    """

    rank: int
    """Largest rank k that the decoder takes."""
    tile_rows: int
    """Rows R of a tile as the ROM images hold it; at the streams, height is free."""
    tile_cols: int
    """Columns C of a tile: the width of a mask row."""
    stage_ranks: int = 6
    """Ranks d that one pipeline stage combines."""
    lanes: int = 1
    """I_p rows taken, and mask rows given, a clock."""
    iz_rows: int = 1
    """I_z rows a beat at the port."""
    reset: Literal["rst", "aresetn"] = "rst"
    """Reset port: ``rst`` active high, or ``aresetn`` active low; synchronous both."""
    memory: Literal["distributed", "block"] = "distributed"
    """What the I_z memory and the output buffer are read like: LUT RAM, or block RAM, whose reads
    are registered, for devices that have no other."""

    lut_inputs: Literal[4, 6] = 4
    """Inputs of the device's LUTs, by which a stage's logic is cut: 4 (ECP5, iCE40) or 6."""

    def __post_init__(self) -> None:
        for noun, name, most in (
            ("Rank", "rank", 256),
            ("Tile rows", "tile_rows", 1 << 24),
            ("Tile columns", "tile_cols", 1024),
            ("Ranks per stage", "stage_ranks", 256),
            ("Lanes", "lanes", 64),
            ("I_z rows a beat", "iz_rows", 256),
        ):
            value = whole_number(noun, getattr(self, name), 1)
            if value > most:
                raise InputError(f"{noun} must be at most {most}, not {value}")
            object.__setattr__(self, name, value)
        if self.reset not in ("rst", "aresetn"):
            raise InputError(f"Reset must be 'rst' or 'aresetn', not {self.reset!r}")
        if self.memory not in ("distributed", "block"):
            raise InputError(f"Memory must be 'distributed' or 'block', not {self.memory!r}")
        if isinstance(self.lut_inputs, bool) or self.lut_inputs not in (4, 6):
            raise InputError(f"LUT inputs must be 4 or 6, not {self.lut_inputs!r}")

    @property
    def stages(self) -> tuple[int, ...]:
        """Ranks in each pipeline stage, in order; where d does not divide k, the first is short."""
        short = self.rank % self.stage_ranks
        return ((short,) if short else ()) + (self.stage_ranks,) * (self.rank // self.stage_ranks)

    @property
    def ip_width(self) -> int:
        """Bits of an I_p beat or ROM word."""
        return self.rank * self.lanes

    @property
    def iz_width(self) -> int:
        """Bits of an I_z beat or ROM word."""
        return self.tile_cols * self.iz_rows

    @property
    def mask_width(self) -> int:
        """Bits of a mask beat."""
        return self.tile_cols * self.lanes

    @property
    def ip_depth(self) -> int:
        """I_p words of a tile."""
        return -(-self.tile_rows // self.lanes)

    @property
    def iz_depth(self) -> int:
        """I_z words of a tile of full rank."""
        return -(-self.rank // self.iz_rows)

    @property
    def latency(self) -> int:
        """Clocks from an I_p beat taken to its mask beat valid, if nothing holds it up."""
        return len(self.stages) + 4

    @property
    def full_rate_beats(self) -> int:
        """Beats of a tile from which tiles of full rank follow each other without a lost clock."""
        return max(self.iz_depth, len(self.stages))

    @property
    def buffer_depth(self) -> int:
        """Places in the output buffer: enough to take a beat every clock."""
        return max(16, 1 << (len(self.stages) + 8 - 1).bit_length())

    @property
    def sustained_bits(self) -> float:
        """Mask bits a clock while whole tiles of full rank follow each other without stalls."""
        return self.tile_rows * self.tile_cols / max(self.ip_depth, self.full_rate_beats)

    def as_dict(self) -> dict[str, Any]:
        """The configuration as JSON keeps it."""
        return dataclasses.asdict(self)
