"""ROM files: an image in the formats that tools read, and back.

``docs/rom-format.md`` is their definition. A reader takes what the writer writes and nothing else,
and says where a file departs from it: files are covered by digests, so leniency would be idle.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from lrbi.arrays import Packed
from lrbi.errors import InputError
from lrbi.layout import pack_rows, pad_bits_are_zero, row_bytes, unpack_rows
from lrbi.rom import RomImage, hex_lines


class RomFormat(Protocol):
    """One file format."""

    def encode(self, image: RomImage, name: str = "rom") -> bytes:
        """The file's contents; ``name`` is a C identifier, for formats that name things."""

    def decode(self, content: bytes, width: int, depth: int, name: str = "rom") -> RomImage:
        """Undo :meth:`encode`, or refuse, naming line and word.

        Takes memory by the length of ``content``, whatever ``width`` and ``depth`` claim.
        """

    def place(self, word: int, width: int, depth: int) -> str:
        """Where in a file a word stands, for a message."""


@dataclass(frozen=True)
class _Notation:
    """How text formats write a word."""

    noun: Callable[[int], str]
    """What a word of this width is."""
    pattern: re.Pattern[str]
    letters: Callable[[int], int]
    """Letters that a word of this width takes."""
    write: Callable[[RomImage], list[str]]
    read: Callable[[list[str], int], Packed]


def _read_hex(texts: list[str], width: int) -> Packed:
    size = row_bytes(width)
    content = bytes.fromhex("".join(text.zfill(2 * size) for text in texts))
    return np.frombuffer(content, dtype=np.uint8).reshape(-1, size)[:, ::-1].copy()


def _write_binary(image: RomImage) -> list[str]:
    bits = unpack_rows(image.words, image.width)[:, ::-1]
    text = (bits + np.uint8(ord("0"))).tobytes().decode()
    return [text[start : start + image.width] for start in range(0, len(text), image.width)]


def _read_binary(texts: list[str], width: int) -> Packed:
    digits = np.frombuffer("".join(texts).encode(), dtype=np.uint8).reshape(-1, width)
    return pack_rows(digits[:, ::-1] == ord("1"))


def _write_bytes(image: RomImage) -> list[str]:
    return ["0x" + word.tobytes().hex(",").replace(",", ", 0x") for word in image.words]


def _read_bytes(texts: list[str], width: int) -> Packed:
    content = bytes.fromhex("".join(texts).replace("0x", "").replace(", ", ""))
    return np.frombuffer(content, dtype=np.uint8).reshape(-1, row_bytes(width))


_HEX = _Notation(
    lambda width: f"{-(-width // 4)} hexadecimal digits",
    re.compile("[0-9a-f]+"),
    lambda width: -(-width // 4),
    lambda image: list(hex_lines(image)),
    _read_hex,
)
_BINARY = _Notation(
    lambda width: f"{width} binary digits",
    re.compile("[01]+"),
    lambda width: width,
    _write_binary,
    _read_binary,
)
_BYTES = _Notation(
    lambda width: f"{row_bytes(width)} bytes as in 0x1f",
    re.compile("0x[0-9a-f]{2}(, 0x[0-9a-f]{2})*"),
    lambda width: 6 * row_bytes(width) - 2,
    _write_bytes,
    _read_bytes,
)


@dataclass(frozen=True)
class _Frame:
    """What stands around the words of a text format."""

    head: tuple[str, ...] = ()
    before: Callable[[int], str] = lambda word: ""
    after: str = ""
    last: str = ""
    """What follows the last word instead of ``after``."""
    tail: tuple[str, ...] = ()


def _plain(width: int, depth: int, name: str) -> _Frame:
    return _Frame()


def _mif(width: int, depth: int, name: str) -> _Frame:
    return _Frame(
        (
            f"WIDTH={width};",
            f"DEPTH={depth};",
            "ADDRESS_RADIX=HEX;",
            "DATA_RADIX=HEX;",
            "CONTENT BEGIN",
        ),
        before=lambda word: f"  {word:x} : ",
        after=";",
        last=";",
        tail=("END;",),
    )


def _coe(width: int, depth: int, name: str) -> _Frame:
    return _Frame(
        ("memory_initialization_radix=16;", "memory_initialization_vector="), after=",", last=";"
    )


def _header(width: int, depth: int, name: str) -> _Frame:
    array, macro = f"lrbi_{name}", f"LRBI_{name.upper()}"
    return _Frame(
        (
            "/* A word is a row of bytes: bit j is bit j % 8 of byte j / 8, pad bits are zero. */",
            f"#ifndef {macro}_H",
            f"#define {macro}_H",
            "#include <stdint.h>",
            f"#define {macro}_WIDTH {width}",
            f"#define {macro}_DEPTH {depth}",
            f"#define {macro}_BYTES {row_bytes(width)}",
            f"static const uint8_t {array}[{macro}_DEPTH][{macro}_BYTES] = {{",
        ),
        before=lambda word: "  {",
        after="},",
        last="}",
        tail=("};", "#endif"),
    )


@dataclass(frozen=True)
class _Text:
    """A word a line, in some notation and frame."""

    notation: _Notation
    frame: Callable[[int, int, str], _Frame]

    def encode(self, image: RomImage, name: str = "rom") -> bytes:
        frame = self.frame(image.width, image.depth, name)
        words = [
            f"{frame.before(index)}{text}{frame.after}"
            for index, text in enumerate(self.notation.write(image))
        ]
        words[-1] = words[-1].removesuffix(frame.after) + frame.last
        return "".join(f"{line}\n" for line in (*frame.head, *words, *frame.tail)).encode()

    def place(self, word: int, width: int, depth: int) -> str:
        return f"line {len(self.frame(width, depth, '').head) + word + 1}, word {word}"

    def decode(self, content: bytes, width: int, depth: int, name: str = "rom") -> RomImage:
        frame = self.frame(width, depth, name)
        *lines, rest = content.decode("latin-1").split("\n")
        if rest:
            lines.append(rest)
        first = len(frame.head)
        _fixed(lines, 0, frame.head)
        found = lines[first : first + depth]
        texts = list(self._texts(found, frame, width, depth))
        if len(texts) < depth:
            place = self.place(len(texts), width, depth)
            raise InputError(f"{place} must follow, but the file ends (it has {depth} words)")
        _fixed(lines, first + depth, frame.tail)
        if len(lines) > first + depth + len(frame.tail):
            raise InputError(
                f"line {first + depth + len(frame.tail) + 1} must not be there: "
                f"the file has {depth} words"
            )
        if rest:
            raise InputError(f"line {len(lines)} must end in a line feed, but the file ends")
        return _checked(self.notation.read(texts, width), width, self, depth)

    def _texts(self, lines: list[str], frame: _Frame, width: int, depth: int) -> Iterator[str]:
        """The words of lines without their frame."""
        letters, is_word = self.notation.letters(width), self.notation.pattern.fullmatch
        for index, line in enumerate(lines):
            before = frame.before(index)
            after = frame.last if index == depth - 1 else frame.after
            text = line[len(before) : len(line) - len(after)]
            if line != before + text + after or len(text) != letters or not is_word(text):
                around = f" between {before!r} and {after!r}" if before or after else ""
                raise InputError(
                    f"{self.place(index, width, depth)} must be {self.notation.noun(width)}"
                    f"{around}, not {_shown(line)}"
                )
            yield text


def _fixed(lines: list[str], start: int, wanted: tuple[str, ...]) -> None:
    """Refuse lines, from line ``start`` on, that are not those wanted."""
    for number, line in enumerate(wanted, start):
        if number >= len(lines):
            raise InputError(f"line {number + 1} must be {line!r}, but the file ends")
        if lines[number] != line:
            raise InputError(f"line {number + 1} must be {line!r}, not {_shown(lines[number])}")


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:37]}...")


def _checked(words: Packed, width: int, file_format: RomFormat, depth: int) -> RomImage:
    """The image of these words, if none has bits above its width."""
    image = RomImage(width, words)
    if not pad_bits_are_zero(words, width):
        index = next(at for at in range(depth) if not pad_bits_are_zero(words[at], width))
        place = file_format.place(index, width, depth)
        raise InputError(
            f"{place} must have at most {width} bits, not be {show_word(image, index)}"
        )
    return image


def show_word(image: RomImage, index: int) -> str:
    """A word for a message; of a long one, its lowest digits."""
    return show_number(image.word(index), image.width)


def show_number(word: int, width: int) -> str:
    """A word of some width for a message; of a long one, its lowest digits."""
    digits = f"{word:0{-(-width // 4)}x}"
    return f"0x{digits}" if len(digits) <= 40 else f"0x...{digits[-37:]}"


class _Raw:
    """Words padded to bytes, the least significant first, and nothing else."""

    def encode(self, image: RomImage, name: str = "rom") -> bytes:
        return image.words.tobytes()

    def place(self, word: int, width: int, depth: int) -> str:
        return f"word {word}"

    def decode(self, content: bytes, width: int, depth: int, name: str = "rom") -> RomImage:
        size = row_bytes(width)
        if len(content) < depth * size:
            raise InputError(
                f"word {len(content) // size} must follow, but the file ends "
                f"(it has {depth} words of {size} bytes)"
            )
        if len(content) > depth * size:
            raise InputError(
                f"the file must end after word {depth - 1}, at {depth * size} bytes, "
                f"but has {len(content)} bytes or more"
            )
        words = np.frombuffer(content, dtype=np.uint8).reshape(depth, size)
        return _checked(words, width, self, depth)


_DATA, _END, _UPPER_ADDRESS = 0, 1, 4


class _IntelHex:
    """The raw image in records of 16 bytes, with an extended linear address for every 64 KiB."""

    def encode(self, image: RomImage, name: str = "rom") -> bytes:
        content = image.words.tobytes()
        if len(content) > 1 << 32:
            raise InputError(f"An Intel HEX file must hold at most 4 GiB, not {len(content)} bytes")
        records = (
            _record(start, kind, content[start : start + count])
            for start, count, kind in _records(len(content))
        )
        return "".join(f"{record}\n" for record in records).encode()

    def place(self, word: int, width: int, depth: int) -> str:
        start = word * row_bytes(width)
        return f"line {start // 16 + (start >> 16) + 2}, word {word}"

    def decode(self, content: bytes, width: int, depth: int, name: str = "rom") -> RomImage:
        size = row_bytes(width)
        *lines, rest = content.decode("latin-1").split("\n")
        if rest:
            lines.append(rest)
        parts, number = [], 0
        for number, (start, count, kind) in enumerate(_records(depth * size), 1):
            word = _words(start // size, (start + count - 1) // size) if kind == _DATA else ""
            if number > len(lines):
                raise InputError(f"line {number}{word} must follow, but the file ends")
            line = lines[number - 1]
            part = _parse_record(line, count) if kind == _DATA else b""
            if part is None or line != _record(start, kind, part):
                raise InputError(f"line {number}{word} {_fault(line, start, count, kind)}")
            parts.append(part)
        if len(lines) > number:
            raise InputError(f"line {number + 1} must not be there: line {number} ends the file")
        if rest:
            raise InputError(f"line {number} must end in a line feed, but the file ends")
        words = np.frombuffer(b"".join(parts), dtype=np.uint8).reshape(depth, size)
        return _checked(words, width, self, depth)


def _words(first: int, last: int) -> str:
    return f", word {first}" if first == last else f", words {first} to {last}"


def _records(size: int) -> Iterator[tuple[int, int, int]]:
    """First byte, bytes and type of every record that an image of ``size`` bytes takes."""
    for start in range(0, size, 16):
        if start % 65536 == 0:
            yield start, 0, _UPPER_ADDRESS
        yield start, min(16, size - start), _DATA
    yield 0, 0, _END


def _record(start: int, kind: int, data: bytes) -> str:
    if kind == _UPPER_ADDRESS:
        start, data = 0, (start >> 16).to_bytes(2, "big")
    body = bytes([len(data), start >> 8 & 255, start & 255, kind]) + data
    return ":" + (body + bytes([-sum(body) & 255])).hex().upper()


def _parse_record(line: str, count: int) -> bytes | None:
    """The bytes of a data record, if it has the form of one of ``count`` bytes."""
    if len(line) != 11 + 2 * count or not re.fullmatch(":[0-9A-F]+", line):
        return None
    return bytes.fromhex(line[9:-2])


def _fault(line: str, start: int, count: int, kind: int) -> str:
    """What is wrong with a record."""
    if kind != _DATA:
        return f"must be {_record(start, kind, b'')!r}, not {_shown(line)}"
    data = _parse_record(line, count)
    if data is None:
        return f"must be a record of {count} bytes, not {_shown(line)}"
    wanted = _record(start, kind, data)
    if line[:-2] != wanted[:-2]:
        return f"must begin {wanted[:9]!r}, not {line[:9]!r}"
    return f"must have the checksum {wanted[-2:]}, not {line[-2:]}"


FORMATS: dict[str, RomFormat] = {
    "mem": _Text(_HEX, _plain),
    "memb": _Text(_BINARY, _plain),
    "mif": _Text(_HEX, _mif),
    "coe": _Text(_HEX, _coe),
    "bin": _Raw(),
    "ihex": _IntelHex(),
    "h": _Text(_BYTES, _header),
}
"""The formats by name, which is also the extension of their files."""
