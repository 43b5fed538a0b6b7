"""``python -m verification prove | mutate | coverage | soak | fuzz``."""

import argparse
import sys


def main() -> int:
    """Run one of them."""
    parser = argparse.ArgumentParser(prog="python -m verification", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("prove", help="the formal proofs, their covers and planted faults")
    verb.add_argument("--only", default="", help="jobs whose name matches this pattern")
    options = vars(parser.parse_args())
    if options.pop("verb") == "prove":
        from verification import prove

        return bool(prove.main(**options))
    return 2


if __name__ == "__main__":
    sys.exit(main())
