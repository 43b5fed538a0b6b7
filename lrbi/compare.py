"""One layer's index in every format: what each takes, and what it keeps."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lrbi.arrays import Bits, Floats
from lrbi.errors import CheckFailedError, InputError
from lrbi.formats import (
    Bitmap,
    Csr,
    Format,
    GolombRice,
    LowRank,
    PaddedRelative,
    Relative,
    TwoFour,
    TwoLevel,
    Zstd,
    viterbi_bits,
)
from lrbi.layer import CompressedLayer
from lrbi.limit import entropy, kept_limit

LOSSLESS: tuple[Format, ...] = (
    Bitmap(), Csr(16), PaddedRelative(16, reach=5), Relative(5), PaddedRelative(5),
    Relative(4), PaddedRelative(4), TwoLevel(4), TwoLevel(16), GolombRice(), Zstd(),
)  # fmt: skip
"""The formats that keep the exact mask, in the order in which they are told of."""

NOTES = {
    "csr-16": "row pointers of 32 bits",
    "csr-16-paper": "the paper's CSR(16bit): relative-5-padded at 16 bits an entry",
    "relative-5": "an escape for long gaps: the index alone gives the mask",
    "relative-4": "an escape for long gaps: the index alone gives the mask",
    "relative-5-padded": "the paper's CSR(5bit): long gaps store weights of value zero",
    "relative-4-padded": "long gaps store weights of value zero",
    "zstd": "of the bitmap, level 19",
    "2:4": "a mask of its own, S = 0.5",
}
"""What there is to say of a format, by its name."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A layer's index in one format."""

    name: str
    """The format's name."""
    bits: int
    """Size of the index, exactly."""
    weights: int
    """Weights of the layer."""
    magnitude: float
    """Magnitude under the exact mask."""
    cost: float | None
    """Magnitude that the exact mask keeps and this one loses; None where no mask is made."""
    sparsity: float | None
    """Share of zeros in the format's mask; None where no mask is made."""
    rom_bits: int | None = None
    """Bits of the ROM images, padding included; known of ours alone."""
    note: str = ""
    """What else there is to say."""

    @property
    def bits_per_weight(self) -> float:
        """Bits of the index for each weight of the layer."""
        return self.bits / self.weights

    @property
    def kept(self) -> float | None:
        """Share of the exact mask's magnitude that the format's mask keeps."""
        if self.cost is None:
            return None
        return max(0.0, 1 - self.cost / self.magnitude) if self.magnitude else 1.0

    def as_dict(self) -> dict[str, Any]:
        """The entry as JSON tells it."""
        names = ("name", "bits", "bits_per_weight", "rom_bits", "cost", "kept", "sparsity", "note")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class Comparison:
    """All formats of a layer, or of several layers together."""

    formats: tuple[Entry, ...]
    """The formats, ours last."""
    shape: tuple[int, ...]
    """Rows and columns of the layer; of several, their weights in all."""
    entropy_bits: float
    """H(S) for every weight: what an index that keeps every random mask must take on average."""
    limit: float | None
    """The most that an index of our size could keep, were the weights independent; None for
    several layers, among which an index could share out its bits in other ways than ours."""
    left_out: tuple[str, ...] = ()
    """Formats that do not apply, each with its reason."""

    def as_dict(self) -> dict[str, Any]:
        """The comparison as JSON tells it."""
        return {
            "formats": [entry.as_dict() for entry in self.formats],
            "entropy_bits": self.entropy_bits,
            "shannon_limit_kept": self.limit,
            "left_out": list(self.left_out),
        }


def compare(
    weights: Floats, exact: Bits, layer: CompressedLayer, *, viterbi_ratio: int = 5
) -> Comparison:
    """Store the exact mask of ``weights`` (m x n) in every format, beside the factors of ``layer``.

    Each index is decoded again and compared with its mask. ``viterbi_ratio`` is the number of
    mask bits for an index bit of a Viterbi decompressor, of which only the size is known here.
    """
    if not weights.shape == exact.shape == layer.shape:
        raise InputError(
            f"Weights, mask and layer must have one shape, not {weights.shape}, {exact.shape} "
            f"and {layer.shape}"
        )
    magnitudes = np.abs(weights)
    gains = magnitudes[exact]
    magnitude = float(gains.sum(dtype=np.float64))

    def entry(name: str, bits: int, mask: Bits | None, note: str = "") -> Entry:
        cost = None if mask is None else float(magnitudes[exact & ~mask].sum(dtype=np.float64))
        sparsity = None if mask is None else 1 - np.count_nonzero(mask) / mask.size
        return Entry(
            name=name, bits=bits, weights=exact.size, magnitude=magnitude,
            cost=cost, sparsity=sparsity, note=note or NOTES.get(name, ""),
        )  # fmt: skip

    def stored(format_: Any, content: Any, mask: Bits) -> Entry:
        index = format_.encode(content)
        if not np.array_equal(format_.decode(index), mask):
            raise CheckFailedError(f"Format {format_.name} does not give its mask back")
        return entry(format_.name, index.bits, mask)

    left_out = []
    entries = []
    for format_ in LOSSLESS:
        try:
            entries.append(stored(format_, exact, exact))
        except InputError as reason:
            left_out.append(f"{format_.name}: {reason}")
    viterbi = f"size only: no mask is made; the ratio {viterbi_ratio} is given"
    entries.append(
        entry(f"viterbi-{viterbi_ratio}", viterbi_bits(exact.size, viterbi_ratio), None, viterbi)
    )
    try:
        mask = TwoFour.mask(magnitudes)
        entries.append(stored(TwoFour(), mask, mask))
    except InputError as reason:
        left_out.append(f"2:4: {reason}")
    ours = replace(stored(LowRank.of(layer), layer, layer.mask()), rom_bits=layer.rom_bits)
    sparsity = 1 - np.count_nonzero(exact) / exact.size
    limit = kept_limit(sparsity, ours.bits_per_weight, gains) if 0 < sparsity < 1 else 1.0
    return Comparison(
        (*entries, ours), exact.shape, entropy(sparsity) * exact.size, limit, tuple(left_out)
    )


def together(comparisons: Sequence[Comparison]) -> Comparison:
    """Several layers as one: sizes and costs added up, format by format.

    Ours counts as one format, whatever its ranks. A format that does not apply to every layer is
    left out.
    """
    if len(comparisons) == 1:
        return comparisons[0]
    columns = [_by_name(comparison) for comparison in comparisons]
    common = [name for name in columns[0] if all(name in column for column in columns)]
    sums = [_sum(name, [column[name] for column in columns]) for name in common]
    reasons = dict.fromkeys(reason for each in comparisons for reason in each.left_out)
    return Comparison(
        tuple(sums),
        (sum(math.prod(each.shape) for each in comparisons),),
        math.fsum(each.entropy_bits for each in comparisons),
        None,
        tuple(reasons),
    )


def _by_name(comparison: Comparison) -> dict[str, Entry]:
    *others, ours = comparison.formats
    return {entry.name: entry for entry in others} | {"lrbi": ours}


def _sum(name: str, entries: Sequence[Entry]) -> Entry:
    def total(values: Iterator[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return math.fsum(known) if len(known) == len(entries) else None

    weights = sum(entry.weights for entry in entries)
    roms = total(entry.rom_bits for entry in entries)
    zeros = total(
        None if entry.sparsity is None else entry.sparsity * entry.weights for entry in entries
    )
    return Entry(
        name=name,
        bits=sum(entry.bits for entry in entries),
        weights=weights,
        magnitude=math.fsum(entry.magnitude for entry in entries),
        cost=total(entry.cost for entry in entries),
        sparsity=None if zeros is None else zeros / weights,
        rom_bits=None if roms is None else int(roms),
        note=entries[0].note,
    )
