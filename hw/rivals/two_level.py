"""The rival that stores which blocks keep a weight, and those blocks."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out, connect, flipped
from lrbi.hw.axis import Axis
from lrbi.hw.rivals.gather import Gather, check_beat, gather_clocks
from lrbi.hw.rivals.skid import index_port

from lrbi.config import whole_number
from lrbi.errors import InputError


class TwoLevel(wiring.Component):
    """Decodes :class:`lrbi.formats.TwoLevel`, a non-zero block a clock.

    A word of the map tells of one chunk, which takes a clock for each of its non-zero blocks, and
    one clock if it has none::

        clock      n       n+1     n+2      n+3
        map        taken
        block      taken
        left               with it
        gathered                   with it
        chunk                               given, if the block is its last

    No clock is lost between chunks, rows or tiles.

    Parameters
    ----------
    block
        Bits of a block.
    chunk
        Mask bits that a word of the map tells of: a multiple of ``block``.
    beat
        Bits of a mask beat: a multiple of ``chunk``.

    Members
    -------
    s_axis_map : In(Axis(chunk / block))
        Which blocks are not zero, a frame a tile.
    s_axis_block : In(Axis(block))
        Those blocks. ``tlast`` is not looked at: a tile may have none.
    m_axis_mask : Out(Axis(beat))
        The mask, a frame a tile.
    """

    def __init__(self, *, block: int, chunk: int, beat: int) -> None:
        check_blocks(block, chunk)
        check_beat(chunk, beat)
        self.block, self.chunk, self.beat = block, chunk, beat
        super().__init__(
            {
                "s_axis_map": In(Axis(chunk // block)),
                "s_axis_block": In(Axis(block)),
                "m_axis_mask": Out(Axis(beat)),
            }
        )

    @staticmethod
    def latency(chunk: int, beat: int) -> int:
        """Clocks from the last block of a tile to its last beat."""
        return 2 + gather_clocks(chunk, beat)

    def elaborate(self, platform: object) -> Module:
        """The hardware."""
        m = Module()
        block, count = self.block, self.chunk // self.block
        m.submodules.gather = gather = Gather(chunk=self.chunk, beat=self.beat)
        connect(m, gather.m_axis_mask, flipped(self.m_axis_mask))
        skid = gather.count == 1
        map_ = index_port(m, self.s_axis_map, "map", bits=count, skid=skid)
        blocks = index_port(m, self.s_axis_block, "block", bits=block, skid=skid)
        m.d.comb += Signal(name="unused_block_tlast", attrs={"keep": "true"}).eq(
            self.s_axis_block.tlast
        )
        go = Signal()

        # The block that comes next.
        data = Signal(block, reset_less=True)
        there = Signal()
        wanted = Signal()
        m.d.comb += blocks.tready.eq(~there | wanted)
        with m.If(blocks.tready):
            m.d.sync += [data.eq(blocks.tdata), there.eq(blocks.tvalid)]

        # What is left of a word of the map, and zero if there is none: the block goes to the
        # lowest place.
        active = Signal()
        left = Signal(count)
        needs = Signal(reset_less=True)  # there is a block to place
        fresh = Signal(reset_less=True)  # nothing of the chunk is placed yet
        last = Signal(reset_less=True)
        final = Signal()  # no other block follows in the chunk
        able = Signal()
        placing = Signal()
        below = Cat(left[:bit].any() for bit in range(count))
        m.d.comb += [
            final.eq(at_most_one(left)),
            able.eq(go & (there | ~needs)),
            placing.eq(active & able),
            wanted.eq(placing & needs),
            map_.tready.eq(final & (~active | able)),
        ]
        with m.If(~active | able):
            m.d.sync += [left.eq(Mux(final, map_.tdata[:count], left & below)), fresh.eq(final)]
            with m.If(final):
                m.d.sync += [
                    active.eq(map_.tvalid),
                    needs.eq(map_.tdata[:count].any()),
                    last.eq(map_.tlast),
                ]
            with m.If(final & ~map_.tvalid):
                m.d.sync += left.eq(0)

        # The chunk, put together block by block.
        gathered = Signal(self.chunk, reset_less=True)
        complete = Signal()
        ended = Signal(reset_less=True)
        m.d.comb += [
            gather.valid.eq(complete),
            gather.chunk.eq(gathered),
            gather.last.eq(ended),
            go.eq(~complete | gather.ready),
        ]
        with m.If(go):
            m.d.sync += [complete.eq(placing & final), ended.eq(last)]
        with m.If(placing):
            for bit in range(count):
                old = gathered.word_select(bit, block)
                pick = left[bit] & ~below[bit]
                m.d.sync += old.eq(Mux(pick, data, old & (~fresh).replicate(block)))
        return m


def at_most_one(bits: Value) -> Value:
    """Whether no two of the bits are set, as a balanced tree."""
    return ~_any_and_two(bits)[1]


def _any_and_two(bits: Value) -> tuple[Value, Value]:
    if len(bits) == 1:
        return bits[0], Const(0, 1)
    low, high = (_any_and_two(half) for half in (bits[: len(bits) // 2], bits[len(bits) // 2 :]))
    return low[0] | high[0], low[1] | high[1] | (low[0] & high[0])


def check_blocks(block: int, chunk: int) -> None:
    """Refuse a chunk that is not whole blocks."""
    whole_number("Block", block, 1)
    if whole_number("Chunk", chunk, 1) % block:
        raise InputError(f"Chunk must be a multiple of the block {block}, not {chunk}")
