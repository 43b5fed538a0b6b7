"""Index formats: how a pruning mask can be stored, one encoder for each.

The positions of a mask are taken in row-major order. What a format stores is an :class:`Index`:
strings of bits, by name, in the order in which a decoder takes them. All but two take any mask:
:class:`TwoFour` takes those of its pattern, :class:`LowRank` stores the factors of a compressed
layer. The Viterbi decompressor is here too, but has no encoder; see :class:`Viterbi`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np

from lrbi.arrays import Bits, Floats
from lrbi.config import whole_number
from lrbi.errors import InputError
from lrbi.layout import from_bits, pack_rows, to_bits, unpack_rows
from lrbi.product import boolean_product
from lrbi.tiles import TileGrid

if TYPE_CHECKING:
    from lrbi.layer import CompressedLayer


@dataclass(frozen=True, eq=False)
class Index:
    """A mask as a format stores it."""

    shape: tuple[int, int]
    """Rows and columns of the mask; known to the decoder, so not counted."""
    parts: Mapping[str, Bits]
    """The stored strings of bits, by name."""
    beside: Mapping[str, Bits] = field(default_factory=dict)
    """What a decoder learns from the stored weights, not from the index; so not counted."""

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


@dataclass(frozen=True)
class PaddedRelative:
    """Relative indexing whose padding entries are stored weights of value zero.

    So Deep Compression, EIE and this method's paper count it. Each entry of part ``index`` passes
    up to 2**reach - 1 zeros and stands for a stored weight; where more zeros follow each other, a
    weight of value zero is stored at the 2**reach-th of them. Which weights are zero is known
    :attr:`~Index.beside` the index. What these weights themselves cost is not in its size.

    With ``bits`` above ``reach``, what the paper's tables call CSR of so many bits: 16/5 of the
    size with 5, in both tables, so it counts these entries at 16 bits, and no row pointers.
    """

    bits: int = 5
    """Bits of an entry."""
    reach: int | None = None
    """Bits of the longest pass; None for those of an entry."""

    def __post_init__(self) -> None:
        whole_number("Bits of an entry", self.bits, 1)
        if self.bits > 32:
            raise InputError(f"Bits of an entry must be at most 32, not {self.bits}")
        if self.reach is not None and whole_number("Reach", self.reach, 1) > self.bits:
            raise InputError(
                f"Reach must be at most the {self.bits} bits of an entry, not {self.reach}"
            )

    @property
    def name(self) -> str:
        """The format's name."""
        return f"relative-{self.bits}-padded" if self.reach is None else f"csr-{self.bits}-paper"

    def encode(self, mask: Bits) -> Index:
        """Store a mask, rows x columns; O(positions)."""
        shape = _shape(mask)
        span = 1 << (self.reach or self.bits)
        pads, entries = np.divmod(np.diff(np.flatnonzero(mask), prepend=-1) - 1, span)
        zero = np.ones(pads.sum() + len(pads), dtype=np.bool_)
        zero[np.cumsum(pads + 1) - 1] = False
        numbers = np.full(zero.shape, span - 1)
        numbers[~zero] = entries
        return Index(shape, {"index": to_bits(numbers, self.bits).reshape(-1)}, {"zero": zero})

    def decode(self, index: Index) -> Bits:
        """Undo :meth:`encode`."""
        mask = np.zeros(index.shape, dtype=np.bool_)
        places = np.cumsum(from_bits(index.parts["index"].reshape(-1, self.bits)) + 1) - 1
        mask.reshape(-1)[places[~index.beside["zero"]]] = True
        return mask


@dataclass(frozen=True)
class Csr:
    """Compressed sparse rows: the column of each kept weight, and where each row begins.

    Part ``column`` holds a number of ``bits`` bits for each kept weight, part ``pointer`` one of
    ``pointer_bits`` for each row and one for the end.
    """

    bits: int = 16
    """Bits of a column."""
    pointer_bits: int = 32
    """Bits of a row pointer; 32 as in the common libraries."""

    def __post_init__(self) -> None:
        for noun, value in (
            ("Bits of a column", self.bits),
            ("Bits of a row pointer", self.pointer_bits),
        ):
            if whole_number(noun, value, 1) > 32:
                raise InputError(f"{noun} must be at most 32, not {value}")

    @property
    def name(self) -> str:
        """The format's name."""
        return f"csr-{self.bits}"

    def encode(self, mask: Bits) -> Index:
        """Store a mask, rows x columns."""
        from scipy.sparse import csr_array

        shape = _shape(mask)
        if shape[1] > 1 << self.bits:
            raise InputError(
                f"Columns must be at most {1 << self.bits} for {self.bits} bits, not {shape[1]}"
            )
        rows = csr_array(mask)
        if rows.nnz >= 1 << self.pointer_bits:
            raise InputError(
                f"Kept weights must be fewer than {1 << self.pointer_bits} for row pointers of "
                f"{self.pointer_bits} bits, not {rows.nnz}"
            )
        return Index(
            shape,
            {
                "column": to_bits(rows.indices, self.bits).reshape(-1),
                "pointer": to_bits(rows.indptr, self.pointer_bits).reshape(-1),
            },
        )

    def decode(self, index: Index) -> Bits:
        """Undo :meth:`encode`."""
        from scipy.sparse import csr_array

        columns = from_bits(index.parts["column"].reshape(-1, self.bits))
        pointers = from_bits(index.parts["pointer"].reshape(-1, self.pointer_bits))
        kept = np.ones(len(columns), dtype=np.bool_)
        mask: Bits = csr_array((kept, columns, pointers), shape=index.shape).toarray()
        return mask


@dataclass(frozen=True)
class GolombRice:
    """The zeros before each kept weight as Golomb-Rice codes, near the entropy of random masks.

    A number g is g >> r in unary, zeros ended by a one, in part ``unary``, and its low r bits in
    part ``low``. Part ``parameter`` holds r, in 5 bits: of all r the one of the smallest index.
    """

    @property
    def name(self) -> str:
        """The format's name."""
        return "golomb-rice"

    def encode(self, mask: Bits) -> Index:
        """Store a mask, rows x columns; O(positions)."""
        shape = _shape(mask)
        gaps = np.diff(np.flatnonzero(mask), prepend=-1) - 1
        sizes = [int((gaps >> low).sum()) + low * len(gaps) for low in range(32)]
        low = int(np.argmin(sizes))
        ends = np.cumsum((gaps >> low) + 1)
        unary = np.zeros(ends[-1] if len(ends) else 0, dtype=np.bool_)
        unary[ends - 1] = True
        return Index(
            shape,
            {
                "parameter": to_bits(np.array([low]), 5).reshape(-1),
                "unary": unary,
                "low": to_bits(gaps & ((1 << low) - 1), low).reshape(-1),
            },
        )

    def decode(self, index: Index) -> Bits:
        """Undo :meth:`encode`."""
        mask = np.zeros(index.shape, dtype=np.bool_)
        low = int(from_bits(index.parts["parameter"].reshape(1, 5))[0])
        high = np.diff(np.flatnonzero(index.parts["unary"]), prepend=-1) - 1
        gaps = (high << low) + from_bits(index.parts["low"].reshape(len(high), low))
        mask.reshape(-1)[np.cumsum(gaps + 1) - 1] = True
        return mask


@dataclass(frozen=True)
class Zstd:
    """The bitmap, packed into bytes, as a Zstandard frame: part ``index``."""

    level: int = 19
    """Zstandard's level."""

    def __post_init__(self) -> None:
        if whole_number("Level", self.level, 1) > 22:
            raise InputError(f"Level must be at most 22, not {self.level}")

    @property
    def name(self) -> str:
        """The format's name."""
        return "zstd"

    def encode(self, mask: Bits) -> Index:
        """Store a mask, rows x columns."""
        from zstandard import ZstdCompressor

        shape = _shape(mask)
        frame = ZstdCompressor(level=self.level).compress(pack_rows(mask.reshape(-1)).tobytes())
        return Index(shape, {"index": unpack_rows(np.frombuffer(frame, np.uint8), 8 * len(frame))})

    def decode(self, index: Index) -> Bits:
        """Undo :meth:`encode`."""
        from zstandard import ZstdDecompressor

        content = ZstdDecompressor().decompress(pack_rows(index.parts["index"]).tobytes())
        size = index.shape[0] * index.shape[1]
        return unpack_rows(np.frombuffer(content, np.uint8), size).reshape(index.shape)


@dataclass(frozen=True)
class TwoFour:
    """Two of four: masks that keep two weights of every four in a row, as sparse tensor cores do.

    Part ``index`` holds the places of the two, 2 bits each. Takes no other masks.
    """

    @property
    def name(self) -> str:
        """The format's name."""
        return "2:4"

    def encode(self, mask: Bits) -> Index:
        """Store a mask of two of four, rows x columns."""
        shape = _shape(mask)
        _check_fours(shape[1])
        if (np.count_nonzero(mask.reshape(-1, 4), axis=1) != 2).any():
            raise InputError("Mask must keep two weights of every four for 2:4")
        return Index(shape, {"index": to_bits(np.flatnonzero(mask) % 4, 2).reshape(-1)})

    def decode(self, index: Index) -> Bits:
        """Undo :meth:`encode`."""
        places = from_bits(index.parts["index"].reshape(-1, 2)).reshape(-1, 2)
        mask = np.zeros((len(places), 4), dtype=np.bool_)
        np.put_along_axis(mask, places, True, axis=1)
        return mask.reshape(index.shape)

    @staticmethod
    def mask(magnitudes: Floats) -> Bits:
        """The mask of two of four (rows x columns) that keeps the most magnitude."""
        _check_fours(magnitudes.shape[1])
        fours = magnitudes.reshape(-1, 4)
        mask = np.zeros(fours.shape, dtype=np.bool_)
        largest = np.argsort(-fours, axis=1, kind="stable")[:, :2]
        np.put_along_axis(mask, largest, True, axis=1)
        return mask.reshape(magnitudes.shape)


@dataclass(frozen=True)
class LowRank:
    """Ours: the factors I_p and I_z of every tile, parts ``ip`` and ``iz``, without padding."""

    tiles: TileGrid
    """How the layer is cut."""
    ranks: tuple[int, ...]
    """The rank of every tile."""

    @classmethod
    def of(cls, layer: "CompressedLayer") -> "LowRank":
        """The format of a layer."""
        return cls(layer.tiles, tuple(layer.ranks.tolist()))

    @property
    def name(self) -> str:
        """The format's name."""
        least, most = min(self.ranks), max(self.ranks)
        return f"lrbi-k{most}" if least == most else f"lrbi-k{least}-{most}"

    def encode(self, layer: "CompressedLayer") -> Index:
        """Store the factors of a layer."""
        factors = [layer.factors(tile) for tile in range(len(self.tiles))]
        return Index(
            layer.shape,
            {
                "ip": np.concatenate([rows.reshape(-1) for rows, _ in factors]),
                "iz": np.concatenate([cols.reshape(-1) for _, cols in factors]),
            },
        )

    def decode(self, index: Index) -> Bits:
        """The layer's mask I_a."""
        mask = np.zeros(index.shape, dtype=np.bool_)
        ip, iz = index.parts["ip"], index.parts["iz"]
        for tile, rank in enumerate(self.ranks):
            rows, cols = self.tiles.size(tile)
            mask[self.tiles.bounds(tile)] = boolean_product(
                ip[: rows * rank].reshape(rows, rank), iz[: rank * cols].reshape(rank, cols)
            )
            ip, iz = ip[rows * rank :], iz[rank * cols :]
        return mask


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


def _check_fours(cols: int) -> None:
    if cols % 4:
        raise InputError(f"Columns must be a multiple of 4, not {cols}")


def viterbi_bits(positions: int, ratio: int) -> int:
    """Size of a Viterbi index that has ``ratio`` mask bits for each of its own."""
    return -(-positions // whole_number("Viterbi ratio", ratio, 1))


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
