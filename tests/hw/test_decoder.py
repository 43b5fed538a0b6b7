"""The decoder against the Boolean product, in Amaranth's simulator."""

import dataclasses
import itertools

import numpy as np
import pytest
from amaranth.hdl import Module, Signal
from amaranth.sim import Simulator
from lrbi.hw.array import LoadPlan, successor
from lrbi.sim.cycles import mask_clocks
from lrbi.sim.pysim import Tile, decode
from lrbi.sim.scene import Stalls
from planting import (
    OR_FOR_AND,
    OR_FOR_AND_IN_STAGE_0,
    READY_IGNORED,
    VALID_STUCK,
    planted,
)

from lrbi import boolean_product
from lrbi.config import DecoderConfig
from lrbi.errors import CheckFailedError

SMALL = DecoderConfig(rank=7, tile_rows=8, tile_cols=20, stage_ranks=3)


def random_tile(config, rng, height=None, rank=None, density=0.3):
    height = height or int(rng.integers(1, 13))
    rank = rank or int(rng.integers(1, config.rank + 1))
    return Tile(
        rng.random((height, config.rank)) < density, rng.random((rank, config.tile_cols)) < density
    )


def expected(config, tile):
    """The mask of a tile, with the zero rows that fill its last beat."""
    rank = min(config.rank, len(tile.col_factor))
    height = len(tile.row_factor)
    mask = np.zeros((-(-height // config.lanes) * config.lanes, config.tile_cols), dtype=bool)
    mask[:height] = boolean_product(tile.row_factor[:, :rank], tile.col_factor[:rank])
    return mask


def check(config, tiles, **options):
    """Every mask row of every tile is that of Eq. 3; returns the run."""
    run = decode(config, tiles, **options)
    assert len(run.tiles) == len(tiles)
    for number, (got, tile) in enumerate(zip(run.tiles, tiles, strict=True)):
        np.testing.assert_array_equal(got, expected(config, tile), err_msg=f"tile {number}")
    return run


GRID = [
    # rank, columns, ranks a stage, lanes, I_z rows a beat
    (1, 1, 6, 1, 1),
    (1, 40, 1, 3, 2),
    (2, 3, 1, 1, 1),
    (5, 20, 3, 2, 2),
    (7, 9, 2, 3, 4),
    (8, 4, 1, 1, 3),
    (12, 5, 5, 1, 8),
    (6, 17, 4, 4, 1),
    (16, 33, 6, 1, 1),
    (16, 16, 3, 1, 16),
    (9, 16, 4, 2, 16),
    (20, 7, 40, 1, 3),
    (20, 7, 2, 1, 1),
    (24, 2, 1, 1, 8),
    (3, 150, 2, 2, 1),
    (2, 300, 1, 1, 2),
]


def config_of(point):
    rank, columns, stage_ranks, lanes, iz_rows = point
    return DecoderConfig(
        rank=rank, tile_rows=16, tile_cols=columns, stage_ranks=stage_ranks, lanes=lanes,
        iz_rows=iz_rows,
    )  # fmt: skip


@pytest.mark.parametrize("point", GRID, ids=str)
def test_random_tiles_over_a_grid_of_configs(point):
    config = config_of(point)
    rng = np.random.default_rng(point)
    tiles = [random_tile(config, rng) for _ in range(25)]
    run = check(config, tiles)
    assert not any(run.errors)
    beats = [
        (-(-len(tile.col_factor) // config.iz_rows), -(-len(tile.row_factor) // config.lanes))
        for tile in tiles
    ]
    assert run.clocks == mask_clocks(config, beats)


TRANSPARENT = [(
    "array",
    "ram.read_port(domain=domain)",
    "ram.read_port(domain=domain, transparent_for=(write,) if domain == 'sync' else ())",
)]  # fmt: skip


@pytest.mark.parametrize("point", GRID, ids=str)
@pytest.mark.parametrize("collisions", ["old", "new"])
def test_block_memories_do_the_same_whatever_a_collision_gives(point, collisions):
    """A word that is read while it is written comes as it was, or as it will be: no matter."""
    config = dataclasses.replace(config_of(point), memory="block")
    rng = np.random.default_rng(point)
    tiles = [random_tile(config, rng) for _ in range(25)]
    decoder, _ = planted(TRANSPARENT if collisions == "new" else [])
    run = check(config, tiles, decoder=decoder)
    assert run.clocks == check(config_of(point), tiles).clocks
    check(config, tiles, decoder=decoder, stalls=Stalls(0.3, 0.2, 0.6))


@pytest.mark.parametrize("point", GRID[3:], ids=str)
def test_logic_cut_for_larger_luts_does_the_same(point):
    config = dataclasses.replace(config_of(point), lut_inputs=6)
    rng = np.random.default_rng(point)
    tiles = [random_tile(config, rng) for _ in range(25)]
    assert check(config, tiles).clocks == check(config_of(point), tiles).clocks


@pytest.mark.parametrize("point", GRID[3:7], ids=str)
@pytest.mark.parametrize("rates", list(itertools.product([0.0, 0.6], repeat=3))[1:], ids=str)
def test_stalls_on_all_ports_crossed(point, rates):
    config = config_of(point)
    rng = np.random.default_rng(point)
    tiles = [random_tile(config, rng) for _ in range(15)]
    check(config, tiles, stalls=Stalls(*rates, seed=1))


@pytest.mark.parametrize("point", [(7, 20, 3, 1, 1), (8, 4, 1, 1, 3), (24, 2, 1, 1, 8)], ids=str)
def test_long_stall_at_the_sink_fills_the_buffer_and_loses_nothing(point):
    config = config_of(point)
    rng = np.random.default_rng(0)
    check(config, [random_tile(config, rng, height=90)], stalls=Stalls(mask=0.95))


@pytest.mark.parametrize("bits", range(4, 10))
def test_pointers_go_through_every_place_but_one(bits):
    m = Module()
    pointer = Signal(bits, init=1)
    m.d.sync += pointer.eq(successor(pointer))
    places = []

    async def bench(ctx):
        for _ in range(2**bits - 1):
            places.append(ctx.get(pointer))
            await ctx.tick()
        assert ctx.get(pointer) == 1

    simulator = Simulator(m)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    assert len(set(places)) == 2**bits - 1


class TestCorners:
    rng = np.random.default_rng(1)

    def test_rank_one(self):
        check(SMALL, [random_tile(SMALL, self.rng, rank=1) for _ in range(5)])

    def test_short_rank_after_full_rank_leaves_nothing_of_it(self):
        full = Tile(np.ones((3, 7), bool), np.ones((7, 20), bool))
        short = Tile(np.ones((3, 7), bool), np.zeros((2, 20), bool))
        check(SMALL, [full, short, full, short])

    def test_one_row_tile(self):
        check(SMALL, [random_tile(SMALL, self.rng, height=1) for _ in range(9)])

    def test_all_zero_tile(self):
        check(SMALL, [Tile(np.zeros((4, 7), bool), np.zeros((7, 20), bool))])

    def test_all_one_tile(self):
        check(SMALL, [Tile(np.ones((4, 7), bool), np.ones((7, 20), bool))])

    def test_ragged_last_tile(self):
        config = config_of((5, 20, 3, 4, 2))
        check(config, [random_tile(config, self.rng, height=height) for height in (8, 5, 1, 7)])

    def test_back_to_back_tiles_of_changing_height_and_rank(self):
        tiles = [
            random_tile(SMALL, self.rng, height=height, rank=rank)
            for height, rank in itertools.product((1, 2, 9), (1, 4, 7))
        ]
        check(SMALL, tiles)

    @pytest.mark.parametrize("clock", [0, 1, 5, 9, 12, 13, 20, 31])
    def test_reset_mid_tile(self, clock):
        tiles = [random_tile(SMALL, self.rng) for _ in range(4)]
        check(SMALL, tiles, reset_at=clock)
        check(SMALL, tiles, reset_at=clock, stalls=Stalls(0.3, 0.3, 0.5))

    def test_reset_at_every_clock_under_back_pressure(self):
        """The sink may take nothing for long after the reset: no beat may be left of before."""
        config = config_of((3, 4, 2, 1, 1))
        for height in (1, 5):
            tiles = [random_tile(config, self.rng, height, rank=3) for _ in range(4)]
            for clock in range(20, 90):
                check(config, tiles, reset_at=clock, stalls=Stalls(0.8, 0.8, 0.93, seed=clock))


def test_full_rate_from_the_height_that_is_stated_and_not_below():
    for point in GRID:
        config = config_of(point)
        height = config.full_rate_beats
        beats = mask_clocks(config, [(config.iz_depth, height)] * 6)
        assert beats == list(range(beats[0], beats[0] + len(beats)))
        if height > 1:
            beats = mask_clocks(config, [(config.iz_depth, height - 1)] * 6)
            assert beats[-1] - beats[0] > len(beats) - 1


def test_every_clock_carries_a_row_over_many_tiles():
    config = DecoderConfig(rank=16, tile_rows=64, tile_cols=16)
    rng = np.random.default_rng(2)
    run = check(config, [random_tile(config, rng, height=64, rank=16) for _ in range(8)])
    assert run.clocks == list(range(run.clocks[0], run.clocks[0] + 8 * 64))


@pytest.mark.parametrize("extra", [1, 5])
@pytest.mark.parametrize("point", [(7, 9, 2, 1, 1), (7, 9, 2, 1, 3), (1, 4, 1, 1, 1)], ids=str)
def test_frame_too_long_raises_error_in_time_and_the_rest_is_right(point, extra):
    config = config_of(point)
    rng = np.random.default_rng(3)
    good = [random_tile(config, rng, height=20) for _ in range(3)]
    beats = config.iz_depth + extra
    long = Tile(
        rng.random((4, config.rank)) < 0.3,
        rng.random((beats * config.iz_rows, config.tile_cols)) < 0.3,
    )
    run = check(config, [*good, long, good[0]])
    assert not any(run.errors[:20])  # long before
    assert all(run.errors[60:])  # from the tile's first mask beat on
    clean = check(config, good, reset_at=60)
    assert not any(clean.errors)


def test_reset_takes_the_error_back():
    rng = np.random.default_rng(7)
    long = Tile(rng.random((4, 7)) < 0.3, rng.random((9, 20)) < 0.3)
    assert all(decode(SMALL, [long]).errors)
    run = decode(SMALL, [random_tile(SMALL, rng, rank=3), long], reset_at=25)
    assert not run.errors[0]


def test_i_p_waits_until_its_i_z_is_complete():
    """The first mask beat comes exactly a latency after I_z's last beat, never before."""
    rng = np.random.default_rng(4)
    tile = random_tile(SMALL, rng, height=3, rank=7)
    run = check(SMALL, [tile], stalls=Stalls(iz=0.9, seed=5))
    assert run.clocks[0] > 7 + SMALL.latency


@pytest.mark.parametrize("point", GRID, ids=str)
def test_a_stage_reads_each_of_its_rows_from_a_bank_of_its_own(point):
    config = config_of(point)
    plan = LoadPlan(config)
    assert [row for rows in plan.stages for row in rows] == list(range(config.rank))
    for stage, rows in enumerate(plan.stages):
        for row in rows:
            bank, position = plan.place(row)
            beat = row // config.iz_rows
            assert plan.reads[stage][bank] * plan.banks + bank == plan.skip + beat
            assert beat * config.iz_rows + position == row


FAULTS = {
    "valid stuck": VALID_STUCK,
    "valid dropped": [(
        "decoder",
        "(mask.tvalid & ~mask.tready)",
        "(mask.tvalid & ~mask.tready & produced[0])",
    )],
    "OR for AND": OR_FOR_AND,
    "OR for AND in stage 0": OR_FOR_AND_IN_STAGE_0,
    "I_z a row late": [
        ("array", "with m.If(tokens[stage]):", "with m.If(late[stage]):"),
        (
            "array",
            "        half = _kept(1",
            "        late = [Signal(name=f'late{stage}') for stage in range(stages)]\n"
            "        m.d.sync += Cat(late).eq(Cat(tokens))\n        half = _kept(1",
        ),
    ],
    "tready ignored": READY_IGNORED,
    "no room kept": [("decoder", "room.eq(free[2:].any())", "room.eq(1)")],
    "ranks not masked": [(
        "decoder",
        "row & Cat(ranks for _ in range(config.lanes))",
        "row & Cat(ranks | ~0 for _ in range(config.lanes))",
    )],
    "one half of the memory": [("decoder", "half.eq(~half)", "half.eq(half)")],
    "written while a frame waits": [
        ("decoder", "iz.tlast.replicate(plan.banks) | beyond", "beyond"),
    ],
    "token not waited for": [("decoder", "& idle", "")],
    "last row forgotten": [("decoder", "Cat(ip.tlast, last[:-1])", "Cat(0, last[:-1])")],
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_planted_fault_is_caught(name):
    faulty, _ = planted(FAULTS[name])
    rng = np.random.default_rng(6)
    tiles = [random_tile(SMALL, rng) for _ in range(20)]
    tiles += [random_tile(SMALL, rng, height=1, rank=rank) for rank in (7, 1) for _ in range(9)]
    with pytest.raises((AssertionError, CheckFailedError)):  # noqa: PT012
        check(SMALL, tiles, decoder=faulty)
        check(SMALL, tiles, decoder=faulty, stalls=Stalls(0.2, 0.2, 0.7))


def test_the_planting_itself_changes_nothing():
    same, _ = planted([("decoder", "(~mask.tvalid | mask.tready)", "(mask.tready | ~mask.tvalid)")])
    rng = np.random.default_rng(6)
    check(SMALL, [random_tile(SMALL, rng) for _ in range(10)], decoder=same)
