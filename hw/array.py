"""The systolic AND-OR array: some columns of it, with their slice of the I_z memory."""

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import In, Out

from lrbi.config import DecoderConfig


class LoadPlan:
    """Where the beats of an I_z frame stand in memory, and where each stage finds its rows.

    Row l of a frame arrives in beat ``l // iz_rows``. Beat b is written whole, to word
    ``b // banks`` of bank ``b % banks``; ``banks`` is the least number for which the beats of any
    one stage stand in different banks, so that a stage can be read in one clock, and its rows are
    always the same wires.
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
        self.words = -(-self.beats // self.banks)
        # The word of each bank that each stage reads; a bank it needs nothing of reads any.
        self.reads = [
            [
                next((beat // self.banks for beat in beats if beat % self.banks == bank), 0)
                for bank in range(self.banks)
            ]
            for beats in needed
        ]

    def place(self, row: int) -> tuple[int, int]:
        """Bank of a frame's row, and its position in the bank's words."""
        return row // self.iz_rows % self.banks, row % self.iz_rows


class ColumnGroup(wiring.Component):
    """``columns`` columns of the array: weight-stationary, partial rows flow, one stage a clock.

    Stage g holds its ranks' I_z rows and ORs ``p_l AND z_l`` of each into the partial mask row
    that passes through. A row whose ``first`` is given in clock n, and whose bits in clock n + 1,
    leaves in clock n + 2 + stages::

        clock        n      n+1            n+2            ...  n+2+G
        first        given
        row                 given
        token               stage 0 takes  stage 1 takes
                            its I_z rows   its I_z rows
        partial                            stage 0 adds        mask is the whole row

    With a tile's first row a token sets out, one stage a clock, just ahead of it: where it passes,
    the stage takes its new I_z rows from the memory, right behind the last row of the old tile.
    A first row must come no sooner than G clocks after the one before it.

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
        An I_p beat, ranks beyond the tile's own masked.
    first : In(1)
        The beat that comes in the next clock is the first of its tile.
    write_data : In(iz_rows * columns)
        An I_z beat's bits of these columns.
    write_enable : In(banks)
        The bank that the beat goes to, if any.
    write_word : In(...)
        The word that it goes to, and in the top bit the half of the memory.
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
                "first": In(1),
                "write_data": In(config.iz_rows * columns),
                "write_enable": In(self.plan.banks),
                "write_word": In(bits_for(self.plan.words) + 1),
                "mask": Out(config.lanes * columns),
            }
        )

    def elaborate(self, platform: object) -> Module:
        """The hardware."""
        m = Module()
        config, plan, columns = self.config, self.plan, self.columns
        stages = len(config.stages)

        # The token, and the stage and half of the memory that it is about to load from.
        tokens = [_kept(1, f"token{stage}", init=0) for stage in range(stages)]
        m.d.sync += Cat(tokens).eq(Cat(self.first, tokens[:-1]))
        half = _kept(1, "half", init=0)
        stage_next = _kept(bits_for(stages), "stage_next", init=0)
        with m.If(self.first | (stage_next != 0)):
            m.d.sync += stage_next.eq(plus_one(stage_next))
            with m.If(stage_next == stages - 1):
                m.d.sync += [stage_next.eq(0), half.eq(~half)]

        # The I_z memory: two frames, the one being loaded and the one being written. A frame is
        # complete in it when its tile's first row reaches the array, two clocks after the last
        # beat at the earliest.
        write_data, write_word = Signal.like(self.write_data), Signal.like(self.write_word)
        write_enable = Signal.like(self.write_enable)
        m.d.sync += [
            write_data.eq(self.write_data),
            write_word.eq(self.write_word),
            write_enable.eq(self.write_enable),
        ]
        bus = []
        addresses = {}
        for bank in range(plan.banks):
            bits = bits_for(-(-(plan.beats - bank) // plan.banks))  # of this bank's own words
            m.submodules[f"bank{bank}"] = ram = memory.Memory(
                shape=config.iz_rows * columns, depth=2 << bits, init=[]
            )
            write = ram.write_port()
            m.d.comb += [
                write.en.eq(write_enable[bank]),
                write.addr.eq(Cat(write_word[:bits], write_word[-1])),
                write.data.eq(write_data),
            ]
            words = tuple(reads[bank] for reads in plan.reads)
            if words not in addresses:
                word = _table(stage_next, words, bits)
                addresses[words] = _kept(bits + 1, f"address{bank}")
                m.d.sync += addresses[words].eq(Cat(word, half))
            read = ram.read_port(domain="comb")
            m.d.comb += read.addr.eq(addresses[words])
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

        # The stages. I_p bits enter skewed: those of stage g wait g clocks longer.
        row = self.row
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
                row[lane * config.rank + rank] for lane in range(config.lanes) for rank in ranks
            )
            for delay in range(stage + 1):
                later = _kept(len(entering), f"ip{stage}_{delay}")
                m.d.sync += later.eq(entering)
                entering = later
            after = Signal(config.lanes * columns, name=f"partial{stage}", reset_less=True)
            for lane in range(config.lanes):
                terms = [
                    # A Mux simulates faster, but in stage 0 would make p a reset of the register.
                    entering[lane * len(ranks) + index].replicate(columns) & z
                    if stage == 0
                    else Mux(entering[lane * len(ranks) + index], z, 0)
                    for index in range(len(ranks))
                    for z in [held.word_select(index, columns)]
                ]
                added = partial.word_select(lane, columns)
                # Two ranks are what four inputs can add: kept, lest synthesis go a level deeper.
                for index in range(0, len(terms) - 1, 2):
                    pair = Signal(
                        columns, name=f"pair{stage}_{lane}_{index}", attrs={"keep": "true"}
                    )
                    m.d.comb += pair.eq(terms[index] | terms[index + 1])
                    added |= pair
                if len(terms) % 2:
                    added |= terms[-1]
                m.d.sync += after.word_select(lane, columns).eq(added)
            partial = after
        m.d.comb += self.mask.eq(partial)
        return m


def plus_one(value: Value) -> Value:
    """``value + 1`` in as many bits as it has: no carry that nobody reads."""
    return Cat(bit ^ value[:index].all() for index, bit in enumerate(value))


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
