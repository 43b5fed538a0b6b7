"""Files that appear whole or not at all."""

import contextlib
import secrets
from collections.abc import Iterator
from pathlib import Path

from lrbi.errors import InputError


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside ``path`` to write to; moved into place if nothing goes wrong."""
    check_output(path)
    target = path.resolve()  # of a link, what it points to
    temporary = target.with_name(f".lrbi-{secrets.token_hex(4)}{target.suffix}")
    try:
        temporary.open("xb").close()
        yield temporary
        temporary.replace(target)
    except OSError as error:
        raise unwritable(path, error) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def check_output(path: Path, *inputs: Path | None) -> None:
    """Refuse an output that is no place for a file, or that is one of the inputs."""
    try:
        if path.is_dir():
            raise InputError(f"Output {path} must be a file, but is a folder")
        if path.exists() and not path.is_file():
            raise InputError(f"Output {path} must be a regular file, but is a device or a pipe")
        for given in inputs:
            if given and path.exists() and given.exists() and path.samefile(given):
                raise InputError(f"Output {path} must not be the input {given}")
    except OSError as error:
        raise unwritable(path, error) from error


def check_writable(path: Path) -> None:
    """Refuse an output that cannot be written, before the work that would be lost."""
    with contextlib.suppress(_Unused), replacing(path):
        raise _Unused


class _Unused(Exception):  # noqa: N818
    """Leaves :func:`replacing` without replacing anything."""


def unwritable(path: Path, error: OSError) -> InputError:
    """The refusal for an output that the system would not let us write."""
    return InputError(f"Output {path} cannot be written: {error.strerror or error}")
