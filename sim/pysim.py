"""The decoder in Amaranth's own simulator: no external tool, and all frames checked on the way."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from amaranth.hdl import ClockDomain, Module
from amaranth.sim import Simulator
from lrbi.hw.decoder import Decoder

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
    """The clock on which each mask beat left; 0 is the first after reset."""
    errors: list[bool] = field(default_factory=list)
    """The output ``error`` at each mask beat."""


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
    top = Module()
    top.domains.sync = domain = ClockDomain("sync")
    top.submodules.decoder = dut
    iz_beats = [_frame(to_words(tile.col_factor, config.iz_rows)) for tile in tiles]
    ip_beats = [_frame(to_words(tile.row_factor, config.lanes)) for tile in tiles]
    expected = sum(map(len, ip_beats))
    run = Run()

    async def bench(ctx: Any) -> None:
        if reset_at is not None:
            await _drive(ctx, dut, iz_beats, ip_beats, stalls, Run(), clocks=reset_at)
            ctx.set(domain.rst, 1)
            await ctx.tick()
            ctx.set(domain.rst, 0)
        await _drive(ctx, dut, iz_beats, ip_beats, stalls, run, beats=expected)

    simulator = Simulator(top)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    return run


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
    words: list[int] = []
    held: tuple[int, int] | None = None
    idle = clock = taken = 0
    while (beats is None or taken < beats) and (clocks is None or clock < clocks):
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
        if held is not None and (not valid or (data, last) != held):
            raise CheckFailedError(f"Mask beat {taken} changed before it was taken, clock {clock}")
        held = (data, last) if valid and not ready else None
        idle += 1
        for index, accepted in enumerate((iz_ready, ip_ready)):
            if offered[index] and accepted:
                offered[index] = False
                sent[index] += 1
                idle = 0
        if valid and ready:
            words.append(data)
            run.clocks.append(clock)
            run.errors.append(bool(error))
            taken, idle = taken + 1, 0
            if last:
                config = dut.config
                run.tiles.append(from_words(words, config.tile_cols, config.lanes))
                words.clear()
        if idle > _PATIENCE:
            raise CheckFailedError(f"Decoder stands still at mask beat {taken}, clock {clock}")
        clock += 1
