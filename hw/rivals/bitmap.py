"""The rival that stores the mask itself."""

from amaranth.hdl import Cat, ClockSignal, Module, ResetSignal, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out, connect, flipped
from lrbi.hw.axis import Axis
from lrbi.hw.rivals.gather import Gather, check_beat, gather_clocks
from lrbi.hw.rivals.skid import index_port


class Bitmap(wiring.Component):
    """Gives mask bits as they are stored, a word a clock.

    With one word a beat it is a wire, ``tready`` too: nothing could be leaner. It is the one rival
    with a path from an input to an output; behind a ROM, whose beats are registers, there is none.

    Parameters
    ----------
    chunk
        Bits of an index word.
    beat
        Bits of a mask beat: a multiple of ``chunk``.

    Members
    -------
    s_axis_index : In(Axis(chunk))
        The mask, a frame a tile.
    m_axis_mask : Out(Axis(beat))
        The mask, a frame a tile.
    """

    def __init__(self, *, chunk: int, beat: int) -> None:
        check_beat(chunk, beat)
        self.chunk, self.beat = chunk, beat
        super().__init__({"s_axis_index": In(Axis(chunk)), "m_axis_mask": Out(Axis(beat))})

    @staticmethod
    def latency(chunk: int, beat: int) -> int:
        """Clocks from the last index word of a beat to the beat."""
        return 0 if chunk == beat else gather_clocks(chunk, beat)

    def elaborate(self, platform: object) -> Module:
        """The hardware."""
        m = Module()
        mask = self.m_axis_mask
        index = index_port(m, self.s_axis_index, "index", bits=self.chunk, skid=False)
        if self.chunk == self.beat:
            # Clock and reset are ports like any core's; the name tells lint tools.
            unused = Signal(2, name="unused_clock", attrs={"keep": "true"})
            m.d.comb += [
                unused.eq(Cat(ClockSignal(), ResetSignal())),
                mask.tdata[: self.beat].eq(index.tdata[: self.beat]),
                mask.tlast.eq(index.tlast),
                mask.tvalid.eq(index.tvalid),
                index.tready.eq(mask.tready),
            ]
            return m
        m.submodules.gather = gather = Gather(chunk=self.chunk, beat=self.beat)
        connect(m, gather.m_axis_mask, flipped(mask))
        m.d.comb += [
            gather.chunk.eq(index.tdata),
            gather.last.eq(index.tlast),
            gather.valid.eq(index.tvalid),
            index.tready.eq(gather.ready),
        ]
        return m
