"""Low-rank masks on PyTorch models; run by ``make test-torch``."""

import copy

import numpy as np
import pytest

import lrbi
from lrbi.errors import InputError

pytestmark = pytest.mark.torch


@pytest.fixture
def torch():
    import torch

    torch.manual_seed(0)
    return torch


def config(sparsity=0.75, rank=3, **options):
    return lrbi.CompressConfig(sparsity=sparsity, rank=rank, **options)


@pytest.fixture
def model(torch):
    """All kinds of modules whose weights can be pruned, one behind the other."""

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = torch.nn.Embedding(30, 12)
            self.conv = torch.nn.Conv2d(4, 6, 3, padding=1)
            self.lstm = torch.nn.LSTM(6, 10, num_layers=2, batch_first=True)
            self.head = torch.nn.Linear(10, 30)

        def forward(self, words):
            maps = self.conv(self.embed(words).reshape(len(words), 4, -1, 6))
            steps, _ = self.lstm(maps.permute(0, 2, 3, 1).flatten(1, 2))
            return self.head(steps[:, -1])

    return Model()


NAMES = ["embed.weight", "conv.weight", "lstm.weight_ih_l0", "lstm.weight_hh_l0",
         "lstm.weight_ih_l1", "lstm.weight_hh_l1", "head.weight"]  # fmt: skip


def effective(model, name):
    """The weights that the modules compute with."""
    path, _, attribute = name.rpartition(".")
    return getattr(model.get_submodule(path), attribute).detach().numpy()


def steps(torch, model, optimizer, count=4):
    for seed in range(count):
        words = torch.randint(30, (5, 8), generator=torch.Generator().manual_seed(seed))
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(words), words[:, 0]).backward()
        optimizer.step()
    model(words)


def sgd(torch, model):
    return torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-3)


def test_masks_are_held_while_training_goes_on(torch, model, tmp_path):
    from lrbi.torch import prune

    optimizer = sgd(torch, model)
    before = {name: effective(model, name).copy() for name in NAMES}
    layers = prune(model, {"*": config()}, save=tmp_path / "model.lrbi")
    assert [*layers] == NAMES
    assert lrbi.load(tmp_path / "model.lrbi") == layers
    for name, layer in layers.items():
        matrix = before[name].reshape(before[name].shape[0], -1)
        assert layer == lrbi.compress(before[name], config()), name
        assert layer.shape == matrix.shape
        expected = np.where(layer.source_mask(), before[name], 0)
        np.testing.assert_array_equal(effective(model, name), expected)
    steps(torch, model, optimizer)
    for name, layer in layers.items():
        after = effective(model, name)
        assert not after[~layer.source_mask()].any(), name
        assert (after != before[name])[layer.source_mask()].mean() > 0.2, name
    # What the LSTM computes with are the masked weights.
    flat = [weight.detach().numpy() for weight in model.lstm._flat_weights]
    assert sum(not values.all() for values in flat) == 4


def test_a_gradual_schedule_replaces_masks(torch, model):
    from lrbi.torch import prune

    optimizer = sgd(torch, model)
    plain = set(dict(model.named_parameters()))
    for sparsity in (0.3, 0.6, 0.85):
        before = {name: effective(model, name).copy() for name in NAMES}
        layers = prune(model, {"*": config(sparsity, 4)})
        for name, layer in layers.items():
            # Weights that were pruned count as zero.
            assert layer == lrbi.compress(before[name], config(sparsity, 4)), name
            # The mask is the low-rank one itself, not what it has in common with the last.
            mask = dict(model.named_buffers())[f"{name}_mask"].numpy()
            np.testing.assert_array_equal(mask, layer.source_mask())
            np.testing.assert_array_equal(effective(model, name), before[name] * mask)
            assert layer.sparsity == pytest.approx(sparsity, abs=0.02)
        steps(torch, model, optimizer, 2)
    from torch.nn.utils import prune as torch_prune

    for name in NAMES:
        path, _, attribute = name.rpartition(".")
        torch_prune.remove(model.get_submodule(path), attribute)
        assert not effective(model, name)[~layers[name].source_mask()].any()
    assert set(dict(model.named_parameters())) == plain


def test_state_goes_into_checkpoints_and_back(torch, model, tmp_path):
    from lrbi.torch import apply, prune

    prune(model, {"head": config(), "lstm.weight_hh_l0": config()}, save=tmp_path / "m.lrbi")
    words = torch.arange(40).reshape(5, 8) % 30
    expected = model(words)
    fresh = type(model)()
    apply(fresh, lrbi.load(tmp_path / "m.lrbi"))
    fresh.load_state_dict(model.state_dict())
    torch.testing.assert_close(fresh(words), expected)


def test_names(torch, model):
    from lrbi.torch import prune

    layers = prune(model, {"lstm.*hh*": config(rank=2), "lstm": config(rank=3), "head": config()})
    assert {name: layer.rank for name, layer in layers.items()} == {
        "lstm.weight_ih_l0": 3, "lstm.weight_hh_l0": 2, "lstm.weight_ih_l1": 3,
        "lstm.weight_hh_l1": 2, "head.weight": 3,
    }  # fmt: skip
    # The names stay what they were, pruned or not.
    assert [*prune(model, {"lstm.weight_hh_l0": config(0.9)})] == ["lstm.weight_hh_l0"]
    single = torch.nn.Linear(9, 9)
    assert [*prune(single, {"weight": config()})] == ["weight"]


def test_reshape_and_progress(torch, model):
    from lrbi.torch import prune

    seen = []
    layers = prune(
        model,
        {"conv": config(tile=(9, 6))},
        reshape=lambda shape: (3 * shape[0], 3 * shape[1]),
        on_tile=lambda *each: seen.append(each),
    )
    layer = layers["conv.weight"]
    assert (layer.shape, layer.source_shape) == ((18, 12), (6, 4, 3, 3))
    assert seen == [("conv.weight", done, 4) for done in range(1, 5)]
    assert not effective(model, "conv.weight")[~layer.source_mask()].any()


@pytest.mark.parametrize("kind", ["bfloat16", "float16", "float64"])
def test_types(torch, kind):
    from lrbi.torch import prune

    module = torch.nn.Linear(12, 9).to(getattr(torch, kind))
    layer = prune(module, {"weight": config()})["weight"]
    assert module.weight_mask.dtype == module.weight.dtype == getattr(torch, kind)
    assert (module.weight == 0).sum() == (~layer.mask()).sum()


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ({}, "At least one layer must be named, not none"),
        ({"none": config()}, "No layer matches 'none' (there are embed.weight, conv.weight, "),
        ({"head": 0.9}, "Layer 'head' must be given a CompressConfig, not float"),
        (
            {"conv.bias": config()},
            "Layer conv.bias must be floating-point of at least 2 dimensions, not float32 of "
            "shape (6,)",
        ),
        (
            {"head": lrbi.CompressConfig(rank=2)},
            "Layer head.weight: Either a sparsity or a mask must be given, not both or neither",
        ),
    ],
)
def test_refusals_change_nothing(model, layers, message):
    from lrbi.torch import prune

    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(InputError) as error:
        prune(model, layers)
    assert str(error.value).startswith(message)
    after = model.state_dict()
    assert all((after[name] == value).all() for name, value in before.items())
    assert [*after] == [*before]


def test_a_file_that_cannot_be_written_changes_nothing(model, tmp_path):
    from lrbi.torch import prune

    before = [*model.state_dict()]
    with pytest.raises(InputError, match="^Output .*model.lrbi cannot be written: No such file"):
        prune(model, {"head": config()}, save=tmp_path / "none" / "model.lrbi")
    assert [*model.state_dict()] == before


def test_attention(torch):
    from lrbi.torch import prune

    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    with pytest.raises(InputError) as error:
        prune(layer, {"*": config()})
    assert str(error.value) == (
        "Layer self_attn.out_proj.weight must be of a module that is called, not of "
        "MultiheadAttention's out_proj (torch holds masks in calls only; name the layers that are "
        "meant, but not this)"
    )
    pruned = prune(layer, {"self_attn.in_proj_weight": config(), "linear?": config()})
    assert [*pruned] == ["self_attn.in_proj_weight", "linear1.weight", "linear2.weight"]
    words = torch.rand(3, 4, 8)
    for training in (True, False):
        layer.train(training)
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.add_(1)
            layer(words)  # without gradients, eval takes torch's fast path where it can
        for name, found in pruned.items():
            mask = torch.from_numpy(found.source_mask())
            original = dict(layer.named_parameters())[f"{name}_orig"]
            assert torch.equal(torch.tensor(effective(layer, name)), original * mask), name


def test_parameters_of_modules_that_are_not_called(torch):
    from lrbi.torch import prune

    model = torch.nn.Module()
    model.parts = torch.nn.ParameterList([torch.rand(5, 5)])
    with pytest.raises(InputError) as error:
        prune(model, {"parts.0": config()})
    assert str(error.value) == (
        "Layer parts.0 must be of a module that is called, not of a ParameterList (torch holds "
        "masks in calls only; name the layers that are meant, but not this)"
    )


def test_parametrized_weights_are_refused(torch):
    from lrbi.torch import prune

    model = torch.nn.Sequential(torch.nn.utils.parametrizations.orthogonal(torch.nn.Linear(6, 6)))
    for pattern in ("*", "0.parametrizations.weight.original"):
        with pytest.raises(InputError) as error:
            prune(model, {pattern: config()})
        assert str(error.value) == (
            "Layer 0.parametrizations.weight.original must be a weight itself, not what a "
            "parametrization makes one of (torch.nn.utils.parametrize.remove_parametrizations "
            "makes it a weight again)"
        )
    torch.nn.utils.parametrize.remove_parametrizations(model[0], "weight")
    assert [*prune(model, {"*": config()})] == ["0.weight"]


def test_values_that_torch_cannot_mask(torch):
    from lrbi.torch import apply, prune

    layer = prune(torch.nn.Linear(6, 6), {"weight": config()})["weight"]
    for module, message in (
        (
            torch.nn.Linear(6, 6, device="meta"),
            "Layer weight must have its weights, not be on the meta device (load them before)",
        ),
        (
            torch.nn.Linear(6, 6).to(torch.float8_e4m3fn),
            "Layer weight must be one of float16, bfloat16, float32, float64, not float8_e4m3fn "
            "(torch cannot multiply it by a mask; prune before it is converted)",
        ),
    ):
        for refused in (
            lambda module=module: prune(module, {"weight": config()}),
            lambda module=module: apply(module, {"weight": layer}),
        ):
            with pytest.raises(InputError) as error:
                refused()
            assert str(error.value) == message


@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_script_modules_are_refused(torch):
    from lrbi.torch import prune

    script = torch.jit.script(torch.nn.Linear(6, 6))
    for model, name in ((script, "weight"), (torch.nn.Sequential(script), "0.weight")):
        with pytest.raises(InputError) as error:
            prune(model, {"*": config()})
        assert str(error.value) == (
            f"Layer {name} must be of a Python module, not of a ScriptModule "
            "(prune the model that it was made from)"
        )


def test_copies(torch, model):
    """What docs/training.md says of copies."""
    from lrbi.torch import apply, prune

    layers = prune(model, {"head": config()})
    with pytest.raises(RuntimeError, match="deepcopy"):
        copy.deepcopy(model)
    fresh = type(model)()
    with pytest.raises(RuntimeError, match="head.weight_mask"):
        fresh.load_state_dict(model.state_dict())
    apply(fresh, layers)
    fresh.load_state_dict(model.state_dict())
    words = torch.arange(40).reshape(5, 8) % 30
    torch.testing.assert_close(fresh(words), model(words))


def test_shared_weights_are_refused(torch):
    from lrbi.torch import prune

    model = torch.nn.ModuleDict({"embed": torch.nn.Embedding(20, 8), "out": torch.nn.Linear(8, 20)})
    model["out"].weight = model["embed"].weight
    with pytest.raises(InputError) as error:
        prune(model, {"embed": config()})
    assert str(error.value) == (
        "Layer embed.weight must not share its weights, but embed.weight and out.weight are one "
        "(torch would hold the mask on one of them only)"
    )


def test_weights_that_are_not_there_yet_or_not_finite(torch, tmp_path):
    from lrbi.torch import prune

    with pytest.raises(InputError) as error:
        prune(torch.nn.LazyLinear(4), {"weight": config()})
    assert str(error.value) == "Layer weight must have its weights (run the model once before)"
    module = torch.nn.Linear(6, 6)
    with torch.no_grad():
        module.weight[2, 3] = float("nan")
    with pytest.raises(InputError) as error:
        prune(module, {"weight": config()}, save=tmp_path / "m.lrbi")
    assert str(error.value) == "Layer weight: Weights must be finite, but row 2, column 3 is nan"
    assert not [*tmp_path.iterdir()]


def test_masks_of_other_shapes_are_refused(torch):
    from lrbi.torch import apply

    layer = lrbi.compress(np.random.default_rng(0).standard_normal((6, 5)), config())
    with pytest.raises(InputError) as error:
        apply(torch.nn.Linear(6, 5), {"weight": layer})
    assert str(error.value) == "Layer weight must have the parameter's shape (5, 6), not (6, 5)"
    with pytest.raises(InputError) as error:
        apply(torch.nn.Linear(6, 5), {"other": layer})
    assert str(error.value) == (
        "Layer other must be a parameter of the model (model.named_parameters() lists them)"
    )
