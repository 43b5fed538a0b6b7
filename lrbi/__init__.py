"""lrbi: pruning masks as low-rank binary indices, from weights to factors to hardware."""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from lrbi.config import CompressConfig, DecoderConfig
    from lrbi.errors import CheckFailedError, InputError, LrbiError, MissingToolError
    from lrbi.factorfile import load, save
    from lrbi.layer import CompressedLayer
    from lrbi.pipeline import LayerSource, compress, compress_layers
    from lrbi.product import boolean_product
    from lrbi.prune import exact_mask
    from lrbi.romset import export_roms, import_roms, read_roms

__all__ = [
    "CheckFailedError",
    "CompressConfig",
    "CompressedLayer",
    "DecoderConfig",
    "InputError",
    "LayerSource",
    "LrbiError",
    "MissingToolError",
    "boolean_product",
    "compress",
    "compress_layers",
    "exact_mask",
    "export_roms",
    "import_roms",
    "load",
    "read_roms",
    "save",
]

# Loaded when first asked for: the command's --help must not wait for NumPy.
_HOME = {
    "CheckFailedError": "errors",
    "CompressConfig": "config",
    "CompressedLayer": "layer",
    "DecoderConfig": "config",
    "InputError": "errors",
    "LayerSource": "pipeline",
    "LrbiError": "errors",
    "MissingToolError": "errors",
    "boolean_product": "product",
    "compress": "pipeline",
    "compress_layers": "pipeline",
    "exact_mask": "prune",
    "export_roms": "romset",
    "import_roms": "romset",
    "load": "factorfile",
    "read_roms": "romset",
    "save": "factorfile",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'lrbi' has no attribute {name!r}")
    return getattr(importlib.import_module(f"lrbi.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
