"""Low-rank masks on PyTorch models: prune, go on training with the masks held, save the factors.

The masks are applied by :mod:`torch.nn.utils.prune`: a pruned parameter ``NAME`` becomes
``NAME_orig`` times the buffer ``NAME_mask`` before each forward pass, so that the optimizer, the
checkpoints and the training loop stay what they are, and ``torch.nn.utils.prune.remove`` makes the
zeros permanent.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np

from lrbi.config import CompressConfig
from lrbi.errors import InputError, MissingToolError
from lrbi.factorfile import save as save_factors
from lrbi.layer import CompressedLayer
from lrbi.pipeline import LayerSource, OnTile, compress_layers
from lrbi.weights import FLOAT_TYPES, as_matrix, matching

try:
    import torch
    from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
    from torch.nn.parameter import UninitializedParameter as Uninitialized
    from torch.nn.utils import prune as torch_prune
    from torch.nn.utils.parametrize import ParametrizationList
except ImportError as error:
    raise MissingToolError("lrbi.torch needs PyTorch (pip install 'lrbi[torch]')") from error

Reshape = Callable[[tuple[int, ...]], tuple[int, int]]
"""The rows and columns in which a parameter of this shape is to be compressed."""


def prune(
    model: torch.nn.Module,
    layers: Mapping[str, CompressConfig],
    *,
    reshape: Reshape | None = None,
    save: str | os.PathLike[str] | None = None,
    executor: Executor | None = None,
    on_tile: OnTile | None = None,
) -> dict[str, CompressedLayer]:
    """Prune parameters of ``model`` by low-rank masks, in place; the factors, by parameter.

    ``layers`` says how to compress what: by the name of a parameter (``"lstm.weight_hh_l0"``), of
    a module, whose weights are meant (``"fc1"`` is ``"fc1.weight"``), or a glob of either. Each
    parameter takes the configuration of the first name that means it. Weights of Linear, Conv,
    recurrent and Embedding modules can be pruned, and any other parameter of two or more
    dimensions of a module that is called; a convolution's (out, in, kh, kw) is taken as
    (out, in*kh*kw) unless ``reshape`` says otherwise.

    ``save`` is a factor file to write, ``NAME.lrbi``, with a layer for each parameter. All masks
    are found, and the file is written, before the first is applied: what fails changes nothing.

    Call it again, with a higher sparsity say, for a gradual schedule: a mask replaces the one
    before it. Weights that were pruned count as zero then, and start again from zero where the
    new mask keeps them.
    """
    places = _places(model, layers)
    sources = (
        LayerSource(
            name=name,
            config=config,
            weights=lambda place=place: as_matrix(  # type: ignore[misc]
                place.weights(), reshape=reshape(place.shape) if reshape else None
            ),
            source_shape=place.shape,
        )
        for name, (place, config) in places.items()
    )
    found = dict(compress_layers(sources, executor=executor, on_tile=on_tile))
    pruned = {name: found[name] for name in places}
    if save is not None:
        save_factors(save, pruned)
    apply(model, pruned)
    return pruned


def apply(model: torch.nn.Module, layers: Mapping[str, CompressedLayer]) -> None:
    """Put the masks of compressed layers on ``model``'s parameters of the same names, in place.

    ``layers`` are those of :func:`prune`, or of a factor file, ``lrbi.load("model.lrbi")``. A mask
    that a parameter has already is replaced, as by :func:`prune`.
    """
    places = {name: _place(model, name) for name in layers}
    for name, place in places.items():
        if place.shape != layers[name].source_shape:
            raise InputError(
                f"Layer {name} must have the parameter's shape {place.shape}, "
                f"not {layers[name].source_shape}"
            )
    for name, place in places.items():
        place.hold(layers[name])


@dataclass(frozen=True)
class _Place:
    """A parameter where it stands in the model."""

    module: torch.nn.Module
    """The module that holds it."""
    attribute: str
    """Its name there, without torch's ``_orig``."""

    @property
    def pruned(self) -> bool:
        """Whether torch holds a mask on it."""
        return f"{self.attribute}_mask" in self.module._buffers

    @property
    def parameter(self) -> torch.nn.Parameter:
        """The parameter that the optimizer knows."""
        name = f"{self.attribute}_orig" if self.pruned else self.attribute
        parameter = self.module._parameters[name]
        assert parameter is not None
        return parameter

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return tuple(self.parameter.shape)

    def weights(self) -> np.ndarray:
        """Its values, zeros where a mask holds them; in float32 if in less."""
        values = self.parameter.detach()
        if self.pruned:
            values = values * self.module.get_buffer(f"{self.attribute}_mask")
        wide = torch.promote_types(values.dtype, torch.float32)
        weights: np.ndarray = values.to("cpu", wide).numpy()
        return weights

    def hold(self, layer: CompressedLayer) -> None:
        """Hold the layer's mask on it from now on, and no other."""
        if self.pruned:
            torch_prune.remove(self.module, self.attribute)
        mask = torch.from_numpy(np.ascontiguousarray(layer.source_mask()))
        like = self.parameter
        torch_prune.custom_from_mask(self.module, self.attribute, mask.to(like.device, like.dtype))


def _places(
    model: torch.nn.Module, layers: Mapping[str, CompressConfig]
) -> dict[str, tuple[_Place, CompressConfig]]:
    """The parameters that names and globs mean, in the model's order."""
    parameters = _names(model)
    modules: dict[str, list[str]] = {}
    for name, is_matrix in parameters.items():
        if is_matrix:
            modules.setdefault(name.rpartition(".")[0], []).append(name)
    known = [*parameters, *(module for module in modules if module)]
    chosen: dict[str, CompressConfig] = {}
    for pattern, config in layers.items():
        if not isinstance(config, CompressConfig):
            raise InputError(
                f"Layer {pattern!r} must be given a CompressConfig, not {type(config).__name__}"
            )
        globbed = [name for name in known if name in modules or parameters.get(name)]
        for found in matching(pattern, known, globbed):
            for name in modules.get(found, [found]):
                chosen.setdefault(name, config)
    if not chosen:
        raise InputError("At least one layer must be named, not none")
    return {name: (_place(model, name), chosen[name]) for name in parameters if name in chosen}


def _names(model: torch.nn.Module) -> dict[str, bool]:
    """The model's parameters, by their names before any pruning: whether each is a matrix."""
    masks = {name for name, _ in model.named_buffers()}

    def plain(name: str) -> str:
        pruned = name.removesuffix("_orig")
        return pruned if pruned + "_mask" in masks else name

    return {
        plain(name): isinstance(parameter, Uninitialized) or parameter.dim() >= 2
        for name, parameter in model.named_parameters()
    }


def _place(model: torch.nn.Module, name: str) -> _Place:
    """Where a parameter stands; refuses what torch could not hold a mask on."""
    path, _, attribute = name.rpartition(".")
    # Not by get_submodule, which ScriptModules refuse.
    modules = dict(model.named_modules(remove_duplicate=False))
    if isinstance(modules.get(path), torch.jit.ScriptModule):
        raise InputError(
            f"Layer {name} must be of a Python module, not of a ScriptModule "
            "(prune the model that it was made from)"
        )
    try:
        place = _Place(modules[path], attribute)
        parameter = place.parameter
    except (AttributeError, KeyError, AssertionError) as error:
        raise InputError(
            f"Layer {name} must be a parameter of the model (model.named_parameters() lists them)"
        ) from error
    _check_values(name, parameter)
    if any(parameter is part for part in _parametrized(model)):
        raise InputError(
            f"Layer {name} must be a weight itself, not what a parametrization makes one of "
            "(torch.nn.utils.parametrize.remove_parametrizations makes it a weight again)"
        )
    uncalled = _uncalled(place.module)
    if uncalled:
        raise InputError(
            f"Layer {name} must be of a module that is called, not of {uncalled} "
            "(torch holds masks in calls only; name the layers that are meant, but not this)"
        )
    users = [*_users(model, parameter)]
    if len(users) > 1:
        raise InputError(
            f"Layer {name} must not share its weights, but {' and '.join(users)} are one "
            "(torch would hold the mask on one of them only)"
        )
    return place


def _check_values(name: str, parameter: torch.nn.Parameter) -> None:
    """Refuse a parameter that is no matrix, or none with values that torch can multiply."""
    if isinstance(parameter, Uninitialized):
        raise InputError(f"Layer {name} must have its weights (run the model once before)")
    kind = str(parameter.dtype).removeprefix("torch.")
    if parameter.dim() < 2 or not parameter.is_floating_point():
        raise InputError(
            f"Layer {name} must be floating-point of at least 2 dimensions, not "
            f"{kind} of shape {tuple(parameter.shape)}"
        )
    if kind not in FLOAT_TYPES:
        raise InputError(
            f"Layer {name} must be one of {', '.join(FLOAT_TYPES)}, not {kind} "
            "(torch cannot multiply it by a mask; prune before it is converted)"
        )
    if parameter.is_meta:
        raise InputError(
            f"Layer {name} must have its weights, not be on the meta device (load them before)"
        )


def _parametrized(model: torch.nn.Module) -> Iterator[torch.nn.Parameter]:
    for module in model.modules():
        if isinstance(module, ParametrizationList):
            yield from module.parameters()


def _uncalled(module: torch.nn.Module) -> str | None:
    """What a module is whose weights others take without calling it; None if it is called."""
    if isinstance(module, NonDynamicallyQuantizableLinear):
        return "MultiheadAttention's out_proj"
    if getattr(module.forward, "__func__", None) is torch.nn.Module.forward:  # it has none
        return f"a {type(module).__name__}"
    return None


def _users(model: torch.nn.Module, parameter: torch.nn.Parameter) -> Iterator[str]:
    for name, other in model.named_parameters(remove_duplicate=False):
        if other is parameter:
            yield name
