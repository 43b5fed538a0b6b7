"""``lrbi compare`` end to end."""

import json

import numpy as np
import pytest
import safetensors.numpy

import lrbi


@pytest.fixture
def model(tmp_path):
    rng = np.random.default_rng(0)
    tensors = {
        "fc1": rng.standard_normal((60, 48)).astype(np.float32),
        "conv": rng.standard_normal((16, 8, 3, 3)).astype(np.float16),
    }
    safetensors.numpy.save_file(tensors, tmp_path / "model.safetensors")
    return tensors


WORDS = ("compare", "model.safetensors", "--layer", "fc1", "-s", 0.9, "-k", 4)


def test_table(command, model):
    made = command(*WORDS)
    assert made.code == 0, made.err
    assert made.err == ""
    lines = made.out.splitlines()
    assert lines[0] == "fc1: 60x48"
    rows = {line.split()[0]: line.split() for line in lines[3:]}
    assert rows["bitmap"][1:7] == ["2,880", "1.0000", "1.00x", "0.9000", "0", "1.0000"]
    assert rows["lrbi-k4"][1:4] == ["432", "0.1500", "6.67x"]
    assert rows["viterbi-5"][1:4] == ["576", "0.2000", "5.00x"]
    assert rows["H(S)"][1] == "1,351"  # 2880 * H(0.1)
    assert rows["limit"][1] == "432"


def test_json_and_what_compress_says_agree(command, model, tmp_path):
    words = (*WORDS[1:], "--tile", "20x24")
    found = json.loads(command("compare", *words, "--json").out)
    assert command("compress", *words, "-o", "fc1.lrbi").code == 0
    layer = lrbi.load(tmp_path / "fc1.lrbi")["fc1"]
    ours = found["formats"][-1]
    assert (ours["name"], ours["bits"]) == ("lrbi-k4", layer.index_bits)
    assert (ours["cost"], ours["kept"]) == (pytest.approx(layer.cost), pytest.approx(layer.kept))
    assert set(ours) >= {"name", "bits", "bits_per_weight", "cost", "kept"}
    assert found["entropy_bits"] == pytest.approx(1350.7, abs=0.1)
    assert found["layers"]["fc1"]["formats"] == found["formats"]


def test_several_layers(command, model):
    words = ("compare", "model.safetensors", "--all", "--min-size", 1, "-s", "0.9,0.5", "-k", 4)
    made = command(*words, "--json")
    found = json.loads(made.out)
    assert [*found["layers"]] == ["fc1", "conv"] or [*found["layers"]] == ["conv", "fc1"]
    bits = [found["layers"][name]["formats"][0]["bits"] for name in ("fc1", "conv")]
    assert found["formats"][0]["bits"] == sum(bits) == 2880 + 1152
    shown = command(*words, "-v").out
    assert "2 layers together: 4032 weights" in shown
    assert shown.count("limit") == 2  # of each layer, not of both
    assert found["shannon_limit_kept"] is None
    assert "fc1: 60x48" in shown
    assert "fc1: 60x48" not in command(*words).out


def test_given_masks(command, model, tmp_path):
    pruned = np.where(np.abs(model["fc1"]) > 1, model["fc1"], 0)
    np.save(tmp_path / "pruned.npy", pruned)
    found = json.loads(command("compare", "pruned.npy", "--from-zeros", "-k", 4, "--json").out)
    assert found["formats"][0]["sparsity"] == pytest.approx(np.mean(pruned == 0))


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_plot(command, model, tmp_path, ending):
    made = command(*WORDS, "--plot", f"formats.{ending}")
    assert made.code == 0
    assert made.err == f"lrbi: wrote formats.{ending}\n"
    start = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[ending]
    first = (tmp_path / f"formats.{ending}").read_bytes()
    assert first.startswith(start)
    command(*WORDS, "--plot", f"again.{ending}")
    assert (tmp_path / f"again.{ending}").read_bytes() == first


def test_what_is_drawn(model):
    from lrbi.compare import compare
    from lrbi.plot import plot_formats
    from lrbi.prune import exact_mask

    exact = exact_mask(model["fc1"], 0.9)
    layer = lrbi.compress(model["fc1"], lrbi.CompressConfig(sparsity=0.9, rank=4))
    found = compare(model["fc1"], exact, layer)
    sizes, keeps = plot_formats(found, "fc1").axes
    assert [bar.get_width() for bar in sizes.patches] == sorted(
        (entry.bits_per_weight for entry in found.formats), reverse=True
    )
    assert sizes.lines[0].get_xdata()[0] == pytest.approx(found.entropy_bits / 2880)
    dots = [tuple(place) for each in keeps.collections for place in each.get_offsets()]
    ours = found.formats[-1]
    assert (ours.bits_per_weight, ours.kept) in dots
    assert dots[-1] == (ours.bits_per_weight, found.limit)


def test_plot_without_matplotlib(command, model, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    made = command(*WORDS, "--plot", "formats.png")
    assert (made.code, made.out) == (3, "")
    assert made.err == "lrbi: Plots need Matplotlib (pip install 'lrbi[plot]')\n"


def test_paper(command):
    made = command("compare", "--paper")
    assert made.code == 0
    assert "544.0" in made.out
    assert any(line.split()[-3:] == ["38.5", "38.46", "x"] for line in made.out.splitlines())
    found = json.loads(command("compare", "--paper", "--json").out)["claims"]
    by_name = {(claim["table"], claim["what"]): claim for claim in found}
    fc5 = by_name["AlexNet FC5, S = 0.91", "Proposed, k = 32"]
    assert (fc5["paper"], fc5["ours"], fc5["agrees"]) == (556, 544, False)
    assert "544 KiB" in fc5["why"]
    assert by_name["LeNet-5 FC1, S = 0.95", "Proposed, k = 16"]["agrees"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "Missing argument 'FILE' (or --paper)."),
        (("--paper", "model.safetensors"), "--paper cannot go with a FILE."),
        (("--paper", "-k", 4), "--paper cannot go with --rank."),
        (("model.safetensors", "-s", 0.9), "Missing option '-k' / '--rank': the rank"),
        (("model.safetensors", "-k", 4), "Give one of --sparsity, --mask and --from-zeros."),
        ((*WORDS[1:], "--plot", "formats.gif"), "Plot formats.gif must end in one of .png .svg"),
        ((*WORDS[1:], "--plot", "no/formats.png"), "Output no/formats.png cannot be written"),
        (("none.npy", "-s", 0.9, "-k", 4), "there is none of that name"),
    ],
)
def test_refusals(command, model, words, message):
    made = command("compare", *words)
    assert (made.code, made.out) == (2, "")
    assert message in made.err
