"""What the benches play and what comes of it: the same for every simulator."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from random import Random
from typing import Any

PATIENCE = 20_000
"""Clocks without a mask beat after which a design counts as hung."""
LISTED = 100
"""Wrong beats that are told of in full; all are counted."""

Frames = list[list[int]]
"""Frames of a stream: a list of beats each, a beat being its word."""


@dataclass(frozen=True)
class Stalls:
    """How often each port holds back a beat, from 0 (never) to below 1."""

    iz: float = 0.0
    ip: float = 0.0
    mask: float = 0.0
    seed: int = 0

    def pattern(self, port: str) -> Iterator[bool] | None:
        """Whether the port pauses, clock by clock; None if it never does."""
        share = getattr(self, port)
        if not share:
            return None
        chance = Random(f"{port} {self.seed}")
        return iter(lambda: chance.random() < share, None)


@dataclass(frozen=True)
class Scene:
    """One run from reset: tiles that are streamed in, or ranges that a ROM decoder plays."""

    mask: Frames
    """The mask frames that must come out, in order."""
    iz: Frames = field(default_factory=list)
    """I_z frames; none for a ROM decoder."""
    ip: Frames = field(default_factory=list)
    """I_p frames; none for a ROM decoder."""
    ranges: Sequence[tuple[int, int]] = ()
    """For a ROM decoder: first tile and count of each start, one after the other."""
    tiles: int | None = None
    """For a ROM decoder: tiles of its layer; a range beyond them must be refused."""
    stalls: Stalls = field(default_factory=Stalls)
    """How the ports hold back."""
    reset_at: int | None = None
    """Run for so many clocks, reset, and begin anew."""
    reset_clocks: int = 3
    """How long a reset lasts."""
    latency: int | None = None
    """Clocks from an I_p beat taken to its mask beat valid, at most, while the port is empty; None
    where it is not to be looked at."""
    patience: int = PATIENCE
    """Clocks without a mask beat after which the design counts as hung."""

    def to_json(self) -> dict[str, Any]:
        """As JSON keeps it; words in hexadecimal, since they may be very long."""
        texts = {
            port: [[f"{word:x}" for word in frame] for frame in getattr(self, port)]
            for port in ("iz", "ip", "mask")
        }
        return asdict(self) | texts

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> "Scene":
        """Undo :meth:`to_json`."""
        words = {
            port: [[int(word, 16) for word in frame] for frame in fields[port]]
            for port in ("iz", "ip", "mask")
        }
        ranges = [(first, count) for first, count in fields["ranges"]]
        return cls(**(fields | words | {"stalls": Stalls(**fields["stalls"]), "ranges": ranges}))


@dataclass(frozen=True)
class Wrong:
    """A mask beat that is not as it must be."""

    frame: int
    beat: int
    got: int | None
    """The beat's word; None if the frame ended before it."""
    expected: int | None
    """What it must be; None if the frame must have ended before it."""


@dataclass
class Outcome:
    """What came of a scene."""

    beats: int = 0
    """Mask beats compared."""
    wrong_beats: int = 0
    """Mask beats that differ from what they must be, or came too many or too few."""
    wrong_bits: int = 0
    """The bits in which they differ; a beat too many or too few counts as one."""
    wrong: list[Wrong] = field(default_factory=list)
    """The first of them."""
    spans: list[tuple[int, int]] = field(default_factory=list)
    """The clocks of the first and the last beat of each frame; 0 is when the first beat was taken
    from the sources, or that of the start."""
    errors: list[bool] = field(default_factory=list)
    """The output ``error`` at the first beat of each frame."""
    most_under_way: int = 0
    """The most I_p beats taken whose mask beats were not out; not of a ROM decoder."""
    stopped: str = ""
    """Why the scene ended before its time, if it did."""
    stopped_at: tuple[int, int] = (0, 0)
    """The frame and the beat that were awaited then."""

    @property
    def clean(self) -> bool:
        """Whether all that must come out did, and nothing else."""
        return not self.stopped and not self.wrong_beats

    def to_json(self) -> dict[str, Any]:
        """As JSON keeps it."""
        wrong = [
            {"frame": each.frame, "beat": each.beat, "got": _hex(each.got)}
            | {"expected": _hex(each.expected)}
            for each in self.wrong
        ]
        return asdict(self) | {"wrong": wrong}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> "Outcome":
        """Undo :meth:`to_json`."""
        wrong = [
            Wrong(each["frame"], each["beat"], _number(each["got"]), _number(each["expected"]))
            for each in fields["wrong"]
        ]
        spans = [(first, last) for first, last in fields["spans"]]
        frame, beat = fields["stopped_at"]
        return cls(**(fields | {"wrong": wrong, "spans": spans, "stopped_at": (frame, beat)}))


class Scoreboard:
    """Compares frames, as they come, with those that must come."""

    def __init__(self, expected: Frames, outcome: Outcome) -> None:
        self._expected, self.outcome = expected, outcome

    @property
    def drained(self) -> bool:
        """Whether every frame has come."""
        return len(self.outcome.spans) >= len(self._expected)

    def frame(self, got: list[int], span: tuple[int, int], error: bool) -> None:
        """Take the next frame."""
        outcome = self.outcome
        number = len(outcome.spans)
        expected = self._expected[number] if number < len(self._expected) else []
        outcome.spans.append(span)
        outcome.errors.append(error)
        outcome.beats += min(len(got), len(expected))
        if got == expected:
            return
        for beat, (ours, theirs) in enumerate(zip_longest(got, expected)):
            if ours != theirs:
                outcome.wrong_beats += 1
                lone = ours is None or theirs is None
                outcome.wrong_bits += 1 if lone else (ours ^ theirs).bit_count()
                if len(outcome.wrong) < LISTED:
                    outcome.wrong.append(Wrong(number, beat, ours, theirs))


def _hex(word: int | None) -> str | None:
    return None if word is None else f"{word:x}"


def _number(text: str | None) -> int | None:
    return None if text is None else int(text, 16)
