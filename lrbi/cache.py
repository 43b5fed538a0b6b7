"""Where results that took long to make are kept between runs."""

import os
from pathlib import Path

from lrbi.errors import InputError


def cache_folder() -> Path:
    """LRBI_CACHE_DIR, or lrbi in the user's folder for caches."""
    named = os.environ.get("LRBI_CACHE_DIR")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lrbi"


def unusable_cache(folder: Path, error: OSError) -> InputError:
    """The refusal for a cache that the system would not let us write."""
    return InputError(
        f"Cache {folder} cannot be written: {error.strerror} (LRBI_CACHE_DIR names another)"
    )
