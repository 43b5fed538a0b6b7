"""Proof of the hardware, and a measure of what checks it: ``python -m verification``.

Tools of the developers, run from the repository; ``docs/verification.md`` holds what they found.
"""
