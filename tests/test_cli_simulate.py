"""``lrbi simulate`` as a user runs it: what it tells, what it catches, what it refuses."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from lrbi.hw.emit import verilog
from planting import OR_FOR_AND_IN_STAGE_0, READY_IGNORED, VALID_STUCK, planted

import lrbi
from lrbi import CompressConfig
from lrbi.config import DecoderConfig

# What builds in no time, where it is there.
SIMULATOR = "icarus" if shutil.which("iverilog") else "verilator"
CHEAP = "icarus" if shutil.which("iverilog") else "amaranth"


@pytest.fixture
def factor_file(tmp_path, weights):
    """A layer of 45 x 37 in 5 x 3 tiles, ragged both ways."""
    layer = lrbi.compress(weights, CompressConfig(sparsity=0.8, rank=5, tile=(10, 13)))
    lrbi.save(tmp_path / "a.lrbi", {"fc": layer})
    return layer


def simulate(command, *words):
    return command("simulate", "a.lrbi", *words)


@pytest.mark.parametrize("top", ["stream", "rom"])
@pytest.mark.parametrize("simulator", sorted({CHEAP, "amaranth"}))
def test_one_line_and_json_tell_the_same(command, factor_file, top, simulator):
    words = ["--top", top, "--sim", simulator]
    outcome = simulate(command, *words)
    assert outcome.code == 0, outcome.err
    rows = 15 * 10 if top == "rom" else 45 * 3
    assert outcome.out.startswith(
        f"15 tiles, {rows} rows, {rows * 13:,} bits compared, 0 mismatches; "
    )
    assert "clocks (as the cycle model says), " in outcome.out
    assert len(outcome.out.splitlines()) == 1
    report = json.loads(simulate(command, *words, "--json", "-q").out)
    assert report["simulator"] == simulator
    assert (report["tiles"], report["rows"], report["bits"]) == (15, rows, rows * 13)
    assert (report["mismatches"], report["first_mismatches"], report["stopped"]) == (0, [], [])
    assert report["clocks"] == report["model_clocks"] > rows
    assert report["row_share"] == rows / report["clocks"]
    assert report["passed"] is report["as_modelled"] is True
    assert f"{report['clocks']:,} clocks" in outcome.out


def test_stalls_tiles_lanes_and_waves(command, factor_file, tmp_path):
    words = ["--sim", CHEAP, "--stall", "0.1,0.2,0.5", "--tiles", 4, "--lanes", 3, "--iz-rows", 2]
    report = json.loads(simulate(command, *words, "--waves", "a.vcd", "--json").out)
    assert (report["tiles"], report["rows"], report["as_modelled"]) == (4, 40, None)
    assert report["clocks"] > report["model_clocks"]
    assert "$enddefinitions" in (tmp_path / "a.vcd").read_text()[:200_000]
    again = json.loads(simulate(command, *words, "--json").out)
    other = json.loads(simulate(command, *words, "--seed", 1, "--json").out)
    assert again["clocks"] == report["clocks"] != other["clocks"]


def test_layers_of_several_sizes(command, tmp_path, weights):
    lrbi.save(tmp_path / "a.lrbi", {
        name: lrbi.compress(weights, CompressConfig(sparsity=0.8, rank=rank, tile=tile))
        for name, rank, tile in (("a", 3, (10, 13)), ("b", 5, (10, 13)), ("c/d", 2, (45, 37)))
    })  # fmt: skip
    for top in ("stream", "rom"):
        report = json.loads(simulate(command, "--sim", CHEAP, "--top", top, "--json").out)
        assert set(report["layers"]) == {"a", "b", "c/d"}
        assert report["tiles"] == 31
        assert report["mismatches"] == 0
    outcome = simulate(command, "--sim", CHEAP, "--waves", "a.vcd")
    assert outcome.code == 2
    assert "Waves must be of one layer, not of 3 (choose it with --layer)" in outcome.err


def test_given_folders_are_played_as_they_are(command, factor_file, tmp_path):
    assert command("export", "a.lrbi", "-o", "rom", "--lanes", 2).code == 0
    assert command("generate", "a.lrbi", "-o", "rtl", "--prefix", "x_", "-k", 8).code == 0
    words = ["--rom", "rom", "--rtl", "rtl", "--sim", SIMULATOR]
    assert simulate(command, *words).code == 0
    assert command("generate", "a.lrbi", "--top", "rom", "-o", "rtl", "--lanes", 2).code == 0
    assert simulate(command, *words, "--top", "rom").code == 0
    path = tmp_path / "rtl/fc.ip.mem"
    whole = path.read_text()
    lines = whole.splitlines()
    lines[7] = f"{int(lines[7], 16) ^ 1:03x}"
    path.write_text("\n".join(lines) + "\n")
    words = ["--rtl", "rtl", "--sim", SIMULATOR, "--top", "rom"]
    refused = "lrbi: ROM file rtl/fc.ip.mem cannot be used: "
    outcome = simulate(command, *words)
    assert (outcome.code, outcome.err) == (
        2, f"{refused}it does not match its digest (lrbi generate makes it again)\n",
    )  # fmt: skip
    facts = json.loads((tmp_path / "rtl/lrbi_rom_decoder.json").read_text())
    facts["roms"][0]["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    (tmp_path / "rtl/lrbi_rom_decoder.json").write_text(json.dumps(facts))
    assert simulate(command, *words).code == 1
    path.write_text(whole.replace("\n", "\nzz\n", 1))
    outcome = simulate(command, *words)
    assert outcome.code == 2
    assert outcome.err.startswith(f"{refused}line 2")


class TestFaults:
    def flip(self, folder, name, line, bit):
        """Flip a bit in a ROM file, and fix up its digest."""
        path = folder / name
        lines = path.read_text().splitlines()
        lines[line] = f"{int(lines[line], 16) ^ 1 << bit:0{len(lines[line])}x}"
        path.write_text("\n".join(lines) + "\n")
        manifest = json.loads((folder / "manifest.json").read_text())
        for rom in manifest["layers"]["fc"]["roms"].values():
            for file in rom["files"]:
                if file["name"] == name:
                    file["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
        (folder / "manifest.json").write_text(json.dumps(manifest))

    @pytest.mark.parametrize("top", ["stream", "rom"])
    def test_a_flipped_bit_in_the_i_p_rom(self, command, factor_file, tmp_path, top):
        assert command("export", "a.lrbi", "-o", "rom").code == 0
        row_factor, col_factor = factor_file.factors(3)
        before = lrbi.boolean_product(row_factor, col_factor)
        for bit in range(5):  # one that shows
            tampered = row_factor.copy()
            tampered[2, bit] ^= True
            wrong = int((lrbi.boolean_product(tampered, col_factor) != before).sum())
            if wrong:
                break
        assert wrong
        self.flip(tmp_path / "rom", "fc.ip.mem", 3 * 10 + 2, bit)
        outcome = simulate(command, "--rom", "rom", "--top", top, "--sim", CHEAP, "--json")
        assert outcome.code == 1
        report = json.loads(outcome.out)
        assert report["mismatches"] == wrong
        assert {(each["tile"], each["row"]) for each in report["first_mismatches"]} == {(3, 2)}

    @pytest.mark.parametrize("top", ["stream", "rom"])
    def test_a_flipped_bit_in_a_rom_file(self, command, factor_file, tmp_path, top):
        assert command("export", "a.lrbi", "-o", "rom").code == 0
        # I_z row 1 of tile 4, column 6: it must show in every row of the tile that has rank 1.
        self.flip(tmp_path / "rom", "fc.iz.mem", 4 * 5 + 1, 6)
        outcome = simulate(command, "--rom", "rom", "--top", top, "--sim", CHEAP, "--json")
        assert outcome.code == 1
        report = json.loads(outcome.out)
        before = factor_file.mask()[factor_file.tiles.bounds(4)]
        tampered = [np.array(factor) for factor in factor_file.factors(4)]
        tampered[1][1, 6] ^= True
        after = lrbi.boolean_product(*tampered)
        wrong = np.argwhere(before != after)
        assert len(wrong) > 0
        assert report["mismatches"] == len(wrong)
        assert [
            (each["layer"], each["tile"], each["row"], each["column"], each["got"])
            for each in report["first_mismatches"]
        ] == [("fc", 4, row, column, int(after[row, column])) for row, column in wrong.tolist()][
            :20
        ]
        assert f"lrbi: {len(wrong)} of {report['bits']} mask bits differ" in outcome.err
        line = simulate(command, "--rom", "rom", "--top", top, "--sim", CHEAP).out.splitlines()[1]
        row = wrong[0][0]
        assert line == (
            f"  layer fc, tile 4, row {row}, column 6: got {int(after[row, 6])}, "
            f"expected {int(before[row, 6])}"
        )

    def plant(self, command, folder, changes):
        assert command("generate", "a.lrbi", "-o", "rtl").code == 0
        config = DecoderConfig(rank=5, tile_rows=10, tile_cols=13)
        decoder = planted(changes)[0](config=config)
        text = verilog(decoder, name="lrbi_decoder", reset="rst", command="")
        (folder / "rtl/lrbi_decoder.v").write_text(text)

    @pytest.mark.parametrize(
        "fault", ["or for and", "row dropped", "valid never raised", "half rate", "error raised"]
    )
    def test_a_faulty_design(self, command, factor_file, tmp_path, fault):
        changes, words, said = {
            "or for and": (OR_FOR_AND_IN_STAGE_0, [], "mask bits differ"),
            "row dropped": (
                READY_IGNORED, ["--stall", 0.5],
                "layer fc: an offered mask beat changed before it was taken, clock ",
            ),
            "half rate": (
                [("decoder", "playing_next & room", "playing_next & room & ~ip_taken")], [],
                "The masks are right, but took ",
            ),
            "error raised": (
                [("decoder", "with m.If(too_long):", "with m.If(iz.tlast):")], [],
                "layer fc: the output error was raised, at tile 0, row 0",
            ),
            "valid never raised": (
                VALID_STUCK, [], "layer fc: a mask beat is late, clock 10, at tile 0, row 0",
            ),
        }[fault]  # fmt: skip
        self.plant(command, tmp_path, changes)
        outcome = simulate(command, "--rtl", "rtl", "--sim", SIMULATOR, *words)
        assert outcome.code == 1
        assert said in outcome.err
        assert ("(as the cycle model says)" in outcome.out) == (fault == "or for and")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_simulator_is_left_behind(factor_file, tmp_path, number):
    """Interrupted in the middle of a very slow simulation, or killed."""
    words = ["simulate", "a.lrbi", "--sim", SIMULATOR, "--stall", "0.99", "--lanes", "2"]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    process = subprocess.Popen(
        [sys.executable, "-m", "lrbi", *words], cwd=tmp_path, env=environment,
        stderr=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip

    def children():
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if f"LRBI_PLAN={tmp_path}".encode() in path.read_bytes():
                    found.append(path.parent.name)
            except OSError:
                continue
        return found

    deadline = time.monotonic() + 120
    while not children():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.1)
    time.sleep(0.5)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    if number != signal.SIGKILL:
        assert process.returncode == 130
        assert errors.decode().endswith("lrbi: interrupted\n")
        assert not children()
        assert not list(tmp_path.glob("lrbi-*"))
    deadline = time.monotonic() + 30  # the simulator looks for its parent every second
    while children():
        assert time.monotonic() < deadline
        time.sleep(0.2)


class TestRefusals:
    def test_folders_that_do_not_belong(self, command, factor_file, tmp_path, weights):
        other = lrbi.compress(weights, CompressConfig(sparsity=0.8, rank=7, tile=(9, 12)))
        lrbi.save(tmp_path / "b.lrbi", {"fc": other})
        for top in ("stream", "rom"):
            assert command("generate", "b.lrbi", "--top", top, "-o", f"{top}").code == 0
        assert command("generate", "-k", 4, "--tile", "10x13", "-o", "narrow").code == 0
        assert command("export", "b.lrbi", "-o", "rom_b").code == 0
        assert command("export", "a.lrbi", "-o", "rom_a", "--lanes", 2).code == 0
        lrbi.save(tmp_path / "c.lrbi", {"gc": other})
        assert command("export", "c.lrbi", "-o", "rom_c").code == 0
        assert command("generate", "c.lrbi", "--top", "rom", "-o", "rom_only_c").code == 0
        for words, message in (
            (["--rtl", "stream"],
             "Decoder stream/lrbi_decoder.v must have 13 columns and a rank of at least 5 for "
             "layer fc, not 12 and 7"),
            (["--rtl", "narrow"],
             "Decoder narrow/lrbi_decoder.v must have 13 columns and a rank of at least 5 for "
             "layer fc, not 13 and 4"),
            (["--rtl", "rom", "--top", "rom"],
             "Decoder rom/lrbi_rom_decoder.v must be for layer fc as it is in the factor file, but "
             "has another rank, tile or number of tiles"),
            (["--rtl", "rom_only_c", "--top", "rom"],
             "Decoder rom_only_c/lrbi_rom_decoder.v must be for one of the layers fc, not for gc"),
            (["--rtl", "stream", "--top", "rom"],
             "Design folder stream must hold one design with --top rom, not 0 (lrbi generate "
             "--top rom makes it)"),
            (["--rom", "rom_b"],
             "ROM folder rom_b must hold layer fc as 45x37 in tiles of 10x13 with rank 5, not as "
             "45x37 in tiles of 9x12 with rank 7"),
            (["--rom", "rom_c"], "ROM folder rom_c must hold layer fc, but holds gc"),
            (["--rom", "rom_a", "--top", "rom"],
             "ROM folder rom_a must hold 1 I_p and 1 I_z rows a word for this decoder, not 2 and "
             "1"),
            (["--rom", "absent"], "ROM folder absent cannot be used: there is none"),
        ):  # fmt: skip
            outcome = simulate(command, *words, "--sim", SIMULATOR)
            assert (outcome.code, outcome.err) == (2, f"lrbi: {message}\n")
        path = tmp_path / "rom_a/fc.ip.mem"
        path.write_text(path.read_text().replace("\n", "\nxyz\n", 1))
        outcome = simulate(command, "--rom", "rom_a", "--sim", SIMULATOR)
        assert outcome.code == 2
        assert "ROM file rom_a/fc.ip.mem cannot be used: line 2" in outcome.err
        path.unlink()
        outcome = simulate(command, "--rom", "rom_a", "--sim", SIMULATOR)
        assert outcome.code == 2
        assert "rom_a/fc.ip.mem cannot be used: it is missing" in outcome.err

    def test_a_design_that_does_not_build(self, command, factor_file, tmp_path):
        assert command("generate", "a.lrbi", "-o", "rtl").code == 0
        path = tmp_path / "rtl/lrbi_decoder.v"
        path.write_text(path.read_text().replace("endmodule", "endmodul"))
        outcome = simulate(command, "--rtl", "rtl", "--sim", SIMULATOR)
        assert outcome.code == 2
        assert f"{SIMULATOR.capitalize()} could not build lrbi_decoder: " in outcome.err
        path.unlink()
        outcome = simulate(command, "--rtl", "rtl", "--sim", SIMULATOR)
        assert outcome.err.endswith(
            "rtl/lrbi_decoder.v cannot be read: No such file or directory\n"
        )
        path.write_bytes(b"\xff\xfe")
        outcome = simulate(command, "--rtl", "rtl", "--sim", SIMULATOR)
        assert "rtl/lrbi_decoder.v cannot be read: it is no text" in outcome.err
        (tmp_path / "rtl/lrbi_decoder.json").write_text("{")
        outcome = simulate(command, "--rtl", "rtl", "--sim", SIMULATOR)
        assert (outcome.code, "Design folder rtl cannot be used" in outcome.err) == (2, True)

    def test_manifests_that_lie(self, command, factor_file, tmp_path):
        assert command("generate", "a.lrbi", "--top", "rom", "-o", "rtl").code == 0
        path = tmp_path / "rtl/lrbi_rom_decoder.json"
        facts = json.loads(path.read_text())
        start = "lrbi: Design folder rtl cannot be used: lrbi_rom_decoder.json is not as lrbi "
        for change in (
            {"roms": [1, 2]}, {"layer": ["fc"]}, {"config": []}, {"tiles": "x"}, {"roms": {}},
            {"config": {"rank": -1}}, {"roms": [{}, {}]},
            {"roms": [facts["roms"][0] | {"file": "../a"}, facts["roms"][1]]},
        ):  # fmt: skip
            path.write_text(json.dumps(facts | change))
            outcome = simulate(command, "--rtl", "rtl", "--top", "rom", "--sim", SIMULATOR)
            assert (outcome.code, outcome.err.startswith(start)) == (2, True), change
        path.write_text(json.dumps(facts | {"config": facts["config"] | {"lanes": 2}}))
        outcome = simulate(command, "--rtl", "rtl", "--top", "rom", "--sim", SIMULATOR)
        assert outcome.err == (
            "lrbi: Design folder rtl cannot be used: lrbi_rom_decoder.v has no port "
            "m_axis_mask_tdata of 32 bits, as lrbi_rom_decoder.json says it has\n"
        )

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (["--stall", "1"], "--stall must be from 0 to 0.99."),
            (["--stall", "nan"], "--stall must be from 0 to 0.99."),
            (["--stall", "x"], "'x' is not a valid float"),
            (["--waves", "none/a.vcd"], "Output none/a.vcd cannot be written: No such file"),
            (
                ["--rtl", "rtl", "--sim", "amaranth"],
                "A folder of Verilog must go with a Verilog simulator, not with Amaranth's",
            ),
            (["--rtl", "rtl"], "Design folder rtl cannot be used: there is none"),
            (["--stall", "0.1,0.2"], "--stall takes one share, or three: of I_z, I_p and mask."),
            (["--waves", "a.txt"], "Waves must go to a file that ends in .fst or .vcd, not a.txt"),
            (["--waves", "a.fst", "--sim", "amaranth"], "must go to a .vcd file, not a.fst"),
            (["--tiles", "0"], "0 is not in the range x>=1"),
            (["--rtl", "rtl", "--lanes", "1"], "--lanes goes with a fresh design, not with --rtl."),
            (["--lanes", "65"], "Lanes must be at most 64, not 65"),
            (["--layer", "x"], "No layer matches 'x' (there are fc)"),
        ],
    )
    def test_bad_words(self, command, factor_file, words, message):
        outcome = simulate(command, *words)
        assert outcome.code == 2
        assert message in outcome.err
        assert len(outcome.err.splitlines()) == 1

    def test_missing_tools(self, command, factor_file, monkeypatch):
        monkeypatch.setattr("lrbi.sim.verilog.shutil.which", lambda name: None)
        for simulator, message in (
            ("icarus", "Icarus Verilog needs iverilog on the PATH (apt-get install iverilog)"),
            ("verilator", "Verilator needs g++ on the PATH (apt-get install g++ make)"),
        ):
            outcome = simulate(command, "--sim", simulator)
            assert (outcome.code, outcome.err) == (3, f"lrbi: {message}\n")
        outcome = simulate(command, "--tiles", 2)
        assert outcome.code == 0
        assert "using Amaranth; faster: Verilator needs g++ on the PATH" in outcome.err
        outcome = simulate(command, "--rtl", "rtl")
        assert outcome.code == 3
        assert "A folder of Verilog needs a Verilog simulator: Verilator needs" in outcome.err
        monkeypatch.setattr("lrbi.sim.verilog.find_spec", lambda name: None)
        outcome = simulate(command, "--sim", "verilator")
        assert (outcome.code, outcome.err) == (
            3, "lrbi: Verilator needs cocotb (pip install 'lrbi[sim]')\n",
        )  # fmt: skip
