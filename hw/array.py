"""The systolic AND-OR array: some columns of it, with their slice of both buffers."""

from collections.abc import Sequence
from functools import reduce
from operator import or_

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import In, Out

from lrbi.config import DecoderConfig

NEAR_COLUMNS = 8
"""Columns that share a register of I_p bits: its way to them is the array's longest."""


class LoadPlan:
    """Where the beats of an I_z frame stand in memory, and where each stage finds its rows.

    Row l of a frame arrives in beat ``l // iz_rows``. Beat b is written whole, to word
    ``(skip + b) // banks`` of bank ``(skip + b) % banks``; ``banks`` is the least number for which
    the beats of any one stage stand in different banks, so that a stage can be read in one clock,
    and its rows are always the same wires. With one row a beat, places are skipped so that stage g
    reads word g of every bank.
    """

    def __init__(self, config: DecoderConfig) -> None:
        self.iz_rows = config.iz_rows
        ends = [sum(config.stages[: stage + 1]) for stage in range(len(config.stages))]
        self.stages = [
            range(end - size, end) for end, size in zip(ends, config.stages, strict=True)
        ]
        self.beats = config.iz_depth
        needed = [sorted({row // config.iz_rows for row in rows}) for rows in self.stages]
        self.banks = next(
            banks
            for banks in range(1, self.beats + 1)
            if all(len({beat % banks for beat in beats}) == len(beats) for beats in needed)
        )
        self.skip = self.banks - config.stages[0] if self.iz_rows == 1 else 0
        self.words = -(-(self.skip + self.beats) // self.banks)
        # The word of each bank that each stage reads; a bank it needs nothing of reads any.
        self.reads = [
            [
                next((word for word, place in map(self.beat_place, beats) if place == bank), stage)
                for bank in range(self.banks)
            ]
            for stage, beats in enumerate(needed)
        ]

    def beat_place(self, beat: int) -> tuple[int, int]:
        """Word and bank of a frame's beat."""
        return divmod(self.skip + beat, self.banks)

    def place(self, row: int) -> tuple[int, int]:
        """Bank of a frame's row, and its position in the bank's words."""
        return self.beat_place(row // self.iz_rows)[1], row % self.iz_rows


class ColumnGroup(wiring.Component):
    """``columns`` columns of the array: weight-stationary, partial rows flow, one stage a clock.

    Stage g holds its ranks' I_z rows and ORs ``p_l AND z_l`` of each into the partial mask row
    that passes through, which G stages later is whole and goes to the output buffer::

        clock     n      n+1            n+2            ...  n+2+G         n+3+G      n+4+G
        start     given
        row              given
        token            stage 0 takes  stage 1 takes
                         its I_z rows   its I_z rows
        partial                         stage 0 adds        row is whole
        valid                                               given
        take                                                              given
        mask                                                                         the row

    Before a tile's first row a token sets out, one stage a clock: where it passes, the stage takes
    its new I_z rows from the memory, right behind the last row of the old tile. ``start`` must
    come no sooner than G clocks after the one before it.

    Groups share no register, so that each can be placed by itself.

    Parameters
    ----------
    config
        The decoder's configuration.
    columns
        Columns in this group.

    Members
    -------
    row : In(lanes * rank)
        An I_p beat, ranks beyond the tile's own masked, and skewed: the bits of stage g come g
        clocks later.
    start : In(1)
        The beats from the next clock on belong to the next tile.
    write_data : In(iz_rows * columns)
        An I_z beat's bits of these columns.
    write_enable : In(banks)
        The bank that the beat goes to, if any.
    write_word : In(...)
        The word that it goes to, and in the top bit the half of the memory.
    valid : In(1)
        The row that is whole in this clock goes to the output buffer.
    take : In(1)
        The oldest row leaves the buffer.
    mask : Out(lanes * columns)
        A mask beat's bits of these columns.
    """

    def __init__(self, *, config: DecoderConfig, columns: int) -> None:
        self.config = config
        self.columns = columns
        self.plan = LoadPlan(config)
        super().__init__(
            {
                "row": In(config.ip_width),
                "start": In(1),
                "write_data": In(config.iz_rows * columns),
                "write_enable": In(self.plan.banks),
                "write_word": In(bits_for(self.plan.words) + 1),
                "valid": In(1),
                "take": In(1),
                "mask": Out(config.lanes * columns),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """The hardware."""
        m = Module()
        config, plan, columns = self.config, self.plan, self.columns
        stages = len(config.stages)

        # The token, and the stage and half of the memory that it loads from.
        tokens = [_kept(1, f"token{stage}", init=0) for stage in range(stages)]
        m.d.sync += Cat(tokens).eq(Cat(self.start, tokens[:-1]))
        half = _kept(1, "half", init=0)
        loading = _kept(bits_for(stages), "loading", init=0)
        with m.If(tokens[0] | (loading != 0)):
            m.d.sync += loading.eq(plus_one(loading))
        with m.If(tokens[-1]):
            m.d.sync += [loading.eq(0), half.eq(~half)]
        registered = config.memory == "block"
        attrs, domain = {}, "comb"
        frame, stage = half, loading
        if registered:
            # A registered read is given its address a clock sooner. No read matters whose word is
            # written in the same clock, and tools need not care what it gives.
            attrs, domain = {"ram_style": "block", "no_rw_check": 1}, "sync"
            frame = Signal(name="half_next")
            stage = Signal.like(loading, name="loading_next")
            moved = Mux(tokens[0] | (loading != 0), plus_one(loading), loading)
            m.d.comb += [frame.eq(half ^ tokens[-1]), stage.eq(Mux(tokens[-1], 0, moved))]

        # The I_z memory: two frames, the one being loaded and the one being written.
        bus = []
        for bank in range(plan.banks):
            # Only as deep as this bank's own words, lest an address bit be constant.
            bits = bits_for(-(-(plan.skip + plan.beats - bank) // plan.banks))
            m.submodules[f"bank{bank}"] = ram = memory.Memory(
                shape=config.iz_rows * columns, depth=2 << bits, init=[], attrs=attrs
            )
            write = ram.write_port()
            read = ram.read_port(domain=domain)
            word = Signal(bits, name=f"word{bank}", attrs={"keep": "true"})
            m.d.comb += [
                word.eq(_table(stage, tuple(reads[bank] for reads in plan.reads), bits)),
                write.en.eq(self.write_enable[bank]),
                write.addr.eq(Cat(self.write_word[:bits], self.write_word[-1])),
                write.data.eq(self.write_data),
                read.addr.eq(Cat(word, frame)),
            ]
            bus.append(read.data)

            used = {plan.place(rank) for rank in range(config.rank)}
            unused = Cat(
                read.data.word_select(position, columns)
                for position in range(config.iz_rows)
                if (bank, position) not in used
            )
            if len(unused):  # rows of a last beat beyond the k-th; the name tells lint tools
                name = f"unused_rows{bank}"
                m.d.comb += Signal(len(unused), name=name, attrs={"keep": "true"}).eq(unused)

        # The stages.
        partial = Const(0, config.lanes * columns)
        for stage, ranks in enumerate(plan.stages):
            held = Signal(len(ranks) * columns, name=f"iz{stage}", reset_less=True)
            rows = []
            for rank in ranks:
                bank, position = plan.place(rank)
                rows.append(bus[bank].word_select(position, columns))
            with m.If(tokens[stage]):
                m.d.sync += held.eq(Cat(rows))
            entering = Cat(
                self.row[lane * config.rank :][ranks.start : ranks.stop]
                for lane in range(config.lanes)
            )
            near = [slice(start, start + NEAR_COLUMNS) for start in range(0, columns, NEAR_COLUMNS)]
            copies = [_kept(len(entering), f"ip{stage}_{part.start}") for part in near]
            m.d.sync += [copy.eq(entering) for copy in copies]
            after = Signal(config.lanes * columns, name=f"partial{stage}", reset_less=True)
            sums = []
            for lane in range(config.lanes):
                terms = [
                    # A Mux simulates faster, but in stage 0 would make p a reset of the register.
                    Cat(
                        p.replicate(len(z[part])) & z[part] if stage == 0 else Mux(p, z[part], 0)
                        for copy, part in zip(copies, near, strict=True)
                        for p in [copy[lane * len(ranks) + index]]
                    )
                    for index in range(len(ranks))
                    for z in [held.word_select(index, columns)]
                ]
                added = partial.word_select(lane, columns)
                # The ranks that one LUT can add, two or three, are kept together, lest synthesis go
                # a level deeper.
                together = config.lut_inputs // 2
                whole = len(terms) // together * together
                for index in range(0, whole, together):
                    pair = Signal(
                        columns, name=f"pair{stage}_{lane}_{index}", attrs={"keep": "true"}
                    )
                    m.d.comb += pair.eq(_any(terms[index : index + together]))
                    added |= pair
                added = _any([added, *terms[whole:]])
                sums.append(added)
            m.d.sync += after.eq(Cat(sums))
            partial = after

        # The output buffer.
        m.submodules.buffer = ram = memory.Memory(
            shape=config.lanes * columns, depth=config.buffer_depth, init=[], attrs=attrs
        )
        write = ram.write_port()
        read = ram.read_port(domain=domain)
        produced = _kept(len(write.addr), "produced", init=1)
        consumed = _kept(len(read.addr), "consumed", init=1)
        m.d.comb += [
            write.data.eq(partial),
            write.en.eq(self.valid),
            write.addr.eq(produced),
            read.addr.eq(consumed),
        ]
        with m.If(self.valid):
            m.d.sync += produced.eq(successor(produced))
        with m.If(self.take):
            m.d.sync += consumed.eq(successor(consumed))
        if registered:
            m.d.comb += [read.en.eq(self.take), self.mask.eq(read.data)]
        else:
            data = Signal(config.lanes * columns, reset_less=True)
            with m.If(self.take):
                m.d.sync += data.eq(read.data)
            m.d.comb += self.mask.eq(data)
        return m


def plus_one(value: Value) -> Value:
    """``value + 1`` in as many bits as it has: no carry that nobody reads."""
    return Cat(bit ^ value[:index].all() for index, bit in enumerate(value))


_TAPS = {4: (4, 3), 5: (5, 3), 6: (6, 5), 7: (7, 6), 8: (8, 6, 5, 4), 9: (9, 5)}


def successor(pointer: Value) -> Value:
    """The next place in a buffer, of ``2**n - 1``: a shift register's, one LUT and no carry."""
    taps = _TAPS[len(pointer)]
    return Cat(Cat(pointer[tap - 1] for tap in taps).xor(), pointer[:-1])


def _any(terms: Sequence[Value]) -> Value:
    """The OR of all terms."""
    return reduce(or_, terms)


def _table(index: Signal, values: tuple[int, ...], width: int) -> Value:
    """``values[index]``, each bit as the OR of the indices that set it."""
    if values == tuple(range(len(values))):
        return index[:width]
    places = [
        Cat(bit if place >> position & 1 else ~bit for position, bit in enumerate(index)).all()
        for place in range(len(values))
    ]
    return Cat(
        Cat(place for place, value in zip(places, values, strict=True) if value >> bit & 1).any()
        for bit in range(width)
    )


def bits_for(count: int) -> int:
    """Bits that number ``count`` things."""
    return (count - 1).bit_length()


def _kept(width: int, name: str, init: int | None = None) -> Signal:
    """A register of this group's own: synthesis must not merge it with another group's."""
    attrs = {"keep": "true"}
    if init is None:
        return Signal(width, name=name, reset_less=True, attrs=attrs)
    return Signal(width, name=name, init=init, attrs=attrs)
