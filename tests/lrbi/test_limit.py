import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lrbi.errors import InputError
from lrbi.limit import entropy, gaussian_gains, kept_limit


def test_entropy():
    assert entropy(0.5) == 1
    assert entropy(0.0) == entropy(1.0) == 0
    assert entropy(0.95) == pytest.approx(0.286397, abs=1e-6)
    assert entropy(0.91) == pytest.approx(entropy(0.09)) == pytest.approx(0.436470, abs=1e-6)


@pytest.mark.parametrize(
    ("sparsity", "shape", "rank", "kept"),
    [
        (0.95, (800, 500), 4, 0.219),
        (0.95, (800, 500), 8, 0.305),
        (0.95, (800, 500), 16, 0.436),
        (0.95, (800, 500), 32, 0.629),
        (0.95, (800, 500), 64, 0.887),
        (0.91, (576, 512), 32, 0.584),
        (0.91, (576, 512), 64, 0.799),
    ],
)
def test_gaussian_limit(sparsity, shape, rank, kept):
    """Figures that were computed apart from this code."""
    rate = rank * sum(shape) / (shape[0] * shape[1])
    assert kept_limit(sparsity, rate) == pytest.approx(kept, abs=5e-4)


def test_ends():
    assert kept_limit(0.9, 0.0) == pytest.approx(0.1, abs=1e-6)  # a random mask
    assert kept_limit(0.9, entropy(0.9)) == 1.0
    assert kept_limit(0.9, 0.9999 * entropy(0.9)) == pytest.approx(1.0, abs=1e-3)


@given(st.floats(0.05, 0.95), st.floats(0.01, 0.99))
def test_more_bits_keep_more(sparsity, share):
    rate = share * entropy(sparsity)
    low, high = kept_limit(sparsity, 0.9 * rate), kept_limit(sparsity, rate)
    assert 1 - sparsity - 1e-6 <= low < high <= 1


def test_equal_gains_have_a_closed_form():
    """If all kept weights are alike, kept q solves H(d) - d H(q) - s H(d(1-q)/s) = rate."""
    sparsity, kept = 0.8, 0.6
    density = 1 - sparsity
    stray = density * (1 - kept) / sparsity
    rate = entropy(density) - density * entropy(kept) - sparsity * entropy(stray)
    assert kept_limit(sparsity, rate, np.full(10, 7.0)) == pytest.approx(kept, abs=1e-6)


def test_gains_of_zero_are_as_good_as_pruned():
    """Half of the mask gains nothing: less is told to keep the rest, and all of it can be."""
    sparsity = 0.8
    gains = np.repeat([0.0, 1.0], 50)
    rest = 0.9
    most = entropy(0.2) - rest * entropy(0.1 / rest)
    assert kept_limit(sparsity, most, gains) == 1
    assert kept_limit(sparsity, 0.99 * most, gains) == pytest.approx(1, abs=0.02)
    assert kept_limit(sparsity, 0.5 * most, gains) < 0.9
    assert kept_limit(sparsity, 0.01, np.zeros(5)) == 1
    assert kept_limit(sparsity, 0.01, np.empty(0)) == 1


def test_the_largest_of_many_gains_count():
    """A weight that outweighs all others is kept for next to nothing."""
    gains = np.r_[np.ones(20_000), 1e9]
    assert kept_limit(0.95, 0.001, gains) > 0.99


def test_bins_tell_nearly_the_same_as_all_gains(monkeypatch):
    gains = np.random.default_rng(0).lognormal(0, 2, 20_000)
    binned = kept_limit(0.95, 0.05, gains)
    monkeypatch.setattr("lrbi.limit._POINTS", 20_000)
    exact = kept_limit(0.95, 0.05, gains)
    assert exact - 1e-4 < binned <= exact + 1e-9


def test_gaussian_gains_are_what_is_left_of_gaussian_weights():
    gains = gaussian_gains(0.95)
    assert gains.min() == pytest.approx(1.960, abs=1e-3)
    drawn = np.sort(np.abs(np.random.default_rng(0).standard_normal(1_000_000)))[950_000:]
    mean = np.sqrt(2 / np.pi) * np.exp(-(1.959964**2) / 2) / 0.05  # of what exceeds 1.96
    assert gains.mean() == pytest.approx(mean, rel=1e-4)
    assert kept_limit(0.95, 0.1, drawn) == pytest.approx(kept_limit(0.95, 0.1), abs=2e-3)


def test_refusals():
    with pytest.raises(InputError) as error:
        kept_limit(1.0, 0.1)
    assert str(error.value) == "Sparsity must be between 0 and 1, both excluded, not 1.0"
    with pytest.raises(InputError) as error:
        kept_limit(0.5, float("nan"))
    assert str(error.value) == "Rate must be a number of bits of at least 0, not nan"
