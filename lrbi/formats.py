"""Index formats: how a pruning mask can be stored without loss, one encoder for each.

The positions of a mask are taken in row-major order. What a format stores is an :class:`Index`:
strings of bits, by name, in the order in which a decoder takes them. The Viterbi decompressor is
here too, but has no encoder; see :class:`Viterbi`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from lrbi.arrays import Bits
from lrbi.config import whole_number
from lrbi.errors import InputError
from lrbi.layout import from_bits, to_bits


@dataclass(frozen=True, eq=False)
class Index:
    """A mask as a format stores it."""

    shape: tuple[int, int]
    """Rows and columns of the mask; known to the decoder, so not counted."""
    parts: Mapping[str, Bits]
    """The stored strings of bits, by name."""

    @property
    def bits(self) -> int:
        """The exact size: every stored bit, and no padding to bytes or words."""
        return sum(map(len, self.parts.values()))


class Format(Protocol):
    """A way to store any mask."""

    @property
    def name(self) -> str:
        """The format's name, its parameter included."""

    def encode(self, mask: Bits) -> Index:
        """Store a mask, rows x columns."""

    def decode(self, index: Index) -> Bits:
        """Undo :meth:`encode`: the same mask, bit for bit."""


@dataclass(frozen=True)
class Bitmap:
    """The mask itself, a bit for each position: part ``index``."""

    @property
    def name(self) -> str:
        """The format's name."""
        return "bitmap"

    def encode(self, mask: Bits) -> Index:
        """Store a mask, rows x columns."""
        return Index(_shape(mask), {"index": mask.reshape(-1)})

    def decode(self, index: Index) -> Bits:
        """Undo :meth:`encode`."""
        return index.parts["index"].reshape(index.shape)


@dataclass(frozen=True)
class Relative:
    """Relative indexing, as in Deep Compression and EIE: the zeros before each kept weight.

    Part ``index`` is a string of entries of ``bits`` bits. An entry below 2**bits - 1 passes as
    many zeros, and keeps the weight that follows them. The entry 2**bits - 1, the padding entry,
    passes 2**bits - 1 zeros and keeps nothing, so that the mask comes back exactly. (EIE stores a
    weight of value zero for such an entry instead.)

    Padding entries also end the mask, until the last entry stands among the last ``chunk``
    positions: a decoder that makes ``chunk`` mask bits at a time then needs no other sign of the
    end. There is at least one entry.
    """

    bits: int = 5
    """Bits of an entry."""
    chunk: int | None = None
    """Positions among which the last entry stands; None for a row, or 2**bits if that is more."""

    def __post_init__(self) -> None:
        whole_number("Bits of an entry", self.bits, 1)
        if self.bits > 16:
            raise InputError(f"Bits of an entry must be at most 16, not {self.bits}")
        if self.chunk is not None:
            check_chunk(self.chunk, self.bits)

    @property
    def name(self) -> str:
        """The format's name."""
        return f"relative-{self.bits}"

    @property
    def padding(self) -> int:
        """The padding entry, and the zeros that it passes."""
        return (1 << self.bits) - 1

    def encode(self, mask: Bits) -> Index:
        """Store a mask, rows x columns; O(positions)."""
        shape = _shape(mask)
        kept = np.flatnonzero(mask)
        pads, entries = np.divmod(np.diff(kept, prepend=-1) - 1, self.padding)
        last = int(kept[-1]) if len(kept) else -1
        chunk = self.chunk or max(shape[1], self.padding + 1)
        missing = max(mask.size - chunk - last, 0 if len(kept) else 1)
        numbers = np.full(pads.sum() + len(kept) + -(-missing // self.padding), self.padding)
        numbers[np.cumsum(pads + 1) - 1] = entries
        return Index(shape, {"index": to_bits(numbers, self.bits).reshape(-1)})

    def decode(self, index: Index) -> Bits:
        """Undo :meth:`encode`."""
        mask = np.zeros(index.shape, dtype=np.bool_)
        entries = from_bits(index.parts["index"].reshape(-1, self.bits))
        keeps = entries != self.padding
        after = np.cumsum(entries + keeps)  # the position behind each entry
        mask.reshape(-1)[after[keeps] - 1] = True
        return mask


@dataclass(frozen=True)
class TwoLevel:
    """A bitmap of two levels: which blocks of positions keep a weight, and those blocks.

    Part ``map`` has a bit for each block of ``block`` positions, part ``block`` the blocks whose
    bit is 1, whole. Where the mask ends within a block, zeros fill it.
    """

    block: int = 4
    """Positions of a block."""

    def __post_init__(self) -> None:
        whole_number("Block", self.block, 1)

    @property
    def name(self) -> str:
        """The format's name."""
        return f"two-level-{self.block}"

    def encode(self, mask: Bits) -> Index:
        """Store a mask, rows x columns."""
        shape = _shape(mask)
        filled = np.zeros(-(-mask.size // self.block) * self.block, dtype=np.bool_)
        filled[: mask.size] = mask.reshape(-1)
        blocks = filled.reshape(-1, self.block)
        kept: Bits = np.any(blocks, axis=1)
        return Index(shape, {"map": kept, "block": blocks[kept].reshape(-1)})

    def decode(self, index: Index) -> Bits:
        """Undo :meth:`encode`."""
        kept, (rows, cols) = index.parts["map"], index.shape
        blocks = np.zeros((len(kept), self.block), dtype=np.bool_)
        blocks[kept] = index.parts["block"].reshape(-1, self.block)
        return blocks.reshape(-1)[: rows * cols].reshape(index.shape)


@dataclass(frozen=True, kw_only=True)
class Viterbi:
    """The decompressor of Viterbi-based pruning (Lee et al., ICLR 2018), and nothing else of it.

    In each step a shift register takes an input bit, ``outputs`` XORs of its bits make
    ``outputs / width`` numbers, and each number that is at least ``threshold`` keeps a weight. The
    register is zero before the first step.

    There is no encoder: the input whose mask keeps the most is found by a search over a trellis,
    together with the pruning, and that search is not built here. So the size is known, by the
    ratio alone, and :meth:`expand` gives the mask of any input; but not the input of a mask.

    Ours are the register's length and the taps, which the paper does not list: every XOR has four
    taps, drawn at random from ``seed`` so that the numbers of a step are uniform, each by itself.
    Ours too is the reading of the paper's skip state: the register takes an input bit once in
    ``skip + 1`` steps, and a zero in the others.
    """

    outputs: int = 40
    """XORs."""
    width: int = 10
    """Bits of a number."""
    threshold: int
    """The least number that keeps a weight."""
    register: int = 16
    """Bits of the shift register."""
    skip: int = 0
    """Steps after each input bit in which none is taken."""
    seed: int = 1
    """Seed of the taps."""

    def __post_init__(self) -> None:
        for noun, value, least in (
            ("Outputs", self.outputs, 1), ("Comparator width", self.width, 1),
            ("Threshold", self.threshold, 0), ("Register", self.register, 5),
            ("Skip", self.skip, 0), ("Seed", self.seed, 0),
        ):  # fmt: skip
            whole_number(noun, value, least)
        if self.outputs % self.width:
            raise InputError(
                f"Outputs must be a multiple of the comparator width {self.width}, "
                f"not {self.outputs}"
            )
        if self.threshold > 1 << self.width:
            raise InputError(f"Threshold must be at most {1 << self.width}, not {self.threshold}")
        if self.register <= self.width:
            raise InputError(
                f"Register must be longer than the comparator width {self.width}, "
                f"not {self.register}"
            )

    @classmethod
    def of_sparsity(cls, sparsity: float, *, width: int = 10, **options: int) -> "Viterbi":
        """A decompressor that prunes this share of the weights, if its input is random."""
        return cls(width=width, threshold=round(sparsity * (1 << width)), **options)

    @property
    def name(self) -> str:
        """The format's name."""
        return f"viterbi-{self.ratio}"

    @property
    def chunk(self) -> int:
        """Mask bits of a step."""
        return self.outputs // self.width

    @property
    def ratio(self) -> int:
        """Mask bits of an input bit."""
        return self.chunk * (self.skip + 1)

    @cached_property
    def taps(self) -> tuple[tuple[int, ...], ...]:
        """The register's bits that each output is the XOR of; bit 0 is the newest."""
        rng = np.random.default_rng(self.seed)
        taps: list[tuple[int, ...]] = []
        while len(taps) < self.outputs:
            number = taps[len(taps) // self.width * self.width :]
            drawn = tuple(sorted(map(int, rng.choice(self.register, size=4, replace=False))))
            if _independent([*number, drawn]):
                taps.append(drawn)
        return tuple(taps)

    def size(self, shape: tuple[int, int]) -> int:
        """Input bits of a mask, exactly."""
        positions = shape[0] * shape[1]
        if positions % self.ratio:
            raise InputError(
                f"Positions of a mask must be a multiple of the ratio {self.ratio}, not {positions}"
            )
        return positions // self.ratio

    def expand(self, index: Index) -> Bits:
        """The mask that the input bits ``index`` make; O(positions)."""
        bits = index.parts["index"]
        if len(bits) != self.size(index.shape):
            raise InputError(
                f"Input of a mask of {index.shape[0]}x{index.shape[1]} must have "
                f"{self.size(index.shape)} bits, not {len(bits)}"
            )
        steps = len(bits) * (self.skip + 1)
        taken = np.zeros(self.register - 1 + steps, dtype=np.bool_)
        taken[self.register - 1 :: self.skip + 1] = bits
        # state[tap] is what stands at a bit of the register, step by step.
        state = [taken[self.register - 1 - tap :][:steps] for tap in range(self.register)]
        mask = np.empty((steps, self.chunk), dtype=np.bool_)
        for place in range(self.chunk):
            taps = self.taps[place * self.width :][: self.width]
            number = [np.logical_xor.reduce([state[tap] for tap in output]) for output in taps]
            mask[:, place] = from_bits(np.stack(number, axis=1)) >= self.threshold
        return mask.reshape(index.shape)


def check_chunk(chunk: int, bits: int) -> None:
    """Refuse a chunk of which an entry of relative indexing could pass the whole."""
    if whole_number("Chunk", chunk, 1) < 1 << bits:
        raise InputError(
            f"Chunk must be at least {1 << bits} for entries of {bits} bits, not {chunk}"
        )


def _shape(mask: Bits) -> tuple[int, int]:
    if mask.ndim != 2 or not mask.size:
        raise InputError(f"Mask must have rows and columns, not shape {mask.shape}")
    return mask.shape


def _independent(taps: list[tuple[int, ...]]) -> bool:
    """Whether no XOR of some of the outputs is zero for every register: by elimination."""
    basis: list[int] = []
    for output in taps:
        rest = sum(1 << tap for tap in output)
        for each in basis:
            rest = min(rest, rest ^ each)
        if not rest:
            return False
        basis.append(rest)
        basis.sort(reverse=True)
    return True
