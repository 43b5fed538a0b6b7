"""From chunks of mask bits to beats: the output of every rival."""

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out, connect, flipped
from lrbi.hw.axis import Axis

from lrbi.config import whole_number
from lrbi.errors import InputError


class Gather(wiring.Component):
    """Gathers chunks of mask bits into beats.

    With one chunk a beat it is the output register alone. With more, each chunk has its place in
    that register, and the first of a beat waits beside it until the second comes: so one chunk can
    be taken while a beat is held up, and ``ready`` is a register. Where many small chunks make a
    beat, they are gathered in two levels: a place costs a register more than its bits.

    A beat is valid :func:`gather_clocks` after its last chunk was taken. A chunk a clock, and no
    clock lost between beats.

    Parameters
    ----------
    chunk
        Bits of a chunk.
    beat
        Bits of a beat: a multiple of ``chunk``.

    Members
    -------
    chunk : In(chunk)
        Mask bits.
    last : In(1)
        The chunk is its tile's last, and so its beat's.
    valid : In(1)
        There is a chunk.
    ready : Out(1)
        It is taken. With more than one chunk a beat, a register.
    m_axis_mask : Out(Axis(beat))
        The beats.
    """

    def __init__(self, *, chunk: int, beat: int) -> None:
        check_beat(chunk, beat)
        self.beat, self.count = beat, beat // chunk
        self.inner = _inner(chunk, self.count)
        super().__init__(
            {
                "chunk": In(chunk),
                "last": In(1),
                "valid": In(1),
                "ready": Out(1),
                "m_axis_mask": Out(Axis(beat)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """The hardware."""
        m = Module()
        mask = self.m_axis_mask
        if self.inner > 1:
            self._two_levels(m)
            return m
        data = Signal(self.beat, reset_less=True)
        last = Signal(reset_less=True)
        full = Signal()
        m.d.comb += [
            mask.tdata[: self.beat].eq(data),
            mask.tlast.eq(last),
            mask.tvalid.eq(full),
        ]
        if self.count == 1:
            m.d.comb += self.ready.eq(~full | mask.tready)
            with m.If(self.ready):
                m.d.sync += [full.eq(self.valid), data.eq(self.chunk), last.eq(self.last)]
            return m

        place = Signal(self.count, init=1)  # where the next chunk goes, one-hot
        early = Signal(len(self.chunk), reset_less=True)  # the first chunk of a beat
        ready = Signal(init=1)
        taken = Signal()
        stuck = Signal()
        m.d.comb += [
            self.ready.eq(ready),
            taken.eq(self.valid & ready),
            stuck.eq(full & ~mask.tready),
        ]
        with m.If(taken):
            m.d.sync += place.eq(place.rotate_left(1))
        # A place is written every clock until its chunk is there, so that registers alone enable
        # it; but for the first two, where the beat before may still be.
        with m.If(place[0]):
            m.d.sync += early.eq(self.chunk)
        with m.If(place[1] & ready):
            m.d.sync += data[: 2 * len(early)].eq(Cat(early, self.chunk))
        for index in range(2, self.count):
            with m.If(place[index]):
                m.d.sync += data.word_select(index, len(early)).eq(self.chunk)
        with m.If(place[-1] & ready):
            m.d.sync += last.eq(self.last)
        m.d.sync += [
            full.eq((taken & place[-1]) | stuck),
            # Not while the second chunk of a beat is next, and the beat before is still there.
            ready.eq(~(stuck & Mux(taken, place[0], place[1]))),
        ]
        return m

    def _two_levels(self, m: Module) -> None:
        middle = len(self.chunk) * self.inner
        m.submodules.inner = inner = Gather(chunk=len(self.chunk), beat=middle)
        m.submodules.outer = outer = Gather(chunk=middle, beat=self.beat)
        connect(m, outer.m_axis_mask, flipped(self.m_axis_mask))
        m.d.comb += [
            inner.chunk.eq(self.chunk),
            inner.last.eq(self.last),
            inner.valid.eq(self.valid),
            self.ready.eq(inner.ready),
            outer.chunk.eq(inner.m_axis_mask.tdata),
            outer.last.eq(inner.m_axis_mask.tlast),
            outer.valid.eq(inner.m_axis_mask.tvalid),
            inner.m_axis_mask.tready.eq(outer.ready),
        ]


def gather_clocks(chunk: int, beat: int) -> int:
    """Clocks from a beat's last chunk to the beat."""
    return 1 if _inner(chunk, beat // chunk) == 1 else 2


def check_beat(chunk: int, beat: int) -> None:
    """Refuse a beat that is not whole chunks."""
    whole_number("Chunk", chunk, 1)
    if whole_number("Beat", beat, 1) % chunk:
        raise InputError(f"Beat must be a multiple of the chunk {chunk}, not {beat}")


def _inner(chunk: int, count: int) -> int:
    """Chunks that a first level gathers, one if a second level costs more than it spares.

    A level costs a register a place; the second one also the first one's beat, twice.
    """

    def cost(inner: int) -> int:
        return count if inner == 1 else inner + count // inner + 2 * inner * chunk

    return min((inner for inner in range(1, count) if count % inner == 0), key=cost, default=1)
