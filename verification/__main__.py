"""``python -m verification prove | mutate | coverage | soak | fuzz | report``.

A run of the default size or more leaves its tables in ``build/verification``, from where ``report``
takes them.
"""

import argparse
import importlib
import sys
from collections.abc import Callable


def _at_least(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(
                f"must be a whole number of at least {least}, not {text}"
            )
        return int(text)

    return number


def main() -> int:
    """Run one of them."""
    parser = argparse.ArgumentParser(prog="python -m verification", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("prove", help="the formal proofs, their covers and planted faults")
    verb.add_argument("--only", default="", help="jobs whose name matches this pattern")
    verb = verbs.add_parser("mutate", help="the mutation score of the benches")
    verb.add_argument("--count", type=_at_least(3), default=300, help="mutations, of both tops")
    verb.add_argument("--seed", type=int, default=1, help="other mutations for other seeds")
    verb = verbs.add_parser("fuzz", help="mutated files for every reader")
    verb.add_argument("--count", type=_at_least(1), default=100_000, help="files")
    verb.add_argument("--case", type=int, help="run this case alone, again")
    verb = verbs.add_parser("soak", help="random traffic on random decoders")
    verb.add_argument("--seconds", type=_at_least(1), default=60, help="how long")
    verb.add_argument("--seed", type=int, default=0, help="other designs for other seeds")
    verb.add_argument("--case", help="play this case alone, again, and write waves")
    verb.add_argument("--without", default="", help="knobs to leave alone in --case")
    verb = verbs.add_parser("coverage", help="Python branches, Verilog lines and toggles")
    verb.add_argument("--only", choices=["python", "verilog"], default="", help="one of both")
    verbs.add_parser("report", help="the tables of the last runs into docs/verification.md")
    options = vars(parser.parse_args())
    module = importlib.import_module(f"verification.{options.pop('verb')}")
    return bool(module.main(**options))


if __name__ == "__main__":
    sys.exit(main())
