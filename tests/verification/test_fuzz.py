"""A slice of the mutated files; ``make fuzz`` reads them all."""

import hashlib
import types
from itertools import count

import pytest

from lrbi import factorfile
from verification import fuzz


@pytest.mark.parametrize("part", range(4))
def test_an_error_or_the_same_data(part):
    cases = fuzz.run_cases(range(part * 500, part * 500 + 500))
    assert [case for case in cases if case.problem] == []
    assert {case.target for case in cases} == set(fuzz.TARGETS)
    assert 10 < sum(case.taken for case in cases) < 400


def test_a_digest_that_is_not_looked_at_is_found_out(monkeypatch):
    class Agreeable(str):
        def __eq__(self, other):
            return True

        __hash__ = str.__hash__
        __ne__ = lambda self, other: False  # noqa: E731

    digest = factorfile._digest
    corpus = fuzz.make_corpus()
    monkeypatch.setattr(fuzz, "make_corpus", lambda: corpus)
    monkeypatch.setattr(factorfile, "_digest", lambda *words: Agreeable(digest(*words)))
    blind = {"factor file, blind": fuzz.TARGETS["factor file, blind"]}
    monkeypatch.setattr(fuzz, "TARGETS", blind)  # the others do not go by this digest
    cases = fuzz.run_cases(range(2000))
    problems = [case.problem for case in cases if case.problem]
    assert problems.count("AssertionError: other data were read") > 3


def test_readers_that_take_too_much_are_stopped(tmp_path, monkeypatch):
    corpus = types.SimpleNamespace()
    rooms = {
        "large": lambda *_: bool(bytearray(1 << 30)),
        "slow": lambda *_: any(number < 0 for number in count()),
    }
    monkeypatch.setattr(fuzz, "SECONDS", 0.2)
    for name, reader in rooms.items():
        monkeypatch.setattr(fuzz, "TARGETS", {name: (1, reader)})
        problem = fuzz.run_case(corpus, 0, tmp_path).problem
        assert problem.startswith({"large": "MemoryError", "slow": "_TooSlowError"}[name])


def test_a_case_is_its_number(tmp_path):
    assert fuzz.run_cases(range(77, 78)) == fuzz.run_cases(range(70, 80))[7:8]
    corpus = fuzz.make_corpus()
    again = fuzz.make_corpus()
    assert hashlib.sha256(corpus.factor_file).digest() == hashlib.sha256(again.factor_file).digest()
    assert corpus.roms == again.roms
