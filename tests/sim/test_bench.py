"""The cocotb bench on the emitted Verilog, and the same scenes in Amaranth's simulator."""

import json
import re
import shutil

import numpy as np
import pytest
from lrbi.hw.emit import verilog
from lrbi.hw.generate import decoder_files, rom_decoder_files
from lrbi.sim import pysim
from lrbi.sim.scene import Outcome, Scene, Scoreboard, Stalls, Wrong
from lrbi.sim.verilog import play
from planting import OR_FOR_AND, READY_IGNORED, VALID_STUCK, planted
from scenes import Tiles, check, rom_scenes, stream_scenes

from lrbi import CompressConfig, boolean_product, compress
from lrbi.config import DecoderConfig
from lrbi.layout import to_words
from lrbi.rom import rom_images

ICARUS = ["icarus"] if shutil.which("iverilog") else []
VERILOG = ["verilator", *ICARUS]
CHEAP = [*ICARUS, "amaranth"][0]  # what builds in no time

STREAM = DecoderConfig(
    rank=7, tile_rows=8, tile_cols=20, stage_ranks=3, lanes=2, iz_rows=2, reset="aresetn"
)
ROM = DecoderConfig(rank=5, tile_rows=9, tile_cols=13, stage_ranks=2, lanes=2)


def play_all(simulator, config, scenes):
    """The outcomes of stream scenes, in any simulator."""
    if simulator == "amaranth":
        return [pysim.play_scene(config, scene) for scene in scenes.values()]
    text = decoder_files(config)["lrbi_decoder.v"]
    return play(simulator, "lrbi_decoder", text, list(scenes.values()))


@pytest.mark.parametrize("simulator", [*VERILOG, "amaranth"])
def test_stream_decoder(simulator):
    scenes = stream_scenes(STREAM)
    beats = check(STREAM, scenes, play_all(simulator, STREAM, scenes))
    assert beats > 1500


@pytest.fixture(scope="module")
def rom_layer():
    weights = np.random.default_rng(2).standard_normal((34, 30))
    return compress(weights, CompressConfig(sparsity=0.7, rank=5, tile=(9, 13)))


@pytest.mark.parametrize("simulator", [*VERILOG, "amaranth"])
def test_rom_decoder(simulator, rom_layer):
    masks = [to_words(_whole(rom_layer, tile), ROM.lanes) for tile in range(len(rom_layer.tiles))]
    scenes = rom_scenes(ROM, len(masks), masks)
    if simulator == "amaranth":
        ip, iz = (
            [int.from_bytes(word.tobytes(), "little") for word in image.words]
            for image in rom_images(rom_layer, lanes=ROM.lanes)
        )
        outcomes = [
            pysim.play_scene(ROM, scene, roms=(len(masks), ip, iz)) for scene in scenes.values()
        ]
    else:
        files = rom_decoder_files(rom_layer, ROM, source=("a.lrbi", "a"), stem="a")
        roms = {name: text for name, text in files.items() if name.endswith(".mem")}
        assert len(roms) == 2
        text = files["lrbi_rom_decoder.v"]
        outcomes = play(simulator, "lrbi_rom_decoder", text, list(scenes.values()), files=roms)
    check(ROM, scenes, outcomes)


GRID = [
    # rank, columns, ranks a stage, lanes, I_z rows a beat, memory
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
    (20, 7, 40, 1, 3),
    (32, 65, 6, 1, 2),
    (16, 33, 6, 1, 1, "block"),
    (9, 20, 4, 2, 3, "block"),
]


@pytest.mark.parametrize("point", GRID, ids=str)
def test_thousands_of_random_tiles_over_a_grid_of_configs(point):
    rank, columns, stage_ranks, lanes, iz_rows, memory = (*point, "distributed")[:6]
    config = DecoderConfig(
        rank=rank, tile_rows=16, tile_cols=columns, stage_ranks=stage_ranks, lanes=lanes,
        iz_rows=iz_rows, memory=memory,
    )  # fmt: skip
    make = Tiles(config, point[:5])
    scenes = {
        "free": make.random(100),
        "stalled": make.random(80, stalls=Stalls(0.3, 0.1, 0.5, 1)),
        "slow sink": make.random(60, stalls=Stalls(0.0, 0.0, 0.9, 2)),
        "slow sources": make.random(60, stalls=Stalls(0.8, 0.6, 0.0, 3), reset_at=33),
    }
    check(config, scenes, play_all(CHEAP, config, scenes))


class TestFaults:
    """The bench fails on each planted fault, and says what is wrong."""

    SMALL = DecoderConfig(rank=5, tile_rows=8, tile_cols=9, stage_ranks=2)

    def outcomes(self, changes, **options):
        decoder = planted(changes)[0](config=self.SMALL)
        text = verilog(decoder, name="lrbi_decoder", reset="rst", command="")
        make = Tiles(self.SMALL, 4)
        scenes = [
            make.random(12, patience=500, **options),
            make.random(12, patience=500, stalls=Stalls(0.1, 0.1, 0.7)),
        ]
        return play(VERILOG[-1], "lrbi_decoder", text, scenes)

    def test_nothing_changed(self):
        first, second = self.outcomes([])
        assert first.clean
        assert second.clean

    def test_or_for_and(self):
        first, _ = self.outcomes(OR_FOR_AND)
        assert first.wrong_beats > 10 or first.stopped.startswith("a mask beat has unknown bits")

    def test_valid_never_raised(self):
        first, second = self.outcomes(VALID_STUCK, latency=None)
        assert first.stopped == "no mask beat came for 500 clocks"
        assert second.stopped.startswith("a mask beat is late, clock")
        assert (first.stopped_at, second.stopped_at) == ((0, 0), (0, 0))

    def test_row_dropped_under_back_pressure(self):
        first, second = self.outcomes(READY_IGNORED)
        assert first.clean
        assert re.match(r"an offered mask beat (changed before it was taken|was taken back)",
                        second.stopped)  # fmt: skip

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            (("ip_ready.eq(playing_next & room)", "ip_ready.eq(room)"), "I_p is taken before its"),
            (("iz_ready.eq(~complete | step)", "iz_ready.eq(1)"), "a second I_z frame is taken"),
        ],
    )
    def test_frames_taken_too_early(self, change, said):
        first, _ = self.outcomes([("decoder", *change)])
        assert first.stopped.startswith(said)

    def test_beats_without_end(self):
        """Frames that never end, of a decoder that is never empty."""
        first, second = self.outcomes([
            ("decoder", "available.eq(valid[-1] |", "available.eq(1 |"),
            ("decoder", "Cat(ip.tlast, last[:-1])", "Cat(0, last[:-1])"),
            ("decoder", "mask.tlast.eq(read.data)", "mask.tlast.eq(0)"),
            ("array", "self.mask.eq(data)", "self.mask.eq(1)"),
        ])  # fmt: skip
        assert first.stopped == second.stopped == "more mask beats came than there must be"

    FLICKER = (("decoder", "self.error.eq(1)", "self.error.eq(~self.error)"),)

    def test_an_error_that_falls(self):
        make = Tiles(self.SMALL, 6)
        scene = make.scene([make.tile(9), make.tile(extra=2), make.tile(9)])
        decoder = planted(self.FLICKER)[0]
        text = verilog(decoder(config=self.SMALL), name="lrbi_decoder", reset="rst", command="")
        (outcome,) = play(VERILOG[-1], "lrbi_decoder", text, [scene])
        assert outcome.stopped.startswith("error fell without a reset")
        with pytest.raises(pysim.StoppedError, match="error fell without a reset"):
            pysim.decode_frames(self.SMALL, scene.iz, scene.ip, decoder=decoder)

    def test_outputs_that_outlive_the_reset(self, rom_layer):
        files = rom_decoder_files(rom_layer, ROM, source=("a.lrbi", "a"), stem="a")
        tiles = len(rom_layer.tiles)
        masks = [to_words(_whole(rom_layer, 0), ROM.lanes)]
        for name, broken, nothing in [
            ("error", (r"\| \{ rst, sampled \}", "sampled"), (tiles, 1)),
            ("done", (r"if \(rst\) done <= 1'h0;\n *else ", ""), (0, 0)),
        ]:
            text, count = re.subn(*broken, files["lrbi_rom_decoder.v"])
            assert count == 1
            ranges = [nothing] * 4 + [(0, 1)]
            scenes = [
                Scene(mask=masks, ranges=ranges, tiles=tiles, reset_at=clock, reset_clocks=1)
                for clock in (5, 6, 5)  # in Icarus the first finds unknown values
            ]
            outcomes = play(VERILOG[-1], "lrbi_rom_decoder", text, scenes, files=files)
            assert f"{name} was high after reset" in [outcome.stopped for outcome in outcomes]

    def test_an_error_of_one_clock(self, rom_layer):
        files = rom_decoder_files(rom_layer, ROM, source=("a.lrbi", "a"), stem="a")
        faulty = planted([("rom", "self.done.eq(0)]", "self.done.eq(0), self.error.eq(0)]")])[1]
        tiles = len(rom_layer.tiles)
        text = verilog(
            faulty(config=ROM, tiles=tiles), name="lrbi_rom_decoder", reset="rst", command="",
            roms={"ip_rom": "a.ip.mem", "iz_rom": "a.iz.mem"},
        )  # fmt: skip
        masks = [to_words(_whole(rom_layer, 0), ROM.lanes)]
        scene = Scene(mask=masks, ranges=[(0, 1), (tiles, 1)], tiles=tiles)
        (outcome,) = play(VERILOG[-1], "lrbi_rom_decoder", text, [scene], files=files)
        assert outcome.stopped == "a range beyond the layer ended without error"
        with pytest.raises(pysim.StoppedError, match="error fell without a start"):
            pysim.play_ranges(faulty(config=ROM, tiles=tiles), scene.ranges, 13, ROM.lanes)

    def test_unknown_control(self):
        """Icarus alone has unknown values; in Verilator the state is random."""
        if not ICARUS:
            pytest.skip("needs Icarus: the other simulators have two values")
        text = decoder_files(self.SMALL)["lrbi_decoder.v"]
        broken = re.sub(r"if \(rst\) error <= 1'h0;\n *else ", "", text)
        assert broken != text
        (outcome,) = play("icarus", "lrbi_decoder", broken, [Tiles(self.SMALL, 1).random(3)])
        assert outcome.stopped.startswith("a control output is unknown")

    def test_rows_too_few_and_too_many(self):
        make = Tiles(self.SMALL, 5)
        scene = make.random(6)
        text = decoder_files(self.SMALL)["lrbi_decoder.v"]
        tall = make.scene([make.tile(), make.tile(90)])
        fewer = Scene(iz=tall.iz, ip=tall.ip, mask=tall.mask[:-1], patience=300)
        more = Scene(iz=scene.iz, ip=scene.ip, mask=[*scene.mask, [1]], patience=300)
        longer = Scene(iz=scene.iz, ip=scene.ip, mask=[[*scene.mask[0], 1], *scene.mask[1:]])
        early = Scene(iz=[*scene.iz, *scene.iz[:4]], ip=scene.ip, mask=scene.mask, patience=300)
        outcomes = play(VERILOG[-1], "lrbi_decoder", text, [fewer, more, longer, early])
        assert not any(outcome.clean for outcome in outcomes)
        assert outcomes[0].stopped == "more mask beats came than there must be"
        assert outcomes[1].stopped == "no mask beat came for 300 clocks"
        assert outcomes[1].stopped_at == (6, 0)
        assert outcomes[2].wrong == [Wrong(0, len(scene.mask[0]), None, 1)]
        assert outcomes[3].stopped == "the decoder made all masks before it took all factors"

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            (("m.d.sync += [self.busy.eq(0), self.done.eq(1)]",
              "m.d.sync += [self.busy.eq(0), self.done.eq(0)]"), "busy fell without done"),
            (("m.d.sync += [self.busy.eq(0), self.done.eq(1)]",
              "m.d.sync += [self.busy.eq(1), self.done.eq(1)]"), "done was high while busy was"),
            (("go.eq(0), self.done.eq(0)]", "go.eq(0)]"), "done was high"),
            (("self.error.eq(0),", "self.error.eq(1),"), "error was raised on a range within"),
            (("with m.If(stop > self.tiles):", "with m.If(0):"), "ended without error|no mask"),
        ],
    )  # fmt: skip
    def test_rom_decoders_that_break_their_protocol(self, rom_layer, change, said):
        files = rom_decoder_files(rom_layer, ROM, source=("a.lrbi", "a"), stem="a")
        faulty = planted([("rom", *change)])[1](config=ROM, tiles=len(rom_layer.tiles))
        text = verilog(
            faulty, name="lrbi_rom_decoder", reset="rst", command="",
            roms={"ip_rom": "a.ip.mem", "iz_rom": "a.iz.mem"},
        )  # fmt: skip
        tiles = len(rom_layer.tiles)
        masks = [
            to_words(_whole(rom_layer, tile), ROM.lanes) for _ in range(2) for tile in range(tiles)
        ]
        ranges = [(0, tiles), (1, tiles), (0, tiles)]
        scene = Scene(
            mask=masks, ranges=ranges, tiles=tiles, stalls=Stalls(mask=0.5), patience=2000
        )
        (outcome,) = play(VERILOG[-1], "lrbi_rom_decoder", text, [scene], files=files)
        assert re.search(said, outcome.stopped)


def _whole(layer, tile):
    """A tile's mask, padded to the whole tile."""
    product = boolean_product(*layer.factors(tile))
    mask = np.zeros(layer.tile, dtype=bool)
    mask[: product.shape[0], : product.shape[1]] = product
    return mask


def test_scoreboard_counts_and_locates():
    scoreboard = Scoreboard([[1, 2], [3]], Outcome())
    scoreboard.frame([1, 6], (0, 1), error=False)
    assert not scoreboard.drained
    scoreboard.frame([3, 9], (2, 3), error=True)
    outcome = scoreboard.outcome
    assert scoreboard.drained
    assert (outcome.beats, outcome.wrong_beats, outcome.wrong_bits) == (3, 2, 2)
    assert outcome.wrong == [Wrong(0, 1, 6, 2), Wrong(1, 1, 9, None)]
    assert not outcome.clean
    again = Outcome.from_json(json.loads(json.dumps(outcome.to_json())))
    assert again == outcome


def test_scenes_survive_json_whatever_the_width():
    scene = Scene(
        mask=[[1 << 70_000]], iz=[[3]], ip=[[5]], ranges=[(1, 2)], stalls=Stalls(0.1, 0.2, 0.3, 4),
        reset_at=3, reset_clocks=2, latency=5, patience=7,
    )  # fmt: skip
    assert Scene.from_json(json.loads(json.dumps(scene.to_json()))) == scene


def test_stall_patterns_repeat_and_differ_by_port():
    def first(port, seed=1):
        pattern = Stalls(0.5, 0.5, 0.5, seed).pattern(port)
        return [next(pattern) for _ in range(50)]

    assert first("iz") == first("iz")
    assert first("iz") != first("ip")
    assert first("iz") != first("iz", seed=2)
    assert Stalls().pattern("mask") is None
    assert 100 < sum(next(p) for p in [Stalls(mask=0.3).pattern("mask")] * 500) < 200
