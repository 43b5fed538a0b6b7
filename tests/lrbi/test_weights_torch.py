"""PyTorch checkpoints; run by ``make test-torch``."""

import os
import pickle
from collections import OrderedDict

import numpy as np
import pytest

from lrbi.errors import InputError
from lrbi.weights import TensorInfo, open_weights

pytestmark = pytest.mark.torch


@pytest.fixture
def torch():
    import torch

    return torch


def test_state_dict(torch, tmp_path):
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Linear(6, 5))
    torch.save(model.state_dict(), tmp_path / "model.pt")
    file = open_weights(tmp_path / "model.pt")
    assert file.tensors()[0] == TensorInfo("0.weight", (4, 3, 3, 3), "float32")
    assert [info.name for info in file.tensors()] == ["0.weight", "0.bias", "1.weight", "1.bias"]
    np.testing.assert_array_equal(file.read("1.weight"), model[1].weight.detach().numpy())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_types(torch, tmp_path, dtype):
    values = torch.arange(12.0).reshape(3, 4).to(getattr(torch, dtype))
    torch.save({"w": torch.nn.Parameter(values)}, tmp_path / "w.pth")
    file = open_weights(tmp_path / "w.pth")
    assert file.tensors() == [TensorInfo("w", (3, 4), dtype)]
    np.testing.assert_array_equal(file.read("w"), np.arange(12.0).reshape(3, 4))


def test_wrapped_state_dict_keeps_its_own_names(torch, tmp_path):
    state = OrderedDict([("module.w", torch.ones(2, 3))])
    torch.save({"epoch": 7, "state_dict": state}, tmp_path / "w.th")
    assert [info.name for info in open_weights(tmp_path / "w.th").tensors()] == ["module.w"]


def test_several_state_dicts_are_told_apart(torch, tmp_path):
    state = {"w": torch.ones(2, 3)}
    torch.save({"model": state, "ema": state}, tmp_path / "w.ckpt")
    names = [info.name for info in open_weights(tmp_path / "w.ckpt").tensors()]
    assert names == ["model.w", "ema.w"]


@pytest.mark.parametrize("new", [True, False], ids=["zip", "legacy"])
def test_a_pickle_that_needs_more_is_refused_and_never_run(torch, tmp_path, new):
    class Trap:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "ran"),))

    torch.save({"w": Trap()}, tmp_path / "trap.pt", _use_new_zipfile_serialization=new)
    message = r"or loading it could run code \(save the model's state_dict\(\) instead\)$"
    with pytest.raises(InputError, match=message):
        open_weights(tmp_path / "trap.pt")
    (tmp_path / "bare.pt").write_bytes(pickle.dumps(Trap(), protocol=2))
    with pytest.raises(InputError, match=message):
        open_weights(tmp_path / "bare.pt")
    assert not (tmp_path / "ran").exists()


def test_whole_module_is_refused(torch, tmp_path):
    torch.save(torch.nn.Linear(2, 2), tmp_path / "module.pt")
    with pytest.raises(InputError, match="or loading it could run code"):
        open_weights(tmp_path / "module.pt")


@pytest.mark.parametrize("content", [b"", b"hello", b"PK\3\4", bytes(50)])
def test_file_that_is_no_checkpoint(torch, tmp_path, content):
    (tmp_path / "bad.pt").write_bytes(content)
    with pytest.raises(InputError, match=r"^Weight file .*bad.pt must be a ") as refusal:
        open_weights(tmp_path / "bad.pt")
    assert "\n" not in str(refusal.value)


def test_checkpoint_without_tensors(torch, tmp_path):
    torch.save({"epoch": 3}, tmp_path / "empty.pt")
    with pytest.raises(InputError, match="must be a checkpoint with tensors, but has none"):
        open_weights(tmp_path / "empty.pt")


def test_compress_a_checkpoint(torch, tmp_path, command):
    torch.manual_seed(0)
    torch.save(torch.nn.Linear(40, 30).state_dict(), tmp_path / "fc.pt")
    outcome = command("compress", "fc.pt", "--layer", "weight", "-s", 0.8, "-k", 4, "-o", "fc.lrbi")
    assert outcome.code == 0, outcome.err
