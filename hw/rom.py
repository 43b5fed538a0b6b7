"""The ROM-backed decoder ``lrbi_rom_decoder``: one layer's factors, played on command."""

from collections.abc import Mapping, Sequence

from amaranth.hdl import Cat, Const, Module, Mux, Signal
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import In, Out, connect, flipped
from lrbi.hw.array import plus_one
from lrbi.hw.axis import Axis
from lrbi.hw.decoder import Decoder

from lrbi.config import DecoderConfig

START_CLOCKS = 5
"""Clocks from a start to the first beats that the ROMs offer the decoder."""


class RomPlayer(wiring.Component):
    """Plays tiles out of a ROM: a frame each, a word a beat, a beat a clock.

    The first beat is valid three clocks after ``start``. The ROM is read into its output register,
    as block RAM wants it, and from there into ``tdata``: block RAM is slow to give its word.

    Parameters
    ----------
    width
        Bits of a word.
    tile_words
        Words of a tile.
    tiles
        Tiles in the ROM.
    words
        The ROM's contents; zero where they are not given.

    Members
    -------
    start : In(1)
        Play ``count`` tiles, at least one, from ``first`` on; only while nothing plays.
    first : In(range(tiles + 1))
        Number of the first tile; the clock before ``start`` too.
    count : In(range(tiles + 1))
        How many.
    stream : Out(Axis(width))
        The frames.
    """

    def __init__(
        self, *, width: int, tile_words: int, tiles: int, words: Sequence[int] = ()
    ) -> None:
        self.width, self.tile_words, self.tiles, self.words = width, tile_words, tiles, words
        super().__init__(
            {
                "start": In(1),
                "first": In(range(tiles + 1)),
                "count": In(range(tiles + 1)),
                "stream": Out(Axis(width)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """The hardware."""
        m = Module()
        depth = self.tiles * self.tile_words
        m.submodules.rom = rom = memory.Memory(shape=self.width, depth=depth, init=self.words)
        read = rom.read_port()

        # What is read next: its address, the words of its tile and the tiles that follow it.
        shift = (self.tile_words & -self.tile_words).bit_length() - 1  # zeros that end tile_words
        base = Signal(range(depth >> shift), reset_less=True)
        address = Signal(range(depth), reset_less=True)
        words_left = Signal(range(self.tile_words), reset_less=True)
        tiles_left = Signal.like(self.count, reset_less=True)
        playing = Signal()
        advance = Signal()
        final = Signal()  # the word is its tile's last
        m.d.comb += [
            advance.eq(~self.stream.tvalid | self.stream.tready),
            final.eq(~words_left.any()),
            read.addr.eq(address),
            read.en.eq(advance),
        ]
        # The word that was read, and the beat that it becomes.
        read_valid = Signal()
        read_last = Signal(reset_less=True)
        data = Signal(self.width, reset_less=True)
        last = Signal(reset_less=True)
        m.d.comb += [self.stream.tdata.eq(data), self.stream.tlast.eq(last)]
        with m.If(advance):
            m.d.sync += [
                read_valid.eq(playing),
                read_last.eq(final),
                self.stream.tvalid.eq(read_valid),
                last.eq(read_last),
                data.eq(read.data),
            ]
        # Where the first tile begins: a sum that has a clock to itself, since a product would
        # take a multiplier block, and be slow.
        factor = self.tile_words >> shift
        terms = (self.first << bit for bit in range(factor.bit_length()) if factor >> bit & 1)
        m.d.sync += base.eq(sum(terms, Const(0, 1)))
        with m.If(advance & playing):
            m.d.sync += [
                address.eq(plus_one(address)),
                words_left.eq(Mux(final, self.tile_words - 1, words_left - 1)),
            ]
            with m.If(final):
                m.d.sync += tiles_left.eq(tiles_left - 1)
                with m.If(tiles_left == 1):
                    m.d.sync += playing.eq(0)
        with m.If(self.start):
            m.d.sync += [
                playing.eq(1),
                address.eq(Cat(Const(0, shift), base)),
                words_left.eq(self.tile_words - 1),
                tiles_left.eq(self.count),
            ]
        return m


class RomBacked(wiring.Component):
    """A core with the ROMs that it decodes from, and the control that plays them.

    A start is sampled while ``busy`` is low, and raises it. Two clocks later, either ``error``
    says that the range of tiles goes beyond the last one, or there was nothing to play and
    ``done`` says so, or the tiles play, every one whole. The clock after the last mask beat was
    taken, ``busy`` falls and ``done`` is high for one clock::

        clock      s     s+1   s+2   ...   s+5           t       t+1
        start      high
        busy             high  high  ...                 high    low
        ROMs                               first beats
        mask                                             last
        done                                                     high

    Parameters
    ----------
    core
        What decodes: from streams ``s_axis_...`` to ``m_axis_mask``, a frame a tile.
    players
        The ROM of each stream, by what follows ``s_axis_`` in its name, and all of the same tiles.
        A stream without one gives nothing.
    tiles
        Tiles in the ROMs.

    Members
    -------
    start : In(1)
        Play a range of tiles; ignored while ``busy``.
    first_tile, tile_count : In(range(tiles + 1))
        The range, sampled with ``start``.
    busy : Out(1)
        A start is being served.
    done : Out(1)
        All mask beats of the range have been taken; one clock.
    error : Out(1)
        The last start asked for tiles beyond the last one, and nothing was played; until the
        next start.
    m_axis_mask : Out(...)
        The core's mask beats, a frame a tile.
    """

    def __init__(
        self, *, core: wiring.Component, players: Mapping[str, RomPlayer], tiles: int
    ) -> None:
        self.core, self.players, self.tiles = core, players, tiles
        super().__init__(
            {
                "start": In(1),
                "first_tile": In(range(tiles + 1)),
                "tile_count": In(range(tiles + 1)),
                "busy": Out(1),
                "done": Out(1),
                "error": Out(1),
                "m_axis_mask": Out(core.m_axis_mask.signature),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """The hardware."""
        m = Module()
        mask = self.m_axis_mask
        m.submodules.decoder = self.core
        for name, player in self.players.items():
            m.submodules[name] = player
            connect(m, player.stream, getattr(self.core, f"s_axis_{name}"))
        connect(m, self.core.m_axis_mask, flipped(mask))

        # A start is looked at in the clock after it was sampled, and served in the next.
        first = Signal.like(self.first_tile, reset_less=True)
        count = Signal.like(self.tile_count, reset_less=True)  # tiles whose mask is not out yet
        sampled = Signal()
        checked = Signal()
        stop = Signal(len(first) + 1)
        m.d.comb += stop.eq(first + count)
        go = Signal()
        for player in self.players.values():
            m.d.comb += [player.first.eq(first), player.count.eq(count), player.start.eq(go)]
        over = Signal()  # the last beat of a tile passes
        m.d.comb += [
            over.eq(mask.tvalid & mask.tready & mask.tlast),
            sampled.eq(self.start & ~self.busy),
        ]
        m.d.sync += [checked.eq(sampled), go.eq(0), self.done.eq(0)]
        with m.If(over):
            m.d.sync += count.eq(count - 1)
            with m.If(count == 1):
                m.d.sync += [self.busy.eq(0), self.done.eq(1)]
        with m.If(checked):
            with m.If(stop > self.tiles):
                m.d.sync += [self.busy.eq(0), self.error.eq(1)]
            with m.Elif(~count.any()):
                m.d.sync += [self.busy.eq(0), self.done.eq(1)]
            with m.Else():
                m.d.sync += go.eq(1)
        with m.If(sampled):
            m.d.sync += [
                first.eq(self.first_tile),
                count.eq(self.tile_count),
                self.busy.eq(1),
                self.error.eq(0),
            ]
        return m


class RomDecoder(RomBacked):
    """Decodes the tiles of one layer from its own ROMs, ``lanes`` mask rows a clock.

    Every tile plays R rows and k ranks, padding included.

    Parameters
    ----------
    config
        The decoder's configuration: rank, tile, lanes and rows a beat are those of the ROMs.
    tiles
        Tiles of the layer.
    ip_words, iz_words
        The ROMs' contents; zero where they are not given.

    Members
    -------
    m_axis_mask : Out(Axis(lanes * C))
        Mask rows, a frame a tile; all other ports are those of :class:`RomBacked`.
    """

    def __init__(
        self,
        *,
        config: DecoderConfig,
        tiles: int,
        ip_words: Sequence[int] = (),
        iz_words: Sequence[int] = (),
    ) -> None:
        ip = RomPlayer(
            width=config.ip_width, tile_words=config.ip_depth, tiles=tiles, words=ip_words
        )
        iz = RomPlayer(
            width=config.iz_width, tile_words=config.iz_depth, tiles=tiles, words=iz_words
        )
        super().__init__(core=Decoder(config=config), players={"ip": ip, "iz": iz}, tiles=tiles)
