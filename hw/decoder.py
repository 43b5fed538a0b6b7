"""The mask decoder ``lrbi_decoder``: three AXI4-Streams around the array."""

from amaranth.hdl import Cat, Module, Signal, Value
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import In, Out
from lrbi.hw.array import ColumnGroup, LoadPlan, bits_for, plus_one
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
        iz_ready = Signal(init=1)
        waiting = Signal()  # a complete frame waits
        playing = Signal()  # the next I_p beat belongs to a tile whose I_z is complete
        starting = Signal(init=1)  # the next I_p beat is the first of its tile
        fresh = Signal(init=1)  # the next I_z beat is the first of its frame
        written = Signal(plan.beats, reset_less=True)  # beats of the last frame, as a row of ones
        present = Signal(plan.beats, reset_less=True)  # beats of the tile in the array
        ip_ready = Signal()
        room = Signal()
        iz_taken, ip_taken = Signal(), Signal()
        m.d.comb += [
            iz.tready.eq(iz_ready),
            ip.tready.eq(ip_ready),
            iz_taken.eq(iz.tvalid & iz_ready),
            ip_taken.eq(ip.tvalid & ip_ready),
        ]
        # A token must be through the array before the next sets out.
        travelling = Signal(max(stages - 2, 0))
        first = Signal()
        m.d.comb += first.eq(ip_taken & starting)
        if stages > 2:
            m.d.sync += travelling.eq(Cat(first, travelling[:-1]))
        busy = travelling.any() if stages > 2 else 0
        if stages > 1:
            busy = busy | first
        complete = waiting | (iz_taken & iz.tlast)
        over = ip_taken & ip.tlast
        step = Signal()
        playing_next, waiting_next = Signal(), Signal()
        m.d.comb += [
            step.eq(complete & (~playing | over) & ~busy),
            playing_next.eq(step | (playing & ~over)),
            waiting_next.eq(complete & ~step),
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
            waiting.eq(waiting_next),
            iz_ready.eq(~waiting_next),
            ip_ready.eq(playing_next & room),
        ]
        # A clock later, when the tile's first row is at the array and no sooner.
        stepped = Signal()
        m.d.sync += stepped.eq(step)
        with m.If(stepped):
            m.d.sync += present.eq(written)
        with m.If(ip_taken):
            m.d.sync += starting.eq(ip.tlast)

        # Where the next I_z beat goes: bank by bank, word by word, frame by frame in turn.
        bank = Signal(plan.banks, init=1)
        word = Signal(bits_for(plan.words))
        half = Signal()
        with m.If(iz_taken):
            if plan.banks > 1:
                m.d.sync += bank.eq(bank.rotate_left(1))
            with m.If(bank[-1]):
                m.d.sync += word.eq(plus_one(word))
            with m.If(iz.tlast):
                m.d.sync += [bank.eq(1), word.eq(0), half.eq(~half)]
        enable = bank & (iz_taken & ~too_long).replicate(plan.banks)

        # Pad bits of the inputs are ignored; the name tells lint tools so.
        pads = Cat(ip.tdata[config.ip_width :], iz.tdata[config.iz_width :])
        if len(pads):
            m.d.comb += Signal(len(pads), name="unused_pads", attrs={"keep": "true"}).eq(pads)

        # The array, in groups of columns.
        ranks = Cat(present[rank // config.iz_rows] for rank in range(config.rank))
        row = Signal(config.ip_width, reset_less=True)
        m.d.sync += row.eq(ip.tdata)
        row = row & Cat(ranks for _ in range(config.lanes))
        mask_rows: list[list[Value]] = [[] for _ in range(config.lanes)]
        for start in range(0, config.tile_cols, GROUP_COLUMNS):
            columns = min(GROUP_COLUMNS, config.tile_cols - start)
            group = ColumnGroup(config=config, columns=columns)
            m.submodules[f"columns{start}"] = group
            m.d.comb += [
                group.row.eq(row),
                group.first.eq(first),
                group.write_data.eq(
                    Cat(
                        iz.tdata[index * config.tile_cols + start :][:columns]
                        for index in range(config.iz_rows)
                    )
                ),
                group.write_enable.eq(enable),
                group.write_word.eq(Cat(word, half)),
            ]
            for lane in range(config.lanes):
                mask_rows[lane].append(group.mask.word_select(lane, columns))

        # What comes with a row through the array.
        depth = stages + 2
        valid, last = Signal(depth), Signal(depth, reset_less=True)
        m.d.sync += [valid.eq(Cat(ip_taken, valid[:-1])), last.eq(Cat(ip.tlast, last[:-1]))]

        # The output buffer has a place for every beat that was taken.
        m.submodules.buffer = ram = memory.Memory(
            shape=config.mask_width + 1, depth=config.buffer_depth, init=[]
        )
        write = ram.write_port()
        produced, consumed = Signal(range(ram.depth)), Signal(range(ram.depth))
        m.d.comb += [
            write.addr.eq(produced),
            write.data.eq(Cat(mask_rows, last[-1])),
            write.en.eq(valid[-1]),
        ]
        with m.If(valid[-1]):
            m.d.sync += produced.eq(plus_one(produced))
        full = Signal()  # the output register holds a beat
        advance = Signal()
        available = Signal()
        m.d.comb += [
            advance.eq(~full | mask.tready),
            available.eq(produced != consumed),
            mask.tvalid.eq(full),
        ]
        with m.If(advance):
            m.d.sync += full.eq(available)
            with m.If(available):
                m.d.sync += consumed.eq(plus_one(consumed))
        data = Signal(config.mask_width + 1, reset_less=True)
        read = ram.read_port(domain="comb")
        with m.If(advance):
            m.d.sync += data.eq(read.data)
        m.d.comb += [
            read.addr.eq(consumed),
            Cat(mask.tdata[: config.mask_width], mask.tlast).eq(data),
        ]

        # Beats that were taken and have not left the buffer must never fill it: a full one would
        # look empty. The beat of this clock is not counted yet, so one place more must be free.
        taken = Signal(range(ram.depth))
        with m.If(ip_taken):
            m.d.sync += taken.eq(plus_one(taken))
        one_free = consumed == plus_one(taken)
        two_free = consumed == Cat(taken[0], plus_one(taken[1:]))
        m.d.comb += room.eq(~(one_free | two_free))
        return m
