"""Proof of the hardware, and a measure of what checks it: ``python -m verification``.

Tools of the developers, run from the repository; ``docs/verification.md`` holds what they found.
"""

import sys
from pathlib import Path

# The scenes that are played and the faults that are planted are the tests'.
sys.path.append(str(Path(__file__).resolve().parent.parent / "tests/support"))
