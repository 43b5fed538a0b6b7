"""The mask decoder ``lrbi_decoder``: three AXI4-Streams around the array."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import In, Out
from lrbi.hw.array import ColumnGroup, LoadPlan, bits_for, plus_one, successor
from lrbi.hw.axis import Axis

from lrbi.config import DecoderConfig

GROUP_COLUMNS = 16
"""Columns that share registers: few enough to be placed close together."""


class Decoder(wiring.Component):
    """Rebuilds mask tiles from their factors, ``lanes`` mask rows a clock.

    Frames are tiles: the t-th frame at ``s_axis_iz`` belongs to the t-th at ``s_axis_ip``, and
    both make the t-th at ``m_axis_mask``. A tile's I_p is taken when its I_z is complete; one I_z
    frame is taken ahead. A mask beat is valid ``config.latency`` clocks after its I_p beat was
    taken, and nothing stalls between: a beat is taken only when there is room for its mask. One
    beat a clock, and none lost between tiles of at least ``config.full_rate_beats``.

    Parameters
    ----------
    config
        Rank k, tile columns C, lanes, iz_rows and ranks per stage.

    Members
    -------
    s_axis_iz : In(Axis(iz_rows * C))
        I_z, ``iz_rows`` rows a beat, 1 to ceil(k / iz_rows) beats; ranks not sent are zero rows.
        More beats are taken and dropped.
    s_axis_ip : In(Axis(lanes * k))
        I_p, ``lanes`` rows a beat, any number of beats.
    m_axis_mask : Out(Axis(lanes * C))
        Mask rows, a beat for each I_p beat.
    error : Out(1)
        Rises when an I_z frame is too long, before its tile's first mask beat, until reset.
    """

    def __init__(self, *, config: DecoderConfig) -> None:
        self.config = config
        super().__init__(
            {
                "s_axis_iz": In(Axis(config.iz_width)),
                "s_axis_ip": In(Axis(config.ip_width)),
                "m_axis_mask": Out(Axis(config.mask_width)),
                "error": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """The hardware."""
        m = Module()
        config, plan = self.config, LoadPlan(self.config)
        iz, ip, mask = self.s_axis_iz, self.s_axis_ip, self.m_axis_mask
        stages = len(config.stages)

        # An I_z frame is written, then waits until the tile before it has been taken whole; then
        # it becomes the tile in play, and the next frame may be written.
        iz_ready = Signal(init=1)  # else a complete frame waits
        playing = Signal()  # the next I_p beat belongs to a tile whose I_z is complete
        fresh = Signal(init=1)  # the next I_z beat is the first of its frame
        written = Signal(plan.beats, reset_less=True)  # beats of the last frame, as a row of ones
        present = Signal(plan.beats, reset_less=True)  # beats of the tile in the array
        ip_ready = Signal()
        room = Signal()
        iz_taken = Signal()
        ip_taken = Signal()
        m.d.comb += [
            iz.tready.eq(iz_ready),
            ip.tready.eq(ip_ready),
            iz_taken.eq(iz.tvalid & iz_ready),
            ip_taken.eq(ip.tvalid & ip_ready),
        ]
        complete = ~iz_ready | (iz.tvalid & iz.tlast)
        over = ip_taken & ip.tlast
        idle = Signal(init=1)  # no token is on its way
        step = Signal()
        playing_next = Signal()
        m.d.comb += [
            step.eq(complete & (~playing | over) & idle),
            playing_next.eq(step | (playing & ~over)),
        ]
        too_long = Signal()
        m.d.comb += too_long.eq(written[-1] & ~fresh)
        with m.If(iz_taken):
            m.d.sync += [
                fresh.eq(iz.tlast),
                written.eq(Cat(1, written[:-1] & (~fresh).replicate(plan.beats - 1))),
            ]
            with m.If(too_long):
                m.d.sync += self.error.eq(1)
        m.d.sync += [
            playing.eq(playing_next),
            iz_ready.eq(~complete | step),
            ip_ready.eq(playing_next & room),
        ]
        # A clock later the token sets out; it must be through before the next does.
        travelling = Signal(max(stages - 1, 1))
        start = travelling[0]
        m.d.sync += travelling.eq(Cat(step, travelling[:-1]))
        if stages > 1:
            m.d.sync += idle.eq((idle & ~step) | travelling[-1])
        with m.If(start):
            m.d.sync += present.eq(written)

        # Where the next I_z beat goes: bank by bank, word by word, frame by frame in turn. The
        # place is written every clock until the beat is there, so that registers alone drive the
        # memory; no bank is written while a frame waits, or beyond the last place of a frame.
        bank = Signal(plan.banks, init=1 << plan.skip)
        word = Signal(bits_for(plan.words))
        half = Signal()
        last_place = written[-2] & ~fresh if plan.beats > 1 else Const(1)
        beyond = last_place.shift_left((plan.skip + plan.beats) % plan.banks)
        ends = iz.tlast.replicate(plan.banks) | beyond
        moved = Mux(iz.tvalid, bank.rotate_left(1) & ~ends, bank)
        m.d.sync += bank.eq(moved | step.shift_left(plan.skip))
        with m.If(iz.tvalid & bank[-1]):
            m.d.sync += word.eq(plus_one(word))
        with m.If(iz.tvalid & iz.tlast):  # while a frame waits, the word is 0 anyway
            m.d.sync += word.eq(0)
        with m.If(iz_taken & iz.tlast):
            m.d.sync += half.eq(~half)

        # Pad bits of the inputs are ignored; the name tells lint tools so.
        pads = Cat(ip.tdata[config.ip_width :], iz.tdata[config.iz_width :])
        if len(pads):
            m.d.comb += Signal(len(pads), name="unused_pads", attrs={"keep": "true"}).eq(pads)

        # A row, ranks beyond the tile's own masked; the bits of stage g wait g clocks longer.
        ranks = Cat(present[rank // config.iz_rows] for rank in range(config.rank))
        row = Signal(config.ip_width, reset_less=True)
        masked = Signal(config.ip_width)
        m.d.sync += row.eq(ip.tdata)
        m.d.comb += masked.eq(row & Cat(ranks for _ in range(config.lanes)))
        skewed: list[Value] = list(masked)
        for stage, those in enumerate(plan.stages[1:], 1):
            late = [bit for bit in range(config.ip_width) if bit % config.rank >= those.start]
            later = Signal(len(late), name=f"row{stage}", reset_less=True)
            m.d.sync += later.eq(Cat(skewed[bit] for bit in late))
            for bit, value in zip(late, later, strict=True):
                skewed[bit] = value

        # What comes with a row through the array.
        depth = stages + 2
        valid = Signal(depth)
        last = Signal(depth, reset_less=True)
        m.d.sync += [valid.eq(Cat(ip_taken, valid[:-1])), last.eq(Cat(ip.tlast, last[:-1]))]
        take = Signal()  # the oldest row leaves the output buffer

        # The array, in groups of columns.
        mask_rows: list[list[Value]] = [[] for _ in range(config.lanes)]
        for offset in range(0, config.tile_cols, GROUP_COLUMNS):
            columns = min(GROUP_COLUMNS, config.tile_cols - offset)
            group = ColumnGroup(config=config, columns=columns)
            m.submodules[f"columns{offset}"] = group
            m.d.comb += [
                group.row.eq(Cat(skewed)),
                group.start.eq(start),
                group.write_data.eq(
                    Cat(
                        iz.tdata[index * config.tile_cols + offset :][:columns]
                        for index in range(config.iz_rows)
                    )
                ),
                group.write_enable.eq(bank),
                group.write_word.eq(Cat(word, half)),
                group.valid.eq(valid[-1]),
                group.take.eq(take),
            ]
            for lane in range(config.lanes):
                mask_rows[lane].append(group.mask.word_select(lane, columns))

        # The output buffer: its control, and tlast; the rows are in the groups.
        m.submodules.buffer = ram = memory.Memory(shape=1, depth=config.buffer_depth, init=[])
        write = ram.write_port()
        read = ram.read_port(domain="comb")
        produced = Signal(range(ram.depth), init=1)
        consumed = Signal(range(ram.depth), init=1)
        m.d.comb += [
            write.addr.eq(produced),
            write.data.eq(last[-1]),
            write.en.eq(valid[-1]),
            read.addr.eq(consumed),
        ]
        with m.If(valid[-1]):
            m.d.sync += produced.eq(successor(produced))
        available = Signal()  # the buffer holds a beat
        m.d.comb += [
            take.eq(available & (~mask.tvalid | mask.tready)),
            mask.tdata[: config.mask_width].eq(Cat(mask_rows)),
        ]
        with m.If(take):
            m.d.sync += [consumed.eq(successor(consumed)), mask.tlast.eq(read.data)]
        more = produced != successor(consumed)
        # A twin of tvalid: with one for both, synthesis would make ``take``, which has far to go,
        # from what it has for ``available``, a level deeper.
        full = Signal()
        stuck = full & ~mask.tready
        m.d.sync += [
            available.eq(valid[-1] | (available & stuck) | (available & more)),
            full.eq(available | stuck),
            mask.tvalid.eq(available | (mask.tvalid & ~mask.tready)),
        ]

        # Credits: a beat is taken only when the buffer has a place for it. The beats of the last
        # two clocks are not counted yet, nor is the next one; four places cover them all.
        free = Signal(range(ram.depth), init=ram.depth - 1)
        spent = valid[0]
        returned = Signal()
        m.d.sync += returned.eq(take)
        down = spent.replicate(len(free))
        flipped = Signal.like(free)  # one more of the complement is one less
        m.d.comb += flipped.eq(free ^ down)
        with m.If(spent ^ returned):
            m.d.sync += free.eq(plus_one(flipped) ^ down)
        m.d.comb += room.eq(free[2:].any())
        return m
