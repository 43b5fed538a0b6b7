"""The command end to end, as a user runs it."""

import json
import os
import re
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

import lrbi
from lrbi.prune import exact_mask


@pytest.fixture
def model(tmp_path):
    """A safetensors file with a matrix, a convolution, a small matrix and a bias."""
    rng = np.random.default_rng(0)
    tensors = {
        "fc1": rng.standard_normal((60, 50)).astype(np.float32),
        "conv": rng.standard_normal((16, 8, 3, 3)).astype(np.float16),
        "head": rng.standard_normal((5, 8)).astype(np.float32),
        "bias": rng.standard_normal(60).astype(np.float32),
    }
    safetensors.numpy.save_file(tensors, tmp_path / "model.safetensors")
    return tensors


def test_compress_show_decode(command, model, tmp_path):
    words = ["--layer", "fc1", "--sparsity", 0.9, "--rank", 4, "--tile", "20x25"]
    made = command("compress", "model.safetensors", *words, "-o", "fc1.lrbi")
    assert made.code == 0, made.err
    shown = command("show", "fc1.lrbi")
    assert shown.code == 0
    assert shown.out == made.out
    row = shown.out.splitlines()[2].split()
    assert row[:8] == ["fc1", "60x50", "20x25", "3x2", "4", "1,080", "1,080", "2.78x"]

    assert command("decode", "fc1.lrbi", "--layer", "fc1", "-o", "mask.npy").code == 0
    mask = np.load(tmp_path / "mask.npy")
    layer = lrbi.load(tmp_path / "fc1.lrbi")["fc1"]
    np.testing.assert_array_equal(mask, layer.mask())
    exact = exact_mask(model["fc1"], 0.9)
    lost = np.abs(model["fc1"])[exact & ~mask].sum()
    fields = json.loads(command("show", "fc1.lrbi", "--json").out)["layers"]["fc1"]
    assert fields["cost"] == pytest.approx(lost, rel=1e-5)
    assert fields["sparsity"] == pytest.approx(1 - mask.mean())
    assert (fields["index_bits"], fields["rom_bits"]) == (1080, 1080)
    assert fields["shape"] == [60, 50]


def test_readme_python(model, tmp_path, monkeypatch):
    """The README's five lines of Python do what they say."""
    from pathlib import Path

    readme = Path(__file__).parent.parent.joinpath("README.md").read_text()
    code = readme.split("```python\n")[1].split("```")[0]
    np.save(tmp_path / "fc1.npy", model["fc1"])
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(code, names)
    np.testing.assert_array_equal(names["mask"], lrbi.load("fc1.lrbi")["fc1"].mask())


@pytest.mark.parametrize(
    ("rank", "ratio"),
    [(4, 76.9), (8, 38.5), (16, 19.2), (32, 9.6), (64, 4.8), (128, 2.4), (256, 1.2)],
)
def test_ratios_of_the_papers_table_1(command, tmp_path, rank, ratio):
    np.save(tmp_path / "fc1.npy", np.random.default_rng(0).standard_normal((800, 500)))
    words = ["-s", 0.95, "-k", rank, "--iterations", 1, "-o", "fc1.lrbi"]
    assert command("compress", "fc1.npy", *words).code == 0
    fields = json.loads(command("show", "fc1.lrbi", "--json").out)["layers"]["fc1"]
    assert round(fields["ratio"], 1) == ratio
    assert fields["sparsity"] == pytest.approx(0.95, abs=1e-4)


def test_several_layers_with_their_own_ranks_and_sparsities(command, model):
    listed = json.loads(command("compress", "model.safetensors", "--list", "--json").out)
    order = [item["name"] for item in listed["tensors"] if item["name"] in ("fc1", "conv")]
    ranks, shares = {"fc1": 4, "conv": 6}, {"fc1": 0.9, "conv": 0.6}
    outcome = command(
        "compress", "model.safetensors", "--layer", "fc1", "--layer", "conv", "--json",
        "--rank", ",".join(str(ranks[name]) for name in order),
        "--sparsity", ",".join(str(shares[name]) for name in order), "-o", "two.lrbi",
    )  # fmt: skip
    layers = json.loads(outcome.out)["layers"]
    assert list(layers) == order
    for name in order:
        assert layers[name]["rank"] == ranks[name]
        assert layers[name]["sparsity_target"] == shares[name]
    assert layers["conv"]["shape"] == [16, 72]
    assert layers["conv"]["source_shape"] == [16, 8, 3, 3]


def test_counts_of_ranks_must_agree(command, model):
    words = ["--layer", "fc1", "--layer", "conv", "-s", 0.9, "-o", "x.lrbi"]
    outcome = command("compress", "model.safetensors", *words, "-k", "4,5,6")
    assert outcome.code == 2
    assert "--rank has 3 values for 2 layers:" in outcome.err


def test_all_takes_every_matrix_above_a_size(command, model):
    words = ["-s", 0.8, "-k", 3, "--json", "-o", "all.lrbi"]
    outcome = command("compress", "model.safetensors", "--all", "--min-size", 1000, *words)
    assert sorted(json.loads(outcome.out)["layers"]) == ["conv", "fc1"]
    outcome = command("compress", "model.safetensors", "--layer", "*", *words)
    assert sorted(json.loads(outcome.out)["layers"]) == ["conv", "fc1", "head"]


def test_list(command, model):
    outcome = command("compress", "model.safetensors", "--list")
    assert outcome.code == 0
    rows = {line.split()[0]: line.split()[1:] for line in outcome.out.splitlines()[2:]}
    assert rows["conv"] == ["16x8x3x3", "float16", "1,152", "yes"]
    assert rows["bias"] == ["60", "float32", "60", "no"]


def test_jobs_do_not_change_the_bytes(command, model, tmp_path):
    words = ["compress", "model.safetensors", "--all", "--min-size", 1, "-s", 0.8, "-k", 3]
    words += ["--tile", "16x16"]
    assert command(*words, "-o", "one.lrbi").code == 0
    assert command(*words, "-j", 2, "-o", "two.lrbi").code == 0
    assert (tmp_path / "one.lrbi").read_bytes() == (tmp_path / "two.lrbi").read_bytes()


def test_auto_rank(command, model):
    words = ["--layer", "fc1", "-s", 0.8, "-k", "auto", "--ratio", 3, "--tile", "30x25"]
    outcome = command("compress", "model.safetensors", *words, "--json", "-o", "auto.lrbi")
    assert json.loads(outcome.out)["layers"]["fc1"]["ratio"] >= 3


@pytest.mark.parametrize("transpose", [[], ["--transpose"]])
@pytest.mark.parametrize("reshape", [[], ["--reshape", "48x24"]])
def test_views_and_the_way_back(command, model, tmp_path, transpose, reshape):
    """Whatever the view, the mask in the source's shape keeps the same weights."""
    words = ["--layer", "conv", "-s", 0.7, "-k", 200, *transpose, *reshape]
    assert command("compress", "model.safetensors", *words, "-o", "conv.lrbi").code == 0
    assert command("decode", "conv.lrbi", "--source-shape", "-o", "mask.npy").code == 0
    mask = np.load(tmp_path / "mask.npy")
    assert mask.shape == (16, 8, 3, 3)
    magnitudes = np.abs(model["conv"])
    assert magnitudes[mask].min() >= magnitudes[~mask].max()  # at full rank the mask is exact
    layer = lrbi.load(tmp_path / "conv.lrbi")["conv"]
    expected = (48, 24) if reshape else (16, 72)
    assert layer.shape == (expected[::-1] if transpose else expected)


def test_an_already_pruned_model(command, tmp_path):
    rng = np.random.default_rng(1)
    weights = rng.standard_normal((30, 40)) * (rng.random((30, 40)) < 0.3)
    np.save(tmp_path / "w.npy", weights)
    outcome = command("compress", "w.npy", "--from-zeros", "-k", 40, "--json", "-o", "w.lrbi")
    fields = json.loads(outcome.out)["layers"]["w"]
    assert (fields["cost"], fields["kept"]) == (0, 1)
    np.testing.assert_array_equal(lrbi.load(tmp_path / "w.lrbi")["w"].mask(), weights != 0)
    assert fields["sparsity"] == fields["sparsity_target"] == np.mean(weights == 0)

    mask = rng.random((30, 40)) < 0.5
    for name, values in (("m.npy", mask), ("u.npy", mask.astype(np.uint8))):
        np.save(tmp_path / name, values)
        assert command("compress", "w.npy", "--mask", name, "-k", 40, "-o", "m.lrbi").code == 0
        np.testing.assert_array_equal(lrbi.load(tmp_path / "m.lrbi")["w"].mask(), mask)


def test_mask_by_name_and_in_the_sources_shape(command, model, tmp_path):
    masks = {name: np.abs(model[name]) > 1 for name in ("fc1", "conv")}
    np.savez(tmp_path / "masks.npz", **masks)
    words = ["--layer", "fc1", "--layer", "conv", "--mask", "masks.npz", "-k", 99, "--transpose"]
    assert command("compress", "model.safetensors", *words, "-o", "m.lrbi").code == 0
    for name, layer in lrbi.load(tmp_path / "m.lrbi").items():
        np.testing.assert_array_equal(layer.source_mask(), masks[name])
    outcome = command(
        "compress", "model.safetensors", "--layer", "head", "--mask", "masks.npz", "-k", 2,
        "-o", "x.lrbi",
    )  # fmt: skip
    assert outcome.code == 2
    assert "Mask file masks.npz must hold a mask for 'head', but has none" in outcome.err


def test_bfloat16(command, tmp_path):
    weights = np.random.default_rng(2).standard_normal((20, 30)).astype(ml_dtypes.bfloat16)
    safetensors.numpy.save_file({"w": weights}, tmp_path / "w.safetensors")
    assert command("compress", "w.safetensors", "-s", 0.5, "-k", 30, "-o", "w.lrbi").code == 0
    exact = exact_mask(weights.astype(np.float32), 0.5)
    np.testing.assert_array_equal(lrbi.load(tmp_path / "w.lrbi")["w"].mask(), exact)


def test_decode_to_npz_and_packed(command, model, tmp_path):
    words = ["--layer", "fc1", "--layer", "conv", "-s", 0.8, "-k", 3, "-o", "two.lrbi"]
    assert command("compress", "model.safetensors", *words).code == 0
    assert command("decode", "two.lrbi", "-o", "masks.npz").code == 0
    layers = lrbi.load(tmp_path / "two.lrbi")
    with np.load(tmp_path / "masks.npz") as masks:
        assert set(masks.files) == {"fc1", "conv"}
        np.testing.assert_array_equal(masks["conv"], layers["conv"].mask())
    assert command("decode", "two.lrbi", "--layer", "f*", "--packed", "-o", "p.npy").code == 0
    bits = np.unpackbits(np.load(tmp_path / "p.npy"), axis=1, count=50, bitorder="little")
    np.testing.assert_array_equal(bits, layers["fc1"].mask())
    outcome = command("decode", "two.lrbi", "-o", "masks.npy")
    assert outcome.code == 2
    assert "must end in .npz to hold 2 layers (or choose one with --layer)" in outcome.err
    outcome = command("decode", "two.lrbi", "--layer", "nope", "-o", "m.npy")
    assert outcome.code == 2
    assert "No layer matches 'nope' (there are conv, fc1)" in outcome.err


def test_demo(command, tmp_path):
    outcome = command("demo", "--sim", "amaranth")
    assert outcome.code == 0, outcome.err
    assert re.search(r"compared +40 tiles, 4,000 rows, 400,000 bits", outcome.out)
    assert re.search(r"clocks +4,023, 99.4% of them with a mask row, as the cycle", outcome.out)
    assert re.search(r"mismatches +0", outcome.out)
    folder = tmp_path / "build/demo"
    assert {path.name for path in folder.iterdir()} == {
        "weights.safetensors", "fc1.lrbi", "mask.npy", "rom", "rtl",
    }  # fmt: skip
    assert {path.name for path in (folder / "rtl").iterdir()} == {
        f"lrbi_decoder.{suffix}" for suffix in ("v", "json", "veo", "core")
    }
    kinds = ("mem", "mif", "coe", "bin", "ihex", "h")
    assert {path.name for path in (folder / "rom").iterdir()} == {
        "manifest.json", "fc1.mask.mem", "fc1.tb.v",
        *(f"fc1.{factor}.{kind}" for factor in ("ip", "iz") for kind in kinds),
    }  # fmt: skip


def test_demo_fails_on_a_wrong_mask(command, monkeypatch):
    from lrbi.layer import CompressedLayer

    original = CompressedLayer.mask
    monkeypatch.setattr(
        CompressedLayer, "mask", lambda self: original(self) ^ (np.eye(500, 800) > 0)
    )
    outcome = command("demo", "--sim", "amaranth")
    assert outcome.code == 1
    assert "mask bits differ from the Boolean product" in outcome.err


def test_demo_fails_with_its_simulation(command, monkeypatch):
    from lrbi.sim import simulate

    original = simulate.simulate

    def one_wrong(*arguments, **options):
        report = original(*arguments, **options)
        report.mismatches = 1
        return report

    monkeypatch.setattr(simulate, "simulate", one_wrong)
    outcome = command("demo", "--sim", "amaranth")
    assert (outcome.code, "1 of 400000 mask bits differ" in outcome.err) == (1, True)


BAD = {
    "nan": np.array([[1.0, np.nan], [1, 2]]),
    "inf": np.array([[1.0, np.inf], [1, 2]]),
    "empty": np.zeros((0, 4)),
    "vector": np.ones(5),
    "integers": np.ones((4, 4), dtype=int),
}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nan.npy"], "Weights must be finite, but row 0, column 1 is nan"),
        (["inf.npy"], "Weights must be finite, but row 0, column 1 is inf"),
        (["empty.npy", "--layer", "empty"], "Weights must not be empty"),
        (["vector.npy", "--layer", "vector"], "Weights must have at least 2 dimensions, not 1"),
        (
            ["integers.npy", "--layer", "integers"],
            "Weights must be float16, bfloat16, float32, float64, but integers is int64",
        ),
        (["vector.npy"], "The file must hold a floating-point matrix, but has none"),
        (["good.npy", "-s", "0"], "Sparsity must be between 0 and 1, both excluded, not 0.0"),
        (["good.npy", "-s", "1"], "Sparsity must be between 0 and 1, both excluded, not 1.0"),
        (["good.npy", "-s", "a"], "'a' is not a valid float"),
        (["good.npy", "-k", "0"], "Rank must be a whole number of at least 1, not 0"),
        (["good.npy", "-k", "2.5"], "'2.5' is not a valid integer"),
        (["good.npy", "-k", "auto"], "Ratio must be a positive number with rank 'auto'"),
        (["good.npy", "-k", "auto", "--ratio", "0"], "Ratio must be a positive number with rank"),
        (["good.npy", "-k", "auto", "--ratio", "1e9"], "Ratio must be at most 1 with tiles of 2x2"),
        (["good.npy", "--ratio", "3"], "--ratio goes with --rank auto."),
        (["good.npy", "--tile", "0x4"], "'0x4' must have at least one row and one column"),
        (["good.npy", "--tile", "4"], "'4' must be rows x columns, as in 64x128"),
        (["good.npy", "--reshape", "3x3"], "Reshape must keep the number of weights, 4"),
        (["good.npy", "--layer", "bad"], "No layer matches 'bad'"),
        (["good.npy", "--from-zeros"], "Give one of --sparsity, --mask and --from-zeros."),
        (["good.npy", "--all", "--layer", "x"], "--all and --layer cannot go together."),
        (["absent.npy"], "absent.npy must be a file (there is none of that name)"),
        (["good.txt"], "good.txt must end in one of .npy"),
        (["text.npz"], "text.npz must be a NumPy .npz archive, but is no zip archive"),
        (["good.npy", "-o", "nowhere/x.lrbi"], "nowhere/x.lrbi cannot be written: No such file"),
        (["good.npy", "-o", "folder"], "Output folder must be a file, but is a folder"),
        (["good.npy", "--engine", "svd"], "'svd' is not one of 'hals', 'nimfa'"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(command, tmp_path, words, message):
    for name, values in BAD.items():
        np.save(tmp_path / f"{name}.npy", values)
    np.save(tmp_path / "good.npy", np.ones((2, 2)))
    (tmp_path / "text.npz").write_text("no archive")
    (tmp_path / "folder").mkdir()
    before = {path: path.is_file() and path.read_bytes() for path in tmp_path.iterdir()}
    defaults = []
    for option, value in (("-s", "0.5"), ("-k", "1"), ("-o", "x.lrbi")):
        if option not in words:
            defaults += [option, value]
    outcome = command("compress", *words, *defaults)
    assert outcome.code == 2
    assert outcome.out == ""
    assert message in outcome.err
    assert outcome.err.startswith("lrbi: ")
    assert len(outcome.err.splitlines()) == 1, outcome.err
    assert {path: path.is_file() and path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("verb", ["show", "decode"])
def test_bad_factor_files(command, tmp_path, verb):
    np.save(tmp_path / "good.npy", np.random.default_rng(0).standard_normal((9, 9)))
    assert command("compress", "good.npy", "-s", 0.5, "-k", 2, "-o", "good.lrbi").code == 0
    content = (tmp_path / "good.lrbi").read_bytes()
    (tmp_path / "short.lrbi").write_bytes(content[:-1])
    (tmp_path / "flipped.lrbi").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    output = ["-o", "mask.npy"] if verb == "decode" else []
    for name, message in (
        ("short.lrbi", "it is no whole safetensors file"),
        ("flipped.lrbi", "its contents do not match its digest, so it is damaged"),
        ("good.npy", "it is no whole safetensors file"),
        ("absent.lrbi", "No such file"),
    ):
        outcome = command(verb, name, *output)
        assert outcome.code == 2
        assert outcome.err.startswith(f"lrbi: Factor file {name} cannot be used: {message}")
        assert len(outcome.err.splitlines()) == 1
        assert not (tmp_path / "mask.npy").exists()


def test_missing_library_is_exit_code_3(command, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    (tmp_path / "m.onnx").write_bytes(b"")
    outcome = command("compress", "m.onnx", "--list")
    assert outcome.code == 3
    assert outcome.err.endswith("(pip install 'lrbi[onnx]')\n")


def test_quiet_and_verbose(command, model):
    words = ["compress", "model.safetensors", "--layer", "fc1", "-s", 0.8, "-k", 3, "-o", "x.lrbi"]
    assert command(*words, "-q").err == ""
    assert command(*words).err == ""
    assert command(*words, "-v").err.startswith("lrbi: fc1: kept 0.")
    assert "engine" in command("show", "x.lrbi", "-v").out


def python(code):
    """What a fresh interpreter prints."""
    result = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    )
    return result.stdout.split()


def test_help_loads_nothing_heavy():
    code = (
        "import sys, lrbi.cli\n"
        "try: lrbi.cli.main(['compress', '--help'])\n"
        "except SystemExit: pass\n"
        "print(*sys.modules)"
    )
    assert not {"numpy", "scipy", "rich", "safetensors", "amaranth"} & set(python(code))


def test_library_needs_neither_scipy_nor_hdl():
    code = (
        "import sys, numpy as np, lrbi\n"
        "[getattr(lrbi, name) for name in lrbi.__all__]\n"
        "lrbi.compress(np.eye(9), lrbi.CompressConfig(sparsity=0.9, rank=2)).mask()\n"
        "print(*sys.modules)"
    )
    assert not {"scipy", "amaranth", "click", "rich", "nimfa", "onnx"} & set(python(code))


def test_the_package_owns_one_top_level_name():
    code = "import lrbi.hw, lrbi.sim; print(lrbi.hw.__name__, lrbi.sim.__name__)"
    assert python(code) == ["lrbi.hw", "lrbi.sim"]


def test_every_public_name_is_documented():
    for name in lrbi.__all__:
        documentation = getattr(lrbi, name).__doc__ or ""
        assert " " in documentation, name
        assert not documentation.startswith(f"{name}("), name  # what a dataclass makes up
    with pytest.raises(AttributeError, match="^module 'lrbi' has no attribute 'nothing'$"):
        lrbi.nothing  # noqa: B018


def test_version(command):
    assert command("--version").out == f"lrbi {lrbi.__version__}\n"


def test_progress_bar_only_on_a_terminal(tmp_path):
    """In a pseudo-terminal the bar is drawn; the same run into a pipe has none."""
    import pty

    np.save(tmp_path / "w.npy", np.random.default_rng(0).standard_normal((400, 400)))
    words = [sys.executable, "-m", "lrbi", "compress", "w.npy", "-s", "0.9", "-k", "8"]
    words += ["--tile", "20x20", "-o", "w.lrbi"]
    leader, follower = pty.openpty()
    terminal = os.environ | {"TERM": "xterm", "COLUMNS": "100"}
    with subprocess.Popen(
        words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=follower, env=terminal
    ) as process:
        os.close(follower)
        drawn = b""
        while True:
            try:
                chunk = os.read(leader, 4096)
            except OSError:
                break
            if not chunk:
                break
            drawn += chunk
    os.close(leader)
    assert process.returncode == 0
    assert b"/400" in drawn
    piped = subprocess.run(words, cwd=tmp_path, capture_output=True, check=True)
    assert piped.stderr == b""


def test_output_must_not_be_an_input(command, model, tmp_path):
    before = (tmp_path / "model.safetensors").read_bytes()
    words = ["compress", "model.safetensors", "--layer", "fc1", "-k", 2]
    np.save(tmp_path / "mask.npy", model["fc1"] > 0)
    (tmp_path / "link").symlink_to("model.safetensors")
    for output, given, more in (
        ("model.safetensors", "model.safetensors", ["-s", 0.5]),
        ("link", "model.safetensors", ["-s", 0.5]),
        ("mask.npy", "mask.npy", ["--mask", "mask.npy"]),
    ):
        outcome = command(*words, *more, "-o", output)
        assert outcome.code == 2
        assert outcome.err == f"lrbi: Output {output} must not be the input {given}\n"
    assert (tmp_path / "model.safetensors").read_bytes() == before


def test_all_layers_are_checked_before_the_first_is_compressed(command, tmp_path, monkeypatch):
    """A refusal must not come after hours of other layers' work."""
    monkeypatch.setattr("lrbi.pipeline.factorize", lambda problem: pytest.fail("too late"))
    rng = np.random.default_rng(0)
    tensors = {"a": rng.random((8, 8)), "b": rng.random((2, 3)), "c": np.ones((4, 4), dtype=int)}
    np.savez(tmp_path / "w.npz", **tensors)
    np.savez(tmp_path / "m.npz", a=np.ones((8, 8)), b=np.ones((3, 3)))
    two = ["--layer", "a", "--layer", "b", "-o", "x.lrbi"]
    for words, message in (
        (["-s", 0.5, "-k", 2, "--layer", "c", *two], "but c is int64"),
        (["-s", 0.5, "-k", 2, "--reshape", "4x16", *two], "Reshape must keep the number of"),
        (["-s", 0.5, "-k", "auto", "--ratio", 2, *two], "Ratio must be at most 1.2 with tiles"),
        (["--mask", "m.npz", "-k", 2, *two], "Mask for b must have shape (2, 3), not (3, 3)"),
    ):
        outcome = command("compress", "w.npz", *words)
        assert outcome.code == 2
        assert message in outcome.err


def test_one_mask_is_not_taken_for_several_layers(command, tmp_path):
    np.savez(tmp_path / "w.npz", a=np.ones((4, 4)), b=np.ones((4, 4)))
    np.savez(tmp_path / "m.npz", a=np.eye(4))
    outcome = command(
        "compress", "w.npz", "--layer", "*", "--mask", "m.npz", "-k", 2, "-o", "x.lrbi"
    )
    assert outcome.code == 2
    assert "Mask file m.npz must hold a mask for 'b', but has none" in outcome.err


def test_fixed_and_auto_ranks_in_one_call(command, model):
    words = ["--layer", "conv", "--layer", "fc1", "-s", 0.8, "-k", "auto,auto", "--ratio", 2]
    assert command("compress", "model.safetensors", *words, "-o", "x.lrbi").code == 0
    words[-3] = "3,auto"
    outcome = command("compress", "model.safetensors", *words, "--json", "-o", "x.lrbi")
    ranks = {name: layer["rank"] for name, layer in json.loads(outcome.out)["layers"].items()}
    assert 3 in ranks.values()


def test_names_are_shown_as_they_are(command, tmp_path):
    np.savez(tmp_path / "w.npz", **{"[red]odd[/red]": np.random.default_rng(0).random((9, 9))})
    assert "[red]odd[/red]" in command("compress", "w.npz", "--list").out
    assert "[red]odd[/red]" in command("compress", "w.npz", "-s", 0.5, "-k", 2, "-o", "x.lrbi").out


def test_narrow_terminal_gets_a_line_a_field(command, tmp_path, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "60")
    np.save(tmp_path / "w.npy", np.random.default_rng(0).random((9, 9)))
    lines = command("compress", "w.npy", "-s", 0.5, "-k", 2, "-o", "x.lrbi").out.splitlines()
    assert ["layer", "w"] in [line.split() for line in lines]
    assert max(map(len, lines)) <= 60


def test_refusals_name_the_layer(command, tmp_path):
    np.savez(tmp_path / "w.npz", a=np.eye(9), b=np.full((9, 9), np.nan))
    outcome = command("compress", "w.npz", "--layer", "*", "-s", 0.5, "-k", 2, "-o", "x.lrbi")
    assert outcome.err == "lrbi: Layer b: Weights must be finite, but row 0, column 0 is nan\n"


def test_steering_letters_in_names_are_escaped(command, tmp_path):
    np.savez(tmp_path / "w.npz", **{"a\x1b[2J": np.eye(9)})
    outcome = command("compress", "w.npz", "--list")
    assert "\x1b" not in outcome.out
    assert r"a\x1b[2J" in outcome.out


def run(words, folder, **changes):
    """The command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "lrbi", *words], cwd=folder, capture_output=True, check=False,
        **changes,
    )  # fmt: skip


def test_streams_that_fail(tmp_path):
    np.savez(tmp_path / "w.npz", é=np.eye(9))
    ascii_only = os.environ | {"PYTHONIOENCODING": "ascii"}
    result = run(["compress", "w.npz", "--list"], tmp_path, env=ascii_only)
    assert (result.returncode, result.stderr) == (0, b"")
    assert rb"\xe9" in result.stdout
    for redirection in (">&-", ">&- 2>&-"):
        shell = f"{sys.executable} -m lrbi compress w.npz --list {redirection}"
        result = subprocess.run(
            ["bash", "-c", shell], cwd=tmp_path, capture_output=True, check=False
        )
        assert (result.returncode, result.stderr) == (0, b"")
    shell = f"{sys.executable} -m lrbi compress w.npz --list > /dev/full"
    result = subprocess.run(["bash", "-c", shell], cwd=tmp_path, capture_output=True, check=False)
    assert result.returncode == 2
    assert b"No space left on device" in result.stderr
    assert b"Traceback" not in result.stderr


@pytest.mark.parametrize("name", ["m.npy", "m.npz"])
def test_mask_that_does_not_fit_on_the_disk(command, tmp_path, name):
    """A limit on the size of files stands in for a full disk."""
    assert command("demo", "--sim", "amaranth").code == 0
    limit = 390 if name == "m.npy" else 5  # KiB; the .npy takes 400,128 bytes
    shell = f"ulimit -f {limit}; trap '' XFSZ; {sys.executable} -m lrbi decode build/demo/fc1.lrbi"
    result = subprocess.run(
        ["bash", "-c", f"{shell} -o {name}"], cwd=tmp_path, capture_output=True, check=False
    )
    assert result.returncode == 2
    assert b"cannot be written: File too large" in result.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["build"]


def test_a_name_that_is_too_long(command, weights, tmp_path):
    np.save(tmp_path / "w.npy", weights)
    outcome = command("compress", "w.npy", "-s", 0.5, "-k", 2, "-o", "x" * 300)
    assert outcome.code == 2
    assert "cannot be written: File name too long" in outcome.err
    outcome = command("compress", "x" * 300 + ".npy", "-s", 0.5, "-k", 2, "-o", "x.lrbi")
    assert outcome.code == 2
    assert "cannot be read: File name too long" in outcome.err


def test_demo_json(command):
    report = json.loads(command("demo", "--json", "-q", "--sim", "amaranth").out)
    assert (report["bits"], report["mismatches"]) == (400_000, 0)
    assert report["layers"]["fc1"]["rank"] == 16


def test_reader_that_stops_reading_is_no_error(tmp_path):
    np.save(tmp_path / "w.npy", np.random.default_rng(0).standard_normal((9, 9)))
    for words in ("compress w.npy --list --json", "compress w.npy --list", "--help"):
        shell = f"{sys.executable} -m lrbi {words} | true"
        result = subprocess.run(
            ["bash", "-o", "pipefail", "-c", shell], cwd=tmp_path, capture_output=True, check=False
        )
        assert (result.returncode, result.stderr) == (0, b"")
