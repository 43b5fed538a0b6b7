"""The rival whose mask is what random-looking logic makes of a few bits."""

from amaranth.hdl import Cat, Const, Module, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out, connect, flipped
from lrbi.hw.axis import Axis
from lrbi.hw.rivals.gather import Gather, check_beat, gather_clocks
from lrbi.hw.rivals.skid import index_port

from lrbi import formats


class Viterbi(wiring.Component):
    """The decompressor :class:`lrbi.formats.Viterbi`, a step a clock.

    It is the decompressor alone: the search for its input is not built, so it is fed at random,
    and its masks are nobody's. Every input bit, and every step that takes none, gives a chunk::

        clock      n       n+1      n+2      n+3
        index      taken
        register           with it
        numbers                     known
        chunk                                given

    No clock is lost between rows or tiles.

    Parameters
    ----------
    code
        XORs, comparators and register; a chunk is what a step makes.
    beat
        Bits of a mask beat: a multiple of the chunk.

    Members
    -------
    s_axis_index : In(Axis(1))
        Input bits, a frame a tile.
    m_axis_mask : Out(Axis(beat))
        The mask, a frame a tile.
    """

    def __init__(self, *, code: formats.Viterbi, beat: int) -> None:
        check_beat(code.chunk, beat)
        self.code, self.chunk, self.beat = code, code.chunk, beat
        super().__init__({"s_axis_index": In(Axis(1)), "m_axis_mask": Out(Axis(beat))})

    @staticmethod
    def latency(chunk: int, beat: int) -> int:
        """Clocks from the last step of a tile to its last beat."""
        return 2 + gather_clocks(chunk, beat)

    def elaborate(self, platform: object) -> Module:
        """The hardware."""
        m = Module()
        code = self.code
        m.submodules.gather = gather = Gather(chunk=self.chunk, beat=self.beat)
        connect(m, gather.m_axis_mask, flipped(self.m_axis_mask))
        index = index_port(m, self.s_axis_index, "index", bits=1, skid=gather.count == 1)

        register = Signal(code.register, reset_less=True)
        valid = Signal()
        ends = Signal(init=1)  # the bit that was taken last is its tile's last
        skips = Signal(range(code.skip + 1))  # steps to come before the next bit is taken
        taking = ~skips.any() if code.skip else Const(1)
        go = Signal()
        m.d.comb += index.tready.eq(go & taking)
        with m.If(go):
            m.d.sync += valid.eq(index.tvalid | ~taking)
            with m.If(index.tvalid | ~taking):
                m.d.sync += register.eq(Cat(index.tdata[0] & taking, register[:-1]))
                with m.If(ends & taking):
                    m.d.sync += register[1:].eq(0)
            if code.skip:
                with m.If(~taking):
                    m.d.sync += skips.eq(skips - 1)
            with m.If(taking & index.tvalid):
                m.d.sync += [ends.eq(index.tlast), skips.eq(code.skip)]

        # The numbers of a step, and what the comparators make of them.
        numbers = Signal(code.outputs, reset_less=True)
        there = Signal()
        last = Signal(reset_less=True)
        with m.If(go):
            m.d.sync += [
                numbers.eq(Cat(Cat(register[tap] for tap in taps).xor() for taps in code.taps)),
                there.eq(valid),
                last.eq(ends & taking),
            ]
        kept = [
            at_least(numbers.word_select(place, code.width), code.threshold)
            for place in range(code.chunk)
        ]
        m.d.comb += [
            gather.valid.eq(there),
            gather.chunk.eq(Cat(kept)),
            gather.last.eq(last),
            go.eq(~there | gather.ready),
        ]
        return m


def at_least(number: Value, threshold: int) -> Value:
    """Whether a number is not below a constant: a gate a bit, from its lowest bit up."""
    if threshold >> len(number):
        return Const(0, 1)
    result: Value = Const(1, 1)
    for place, bit in enumerate(number):
        result = bit & result if threshold >> place & 1 else bit | result
    return result
