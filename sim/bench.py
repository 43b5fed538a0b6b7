"""The cocotb bench, as it runs inside the simulator: drivers, monitor, scoreboard.

It plays the scenes of a file, one after the other with a reset before each, on either top, and
writes what came of them to another. The environment names both files. The streams are driven and
received by cocotbext-axi's endpoints, so that the decoder meets an idea of AXI4-Stream that is not
our own.
"""

import json
import logging
import os
import signal
import threading
import time
from pathlib import Path
from random import Random
from typing import Any

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge, ReadOnly, RisingEdge, Timer
from cocotb.utils import get_sim_time
from cocotbext.axi import AxiStreamBus, AxiStreamSink, AxiStreamSource
from lrbi.sim.scene import Outcome, Scene, Scoreboard

PERIOD = 10  # ns


class Clocked:
    """The design under its clock, and the clock's number."""

    def __init__(self, dut: Any) -> None:
        self.dut = dut
        low = hasattr(dut, "aresetn")
        self.clock = dut.aclk if low else dut.clk
        self.reset = dut.aresetn if low else dut.rst
        self.active_level = not low
        self.edge = RisingEdge(self.clock)
        self.zero = 0.0  # when the scene's clock 0 ended

    def number(self, when: float | None = None) -> int:
        """The number of the clock that ended at a time, in ns; now, if none is given."""
        return round(((get_sim_time("ns") if when is None else when) - self.zero) / PERIOD)

    async def hold_reset(self, clocks: int) -> None:
        """Assert the reset, for so many clocks at least."""
        self.reset.value = int(self.active_level)
        for _ in range(clocks):
            await self.edge

    def release_reset(self) -> None:
        """Let the design run."""
        self.reset.value = int(not self.active_level)


class Monitor:
    """Watches the mask port clock by clock, and holds it to the rules.

    After reset the control outputs are known, and so are the bits of a mask beat; a beat that is
    offered stays as it is until it is taken; and one is taken at least every ``patience`` clocks.
    Where there are factor ports, it counts how many beats are on their way, and none of them comes
    later than ``latency``; I_p waits for its I_z; one I_z frame is taken ahead, and no more; and
    ``error`` stays up until reset.
    """

    def __init__(self, clocked: Clocked, patience: int, latency: int | None) -> None:
        self._clocked, self._patience, self._latency = clocked, patience, latency
        self.beats = 0
        self.most_under_way = 0
        self.errors: list[bool] = []  # at the first beat of each frame
        self.problem = ""

    async def run(self) -> None:
        """Watch until something is wrong."""
        dut, edge = self._clocked.dut, self._clocked.edge
        valid, ready = dut.m_axis_mask_tvalid, dut.m_axis_mask_tready
        data, last, error = dut.m_axis_mask_tdata, dut.m_axis_mask_tlast, dut.error
        controls = [
            getattr(dut, name)
            for name in ("s_axis_iz_tready", "s_axis_ip_tready", "busy", "done")
            if hasattr(dut, name)
        ]
        streams = hasattr(dut, "s_axis_ip_tvalid")
        under_way = late = 0
        frames = 0  # I_z frames that are complete, and whose I_p is not
        held, idle = None, 0
        first, raised = True, False  # the next beat is a frame's first; error was high
        four_valued = cocotb.SIM_NAME.startswith("Icarus")  # in others nothing can be unknown
        while not self.problem:
            await edge
            idle += 1
            offered = valid.value
            late = late + 1 if under_way > 0 and not offered else 0
            if self._latency is not None and late >= self._latency:
                self._broken("a mask beat is late")
            if streams:
                iz_ready, ip_ready = dut.s_axis_iz_tready.value, dut.s_axis_ip_tready.value
                if ip_ready and not frames:
                    self._broken("I_p is taken before its I_z")
                if iz_ready and frames == 2:
                    self._broken("a second I_z frame is taken ahead")
                if ip_ready and dut.s_axis_ip_tvalid.value:
                    under_way += 1
                    frames -= bool(dut.s_axis_ip_tlast.value)
                if iz_ready and dut.s_axis_iz_tvalid.value:
                    frames += bool(dut.s_axis_iz_tlast.value)
            if four_valued:
                known = offered.is_resolvable and error.value.is_resolvable
                if not known or not all(each.value.is_resolvable for each in controls):
                    self._broken("a control output is unknown")
                if offered and not (data.value.is_resolvable and last.value.is_resolvable):
                    self._broken("a mask beat has unknown bits")
            if raised and streams and not error.value:
                self._broken("error fell without a reset")
            raised = bool(error.value)
            if offered:
                taken = ready.value
                if held is not None and (data.value, last.value) != held:
                    self._broken("an offered mask beat changed before it was taken")
                held = None if taken else (data.value, last.value)
                if taken:
                    self.beats += 1
                    if first:
                        self.errors.append(raised)
                    first = bool(last.value)
                    under_way -= 1
                    idle = 0
            elif held is not None:
                self._broken("an offered mask beat was taken back")
            self.most_under_way = max(self.most_under_way, under_way)
            if idle > self._patience:
                self.problem = f"no mask beat came for {self._patience} clocks"

    def _broken(self, what: str) -> None:
        self.problem = self.problem or f"{what}, clock {self._clocked.number()}"


class StreamDriver:
    """Plays a scene's frames into the stream decoder."""

    problem = ""

    def __init__(self, clocked: Clocked) -> None:
        self._clocked = clocked
        self._noisy: list[str] = []
        self._sources = {
            port: _endpoint(AxiStreamSource, clocked, f"s_axis_{port}") for port in ("iz", "ip")
        }

    def begin(self, scene: Scene) -> None:
        """Queue all frames; they set out when the reset is over."""
        self._noisy = [port for port in self._sources if getattr(scene.stalls, port)]
        for port, source in self._sources.items():
            source.clear()
            source.set_pause_generator(scene.stalls.pattern(port))
            source.pause = False
            for frame in getattr(scene, port):
                source.send_nowait(frame)

    def let_go(self) -> None:
        """What is offered stays: the reset ends it."""

    def tasks(self) -> list[Any]:
        """What runs in a scene."""
        return [self.run(), *(self._noise(port) for port in self._noisy)]

    async def _noise(self, port: str) -> None:
        """Let the port show anything while it offers nothing: a source may."""
        dut, chance = self._clocked.dut, Random(port)
        valid, data, last = (
            getattr(dut, f"s_axis_{port}_{name}") for name in ("tvalid", "tdata", "tlast")
        )
        while True:
            await FallingEdge(self._clocked.clock)
            if not valid.value:
                data.value = chance.getrandbits(len(data))
                last.value = chance.getrandbits(1)

    async def run(self) -> None:
        """Find clock 0: that in which the first I_z beat is taken."""
        dut = self._clocked.dut
        while True:
            await self._clocked.edge
            if dut.s_axis_iz_tvalid.value and dut.s_axis_iz_tready.value:
                self._clocked.zero = get_sim_time("ns")
                return

    def check_end(self) -> str:
        """What is wrong when all masks are out, if anything."""
        idle = all(source.idle() for source in self._sources.values())
        return "" if idle else "the decoder made all masks before it took all factors"


class RomDriver:
    """Starts the ROM decoder on a scene's ranges, each in the clock in which the last is done."""

    def __init__(self, clocked: Clocked) -> None:
        self._clocked = clocked
        self._ranges: list[tuple[int, int]] = []
        self._tiles: int | None = None
        self.problem = ""
        self.let_go()

    def begin(self, scene: Scene) -> None:
        """Take the scene's ranges."""
        self._ranges = list(scene.ranges)
        self._tiles = scene.tiles
        self.problem = ""

    def let_go(self) -> None:
        """Hold out no start: a reset must do without."""
        self._clocked.dut.start.value = 0

    def tasks(self) -> list[Any]:
        """What runs in a scene."""
        return [self.run()]

    async def run(self) -> None:
        """Hold out each start until it is taken. Clock 0 is that in which the first one is.

        All but the first are taken in the clock of the ``done`` before, or of its ``error``.
        """
        dut, edge = self._clocked.dut, self._clocked.edge
        for number, (first, count) in enumerate(self._ranges):
            dut.start.value = 1
            dut.first_tile.value = first
            dut.tile_count.value = count
            await self._not_busy()
            if number:
                self._check_end_of(self._ranges[number - 1])
            else:
                self._clocked.zero = get_sim_time("ns")
                for name in ("error", "done"):
                    if getattr(dut, name).value:
                        self.problem = f"{name} was high after reset"
        dut.start.value = 0
        await edge
        await self._not_busy()
        self._check_end_of(self._ranges[-1])
        await edge
        if dut.done.value:
            self.problem = "done was high for more than a clock"
        self._check_error(self._ranges[-1])
        self._ranges.clear()

    async def _not_busy(self) -> None:
        """Wait for the end of the first clock in which ``busy`` is low."""
        dut, edge = self._clocked.dut, self._clocked.edge
        while True:
            await edge
            if not dut.busy.value:
                return
            if dut.done.value:
                self.problem = "done was high while busy was"

    def _check_end_of(self, tiles: tuple[int, int]) -> None:
        if bool(self._clocked.dut.done.value) == self._beyond(tiles):
            self.problem = (
                "busy fell without done" if not self._beyond(tiles) else "done after error"
            )
        self._check_error(tiles)

    def _check_error(self, tiles: tuple[int, int]) -> None:
        """After a range, and until the next: ``error`` says whether it was refused."""
        error = bool(self._clocked.dut.error.value)
        if error and not self._beyond(tiles):
            self.problem = "error was raised on a range within the layer"
        if not error and self._beyond(tiles):
            self.problem = "a range beyond the layer ended without error"

    def _beyond(self, tiles: tuple[int, int]) -> bool:
        return self._tiles is not None and sum(tiles) > self._tiles

    def check_end(self) -> str:
        """What is wrong when all masks are out, if anything."""
        return self.problem or ("the decoder never said done" if self._ranges else "")


class Bench:
    """A decoder with everything around it."""

    def __init__(self, dut: Any) -> None:
        self._clocked = Clocked(dut)
        self._driver: StreamDriver | RomDriver
        if hasattr(dut, "s_axis_iz_tvalid"):
            self._driver = StreamDriver(self._clocked)
        else:
            self._driver = RomDriver(self._clocked)
        self._sink = _endpoint(AxiStreamSink, self._clocked, "m_axis_mask")

    async def play(self, scene: Scene, report: Any) -> Outcome:
        """Play a scene, from reset to the last frame or to what stops it."""
        if scene.reset_at is not None:
            tasks, monitor = await self._begin(scene)
            for _ in range(scene.reset_at):
                await self._clocked.edge
            _end(tasks)
            if monitor.problem:
                return Outcome(stopped=f"before the reset, {monitor.problem}")
        tasks, monitor = await self._begin(scene)
        scoreboard = Scoreboard(scene.mask, Outcome())
        outcome = scoreboard.outcome
        taken = 0  # beats of whole frames
        wanted = sum(map(len, scene.mask))
        # A frame may never end: beats too many end the scene as well.
        while not (scoreboard.drained or monitor.problem or monitor.beats > wanted):
            await Timer(16 * PERIOD, unit="ns")
            report(0)  # a sign of life
            while not self._sink.empty():
                frame = self._sink.recv_nowait(compact=False)
                first, last = frame.sim_time_start / 1000, frame.sim_time_end / 1000  # ps to ns
                span = (self._clocked.number(first), self._clocked.number(last))
                number = len(outcome.spans)
                raised = number < len(monitor.errors) and monitor.errors[number]
                scoreboard.frame(frame.tdata, span, raised)
                taken += len(frame.tdata)
                report(len(frame.tdata))
        await Timer(40 * PERIOD, unit="ns")  # a beat too many would come now, and done
        _end(tasks)
        outcome.most_under_way = monitor.most_under_way
        if monitor.problem:
            outcome.stopped = self._driver.problem or monitor.problem
            outcome.stopped_at = (len(outcome.spans), monitor.beats - taken)
        elif monitor.beats > taken or not self._sink.empty():
            outcome.stopped = "more mask beats came than there must be"
        else:
            outcome.stopped = self._driver.check_end()
        return outcome

    async def _begin(self, scene: Scene) -> tuple[list[Any], Monitor]:
        """Reset, and let a scene begin."""
        self._driver.let_go()
        await self._clocked.hold_reset(
            scene.reset_clocks
        )  # first, or the sources would set out at once
        self._sink.clear()
        self._sink.set_pause_generator(scene.stalls.pattern("mask"))
        self._sink.pause = False
        self._driver.begin(scene)
        self._clocked.release_reset()
        monitor = Monitor(self._clocked, scene.patience, scene.latency)
        return [cocotb.start_soon(each) for each in (*self._driver.tasks(), monitor.run())], monitor


def _end(tasks: list[Any]) -> None:
    for task in tasks:
        if not task.done():
            task.cancel()


def _endpoint(kind: type, clocked: Clocked, prefix: str) -> Any:
    """One of cocotbext-axi's endpoints; a beat is one lane, so that it is one number."""
    endpoint = kind(
        AxiStreamBus.from_prefix(clocked.dut, prefix),
        clocked.clock,
        clocked.reset,
        reset_active_level=clocked.active_level,
        byte_lanes=1,
    )
    endpoint.log.setLevel(logging.ERROR)
    return endpoint


def _follow_parent(parent: int) -> None:
    """Do not outlive the process that waits for the result."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


@cocotb.test()
async def play_scenes(dut: Any) -> None:
    """Play every scene of the plan and write the outcomes."""
    plan = json.loads(Path(os.environ["LRBI_PLAN"]).read_text())
    _follow_parent(plan["parent"])
    progress = Path(os.environ["LRBI_PROGRESS"])
    beats = 0
    told = time.monotonic()

    def report(more: int) -> None:
        nonlocal beats, told
        beats += more
        if time.monotonic() > told + 0.2:
            progress.write_text(str(beats))
            told = time.monotonic()

    Clock(dut.aclk if hasattr(dut, "aclk") else dut.clk, PERIOD, unit="ns").start()
    bench = Bench(dut)
    outcomes = []
    for fields in plan["scenes"]:
        outcomes.append(await bench.play(Scene.from_json(fields), report))
    result = Path(os.environ["LRBI_RESULT"])
    result.write_text(json.dumps([outcome.to_json() for outcome in outcomes]))
    await ReadOnly()
    for number, outcome in enumerate(outcomes):
        assert not outcome.stopped, f"scene {number}: {outcome.stopped}"
        assert not outcome.wrong_beats, f"scene {number}: {outcome.wrong_beats} wrong beats"
