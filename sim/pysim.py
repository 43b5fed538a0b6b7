"""The decoders in Amaranth's own simulator: no external tool, and the stream rules checked."""

import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from amaranth.hdl import Cat, ClockDomain, Const, Module, Signal
from amaranth.lib import wiring
from amaranth.sim import Simulator
from lrbi.hw.decoder import Decoder
from lrbi.hw.rom import RomBacked, RomDecoder
from lrbi.sim.scene import Frames, Outcome, Scene, Scoreboard, Stalls

from lrbi.arrays import Bits
from lrbi.config import DecoderConfig
from lrbi.errors import CheckFailedError
from lrbi.layout import from_words, to_words

_PATIENCE = 1000  # clocks without a beat anywhere after which a design counts as hung; the least


@dataclass(frozen=True)
class Tile:
    """The factors of one tile, as they go over the streams."""

    row_factor: Bits
    """I_p: height x k, of any height."""
    col_factor: Bits
    """I_z: rank x C; ranks that are not sent are zero."""


@dataclass
class Run:
    """What came out."""

    columns: int
    """Mask columns of a beat."""
    lanes: int = 1
    """Mask rows of a beat."""
    frames: Frames = field(default_factory=list)
    """The mask beats of each tile."""
    clocks: list[int] = field(default_factory=list)
    """The clock on which each mask beat left; 0 is the first after reset, or that of a start."""
    errors: list[bool] = field(default_factory=list)
    """The output ``error`` at each mask beat."""
    most_under_way: int = 0
    """The most I_p beats taken whose mask beats were not out; not of a ROM decoder."""
    end: int = 0
    """How many clocks it took; of a ROM decoder, up to that of ``done`` or ``error``."""
    done: bool = False
    """Whether a ROM decoder ended with ``done``."""

    @property
    def tiles(self) -> list[Bits]:
        """The mask of each tile, fill rows of its last beat included."""
        return [from_words(frame, self.columns, self.lanes) for frame in self.frames]


class StoppedError(CheckFailedError):
    """A decoder broke a rule or stands still; ``run`` is what came before."""

    def __init__(self, what: str, run: Run, beat: int) -> None:
        super().__init__(f"{what} at mask beat {len(run.clocks)}, clock {run.end}")
        self.what, self.run, self.beat = what, run, beat


class _Sink:
    """The receiver of mask beats: collects frames, and holds the port to the rules of a stream."""

    def __init__(self, run: Run, progress: Callable[[int], None], stalls: Stalls) -> None:
        self.run, self._progress = run, progress
        moving = 1 - max(stalls.iz, stalls.ip, stalls.mask)
        self._patience = round(_PATIENCE / moving)
        self._words: list[int] = []
        self._held: tuple[int, int] | None = None
        self._idle = 0

    def sample(
        self, *, valid: int, ready: int, data: int, last: int, error: int, moved: bool = False
    ) -> None:
        """Look at the port at the end of a clock; ``moved`` if anything passed at another port."""
        run = self.run
        if self._held is not None and (not valid or (data, last) != self._held):
            self.stop("an offered mask beat changed before it was taken")
        self._held = (data, last) if valid and not ready else None
        self._idle = 0 if moved or (valid and ready) else self._idle + 1
        if valid and ready:
            self._words.append(data)
            run.clocks.append(run.end)
            run.errors.append(bool(error))
            if last:
                run.frames.append(self._words)
                self._progress(len(self._words))
                self._words = []
        if self._idle > self._patience:
            self.stop(f"nothing moved for {self._patience} clocks")
        run.end += 1

    def stop(self, what: str) -> None:
        """Give up."""
        raise StoppedError(what, self.run, len(self._words))


def decode(config: DecoderConfig, tiles: Sequence[Tile], **options: Any) -> Run:
    """Play tiles through the stream decoder; see :func:`decode_frames`."""
    iz = [to_words(tile.col_factor, config.iz_rows) for tile in tiles]
    ip = [to_words(tile.row_factor, config.lanes) for tile in tiles]
    return decode_frames(config, iz, ip, **options)


def decode_frames(
    config: DecoderConfig,
    iz: Frames,
    ip: Frames,
    *,
    stalls: Stalls | None = None,
    decoder: type[Decoder] = Decoder,
    **options: Any,
) -> Run:
    """Play frames through the stream decoder; see :func:`decode_streams`."""
    stalls = stalls or Stalls()
    inputs = {"s_axis_iz": (iz, stalls.iz), "s_axis_ip": (ip, stalls.ip)}
    return decode_streams(
        decoder(config=config), inputs, sum(map(len, ip)), config.tile_cols, config.lanes,
        stalls=stalls, **options,
    )  # fmt: skip


def decode_streams(
    dut: wiring.Component,
    inputs: Mapping[str, tuple[Frames, float]],
    beats: int,
    columns: int,
    lanes: int = 1,
    *,
    stalls: Stalls | None = None,
    reset_at: int | None = None,
    waves: Path | None = None,
    progress: Callable[[int], None] = lambda beats: None,
) -> Run:
    """Play frames through a core until it gave ``beats`` mask beats, and give them back.

    ``inputs`` has the frames of each port, and how often the port holds back a beat.
    The stream rules are enforced on the mask port: a beat that is offered stays as it is until it
    is taken. A design that offers and takes nothing for a long time is given up on.
    ``reset_at`` resets it on that clock, and starts all frames anew. ``waves`` is a VCD file to
    write.
    """
    stalls = stalls or Stalls()
    run = Run(columns, lanes)

    async def bench(ctx: Any, reset: Signal) -> None:
        if reset_at is not None:
            spare = Run(columns, lanes)
            await _drive(ctx, dut, inputs, stalls, _Sink(spare, _nobody, stalls), clocks=reset_at)
            await _reset(ctx, reset)
        await _drive(ctx, dut, inputs, stalls, _Sink(run, progress, stalls), beats=beats)

    _simulate(dut, bench, waves)
    return run


def play(
    config: DecoderConfig,
    tiles: Sequence[Tile],
    ranges: Sequence[tuple[int, int]],
    **options: Any,
) -> list[Run]:
    """Start a ROM decoder of these tiles, all of full rank and height; see :func:`play_words`."""
    ip_words = [word for tile in tiles for word in to_words(tile.row_factor, config.lanes)]
    iz_words = [word for tile in tiles for word in to_words(tile.col_factor, config.iz_rows)]
    return play_words(config, len(tiles), ip_words, iz_words, ranges, **options)


def play_words(
    config: DecoderConfig,
    tiles: int,
    ip_words: Sequence[int],
    iz_words: Sequence[int],
    ranges: Sequence[tuple[int, int]],
    *,
    decoder: type[RomDecoder] = RomDecoder,
    **options: Any,
) -> list[Run]:
    """Start a ROM decoder of these words; see :func:`play_ranges`."""
    dut = decoder(config=config, tiles=tiles, ip_words=ip_words, iz_words=iz_words)
    return play_ranges(dut, ranges, config.tile_cols, config.lanes, **options)


def play_ranges(
    dut: RomBacked,
    ranges: Sequence[tuple[int, int]],
    columns: int,
    lanes: int = 1,
    *,
    stalls: Stalls | None = None,
    reset_at: int | None = None,
    waves: Path | None = None,
    progress: Callable[[int], None] = lambda beats: None,
) -> list[Run]:
    """Start a core with ROMs on ranges of (first tile, count), one after the other.

    Each start is held out until it is taken, which for all but the first is in the clock of the
    ``done`` before. The clocks of a run count from that of its start; its last clock is that before
    ``done`` or ``error``. ``reset_at`` resets on that clock, and starts all anew.
    """
    stalls = stalls or Stalls()
    chance = random.Random(stalls.seed)
    mask = dut.m_axis_mask
    runs: list[Run] = []

    async def session(ctx: Any, made: list[Run], clocks: int | None = None) -> None:
        pending = list(ranges)
        sink = None
        while clocks is None or sum(run.end for run in made) < clocks:
            ctx.set(dut.start, bool(pending))
            ctx.set(dut.first_tile, pending[0][0] if pending else 0)
            ctx.set(dut.tile_count, pending[0][1] if pending else 0)
            ctx.set(mask.tready, chance.random() >= stalls.mask)
            *_, busy, done, valid, ready, data, last, error = await ctx.tick().sample(
                dut.busy, dut.done, mask.tvalid, mask.tready, mask.tdata, mask.tlast, dut.error
            )
            if not busy:
                if made:
                    made[-1].done = bool(done)
                    made[-1].errors.append(bool(error))
                elif error or done:
                    what = f"{'error' if error else 'done'} was high after reset"
                    raise StoppedError(what, Run(columns, lanes), 0)
                if not pending:
                    *_, still, kept = await ctx.tick().sample(dut.done, dut.error)
                    if still:
                        raise StoppedError("done was high for more than a clock", made[-1], 0)
                    if error and not kept:
                        raise StoppedError("error fell without a start", made[-1], 0)
                    return
                del pending[0]  # it was taken in this clock
                made.append(Run(columns, lanes))
                sink = _Sink(made[-1], progress if clocks is None else _nobody, stalls)
            elif done:
                raise StoppedError("done was high while busy was", made[-1], 0)
            assert sink is not None
            sink.sample(valid=valid, ready=ready, data=data, last=last, error=error)

    async def bench(ctx: Any, reset: Signal) -> None:
        if reset_at is not None:
            await session(ctx, [], reset_at)
            await _reset(ctx, reset)
        await session(ctx, runs)

    _simulate(dut, bench, waves)
    return runs


def play_scene(
    config: DecoderConfig,
    scene: Scene,
    *,
    roms: tuple[int, Sequence[int], Sequence[int]] | None = None,
    waves: Path | None = None,
    progress: Callable[[int], None] = lambda beats: None,
) -> Outcome:
    """Play a scene on the stream decoder, or on a ROM decoder of tiles, I_p and I_z words."""
    scoreboard = Scoreboard(scene.mask, Outcome())
    outcome = scoreboard.outcome
    options: dict[str, Any] = {"stalls": scene.stalls, "reset_at": scene.reset_at}
    options |= {"waves": waves, "progress": progress}
    runs: list[Run] = []
    try:
        if roms is None:
            runs = [decode_frames(config, scene.iz, scene.ip, **options)]
        else:
            runs = play_words(config, *roms, scene.ranges, **options)
    except StoppedError as error:
        runs = [error.run]
        outcome.stopped = error.what
        outcome.stopped_at = (len(error.run.frames), error.beat)
    start = 0
    for run in runs:
        clocks, errors = iter(run.clocks), iter(run.errors)
        for frame in run.frames:
            at = [next(clocks) for _ in frame]
            raised = [next(errors) for _ in frame]
            scoreboard.frame(frame, (start + at[0], start + at[-1]), raised[0])
        start += run.end
        outcome.most_under_way = max(outcome.most_under_way, run.most_under_way)
    if roms is not None and not outcome.stopped:
        for tiles, run in zip(scene.ranges, runs, strict=True):
            if sum(tiles) > roms[0]:
                if run.done or run.errors != [True]:
                    outcome.stopped = "a range beyond the layer ended without error"
            elif not run.done:
                outcome.stopped = "busy fell without done"
    if not scoreboard.drained and not outcome.stopped:
        outcome.stopped = "fewer frames came than there must be"
    return outcome


def _nobody(beats: int) -> None:
    """Hears of progress, and does nothing."""


def _simulate(
    dut: wiring.Component,
    bench: Callable[[Any, Signal], Coroutine[Any, Any, None]],
    waves: Path | None,
) -> None:
    """Run a bench on a component, with a clock and a reset of its own."""
    top = Module()
    top.domains.sync = domain = ClockDomain("sync")
    top.submodules.dut = dut

    async def testbench(ctx: Any) -> None:
        await bench(ctx, domain.rst)

    simulator = Simulator(top)
    simulator.add_clock(1e-8)
    simulator.add_testbench(testbench)
    with ExitStack() as stack:
        if waves is not None:
            stack.enter_context(simulator.write_vcd(str(waves)))
        simulator.run()


async def _reset(ctx: Any, reset: Signal) -> None:
    ctx.set(reset, 1)
    await ctx.tick()
    ctx.set(reset, 0)


async def _drive(
    ctx: Any,
    dut: wiring.Component,
    inputs: Mapping[str, tuple[Frames, float]],
    stalls: Stalls,
    sink: _Sink,
    *,
    beats: int | None = None,
    clocks: int | None = None,
) -> None:
    """Run until ``beats`` mask beats were taken, or for a number of clocks."""
    chance, noise = random.Random(stalls.seed), random.Random(stalls.seed)
    sources = [
        (getattr(dut, name), [beat for frame in frames for beat in _beats(frame)], share)
        for name, (frames, share) in inputs.items()
    ]
    offered = [False] * len(sources)
    sent = [0] * len(sources)
    mask, run = dut.m_axis_mask, sink.run
    error = getattr(dut, "error", Const(0))
    was_raised = 0
    while (beats is None or len(run.clocks) < beats) and (clocks is None or run.end < clocks):
        for index, (port, queue, share) in enumerate(sources):
            if not offered[index] and sent[index] < len(queue) and chance.random() >= share:
                offered[index] = True
                ctx.set(port.tdata, queue[sent[index]][0])
                ctx.set(port.tlast, queue[sent[index]][1])
            elif not offered[index] and share:  # a port that offers nothing may show anything
                ctx.set(port.tdata, noise.getrandbits(len(port.tdata)))
                ctx.set(port.tlast, noise.getrandbits(1))
            ctx.set(port.tvalid, offered[index])
        ctx.set(mask.tready, chance.random() >= stalls.mask)
        *_, valid, ready, data, last, raised, accepting = await ctx.tick().sample(
            mask.tvalid, mask.tready, mask.tdata, mask.tlast, error,
            Cat(port.tready for port, *_ in sources),
        )  # fmt: skip
        moved = False
        for index in range(len(sources)):
            accepted = accepting >> index & 1
            if offered[index] and accepted:
                offered[index] = False
                sent[index] += 1
                moved = True
        sink.sample(valid=valid, ready=ready, data=data, last=last, error=raised, moved=moved)
        if was_raised and not raised:
            sink.stop("error fell without a reset")
        was_raised = raised
        # Of the stream decoder, where each I_p beat, those of the last input, makes a mask beat.
        run.most_under_way = max(run.most_under_way, sent[-1] - len(run.clocks))


def _beats(words: list[int]) -> list[tuple[int, int]]:
    """A frame's beats as (tdata, tlast)."""
    return [(word, int(index == len(words) - 1)) for index, word in enumerate(words)]
