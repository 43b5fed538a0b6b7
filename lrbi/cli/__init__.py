"""The command ``lrbi``: its verbs, what they share, and how it ends.

A verb's module reads its options; what the work needs is imported inside the verb, so that
``lrbi --help`` does not wait for it.
"""

import os
import signal
import sys
from types import FrameType

import click

import lrbi
from lrbi.cli.compress import compress
from lrbi.cli.decode import decode
from lrbi.cli.demo import demo
from lrbi.cli.show import show
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

    Exit codes: 0 done, 1 a check failed, 2 bad usage or input, 3 a tool is missing,
    130 interrupted.
    """


for verb in (compress, show, decode, demo):
    cli.add_command(verb)


def main(arguments: list[str] | None = None) -> None:
    """Run the command; ends the process with its exit code."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        words = sys.argv[1:] if arguments is None else arguments
        with cli.make_context("lrbi", words) as context:
            cli.invoke(context)
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message(), file=sys.stderr)
        sys.exit(2)
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx else "lrbi"
        print(f"lrbi: {error.format_message()} ({where} --help tells more)", file=sys.stderr)
        sys.exit(2)
    except click.exceptions.Exit as end:
        sys.exit(end.exit_code)
    except KeyboardInterrupt:
        print("lrbi: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except LrbiError as error:
        print(f"lrbi: {error}", file=sys.stderr)
        sys.exit(next(code for family, code in EXIT_CODES if isinstance(error, family)))
    except MemoryError:
        print("lrbi: not enough memory for this (try smaller tiles or fewer jobs)", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:
        # The reader of our output has gone, as in `lrbi show ... | head`, and so may the rest.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
