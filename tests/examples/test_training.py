"""What the examples share; run by ``make test-torch``."""

import itertools
import json

import pytest

from lrbi.errors import InputError

pytestmark = pytest.mark.torch


@pytest.fixture
def torch():
    import torch

    torch.manual_seed(0)
    return torch


def test_each_pass_is_shuffled_anew(torch):
    from training import batches

    images, labels = torch.arange(64), torch.arange(64) + 100
    endless = batches(images, labels, 8, torch.Generator().manual_seed(0))
    passes = []
    for _ in range(3):
        some = [next(endless) for _ in range(8)]
        assert all(torch.equal(chosen + 100, truth) for chosen, truth in some)
        passes.append(torch.cat([chosen for chosen, _ in some]))
    for order in passes:
        assert torch.equal(order.sort().values, images)
        assert sum(torch.equal(order, other) for other in passes) == 1
        assert not torch.equal(order, images)


def test_batches_larger_than_the_set(torch):
    from training import batches

    with pytest.raises(InputError) as error:
        next(batches(torch.zeros(3), torch.zeros(3), 4, torch.Generator()))
    assert str(error.value) == "Batch must be at most the 3 images there are, not 4"


def test_each_iteration_has_its_rate(torch):
    """Weights move where the rate is not zero, and in no other iteration."""
    from training import train

    model = torch.nn.Linear(4, 3)
    seen = []

    def change(images):
        seen.append(model.weight.detach().clone())
        return images

    data = iter([(torch.rand(5, 4), torch.arange(5) % 3)] * 9)
    rates = {5: 0.0, 6: 0.1, 7: 0.0, 8: 0.2, 9: 0.0}
    train(model, data, rates, rates.__getitem__, change=change)
    moved = [not torch.equal(old, new) for old, new in itertools.pairwise(seen)]
    assert moved == [False, True, False, True]
    assert torch.equal(model.weight, seen[-1])


def test_models_are_trained_in_train_and_judged_in_eval(torch):
    from training import accuracy, train

    modes = []

    class Model(torch.nn.Linear):
        def forward(self, images):
            modes.append(self.training)
            return super().forward(images)

    model = Model(4, 3).eval()
    images, labels = torch.rand(6, 4), torch.arange(6) % 3
    train(model, iter([(images, labels)] * 2), range(2), lambda _: 0.1)
    assert modes == [True, True]
    modes.clear()
    accuracy(model, images, labels)
    assert modes == [False]
    train(model, iter([(images, labels)]), range(1), lambda _: 0.1)
    assert modes == [False, True]


def test_accuracy(torch):
    from training import accuracy

    labels = torch.arange(1200) % 4
    scores = torch.nn.functional.one_hot(labels, 4).float()
    scores[::8] = scores[::8].roll(1, 1)
    assert accuracy(torch.nn.Identity(), scores, labels) == 87.5


def test_digests_tell_values_and_shapes(torch):
    from training import digest

    one = torch.arange(6).reshape(2, 3)
    assert len(digest(one)) == 8
    assert digest(one, one) == digest(one.clone(), one.t().contiguous().t())
    others = {digest(*some) for some in ((one,), (one, one), (one + 1,), (one.reshape(3, 2),))}
    assert len(others) == 4


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ("file", "[Errno 17] File exists: "),
        ("/proc/none", "[Errno 2] No such file or directory: "),
        ("/proc", "Output /proc/fail.json cannot be written: "),
    ],
)
def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch, runs, message):
    from training import Runs

    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises((InputError, OSError)) as error:
        Runs(tmp_path / runs).all({"fail": (fail, ())}, 1)
    assert str(error.value).startswith(message)


def fail():
    raise AssertionError("nothing is to be run")


def test_what_was_run_is_not_run_again(tmp_path):
    from training import Runs

    (tmp_path / "done.json").write_text(json.dumps({"a": 1}))
    assert Runs(tmp_path).all({"done": (fail, ())}, 1) == {"done": {"a": 1}}
