"""The rival that stores the zeros between kept weights."""

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out, connect, flipped
from lrbi.hw.array import bits_for, plus_one
from lrbi.hw.axis import Axis
from lrbi.hw.rivals.gather import Gather, check_beat, gather_clocks
from lrbi.hw.rivals.skid import index_port

from lrbi.formats import check_chunk


class Relative(wiring.Component):
    """Decodes :class:`lrbi.formats.Relative`, an entry a clock.

    An entry moves the place within a chunk, over the border to the next chunk at most once; a
    chunk is complete when an entry crosses its end, or with the frame's last entry. So the encoder
    must be given the same ``chunk``::

        clock      n       n+1     n+2      n+3         n+4
        index      taken
        step               known
        landed                     known
        gathered                            with it
        chunk                                           given, if the entry ends its frame

    No clock is lost between chunks, rows or tiles.

    Parameters
    ----------
    bits
        Bits of an entry.
    chunk
        Mask bits that are put together at a time, at least 2**bits; a power of two is cheapest.
    beat
        Bits of a mask beat: a multiple of ``chunk``.

    Members
    -------
    s_axis_index : In(Axis(bits))
        Entries, a frame a tile.
    m_axis_mask : Out(Axis(beat))
        The mask, a frame a tile.
    """

    def __init__(self, *, bits: int, chunk: int, beat: int) -> None:
        check_chunk(chunk, bits)
        check_beat(chunk, beat)
        self.bits, self.chunk, self.beat = bits, chunk, beat
        super().__init__({"s_axis_index": In(Axis(bits)), "m_axis_mask": Out(Axis(beat))})

    @staticmethod
    def latency(chunk: int, beat: int) -> int:
        """Clocks from the last entry of a tile to its last beat."""
        return 3 + gather_clocks(chunk, beat)

    def elaborate(self, platform: object) -> Module:
        """The hardware."""
        m = Module()
        chunk, bits = self.chunk, self.bits
        m.submodules.gather = gather = Gather(chunk=self.chunk, beat=self.beat)
        connect(m, gather.m_axis_mask, flipped(self.m_axis_mask))
        index = index_port(m, self.s_axis_index, "index", bits=bits, skid=gather.count == 1)
        go = Signal()
        m.d.comb += index.tready.eq(go)

        # How far an entry moves, and whether it keeps the weight there.
        place_bits = bits_for(chunk)
        entry = index.tdata[:bits]
        valid = Signal()
        step = Signal(bits, reset_less=True)
        back = Signal(place_bits, reset_less=True)  # the same, less a chunk
        keep = Signal(reset_less=True)
        last = Signal(reset_less=True)
        padding = entry.all()
        with m.If(go):
            m.d.sync += [
                valid.eq(index.tvalid),
                step.eq(plus_one(entry) | padding.replicate(bits)),
                back.eq(Mux(padding, (1 << bits) - 1 - chunk, entry + (1 - chunk))),
                keep.eq(~padding),
                last.eq(index.tlast),
            ]

        # Where it lands. Before a tile, that is one place before its first chunk: the top bit of
        # the place is set, and the first step cannot cross.
        place = Signal(place_bits + 1, init=-1)
        moved_back = Signal(place_bits + 2)
        crossing = moved_back[:-1]
        landing = Signal(place_bits)
        m.d.comb += moved_back.eq(place + back)
        if chunk == 1 << place_bits:
            m.d.comb += landing.eq(crossing)
        else:
            m.d.comb += landing.eq(Mux(crossing[-1], crossing[:-1], place + step))
        landed = Signal(place_bits, reset_less=True)
        kept = Signal()
        ends = Signal()
        given = Signal()  # the chunk before is complete
        with m.If(go):
            m.d.sync += [
                landed.eq(landing),
                kept.eq(valid & keep),
                ends.eq(valid & last),
                given.eq((valid & crossing[-1]) | ends),
            ]
            with m.If(valid):
                m.d.sync += place.eq(landing)
                with m.If(last):
                    m.d.sync += place.eq(-1)

        # The chunk, put together bit by bit: two halves of an address name each, and they, the
        # bit itself and the sign that the chunk is given away make one LUT.
        gathered = Signal(chunk)
        done = Signal()  # it is its tile's last
        low, high = landed[:3], landed[3:]
        lows = [equals(low, value) for value in range(min(8, chunk))]
        highs = [equals(high, value) & kept for value in range(-(-chunk // 8))]
        ones = Cat(lows[bit % 8] & highs[bit // 8] for bit in range(chunk))
        m.d.comb += [
            gather.valid.eq(given),
            gather.chunk.eq(gathered),
            gather.last.eq(done),
            go.eq(~given | gather.ready),
        ]
        with m.If(go):
            m.d.sync += [
                gathered.eq((gathered & ~given.replicate(chunk)) | ones),
                done.eq(ends),
            ]
        return m


def equals(value: Value, constant: int) -> Value:
    """Whether a value is a constant, as one AND of its bits."""
    return Cat(bit if constant >> place & 1 else ~bit for place, bit in enumerate(value)).all()
