"""Pages whose tables are filled from measured numbers: what stands there is what was measured."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks import masks, paper, report

DOCS = Path(__file__).parent.parent / "docs"


def refilled(page, tables, folder):
    copy = folder / "page.md"
    copy.write_text(page.read_text())
    for place, text in tables:
        report.fill(copy, place, text)
    return copy.read_text()


def test_masks_page(tmp_path):
    results = json.loads((DOCS / "masks/results.json").read_text())
    assert set(results) == set(masks.STEPS)
    page = DOCS / "masks.md"
    assert refilled(page, masks.tables(results), tmp_path) == page.read_text()
    assert not re.search(r"<!-- [a-z ]+ -->\n<!-- end", page.read_text())  # no table is empty


@pytest.mark.torch
def test_paper_page(tmp_path):
    results = json.loads((DOCS / "paper/results.json").read_text())
    assert set(results) == set(paper.STEPS)
    page = DOCS / "paper/README.md"
    assert refilled(page, paper.tables(results), tmp_path) == page.read_text()
    assert not re.search(r"<!-- [a-z ]+ -->\n<!-- end", page.read_text())


def test_steps_are_kept_one_by_one(tmp_path):
    paper._keep(tmp_path, "limit", {"a": 1})
    paper._keep(tmp_path, "sizes", {"b": 2})
    paper._keep(tmp_path, "limit", {"a": 3})
    found = json.loads((tmp_path / "results.json").read_text())
    assert found == {"sizes": {"b": 2}, "limit": {"a": 3}}
    assert [*found] == ["sizes", "limit"]  # in the order of the page


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sizes"], "--data DIR must be given (make paper DATA=DIR)"),
        (["resnet", "--data", "."], "for resnet, --cifar DIR must be given (make paper CIFAR=DIR)"),
        (["rsnet", "--data", "."], "no step 'rsnet'; there are sizes, sp, "),
    ],
)
def test_refusals(capsys, words, message):
    with pytest.raises(SystemExit):
        paper.main(words)
    assert message in capsys.readouterr().err


def test_without_cifar_resnet_is_left_out(capsys, monkeypatch, tmp_path):
    ran = []
    for name in paper.STEPS:
        monkeypatch.setitem(paper.STEPS, name, lambda _, name=name: ran.append(name) or {})
    monkeypatch.setattr(paper, "tables", lambda _: [])
    paper.main(["--data", ".", "--output", str(tmp_path)])
    assert ran == [name for name in paper.STEPS if name != "resnet"]
    assert "resnet is left out: --cifar DIR must be given" in capsys.readouterr().err


def test_algorithm_1_is_the_papers():
    weights = np.random.default_rng(0).standard_normal((40, 50))
    layer = paper.algorithm_1(weights, rank=3)
    assert (layer.effort, layer.sparsity_target, layer.seed) == ("fast", 0.95, 0)
