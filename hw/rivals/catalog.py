"""The rivals of a mask tile, each with all that a comparison needs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from amaranth.lib import wiring
from lrbi.hw.emit import port_list, verilog
from lrbi.hw.rivals.bitmap import Bitmap
from lrbi.hw.rivals.gather import check_beat
from lrbi.hw.rivals.relative import Relative
from lrbi.hw.rivals.two_level import TwoLevel, check_blocks
from lrbi.hw.rivals.viterbi import Viterbi
from lrbi.hw.rom import START_CLOCKS, RomBacked, RomPlayer
from lrbi.hw.synth import Design

from lrbi import formats
from lrbi.arrays import Bits
from lrbi.config import whole_number
from lrbi.errors import InputError
from lrbi.layout import pack_rows, to_words
from lrbi.rom import RomImage, mem_text

NEAR = 32
"""Bits that a chunk has about, where the format leaves it free: those of a common bus."""


@dataclass(frozen=True, eq=False)
class Rival:
    """A decoder of another format, and one tile as it stores it.

    Its ROM-backed top has the ports of ``lrbi_rom_decoder``, for one tile: frames of a rival differ
    in length from tile to tile, and several would need a table of where each begins.
    """

    name: str
    """The format's name, its parameter included."""
    module: str
    """The Verilog module of the ROM-backed top; the core's is the same with ``_core``."""
    mask: Bits
    """The tile that it decodes to: the one given, but for Viterbi, which makes its own."""
    index: formats.Index
    """The tile as the format stores it."""
    widths: Mapping[str, int]
    """Bits of a ROM word, by the part of the index that it holds."""
    chunk: int
    """Mask bits that it makes at a time."""
    beat: int
    """Bits of a mask beat."""
    clocks: int
    """Clocks from the core's first index word to its last mask beat, if nothing stalls."""
    make_core: Callable[[], wiring.Component] = field(repr=False)
    """Makes the core."""
    exact: bool = True
    """Whether its mask is the one given."""

    @property
    def index_bits(self) -> int:
        """The index, exactly."""
        return self.index.bits

    @property
    def rom_bits(self) -> int:
        """What the ROMs hold."""
        return sum(rom.width * rom.depth for rom in self.roms.values())

    @property
    def rom_clocks(self) -> int:
        """Clocks from a start of the top to its last mask beat, if nothing stalls."""
        return START_CLOCKS + self.clocks

    @property
    def words(self) -> dict[str, list[int]]:
        """The ROM words of each part; a part may have none."""
        return {
            part: to_words(self.index.parts[part].reshape(-1, width))
            for part, width in self.widths.items()
        }

    @property
    def roms(self) -> dict[str, RomImage]:
        """The ROM of each part; none for a part without words."""
        return {
            part: RomImage(width, pack_rows(self.index.parts[part].reshape(-1, width)))
            for part, width in self.widths.items()
            if len(self.index.parts[part])
        }

    @property
    def mask_words(self) -> list[int]:
        """The mask beats that must come out."""
        return to_words(self.mask.reshape(-1, self.beat))

    def core(self) -> wiring.Component:
        """The bare core."""
        return self.make_core()

    def top(self) -> RomBacked:
        """The core with its ROMs, for one tile."""
        players = {
            part: RomPlayer(width=self.widths[part], tile_words=len(words), tiles=1, words=words)
            for part, words in self.words.items()
            if words
        }
        return RomBacked(core=self.make_core(), players=players, tiles=1)

    def core_design(self) -> Design:
        """The core in Verilog."""
        return self._design(self.core(), f"{self.module}_core", {})

    def top_design(self) -> Design:
        """The ROM-backed top in Verilog, and its ROM images."""
        names = {f"{part}_rom": f"{self.module}.{part}.mem" for part in self.roms}
        design = self._design(self.top(), self.module, names)
        texts = map(mem_text, self.roms.values())
        return replace(design, files=dict(zip(names.values(), texts, strict=True)))

    def _design(self, component: wiring.Component, name: str, roms: dict[str, str]) -> Design:
        text = verilog(component, name=name, reset="rst", command=self._command, roms=roms)
        return Design(name, text, port_list(component, "rst"))

    @property
    def _command(self) -> str:
        rows, cols = self.mask.shape
        return f"lrbi.hw.rivals, {self.name} of a tile of {rows}x{cols}, {self.beat} bits a beat"


def rivals(mask: Bits, *, beat: int | None = None) -> list[Rival]:
    """Every rival of a mask tile, with ``beat`` mask bits a beat.

    With None, every rival's beat is its own chunk, its leanest form; with the tile's columns, all
    give the same stream as ours, a row a beat. Chunks and all else are chosen as :func:`bitmap`,
    :func:`relative`, :func:`two_level` and :func:`viterbi` choose them.
    """
    return [make(mask, beat=beat) for make in (bitmap, relative, two_level, viterbi)]


def bitmap(mask: Bits, *, beat: int | None = None, chunk: int | None = None) -> Rival:
    """The mask as it is, ``chunk`` bits a ROM word: by default a beat, or about :data:`NEAR`."""
    cols = mask.shape[1]
    if chunk is None:
        chunk = _nearest(cols, 1) if beat is None else beat
    beat = _beat(cols, chunk, beat)
    return Rival(
        name="bitmap",
        module="rival_bitmap",
        mask=mask,
        index=formats.Bitmap().encode(mask),
        widths={"index": chunk},
        chunk=chunk,
        beat=beat,
        clocks=mask.size // chunk - 1 + Bitmap.latency(chunk, beat),
        make_core=lambda: Bitmap(chunk=chunk, beat=beat),
    )


def relative(
    mask: Bits, *, beat: int | None = None, bits: int = 5, chunk: int | None = None
) -> Rival:
    """Entries of ``bits`` bits; a chunk is by default the least divisor of a row that will do."""
    cols = mask.shape[1]
    if chunk is None:
        chunk = next((size for size in _divisors(cols) if size >= 1 << bits), None)
        if chunk is None:
            raise InputError(
                f"Tile columns must be at least {1 << bits} for entries of {bits} bits, not {cols}"
            )
    beat = _beat(cols, chunk, beat)
    index = formats.Relative(bits, chunk).encode(mask)
    return Rival(
        name=f"relative-{bits}",
        module="rival_relative",
        mask=mask,
        index=index,
        widths={"index": bits},
        chunk=chunk,
        beat=beat,
        clocks=index.bits // bits - 1 + Relative.latency(chunk, beat),
        make_core=lambda: Relative(bits=bits, chunk=chunk, beat=beat),
    )


def two_level(
    mask: Bits, *, beat: int | None = None, block: int = 4, chunk: int | None = None
) -> Rival:
    """Blocks of ``block`` bits; a chunk is by default as many as make about :data:`NEAR`."""
    cols = mask.shape[1]
    if cols % whole_number("Block", block, 1):
        raise InputError(f"Block must divide the {cols} columns of the tile, not be {block}")
    chunk = _nearest(cols, block) if chunk is None else chunk
    check_blocks(block, chunk)
    beat = _beat(cols, chunk, beat)
    index = formats.TwoLevel(block).encode(mask)
    blocks = index.parts["map"].reshape(-1, chunk // block).sum(axis=1)
    return Rival(
        name=f"two-level-{block}",
        module="rival_two_level",
        mask=mask,
        index=index,
        widths={"map": chunk // block, "block": block},
        chunk=chunk,
        beat=beat,
        clocks=int(np.maximum(blocks, 1).sum()) - 1 + TwoLevel.latency(chunk, beat),
        make_core=lambda: TwoLevel(block=block, chunk=chunk, beat=beat),
    )


def viterbi(
    mask: Bits, *, beat: int | None = None, code: formats.Viterbi | None = None, seed: int = 0
) -> Rival:
    """The decompressor ``code``, by default one of the mask's sparsity, fed with random bits.

    The tile that it makes has the size and about the sparsity of the one given, and nothing else of
    it: what input would come closest is not searched for.
    """
    code = code or formats.Viterbi.of_sparsity(1 - float(mask.mean()))
    beat = _beat(mask.shape[1], code.chunk, beat)
    taken = np.random.default_rng(seed).random(code.size(mask.shape)) < 0.5
    index = formats.Index(mask.shape, {"index": taken})
    return Rival(
        name=code.name,
        module="rival_viterbi",
        mask=code.expand(index),
        index=index,
        widths={"index": 1},
        chunk=code.chunk,
        beat=beat,
        clocks=mask.size // code.chunk - 1 + Viterbi.latency(code.chunk, beat),
        make_core=lambda: Viterbi(code=code, beat=beat),
        exact=False,
    )


def _beat(cols: int, chunk: int, beat: int | None) -> int:
    """The bits of a beat, if they are whole chunks and a row whole beats."""
    beat = chunk if beat is None else beat
    check_beat(chunk, beat)
    if cols % beat:
        raise InputError(f"Beat must divide the {cols} columns of the tile, not be {beat}")
    return beat


def _divisors(number: int) -> list[int]:
    return [each for each in range(1, number + 1) if number % each == 0]


def _nearest(cols: int, unit: int) -> int:
    """The divisor of a row nearest to :data:`NEAR` that is a multiple of ``unit``; the larger."""
    return min(
        (size for size in _divisors(cols) if size % unit == 0),
        key=lambda size: (abs(size - NEAR), -size),
    )
