"""The decoders in Amaranth's own simulator: no external tool, and the stream rules checked."""

import random
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from amaranth.hdl import ClockDomain, Module, Signal
from amaranth.lib import wiring
from amaranth.sim import Simulator
from lrbi.hw.decoder import Decoder
from lrbi.hw.rom import RomDecoder

from lrbi.arrays import Bits
from lrbi.config import DecoderConfig
from lrbi.errors import CheckFailedError
from lrbi.layout import from_words, to_words

_PATIENCE = 1000  # clocks without a beat anywhere after which a design counts as hung


@dataclass(frozen=True)
class Tile:
    """The factors of one tile, as they go over the streams."""

    row_factor: Bits
    """I_p: height x k, of any height."""
    col_factor: Bits
    """I_z: rank x C; ranks that are not sent are zero."""


@dataclass(frozen=True)
class Stalls:
    """How often each port holds back a beat, from 0 (never) to below 1."""

    iz: float = 0.0
    ip: float = 0.0
    mask: float = 0.0
    seed: int = 0


@dataclass
class Run:
    """What came out."""

    tiles: list[Bits] = field(default_factory=list)
    """The mask of each tile, fill rows of its last beat included."""
    clocks: list[int] = field(default_factory=list)
    """The clock on which each mask beat left; 0 is the first after reset, or that of a start."""
    errors: list[bool] = field(default_factory=list)
    """The output ``error`` at each mask beat."""
    end: int = 0
    """The clock on which the run ended; of a ROM decoder, that of ``done`` or ``error``."""
    done: bool = False
    """Whether a ROM decoder ended with ``done``."""


class _Sink:
    """The receiver of mask beats: collects tiles, and holds the port to the rules of a stream."""

    def __init__(self, config: DecoderConfig, run: Run) -> None:
        self._config, self._run = config, run
        self._words: list[int] = []
        self._held: tuple[int, int] | None = None
        self._idle = 0

    def sample(
        self, clock: int, *, valid: int, ready: int, data: int, last: int, error: int, moved: bool
    ) -> None:
        """Look at the port at the end of a clock; ``moved`` if anything passed at another port."""
        run = self._run
        taken = len(run.clocks)
        if self._held is not None and (not valid or (data, last) != self._held):
            raise CheckFailedError(f"Mask beat {taken} changed before it was taken, clock {clock}")
        self._held = (data, last) if valid and not ready else None
        self._idle = 0 if moved or (valid and ready) else self._idle + 1
        if valid and ready:
            self._words.append(data)
            run.clocks.append(clock)
            run.errors.append(bool(error))
            if last:
                rows = from_words(self._words, self._config.tile_cols, self._config.lanes)
                run.tiles.append(rows)
                self._words.clear()
        if self._idle > _PATIENCE:
            raise CheckFailedError(f"Decoder stands still at mask beat {taken}, clock {clock}")


def decode(
    config: DecoderConfig,
    tiles: Sequence[Tile],
    *,
    stalls: Stalls | None = None,
    reset_at: int | None = None,
    decoder: type[Decoder] = Decoder,
) -> Run:
    """Play tiles through the decoder and give back what it made of them.

    The stream rules are enforced on the mask port: a beat that is offered stays as it is until it
    is taken. A design that offers and takes nothing for a long time is given up on.
    ``reset_at`` resets it on that clock, and starts all tiles anew.
    """
    stalls = stalls or Stalls()
    dut = decoder(config=config)
    iz_beats = [_frame(to_words(tile.col_factor, config.iz_rows)) for tile in tiles]
    ip_beats = [_frame(to_words(tile.row_factor, config.lanes)) for tile in tiles]
    expected = sum(map(len, ip_beats))
    run = Run()

    async def bench(ctx: Any, reset: Signal) -> None:
        if reset_at is not None:
            await _drive(ctx, dut, iz_beats, ip_beats, stalls, Run(), clocks=reset_at)
            await _reset(ctx, reset)
        await _drive(ctx, dut, iz_beats, ip_beats, stalls, run, beats=expected)

    _simulate(dut, bench)
    return run


def play(
    config: DecoderConfig,
    tiles: Sequence[Tile],
    ranges: Sequence[tuple[int, int]],
    *,
    stalls: Stalls | None = None,
    reset_at: int | None = None,
    decoder: type[RomDecoder] = RomDecoder,
) -> list[Run]:
    """Start a ROM decoder of these tiles on ranges of (first tile, count), one after the other.

    Every tile has full rank and height. The clocks of each run count from its start, which comes
    in the first clock where ``busy`` is low, so that the next start meets the ``done`` of the one
    before. ``reset_at`` resets the first range on that clock, and starts all anew.
    """
    stalls = stalls or Stalls()
    chance = random.Random(stalls.seed)
    ip_words = [word for tile in tiles for word in to_words(tile.row_factor, config.lanes)]
    iz_words = [word for tile in tiles for word in to_words(tile.col_factor, config.iz_rows)]
    dut = decoder(config=config, tiles=len(tiles), ip_words=ip_words, iz_words=iz_words)
    mask = dut.m_axis_mask
    runs: list[Run] = []

    async def one(ctx: Any, first: int, count: int, clocks: int | None) -> Run:
        run = Run()
        sink = _Sink(config, run)
        ctx.set(dut.start, 1)
        ctx.set(dut.first_tile, first)
        ctx.set(dut.tile_count, count)
        while clocks is None or run.end < clocks:
            ctx.set(mask.tready, chance.random() >= stalls.mask)
            *_, busy, done, valid, ready, data, last, error = await ctx.tick().sample(
                dut.busy, dut.done, mask.tvalid, mask.tready, mask.tdata, mask.tlast, dut.error
            )
            if run.end == 0:
                ctx.set(dut.start, 0)
                # What is given with a start counts then and only then.
                ctx.set(dut.first_tile, 0)
                ctx.set(dut.tile_count, 0)
            elif not busy:
                run.done = bool(done)
                run.errors.append(bool(error))
                break
            elif done:
                raise CheckFailedError(f"Done is high while busy is, clock {run.end}")
            sink.sample(
                run.end, valid=valid, ready=ready, data=data, last=last, error=error, moved=False
            )
            run.end += 1
        return run

    async def bench(ctx: Any, reset: Signal) -> None:
        if reset_at is not None:
            await one(ctx, *ranges[0], reset_at)
            await _reset(ctx, reset)
        for first, count in ranges:
            runs.append(await one(ctx, first, count, None))

    _simulate(dut, bench)
    return runs


def _simulate(
    dut: wiring.Component, bench: Callable[[Any, Signal], Coroutine[Any, Any, None]]
) -> None:
    """Run a bench on a component, with a clock and a reset of its own."""
    top = Module()
    top.domains.sync = domain = ClockDomain("sync")
    top.submodules.dut = dut

    async def testbench(ctx: Any) -> None:
        await bench(ctx, domain.rst)

    simulator = Simulator(top)
    simulator.add_clock(1e-6)
    simulator.add_testbench(testbench)
    simulator.run()


async def _reset(ctx: Any, reset: Signal) -> None:
    ctx.set(reset, 1)
    await ctx.tick()
    ctx.set(reset, 0)


def _frame(words: list[int]) -> list[tuple[int, int]]:
    """Beats as (tdata, tlast)."""
    return [(word, int(index == len(words) - 1)) for index, word in enumerate(words)]


async def _drive(
    ctx: Any,
    dut: Decoder,
    iz_frames: list[list[tuple[int, int]]],
    ip_frames: list[list[tuple[int, int]]],
    stalls: Stalls,
    run: Run,
    *,
    beats: int | None = None,
    clocks: int | None = None,
) -> None:
    """Run until ``beats`` mask beats were taken, or for a number of clocks."""
    chance = random.Random(stalls.seed)
    inputs = [
        (port, [beat for frame in frames for beat in frame], share)
        for port, frames, share in (
            (dut.s_axis_iz, iz_frames, stalls.iz),
            (dut.s_axis_ip, ip_frames, stalls.ip),
        )
    ]
    offered = [False, False]
    sent = [0, 0]
    mask = dut.m_axis_mask
    sink = _Sink(dut.config, run)
    while (beats is None or len(run.clocks) < beats) and (clocks is None or run.end < clocks):
        for index, (port, queue, share) in enumerate(inputs):
            if not offered[index] and sent[index] < len(queue) and chance.random() >= share:
                offered[index] = True
                ctx.set(port.tdata, queue[sent[index]][0])
                ctx.set(port.tlast, queue[sent[index]][1])
            ctx.set(port.tvalid, offered[index])
        ctx.set(mask.tready, chance.random() >= stalls.mask)
        *_, iz_ready, ip_ready, valid, ready, data, last, error = await ctx.tick().sample(
            dut.s_axis_iz.tready, dut.s_axis_ip.tready,
            mask.tvalid, mask.tready, mask.tdata, mask.tlast, dut.error,
        )  # fmt: skip
        moved = False
        for index, accepted in enumerate((iz_ready, ip_ready)):
            if offered[index] and accepted:
                offered[index] = False
                sent[index] += 1
                moved = True
        sink.sample(
            run.end, valid=valid, ready=ready, data=data, last=last, error=error, moved=moved
        )
        run.end += 1
