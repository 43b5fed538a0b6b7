import sys

import numpy as np
import pytest

from lrbi.errors import MissingToolError
from lrbi.nmf import ENGINES, equalize_peaks


@pytest.mark.parametrize(
    ("engine", "iterations", "error"), [("hals", 1000, 1e-3), ("nimfa", 2000, 3e-2)]
)
def test_planted_rank_is_found(engine, iterations, error):
    rng = np.random.default_rng(1)
    matrix = (rng.random((40, 5)) @ rng.random((5, 30))).astype(np.float32)
    left, right = ENGINES[engine](matrix, 5, iterations, rng)
    assert left.shape == (40, 5)
    assert right.shape == (5, 30)
    assert left.dtype == right.dtype == np.float32
    assert (left >= 0).all()
    assert (right >= 0).all()
    assert np.linalg.norm(matrix - left @ right) < error * np.linalg.norm(matrix)


@pytest.mark.parametrize("engine", ENGINES)
def test_zero_rows_and_columns_leave_no_nan(engine):
    matrix = np.zeros((6, 5), dtype=np.float32)
    matrix[1, 2] = 1
    for case in (matrix, np.zeros_like(matrix)):
        for factor in ENGINES[engine](case, 2, 10, np.random.default_rng(0)):
            assert np.isfinite(factor).all()


def test_nimfa_runs_without_touching_numpy():
    before = {name: id(value) for name, value in vars(np).items()}
    ENGINES["nimfa"](np.ones((4, 4), dtype=np.float32), 1, 2, np.random.default_rng(0))
    assert not hasattr(np, "mat")
    assert {name: id(value) for name, value in vars(np).items()} == before


def test_missing_nimfa_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "nimfa", None)
    with pytest.raises(MissingToolError, match=r"pip install 'lrbi\[nimfa\]'"):
        ENGINES["nimfa"](np.ones((4, 4), dtype=np.float32), 1, 2, np.random.default_rng(0))


def test_equalized_peaks_keep_the_product():
    rng = np.random.default_rng(2)
    left = (rng.random((7, 4)) * [1, 100, 0, 1e-4]).astype(np.float32)
    right = rng.random((4, 9)).astype(np.float32)
    new_left, new_right = equalize_peaks(left, right)
    np.testing.assert_allclose(new_left @ new_right, left @ right, rtol=1e-5)
    alive = [0, 1, 3]
    np.testing.assert_allclose(new_left.max(axis=0)[alive], new_right.max(axis=1)[alive], rtol=1e-6)
