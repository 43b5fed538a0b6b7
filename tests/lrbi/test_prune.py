import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lrbi.errors import InputError
from lrbi.prune import check_weights, exact_mask, magnitude_mask


def by_sorting(weights, zeros):
    """The definition: a stable sort prunes the earlier of equals first."""
    mask = np.ones(weights.size, dtype=bool)
    mask[np.argsort(np.abs(weights), axis=None, kind="stable")[:zeros]] = False
    return mask.reshape(weights.shape)


@given(
    st.sampled_from([np.float16, np.float32, np.float64, ">f4", ">f8"]),
    st.tuples(st.integers(1, 30), st.integers(1, 30)),
    st.floats(0, 1),
    st.sampled_from([1, 3, 10**6]),
    st.integers(0, 2**32 - 1),
)
def test_mask_is_that_of_a_stable_sort(dtype, shape, share, levels, seed):
    # Few levels make many ties; a single one makes a constant matrix.
    values = np.random.default_rng(seed).integers(-levels, levels, shape) / (7 * levels)
    weights = values.astype(dtype)
    zeros = round(share * weights.size)
    mask = magnitude_mask(weights, zeros)
    np.testing.assert_array_equal(mask, by_sorting(weights, zeros))
    np.testing.assert_array_equal(magnitude_mask(weights.T, zeros), by_sorting(weights.T, zeros))


def test_selection_spans_all_magnitudes_and_blocks(monkeypatch):
    monkeypatch.setattr("lrbi.prune._BLOCK", 100)
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((200, 50)) * 10.0 ** rng.integers(-300, 300, (200, 50))
    weights[:20] = 5e-324  # denormal, and a tie across blocks
    for zeros in (0, 1, 500, 1000, 9999, 10000):
        np.testing.assert_array_equal(magnitude_mask(weights, zeros), by_sorting(weights, zeros))


def test_zero_and_minus_zero_are_equal():
    assert magnitude_mask(np.array([[0.0, -0.0, 0.0, 1.0]]), 2).tolist() == [[0, 0, 1, 1]]


@pytest.mark.parametrize("sparsity", [0.0, 1.0, -0.1, 1.5, float("nan")])
def test_wrong_sparsity(sparsity):
    message = f"^Sparsity must be between 0 and 1, both excluded, not {sparsity}$"
    with pytest.raises(InputError, match=message):
        exact_mask(np.ones((2, 2)), sparsity)


def test_zeros_are_rounded():
    weights = np.arange(9.0).reshape(3, 3)
    assert np.count_nonzero(~exact_mask(weights, 0.5)) == round(4.5)
    assert np.count_nonzero(~exact_mask(weights, 0.99)) == 9


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (np.ones(3), "Weights must have 2 dimensions, not 1"),
        (np.ones((2, 0)), r"Weights must not be empty, but their shape is \(2, 0\)"),
        (np.ones((2, 2), dtype=int), "Weights must be float16, float32 or float64, not int64"),
        (np.array([[1, np.nan]]), "Weights must be finite, but row 0, column 1 is nan"),
        (np.array([[1.0], [-np.inf]]), "Weights must be finite, but row 1, column 0 is -inf"),
    ],
)
def test_wrong_weights(bad, message):
    with pytest.raises(InputError, match=f"^{message}"):
        exact_mask(bad, 0.5)
    with pytest.raises(InputError, match=f"^{message}"):
        check_weights(bad)
