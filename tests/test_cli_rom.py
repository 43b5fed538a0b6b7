"""``lrbi export`` and ``lrbi import`` end to end, as a user runs them."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import safetensors.numpy

import lrbi


@pytest.fixture
def model(command, tmp_path):
    """A factor file of two layers with ranks and tiles of their own."""
    rng = np.random.default_rng(0)
    tensors = {
        name: rng.standard_normal(shape).astype(np.float32)
        for name, shape in (("conv", (16, 72)), ("fc1", (60, 50)))
    }
    safetensors.numpy.save_file(tensors, tmp_path / "w.safetensors")
    words = ["--all", "--min-size", 1, "-s", 0.8, "-k", "3,5", "--tile", "8x20,20x25"]
    outcome = command("compress", "w.safetensors", *words, "-q", "-o", "m.lrbi")
    assert outcome.code == 0, outcome.err
    return tmp_path / "m.lrbi"


def names(folder):
    return {path.name for path in folder.iterdir()}


def test_export_and_import(command, model, tmp_path):
    outcome = command("export", "m.lrbi", "-o", "new/rom")
    assert (outcome.code, outcome.out) == (0, "")
    assert outcome.err == "lrbi: wrote 4 file(s) of 2 layer(s) and manifest.json to new/rom\n"
    assert names(tmp_path / "new/rom") == {
        "manifest.json", "conv.ip.mem", "conv.iz.mem", "fc1.ip.mem", "fc1.iz.mem",
    }  # fmt: skip
    words = (tmp_path / "new/rom/fc1.ip.mem").read_text().split()
    assert (len(words), {len(word) for word in words}) == (6 * 20, {2})
    outcome = command("import", "new/rom", "-o", "back.lrbi")
    assert (outcome.code, outcome.out) == (0, "")
    assert outcome.err == "lrbi: wrote 2 layer(s) from new/rom to back.lrbi\n"
    assert (tmp_path / "back.lrbi").read_bytes() == model.read_bytes()


def test_formats_layers_lanes_and_vectors(command, model, tmp_path):
    words = ["--format", "mif,coe,mif", "--layer", "f*", "--lanes", 3, "--iz-rows", 2, "--vectors"]
    outcome = command("export", "m.lrbi", *words, "-o", "rom", "--json", "-q")
    assert (outcome.code, outcome.err) == (0, "")
    manifest = json.loads(outcome.out)
    assert manifest == json.loads((tmp_path / "rom/manifest.json").read_text())
    assert list(manifest["layers"]) == ["fc1"]
    assert names(tmp_path / "rom") == {
        "manifest.json", "fc1.ip.mif", "fc1.iz.mif", "fc1.ip.coe", "fc1.iz.coe",
        "fc1.ip.mem", "fc1.iz.mem", "fc1.mask.mem", "fc1.tb.v",
    }  # fmt: skip
    ip = manifest["layers"]["fc1"]["roms"]["ip"]
    assert (ip["width"], ip["depth"]) == (15, 6 * 7)
    lrbi.save(tmp_path / "one.lrbi", {"fc1": lrbi.load(model)["fc1"]})
    for choice in ([], ["--format", "coe"]):
        outcome = command("import", "rom", *choice, "-o", "back.lrbi", "--json", "-q")
        assert (outcome.code, outcome.err) == (0, "")
        assert json.loads(outcome.out)["layers"]["fc1"]["shape"] == [60, 50]
        assert (tmp_path / "back.lrbi").read_bytes() == (tmp_path / "one.lrbi").read_bytes()


def test_verbose(command, model):
    outcome = command("export", "m.lrbi", "-o", "rom", "-v")
    assert "\n  fc1.ip.mem: 120 words of 5 bits\n" in outcome.err
    assert command("import", "rom", "-o", "b.lrbi", "-v").err.endswith("\n  read fc1.iz.mem\n")


def test_help_names_the_verbs(command):
    text = command("--help").out
    for line in ("lrbi export fc1.lrbi -o rom/", "  export ", "  import "):
        assert line in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["absent.lrbi"], "Factor file absent.lrbi cannot be used: No such file"),
        (["m.lrbi", "--format", "hex"], "'hex' is not one of 'mem', 'memb', 'mif', 'coe', 'bin', "),
        (["m.lrbi", "--format", ""], "'' is not one of 'mem'"),
        (["m.lrbi", "--layer", "fc9"], "No layer matches 'fc9' (there are conv, fc1)"),
        (["m.lrbi", "--lanes", "0"], "Lanes must be a whole number of at least 1, not 0"),
        (["m.lrbi", "--lanes", "65"], "Lanes must be at most 64, not 65"),
        (["m.lrbi", "--iz-rows", "x"], "'x' is not a valid integer"),
        (["m.lrbi", "-o", "m.lrbi"], "Output m.lrbi must be a folder, but is a file"),
        (["m.lrbi", "-o", "m.lrbi/rom"], "Output m.lrbi/rom cannot be written: Not a directory"),
    ],
)
def test_bad_exports_leave_nothing(command, model, tmp_path, words, message):
    before = names(tmp_path)
    outcome = command("export", *words, *([] if "-o" in words else ["-o", "rom"]))
    assert (outcome.code, outcome.out) == (2, "")
    assert message in outcome.err
    assert len(outcome.err.splitlines()) == 1
    assert names(tmp_path) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written(command, model, tmp_path):
    (tmp_path / "rom").mkdir(mode=0o555)
    outcome = command("export", "m.lrbi", "-o", "rom")
    assert outcome.err == "lrbi: Output rom/manifest.json cannot be written: Permission denied\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["absent"], "ROM folder absent cannot be used: there is none"),
        (["m.lrbi"], "ROM folder m.lrbi cannot be used: it is no folder"),
        (["empty"], "ROM folder empty cannot be used: it has no manifest.json"),
        (["rom", "--format", "mif"], "Format must be one that was exported (mem, bin), not 'mif'"),
        (["rom", "--format", "x"], "'x' is not one of 'mem', "),
        (["rom", "-o", "empty"], "Output empty must be a file, but is a folder"),
        (["rom", "-o", "no/x.lrbi"], "Output no/x.lrbi cannot be written: No such file"),
        (["rom", "-o", "rom/fc1.ip.mem"], "must not be the input rom/fc1.ip.mem"),
        (["flipped"], "ROM file flipped/fc1.ip.mem cannot be used: line 3, word 2 must be 0x"),
        (["digit"], "ROM file digit/fc1.iz.mem cannot be used: line 1, word 0 must be 7 hexa"),
        (["wide"], "wide/fc1.ip.mem cannot be used: line 120, word 119 must have at most 5 bits"),
        (["short"], "short/fc1.ip.bin cannot be used: word 119 must follow, but the file ends"),
        (["gone"], "gone/conv.iz.bin cannot be used: it is missing (the manifest names it)"),
    ],
)
def test_bad_imports(command, model, tmp_path, words, message):
    assert command("export", "m.lrbi", "--format", "mem,bin", "-o", "rom").code == 0
    (tmp_path / "empty").mkdir()
    for name in ("flipped", "digit", "wide", "short", "gone"):
        shutil.copytree(tmp_path / "rom", tmp_path / name)

    def edit(name, line, change):
        lines = (tmp_path / name).read_text().splitlines()
        lines[line] = change(lines[line])
        (tmp_path / name).write_text("\n".join(lines) + "\n")

    edit("flipped/fc1.ip.mem", 2, lambda word: f"{int(word, 16) ^ 4:02x}")
    edit("digit/fc1.iz.mem", 0, lambda word: word[:3] + "g" + word[4:])
    edit("wide/fc1.ip.mem", -1, lambda word: "f" + word[1:])
    content = (tmp_path / "short/fc1.ip.bin").read_bytes()
    (tmp_path / "short/fc1.ip.bin").write_bytes(content[:-1])
    (tmp_path / "gone/conv.iz.bin").unlink()
    before = names(tmp_path)
    outcome = command("import", *words, *([] if "-o" in words else ["-o", "x.lrbi"]))
    assert (outcome.code, outcome.out) == (2, "")
    assert message in outcome.err
    assert len(outcome.err.splitlines()) == 1
    assert names(tmp_path) == before


def test_help_does_not_wait_for_numpy(tmp_path):
    code = "import sys; from lrbi.cli import cli; sys.exit('numpy' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
