"""The command ``lrbi``: its verbs, what they share, and how it ends.

A verb's module reads its options; what the work needs is imported inside the verb, so that
``lrbi --help`` does not wait for it.
"""

import io
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

import click

import lrbi
from lrbi.cli.compare import compare
from lrbi.cli.compress import compress
from lrbi.cli.decode import decode
from lrbi.cli.demo import demo
from lrbi.cli.export import export
from lrbi.cli.generate import generate
from lrbi.cli.import_ import import_
from lrbi.cli.options import printable
from lrbi.cli.show import show
from lrbi.cli.simulate import simulate
from lrbi.cli.synth import synth
from lrbi.errors import CheckFailedError, LrbiError, MissingToolError

INTERRUPTED = 130
EXIT_CODES: tuple[tuple[type[LrbiError], int], ...] = (
    (CheckFailedError, 1),
    (MissingToolError, 3),
    (LrbiError, 2),
)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(lrbi.__version__, prog_name="lrbi", message="%(prog)s %(version)s")
def cli() -> None:
    """Turn pruning masks into low-rank binary indices.

    A mask that says which weights are left is replaced by the Boolean product of two thin binary
    matrices: factors that are small to store and simple to decode.

    \b
    lrbi compress weights.safetensors --layer fc1 --sparsity 0.95 --rank 16 -o fc1.lrbi
    lrbi show fc1.lrbi
    lrbi decode fc1.lrbi -o mask.npy
    lrbi generate fc1.lrbi -o rtl/
    lrbi export fc1.lrbi -o rom/
    lrbi simulate fc1.lrbi
    lrbi synth --rank 16 --tile 64x64 --target ecp5
    lrbi compare weights.safetensors --layer fc1 --sparsity 0.95 --rank 16

    Exit codes: 0 done, 1 a check failed, 2 bad usage or input, 3 a tool is missing,
    130 interrupted.
    """


for verb in (compress, show, decode, export, import_, generate, simulate, synth, compare, demo):
    cli.add_command(verb)


def main(arguments: list[str] | None = None) -> None:
    """Run the command; ends the process with its exit code, unless that is 0."""
    _mend_streams()
    try:
        with _interruptible():
            words = sys.argv[1:] if arguments is None else arguments
            with cli.make_context("lrbi", words) as context:
                cli.invoke(context)
            sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        _end(2, error.format_message())
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx else "lrbi"
        _end(2, f"lrbi: {error.format_message()} ({where} --help tells more)")
    except click.exceptions.Exit as end:
        sys.exit(end.exit_code)
    except KeyboardInterrupt:
        warnings.simplefilter("ignore")  # of what is left unfinished
        _end(INTERRUPTED, "lrbi: interrupted")
    except LrbiError as error:
        code = next(code for family, code in EXIT_CODES if isinstance(error, family))
        _end(code, printable(f"lrbi: {error}"))
    except MemoryError:
        _end(2, "lrbi: there is not enough memory for this")
    except BrokenPipeError:
        _drop_output()  # its reader has gone, as in `lrbi show ... | head`: nothing is wrong
    except OSError as error:
        _drop_output()
        _end(2, f"lrbi: {error}")


def _drop_output() -> None:
    """Send what is still to be printed nowhere, or the interpreter would fail at it again."""
    with suppress(OSError):  # a stream without a file has nothing to drop
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _end(code: int, text: str) -> NoReturn:
    print("\n".join(map(printable, text.splitlines())), file=sys.stderr)
    sys.exit(code)


def _mend_streams() -> None:
    """Streams that are closed, or cannot hold a layer's name, are no reason to fail."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115, PTH123
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


@contextmanager
def _interruptible() -> Iterator[None]:
    """Turn the first of the signals that ask us to stop into KeyboardInterrupt; ignore the rest.

    A second Ctrl-C must not break off the tidying up that the first one began.
    """
    numbers = [
        number
        for number in (signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", None))
        if number and signal.getsignal(number) is not signal.SIG_IGN
    ]

    def interrupt(number: int, frame: FrameType | None) -> None:
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)  # to the end of the process
        before.clear()
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
