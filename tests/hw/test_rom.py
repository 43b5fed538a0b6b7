"""The ROM-backed decoder against the Boolean product, in Amaranth's simulator."""

import lrbi.hw.rom
import numpy as np
import pytest
from amaranth.sim import Simulator
from lrbi.sim.cycles import rom_mask_clocks
from lrbi.sim.pysim import Tile, play
from lrbi.sim.scene import Stalls
from planting import planted

from lrbi import boolean_product
from lrbi.config import DecoderConfig
from lrbi.errors import CheckFailedError

GRID = [
    # tiles, rank, rows, columns, ranks a stage, lanes, I_z rows a beat
    (1, 1, 1, 1, 6, 1, 1),
    (2, 1, 1, 40, 1, 1, 1),
    (3, 5, 8, 20, 3, 2, 2),
    (4, 7, 5, 9, 3, 1, 1),
    (8, 7, 8, 9, 2, 3, 4),
    (5, 2, 1, 3, 1, 1, 2),
    (7, 16, 24, 33, 6, 1, 1),
]


def config_of(point):
    _, rank, rows, cols, stage_ranks, lanes, iz_rows = point
    return DecoderConfig(
        rank=rank, tile_rows=rows, tile_cols=cols, stage_ranks=stage_ranks, lanes=lanes,
        iz_rows=iz_rows,
    )  # fmt: skip


def random_tiles(config, count, seed=0):
    rng = np.random.default_rng(seed)
    return [
        Tile(
            rng.random((config.tile_rows, config.rank)) < 0.4,
            rng.random((config.rank, config.tile_cols)) < 0.4,
        )
        for _ in range(count)
    ]


def check(config, tiles, ranges, **options):
    """Every range in reach gives its masks and then done, every other one an error at once."""
    runs = play(config, tiles, ranges, **options)
    assert len(runs) == len(ranges)
    for (first, count), run in zip(ranges, runs, strict=True):
        refused = first + count > len(tiles)
        assert run.errors == [refused] if refused else not any(run.errors)
        assert run.done != refused
        wanted = [] if refused else tiles[first : first + count]
        assert len(run.tiles) == len(wanted)
        for got, tile in zip(run.tiles, wanted, strict=True):
            mask = boolean_product(tile.row_factor, tile.col_factor)
            np.testing.assert_array_equal(got[: len(mask)], mask)
            assert not got[len(mask) :].any()
            assert len(got) == config.ip_depth * config.lanes
        if not wanted:
            assert run.end == 2
    return runs


@pytest.mark.parametrize("point", GRID, ids=str)
def test_all_ranges_at_full_speed_keep_to_the_cycle_model(point):
    config = config_of(point)
    tiles = random_tiles(config, point[0])
    ranges = [
        (first, count)
        for first in range(len(tiles) + 1)
        for count in (0, 1, len(tiles) - first, len(tiles) - first + 1)
        if max(first, count) < 1 << len(tiles).bit_length()
    ]
    for (_, count), run in zip(ranges, check(config, tiles, ranges), strict=True):
        if run.done and count:
            assert run.clocks == rom_mask_clocks(config, count)
            assert run.end == run.clocks[-1] + 1


@pytest.mark.parametrize("point", GRID[2:5], ids=str)
@pytest.mark.parametrize("rate", [0.3, 0.9])
def test_stalls_at_the_sink(point, rate):
    config = config_of(point)
    tiles = random_tiles(config, point[0])
    runs = check(config, tiles, [(0, len(tiles)), (1, 1)] * 3, stalls=Stalls(mask=rate))
    assert all(run.end == run.clocks[-1] + 1 for run in runs)


@pytest.mark.parametrize("clock", [1, 2, 3, 5, 8, 13, 20, 40])
def test_reset_while_it_plays(clock):
    config = config_of(GRID[3])
    tiles = random_tiles(config, 4)
    check(config, tiles, [(0, 4), (2, 2)], reset_at=clock)
    check(config, tiles, [(0, 4), (2, 2)], reset_at=clock, stalls=Stalls(mask=0.6))


FAULTS = {
    "a word skipped": ("read.en.eq(advance)", "read.en.eq(1)"),
    "one tile too many": ("with m.If(tiles_left == 1):", "with m.If(tiles_left == 0):"),
    "every range in reach": ("with m.If(stop > self.tiles):", "with m.If(0):"),
    "range one short": ("stop > self.tiles", "stop >= self.tiles"),
    "nothing to play forgotten": ("with m.Elif(~count.any()):", "with m.Elif(0):"),
    "first tile ignored": ("address.eq(Cat(Const(0, shift), base))", "address.eq(0)"),
    "done with every tile": ("with m.If(count == 1):", "with m.If(1):"),
    "error stays": ("self.error.eq(0),", ""),
    "done stays": ("go.eq(0), self.done.eq(0)]", "go.eq(0)]"),
    "done a clock early": (
        "over.eq(mask.tvalid & mask.tready & mask.tlast)", "over.eq(mask.tvalid & mask.tlast)",
    ),
    "start taken while busy": ("sampled.eq(self.start & ~self.busy)", "sampled.eq(self.start)"),
}  # fmt: skip


def thorough(decoder):
    config = config_of(GRID[3])
    tiles = random_tiles(config, 4)
    ranges = [(0, 4), (1, 2), (4, 0), (3, 2), (2, 2), (1, 4), (3, 1)]
    check(config, tiles, ranges, decoder=decoder)
    check(config, tiles, ranges, decoder=decoder, stalls=Stalls(mask=0.7))
    start_while_busy(decoder)


@pytest.mark.parametrize("name", FAULTS)
def test_planted_fault_is_caught(name):
    with pytest.raises((AssertionError, CheckFailedError)):
        thorough(planted([("rom", *FAULTS[name])])[1])


def test_the_planting_itself_changes_nothing():
    thorough(planted([("rom", "read.en.eq(advance)", "read.en.eq(1 & advance)")])[1])


def start_while_busy(decoder=lrbi.hw.rom.RomDecoder):
    """A start held high is taken once; what plays is what was sampled with it."""
    config = config_of(GRID[3])
    tiles = random_tiles(config, 4)
    from lrbi.layout import to_words

    dut = decoder(
        config=config, tiles=4,
        ip_words=[word for tile in tiles for word in to_words(tile.row_factor)],
        iz_words=[word for tile in tiles for word in to_words(tile.col_factor)],
    )  # fmt: skip
    words = []

    async def bench(ctx):
        ctx.set(dut.start, 1)
        ctx.set(dut.first_tile, 1)
        ctx.set(dut.tile_count, 1)
        ctx.set(dut.m_axis_mask.tready, 1)
        await ctx.tick()
        ctx.set(dut.first_tile, 3)
        for _ in range(100):
            *_, valid, data, done = await ctx.tick().sample(
                dut.m_axis_mask.tvalid, dut.m_axis_mask.tdata, dut.done
            )
            if done:
                break
            if valid:
                words.append(data)

    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    assert words == to_words(boolean_product(tiles[1].row_factor, tiles[1].col_factor))


def test_start_is_ignored_while_busy():
    start_while_busy()
