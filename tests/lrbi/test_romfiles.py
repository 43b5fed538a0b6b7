"""The ROM file formats: round trips, readers of other hands, and located refusals."""

import io
import re
import shutil
import subprocess

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from intelhex import IntelHex

from lrbi import InputError
from lrbi.config import ROM_FORMATS
from lrbi.layout import pack_rows, unpack_rows
from lrbi.rom import RomImage, mem_text
from lrbi.romfiles import FORMATS

SIMULATORS = ["verilator", *(["icarus"] if shutil.which("iverilog") else [])]


def image(depth, width, seed=0, share=0.5):
    bits = np.random.default_rng(seed).random((depth, width)) < share
    return RomImage(width, pack_rows(bits))


def numbers(rom):
    return [rom.word(index) for index in range(rom.depth)]


def test_formats_are_those_of_the_command():
    assert tuple(FORMATS) == ROM_FORMATS


@given(st.sampled_from(ROM_FORMATS), st.integers(1, 40), st.integers(1, 140), st.integers(0, 2**32))
def test_round_trip(name, depth, width, seed):
    rom = image(depth, width, seed)
    content = FORMATS[name].encode(rom, "layer_ip")
    back = FORMATS[name].decode(content, width, depth, "layer_ip")
    assert (back.width, back.depth) == (width, depth)
    np.testing.assert_array_equal(back.words, rom.words)


@given(
    st.sampled_from(ROM_FORMATS),
    st.integers(1, 6),
    st.integers(1, 30),
    st.integers(0, 2**32),
    st.data(),
)
def test_a_reader_takes_only_what_the_writer_writes(name, depth, width, seed, data):
    """Whatever is changed, a file is refused, or is the very file of other words."""
    content = FORMATS[name].encode(image(depth, width, seed), "x")
    at = data.draw(st.integers(0, len(content) - 1))
    change = data.draw(st.binary(max_size=2))
    changed = content[:at] + change + content[at + data.draw(st.integers(0, 2)) :]
    try:
        back = FORMATS[name].decode(changed, width, depth, "x")
    except InputError:
        return
    assert FORMATS[name].encode(back, "x") == changed


@pytest.mark.parametrize("name", ROM_FORMATS)
def test_lies_about_sizes_take_no_memory(name):
    content = FORMATS[name].encode(image(3, 5), "x")
    for width, depth in ((5, 10**15), (10**15, 3), (10**15, 10**15)):
        with pytest.raises(InputError):
            FORMATS[name].decode(content, width, depth, "x")


def test_mem_is_the_text_of_the_rom_module():
    rom = image(7, 13)
    assert FORMATS["mem"].encode(rom) == mem_text(rom).encode()


# Each of these is written from the format's own definition, and knows nothing of ours.


def read_mif(text):
    """The grammar of Quartus' help: header assignments, then address : data pairs; comments."""
    text = re.sub(r"--[^\n]*|%[^%]*%", " ", text)
    found = re.fullmatch(r"\s*((?:\w+\s*=\s*\w+\s*;\s*)+)CONTENT\s+BEGIN\s+(.*?)END\s*;\s*",
                         text, re.DOTALL)  # fmt: skip
    assert found
    header = dict(re.findall(r"(\w+)\s*=\s*(\w+)\s*;", found[1]))
    assert set(header) == {"WIDTH", "DEPTH", "ADDRESS_RADIX", "DATA_RADIX"}
    radix = {"HEX": 16, "BIN": 2, "OCT": 8, "UNS": 10}
    width, depth = int(header["WIDTH"]), int(header["DEPTH"])
    memory = {}
    for pair in found[2].split(";")[:-1]:
        address, value = re.fullmatch(r"\s*(\w+)\s*:\s*(\w+)\s*", pair).groups()
        address = int(address, radix[header["ADDRESS_RADIX"]])
        assert address not in memory
        assert address < depth
        memory[address] = int(value, radix[header["DATA_RADIX"]])
        assert memory[address] < 1 << width
    assert not found[2].split(";")[-1].strip()
    assert set(memory) == set(range(depth))
    return width, [memory[address] for address in range(depth)]


def read_coe(text):
    """The grammar of AMD's UG896: keyword = value; the vector last, its values parted by commas."""
    found = re.fullmatch(
        r"\s*memory_initialization_radix\s*=\s*(2|10|16)\s*;[^\n]*\n"
        r"\s*memory_initialization_vector\s*=\s*([^;=]*);[^\n]*\n?", text, re.IGNORECASE,
    )  # fmt: skip
    assert found
    return [int(value, int(found[1])) for value in found[2].split(",")]


def read_bin(content, width):
    size = (width + 7) // 8
    assert len(content) % size == 0
    return [
        sum(byte << 8 * place for place, byte in enumerate(content[start : start + size]))
        for start in range(0, len(content), size)
    ]


SIZES = [(1, 1), (37, 5), (9, 125), (20, 8), (3, 64), (17, 4), (30000, 19)]


@pytest.mark.parametrize(("depth", "width"), SIZES)
def test_vendor_formats_by_their_own_grammar(depth, width):
    rom = image(depth, width)
    expected = numbers(rom)
    assert read_mif(FORMATS["mif"].encode(rom).decode()) == (width, expected)
    assert read_coe(FORMATS["coe"].encode(rom).decode()) == expected
    raw = FORMATS["bin"].encode(rom)
    assert read_bin(raw, width) == expected
    # 30000 words of 3 bytes pass 64 KiB, where the upper address comes in
    library = IntelHex(io.StringIO(FORMATS["ihex"].encode(rom).decode()))
    assert bytes(library.tobinarray()) == raw
    assert library.segments() == [(0, len(raw))]


READER = """
module reader;
  // verilator lint_off WIDTH
@MEMORIES@
  integer i;
  initial begin
@READS@
    $finish;
  end
endmodule
"""


@pytest.mark.parametrize("simulator", SIMULATORS)
def test_readmem_in_simulators(tmp_path, simulator, build_bench):
    """A plain Verilog module reads every size by $readmemh and $readmemb, and prints it."""
    memories, reads, expected = [], [], []
    for number, (depth, width) in enumerate(SIZES[:-1]):
        rom = image(depth, width)
        for base, name in (("h", "mem"), ("b", "memb")):
            (tmp_path / f"{number}.{name}").write_bytes(FORMATS[name].encode(rom))
            memories.append(f"  reg [{width - 1}:0] m{number}{base} [0:{depth - 1}];")
            reads.append(
                f'    $readmem{base}("{number}.{name}", m{number}{base});\n'
                f"    for (i = 0; i < {depth}; i = i + 1) "
                f'$display("{number}{base} %0d %b", i, m{number}{base}[i]);'
            )
            expected += [
                f"{number}{base} {at} {word:0{width}b}" for at, word in enumerate(numbers(rom))
            ]
    text = READER.replace("@MEMORIES@", "\n".join(memories)).replace("@READS@", "\n".join(reads))
    (tmp_path / "reader.v").write_text(text)
    ran = build_bench(simulator, "reader", "reader.v")()
    assert [line for line in ran.stdout.splitlines() if line[:1].isdigit()] == expected
    assert "arning" not in ran.stdout + ran.stderr  # of too few or too many words


CC = ["cc", "-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I."]
PROGRAM = r"""
#include "a.ip.h"
#include "a.iz.h"
#include "a.ip.h"
#include <stdio.h>
int main(void) {
  for (int row = 0; row < LRBI_A_IP_DEPTH; row++) {
    for (int column = 0; column < LRBI_A_IZ_WIDTH; column++) {
      int bit = 0;
      for (int rank = 0; rank < LRBI_A_IP_WIDTH; rank++)
        bit |= lrbi_a_ip[row][rank / 8] >> rank % 8 & lrbi_a_iz[rank][column / 8] >> column % 8 & 1;
      putchar('0' + bit);
    }
    putchar('\n');
  }
  return 0;
}
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
@pytest.mark.parametrize(("rank", "columns"), [(5, 125), (1, 1), (9, 16)])
def test_c_header_decodes_a_mask(tmp_path, rank, columns):
    ip, iz = image(12, rank, share=0.3), image(rank, columns, share=0.3)
    for kind, rom in (("ip", ip), ("iz", iz)):
        (tmp_path / f"a.{kind}.h").write_bytes(FORMATS["h"].encode(rom, f"a_{kind}"))
    (tmp_path / "main.c").write_text(PROGRAM)
    subprocess.run([*CC, "main.c", "-o", "main"], cwd=tmp_path, check=True)
    ran = subprocess.run([tmp_path / "main"], capture_output=True, text=True, check=True)
    from lrbi import boolean_product

    mask = boolean_product(unpack_rows(ip.words, rank), unpack_rows(iz.words, columns))
    expected = ["".join("01"[bit] for bit in row) for row in mask.tolist()]
    assert ran.stdout.splitlines() == expected


ROM = RomImage(5, np.array([[0x02], [0x1D], [0x00]], dtype=np.uint8))
LONG = RomImage(19, np.arange(30, dtype=np.uint8).reshape(10, 3) & 7)


def changed(name, old, new, rom=ROM):
    content = FORMATS[name].encode(rom, "x")
    assert content.count(old) >= 1
    return content.replace(old, new, 1)


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("mem", b"1d", b"1x", "line 2, word 1 must be 2 hexadecimal digits, not '1x'"),
        ("mem", b"1d", b"1D", "line 2, word 1 must be 2 hexadecimal digits, not '1D'"),
        ("mem", b"1d", b"1", "line 2, word 1 must be 2 hexadecimal digits, not '1'"),
        ("mem", b"1d", b"3d", "line 2, word 1 must have at most 5 bits, not be 0x3d"),
        ("mem", b"1d\n", b"", "line 3, word 2 must follow, but the file ends (it has 3 words)"),
        ("mem", b"1d\n", b"1d\n1d\n", "line 4 must not be there: the file has 3 words"),
        ("mem", b"02\n1d\n00\n", b"02\n1d\n00", "line 3 must end in a line feed, but the"),
        ("mem", b"02\n1d\n00\n", b"", "line 1, word 0 must follow, but the file ends (it has"),
        ("mem", b"02\n", b"\xff\xfe\n", "line 1, word 0 must be 2 hexadecimal digits, not 'ÿþ'"),
        ("mem", b"02\n", b"02\r\n", r"line 1, word 0 must be 2 hexadecimal digits, not '02\r'"),
        ("mem", b"02\n", b"0" * 50 + b"\n", f"digits, not '{'0' * 37}...'"),
        ("memb", b"11101", b"11121", "line 2, word 1 must be 5 binary digits, not '11121'"),
        ("mif", b"WIDTH=5;", b"WIDTH=6;", "line 1 must be 'WIDTH=5;', not 'WIDTH=6;'"),
        ("mif", b"DEPTH=3;", b"DEPTH=4;", "line 2 must be 'DEPTH=3;', not 'DEPTH=4;'"),
        ("mif", b"1 : 1d", b"2 : 1d", "line 7, word 1 must be 2 hexadecimal digits between "
         "'  1 : ' and ';', not '  2 : 1d;'"),
        ("mif", b"END;\n", b"", "line 9 must be 'END;', but the file ends"),
        ("mif", b"  2 : 00;\n", b"", "line 8, word 2 must be 2 hexadecimal digits between "),
        ("coe", b"1d,", b"1d;", "line 4, word 1 must be 2 hexadecimal digits between '' and ',', "),
        ("coe", b"=16;", b"=10;", "line 1 must be 'memory_initialization_radix=16;', not "),
        ("h", b"0x1d", b"0x3d", "line 10, word 1 must have at most 5 bits, not be 0x3d"),
        ("h", b"0x1d", b"0x1g", "line 10, word 1 must be 1 bytes as in 0x1f between '  {' "),
        ("bin", b"\x02\x1d\0", b"\x02\x1d", "word 2 must follow, but the file ends (it has 3 words "
         "of 1 bytes)"),
        ("bin", b"\x1d", b"\x1d\0", "the file must end after word 2, at 3 bytes, but has 4 bytes"),
        ("bin", b"\x1d", b"\x3d", "word 1 must have at most 5 bits, not be 0x3d"),
        ("ihex", b"021D", b"021E", "line 2, words 0 to 2 must have the checksum DD, not DE"),
        ("ihex", b"021D", b"02G0", "line 2, words 0 to 2 must be a record of 3 bytes, not ':030"),
        ("ihex", b":0300000", b":0300010", "line 2, words 0 to 2 must begin ':03000000', not ':0"),
        ("ihex", b"0000FA", b"0001F9", "line 1 must be ':020000040000FA', not ':020000040001F9'"),
        ("ihex", b":00000001FF\n", b"", "line 3 must follow, but the file ends"),
        ("ihex", b":00000001FF\n", b":00000001FF\n\n", "line 4 must not be there: line 3 ends the"),
        ("ihex", b"01FF\n", b"01FF", "line 3 must end in a line feed, but the file ends"),
    ],
)  # fmt: skip
def test_refusals_say_where(name, old, new, message):
    content = changed(name, old, new)
    with pytest.raises(InputError) as refusal:
        FORMATS[name].decode(content, 5, 3, "x")
    assert message in str(refusal.value)


def test_refusals_by_place_in_long_files():
    content = changed("ihex", b":0E0010", b":0E0011", LONG)
    with pytest.raises(InputError, match="^line 3, words 5 to 9 must begin"):
        FORMATS["ihex"].decode(content, 19, 10, "x")
    words = LONG.words.copy()
    words[7, 2] |= 8
    for name, place in (("ihex", "line 3, word 7"), ("bin", "word 7"), ("mif", "line 13, word 7")):
        content = FORMATS[name].encode(RomImage(19, words), "x")
        with pytest.raises(InputError, match=f"^{place} must have at most 19 bits, not be 0x"):
            FORMATS[name].decode(content, 19, 10, "x")


@pytest.mark.parametrize("name", ROM_FORMATS)
def test_place_is_where_the_word_stands(name):
    """Of 30000 words, change one: the lines that change are those that its place names."""
    rom, at = image(30000, 19), 23456
    words = rom.words.copy()
    words[at] ^= 1
    one, other = (FORMATS[name].encode(each, "x") for each in (rom, RomImage(19, words)))
    place = FORMATS[name].place(at, 19, 30000)
    if name == "bin":
        assert place == f"word {at}"
        return
    pairs = zip(one.split(b"\n"), other.split(b"\n"), strict=True)
    lines = [number for number, (left, right) in enumerate(pairs, 1) if left != right]
    assert place == f"line {lines[0]}, word {at}"


def test_intel_hex_beyond_its_addresses(monkeypatch):
    class Words:
        def tobytes(self):
            return range((1 << 32) + 1)  # has that length, and takes no memory

    with pytest.raises(InputError, match="^An Intel HEX file must hold at most 4 GiB, not 4294967"):
        FORMATS["ihex"].encode(RomImage(8, Words()))
