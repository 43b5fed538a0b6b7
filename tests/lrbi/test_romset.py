"""The ROM folder: what is written, what is read back, what is refused."""

import dataclasses
import hashlib
import json
import os
import re
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lrbi
from lrbi import CompressConfig, InputError
from lrbi.config import ROM_FORMATS
from lrbi.layer import CompressedLayer
from lrbi.layout import pack_rows
from lrbi.rom import mask_image, rom_images
from lrbi.romfiles import FORMATS
from lrbi.romset import export_roms, file_stems, import_roms, read_roms

SIMULATORS = ["verilator", *(["icarus"] if shutil.which("iverilog") else [])]


def random_layer(rng, tile, grid, rank, share=0.3):
    """A layer of random factors, whose tiles use ranks from 0 to k."""
    (rows, cols), (down, across) = tile, grid
    tiles = down * across
    ranks = rng.integers(0, rank + 1, tiles)
    ranks[rng.integers(tiles)] = rank
    used = np.arange(rank) < ranks[:, np.newaxis]
    left = (rng.random((tiles, rows, rank)) < share) & used[:, np.newaxis]
    right = (rng.random((tiles, rank, cols)) < share) & used[..., np.newaxis]
    return CompressedLayer(
        shape=(rows * down, cols * across), source_shape=(rows * down * cols * across,),
        tile=tile, row_factors=pack_rows(left), col_factors=pack_rows(right),
        ranks=ranks.astype(np.uint16), sparsity_target=0.5, sparsity=0.25, cost=1 / 3,
        kept=float(rng.random()), method=3, engine="hals", iterations=60,
        sparsity_per_tile=False, seed=0,
    )  # fmt: skip


@pytest.fixture(scope="module")
def layers():
    rng = np.random.default_rng(0)
    return {
        "conv/1": lrbi.compress(
            rng.standard_normal((9, 13)), CompressConfig(sparsity=0.7, rank=3, tile=(4, 5))
        ),
        "é": lrbi.compress(rng.standard_normal((6, 6)), CompressConfig(sparsity=0.5, rank=2)),
        "fc": random_layer(rng, (7, 125), (2, 1), 5),
    }


def contents(folder):
    return {path.name: path.read_bytes() for path in Path(folder).iterdir() if path.is_file()}


def rewrite(folder, change):
    """Change a manifest."""
    path = Path(folder) / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


@pytest.mark.parametrize(("lanes", "iz_rows"), [(1, 1), (2, 3), (64, 256)])
def test_the_same_factor_file_again(tmp_path, layers, lanes, iz_rows):
    lrbi.save(tmp_path / "a.lrbi", layers)
    export_roms(
        layers, tmp_path / "rom", formats=ROM_FORMATS, lanes=lanes, iz_rows=iz_rows, vectors=True
    )
    for only in (None, *ROM_FORMATS):
        lrbi.save(tmp_path / "b.lrbi", import_roms(tmp_path / "rom", only))
        assert (tmp_path / "b.lrbi").read_bytes() == (tmp_path / "a.lrbi").read_bytes()


@settings(max_examples=25)
@given(
    st.integers(0, 2**32), st.sampled_from(ROM_FORMATS), st.integers(1, 5), st.integers(1, 5),
    st.tuples(st.integers(1, 9), st.integers(1, 40)), st.integers(1, 20),
)  # fmt: skip
def test_random_layers_come_back(seed, name, lanes, iz_rows, tile, rank):
    layer = random_layer(np.random.default_rng(seed), tile, (2, 2), rank)
    with tempfile.TemporaryDirectory() as folder:
        export_roms({"": layer}, folder, formats=[name], lanes=lanes, iz_rows=iz_rows)
        assert import_roms(folder) == {"": layer}


def test_read_without_the_factor_file(tmp_path, layers):
    manifest = export_roms(layers, tmp_path, formats=["mem", "bin"], lanes=2, iz_rows=3)
    roms = read_roms(tmp_path)
    assert list(roms.layers) == sorted(layers)
    assert roms.files[0] == tmp_path / "manifest.json"
    assert {path.name for path in roms.files} == set(contents(tmp_path))
    for name, layer in layers.items():
        found = roms.layers[name]
        assert (found.lanes, found.iz_rows, found.mask) == (2, 3, None)
        assert found.metadata == layer.metadata()
        assert found.ranks == tuple(layer.ranks.tolist())
        for one, other in zip(
            (found.ip, found.iz), rom_images(layer, lanes=2, iz_rows=3), strict=True
        ):
            assert one.width == other.width
            np.testing.assert_array_equal(one.words, other.words)
        assert found.layer() == layer
    entry = manifest["layers"]["fc"]
    assert entry["config"] == {
        "rank": 5, "tile_rows": 7, "tile_cols": 125, "lanes": 2, "iz_rows": 3,
    }  # fmt: skip
    ip, iz = entry["roms"]["ip"], entry["roms"]["iz"]
    assert (ip["width"], ip["depth"], ip["words_per_tile"]) == (10, 8, 4)
    assert (iz["width"], iz["depth"], iz["words_per_tile"]) == (375, 4, 2)
    assert (ip["base_addresses"], iz["base_addresses"]) == ([0, 4], [0, 2])
    for file in ip["files"] + iz["files"]:
        content = (tmp_path / file["name"]).read_bytes()
        assert file["sha256"] == hashlib.sha256(content).hexdigest()
    assert json.loads((tmp_path / "manifest.json").read_text()) == manifest
    assert contents(tmp_path).keys() == {
        "manifest.json", "fc.ip.mem", "fc.ip.bin", "fc.iz.mem", "fc.iz.bin",
        "conv_1.ip.mem", "conv_1.ip.bin", "conv_1.iz.mem", "conv_1.iz.bin",
        "_.ip.mem", "_.ip.bin", "_.iz.mem", "_.iz.bin",
    }  # fmt: skip


def test_vectors_are_the_masks(tmp_path, layers):
    export_roms({"fc": layers["fc"]}, tmp_path, formats=["bin"], lanes=2, vectors=True)
    found = read_roms(tmp_path).layers["fc"].mask
    lines = (tmp_path / "fc.mask.mem").read_text().split()
    assert (found.width, found.depth, len(lines)) == (250, 8, 8)
    mask = np.zeros((2, 8, 125), dtype=bool)
    mask[:, :7] = layers["fc"].mask().reshape(2, 7, 125)
    bits = [f"{int(line, 16):0250b}"[::-1] for line in lines]
    assert "".join(bits) == "".join("01"[bit] for bit in mask.ravel().tolist())
    assert {"fc.ip.mem", "fc.ip.bin", "fc.tb.v"} <= set(contents(tmp_path))


def test_same_layers_same_bytes_in_any_order(tmp_path, layers):
    for name, given_layers in (("a", layers), ("b", dict(reversed(layers.items())))):
        export_roms(given_layers, tmp_path / name, formats=ROM_FORMATS, vectors=True)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


@pytest.mark.parametrize(
    ("names", "stems"),
    [
        (["fc1"], ["fc1"]),
        (["a/b", "a b", "a_b"], ["a_b", "a_b-2", "a_b-3"]),
        (["Fc", "fc", "FC"], ["FC", "Fc-2", "fc-3"]),
        (["A", "a", "a-2"], ["A", "a-3", "a-2"]),
        (["a", "a/", "a_", "a_-2"], ["a", "a_", "a_-3", "a_-2"]),
        ([".."], ["_."]),
        ([""], ["_"]),
        ([".hidden", "-rf"], ["_rf", "_hidden"]),
        (["con", "CON.x", "com1", "conv"], ["_CON.x", "_com1", "_con", "conv"]),
        (["manifest", "manifest.json"], ["manifest", "manifest.json"]),
        (["../../etc/passwd", "a\0b\n"], ["_._.._etc_passwd", "a_b_"]),
        (["layer.é.ß"], ["layer._._"]),
        (["x" * 300, "x" * 301], ["x" * 200, "x" * 200 + "-2"]),
    ],
)
def test_file_names(names, stems):
    found = file_stems(names)
    assert sorted(stem for stem, _ in found.values()) == sorted(stems)
    if len(names) == len(set(map(str.lower, stems))) and names == sorted(names):
        assert [found[name][0] for name in names] == stems
    assert all(re.fullmatch(r"\w+", word, re.ASCII) for _, word in found.values())
    assert len({word.lower() for _, word in found.values()}) == len(names)


@given(st.lists(st.text(alphabet="aA-_.2/é", max_size=4), unique=True, max_size=30))
def test_no_two_layers_share_a_file_or_an_identifier(names):
    found = file_stems(names)
    for each in zip(*found.values(), strict=True):
        assert len({word.lower() for word in each}) == len(names)


def test_odd_names_come_back(tmp_path, layers):
    names = ["", "..", "a", "A", "a-2", "con", "x" * 400, "manifest", "né/[ 1 ]", "a\nb"]
    odd = dict.fromkeys(names, layers["é"])
    export_roms(odd, tmp_path, formats=["mem", "h"])
    assert import_roms(tmp_path) == odd


class TestWriting:
    def test_a_new_export_takes_the_old_ones_files_away(self, tmp_path, layers):
        export_roms(layers, tmp_path, formats=["mem", "mif", "h"], vectors=True)
        (tmp_path / "note.ip.mif").write_text("mine")
        (tmp_path / "fc.ip.mif").write_text("changed since")
        export_roms({"fc": layers["fc"]}, tmp_path, formats=["bin"])
        assert contents(tmp_path).keys() == {
            "manifest.json", "fc.ip.bin", "fc.iz.bin", "note.ip.mif", "fc.ip.mif",
        }  # fmt: skip
        assert import_roms(tmp_path) == {"fc": layers["fc"]}

    def test_a_file_that_differs_in_case_alone_stays(self, tmp_path, layers):
        """On some systems it is the very file that was just written."""
        export_roms({"A": layers["fc"]}, tmp_path)
        export_roms({"a": layers["fc"]}, tmp_path)
        assert {"A.ip.mem", "a.ip.mem"} <= set(contents(tmp_path))

    @pytest.mark.parametrize("text", ["{}", "no json", '{"manifest_version": 3}', '{"format": 1}'])
    def test_another_programs_manifest_stays(self, tmp_path, layers, text):
        (tmp_path / "manifest.json").write_text(text)
        with pytest.raises(InputError, match="must be a manifest that lrbi wrote, so as not to"):
            export_roms(layers, tmp_path)
        assert contents(tmp_path) == {"manifest.json": text.encode()}

    @pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
    def test_nothing_is_left_of_a_failure(self, tmp_path, layers, monkeypatch, error):
        def fail(image, name):
            raise error

        monkeypatch.setattr(type(FORMATS["ihex"]), "encode", lambda self, *_: fail(*_))
        wanted = InputError if isinstance(error, OSError) else KeyboardInterrupt
        with pytest.raises(wanted):
            export_roms(layers, tmp_path / "new/rom", formats=["mem", "ihex"])
        assert not list(tmp_path.iterdir())
        export_roms({"fc": layers["fc"]}, tmp_path / "old")
        before = contents(tmp_path / "old")
        with pytest.raises(wanted):
            export_roms(layers, tmp_path / "old", formats=["mem", "ihex"])
        assert contents(tmp_path / "old") == before

    def test_a_failed_move_leaves_no_valid_folder(self, tmp_path, layers, monkeypatch):
        """The manifest moves last, so that files of two exports never pass for one."""
        export_roms({"fc": layers["fc"]}, tmp_path)
        other = random_layer(np.random.default_rng(9), (7, 125), (2, 1), 5)
        replace, moved = Path.replace, []

        def failing(self, target):
            moved.append(Path(target).name)
            if len(moved) == 2:
                raise OSError(5, "Input/output error")
            return replace(self, target)

        monkeypatch.setattr(Path, "replace", failing)
        with pytest.raises(InputError, match="cannot be written: Input/output error"):
            export_roms({"fc": other}, tmp_path)
        assert moved == ["fc.iz.mem", "fc.ip.mem"]
        assert contents(tmp_path).keys() == {"manifest.json", "fc.ip.mem", "fc.iz.mem"}
        with pytest.raises(InputError, match="fc.iz.mem cannot be used"):
            read_roms(tmp_path)

    def test_refusals(self, tmp_path, layers):
        (tmp_path / "file").touch()
        wide = {"w": random_layer(np.random.default_rng(0), (1, 1100), (1, 1), 1)}
        for message, given_layers, options in (
            ("An export must have at least one layer, not none", {}, {}),
            ("Layers must be a mapping of names to layers, not list", [layers["fc"]], {}),
            ("An export must have at least one format, not none", layers, {"formats": []}),
            ("Format must be one of mem, memb, mif, coe, bin, ihex, h, not 'hex'", layers,
             {"formats": ["hex"]}),
            ("Lanes must be a whole number of at least 1, not 0", layers, {"lanes": 0}),
            ("I_z rows a beat must be at most 256, not 257", layers, {"iz_rows": 257}),
            ("Tile columns must be at most 1024, not 1100", wide, {"vectors": True}),
        ):  # fmt: skip
            with pytest.raises(InputError) as refusal:
                export_roms(given_layers, tmp_path / "rom", **options)
            assert str(refusal.value) == message
            assert not (tmp_path / "rom").exists()
        with pytest.raises(InputError, match=r"file must be a folder, but is a file$"):
            export_roms(layers, tmp_path / "file")
        export_roms(wide, tmp_path / "rom")  # wider than any decoder, but a ROM all the same
        assert import_roms(tmp_path / "rom") == wide

    def test_progress(self, tmp_path, layers):
        calls = []
        export_roms(layers, tmp_path, vectors=True, on_file=lambda *call: calls.append(call))
        assert [call for call in calls if call[0] == "fc"] == [("fc", at, 4) for at in range(1, 5)]
        exported, calls[:] = list(calls), []
        read_roms(tmp_path, on_file=lambda *call: calls.append(call))
        assert calls == exported


@pytest.fixture
def folder(tmp_path, layers):
    export_roms({"fc": layers["fc"]}, tmp_path / "rom", formats=ROM_FORMATS, vectors=True)
    return tmp_path / "rom"


def refusal(folder, **options):
    with pytest.raises(InputError) as refused:
        import_roms(folder, **options)
    text = str(refused.value)
    assert len(text.splitlines()) == 1
    return text


class TestReading:
    def test_a_damaged_byte_is_refused_or_changes_nothing(self, tmp_path):
        layer = random_layer(np.random.default_rng(1), (3, 5), (1, 1), 2)
        export_roms({"a": layer}, tmp_path, formats=ROM_FORMATS, vectors=True)
        whole = contents(tmp_path)
        for name, content in whole.items():
            step = 40 if name.endswith((".v", ".json")) else 1
            for at in range(0, len(content), step):
                damaged = bytearray(content)
                damaged[at] ^= 1 << at % 8
                (tmp_path / name).write_bytes(damaged)
                try:
                    found = import_roms(tmp_path)
                except InputError:
                    continue
                # What says nothing of the layers, as a base address' spelling, may be damaged.
                assert name == "manifest.json"
                assert found == {"a": layer}
            (tmp_path / name).write_bytes(content)
        assert import_roms(tmp_path) == {"a": layer}

    @pytest.mark.parametrize("name", ROM_FORMATS)
    def test_one_wrong_word_is_located(self, folder, name):
        """A file that reads well, and has a wrong word: found by the sums in the manifest."""
        rom = read_roms(folder).layers["fc"].iz
        words = rom.words.copy()
        words[6, 3] ^= 0x10
        wrong = type(rom)(rom.width, words)
        (folder / f"fc.iz.{name}").write_bytes(FORMATS[name].encode(wrong, "fc_iz"))
        text = refusal(folder, format=name)
        place = FORMATS[name].place(6, rom.width, rom.depth)
        digits = [f"{each.word(6):032x}" for each in (rom, wrong)]
        assert text == (
            f"ROM file {folder}/fc.iz.{name} cannot be used: {place} must be 0x{digits[0]}, "
            f"not 0x{digits[1]}"
        )
        words[2, 0] ^= 1
        (folder / f"fc.iz.{name}").write_bytes(FORMATS[name].encode(wrong, "fc_iz"))
        assert refusal(folder).endswith("it does not match its digest, in more than one word")

    def test_swapped_words(self, folder):
        lines = (folder / "fc.ip.mem").read_text().splitlines()
        at = next(at for at in range(len(lines)) if lines[at] != lines[0])
        lines[0], lines[at] = lines[at], lines[0]
        (folder / "fc.ip.mem").write_text("\n".join(lines) + "\n")
        assert refusal(folder).endswith("it does not match its digest, in more than one word")

    def test_syntax_comes_before_the_digest(self, folder):
        text = (folder / "fc.ip.mif").read_text()
        (folder / "fc.ip.mif").write_text(text.replace("  3 : ", "  3 ; "))
        assert refusal(folder).startswith(
            f"ROM file {folder}/fc.ip.mif cannot be used: line 9, word 3 must be 2 hexadecimal "
        )
        assert import_roms(folder, "mem")  # the others are as they were

    def test_missing_and_odd_files(self, folder):
        path = folder / "fc.ip.coe"
        path.unlink()
        assert refusal(folder) == (
            f"ROM file {path} cannot be used: it is missing (the manifest names it)"
        )
        path.mkdir()
        odd = f"ROM file {path} cannot be used: it is a folder, a device or a pipe"
        assert refusal(folder) == odd
        path.rmdir()
        os.mkfifo(path)
        assert refusal(folder) == odd
        path.unlink()
        path.symlink_to("/dev/zero")
        assert refusal(folder) == odd

    @pytest.mark.parametrize("name", ["fc.ip.mem", "fc.ip.bin", "fc.iz.ihex", "fc.iz.h", "fc.tb.v"])
    def test_a_file_without_end(self, folder, name):
        """A terabyte of holes, of which no more is read than a file could have."""
        os.truncate(folder / name, 1 << 40)
        assert f"ROM file {folder}/{name} cannot be used: " in refusal(folder)

    def test_the_bench_is_covered_too(self, folder):
        (folder / "fc.tb.v").write_text("module lrbi_fc_tb; endmodule\n")
        assert refusal(folder) == (
            f"ROM file {folder}/fc.tb.v cannot be used: it does not match its digest"
        )

    def test_files_that_disagree(self, folder, layers):
        """Each file is as its digest says, but one is of another layer."""
        other = random_layer(np.random.default_rng(5), (7, 125), (2, 1), 5)
        ip, iz = rom_images(other)
        mask = mask_image(other)

        def plant(kind, name, image):
            content = FORMATS[name].encode(image, f"fc_{kind}")
            (folder / f"fc.{kind}.{name}").write_bytes(content)

            def change(manifest):
                for file in manifest["layers"]["fc"]["roms"][kind]["files"]:
                    if file["format"] == name:
                        file["sha256"] = hashlib.sha256(content).hexdigest()

            rewrite(folder, change)

        before = contents(folder)
        plant("ip", "coe", ip)
        assert re.fullmatch(
            rf"ROM file {folder}/fc.ip.coe cannot be used: line \d+, word \d+ is 0x\w\w, but "
            r"0x\w\w in fc.ip.mif", refusal(folder),
        )  # fmt: skip
        for name, content in before.items():
            (folder / name).write_bytes(content)
        plant("mask", "mem", mask)
        assert re.fullmatch(
            rf"ROM folder {folder} cannot be used: layer fc: mask word \d+ must be 0x\w+ by its "
            r"factors, not 0x\w+", refusal(folder),
        )  # fmt: skip
        for name in ROM_FORMATS:
            plant("ip", name, ip)
            plant("iz", name, iz)
        text = refusal(folder)
        assert "cannot be used: " in text  # ranks or factors_sha256 tell

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda m: m.update(format=2), "its format is 2, and this version reads up to 1 "
             "(update lrbi)"),
            (lambda m: m.update(format=0), "its manifest.json says no format number"),
            (lambda m: m.update(format="1"), "its manifest.json says no format number"),
            (lambda m: m.update(layers={}), "manifest.json: it has no layers"),
            (lambda m: m.update(layers=[]), "manifest.json: layers is missing or wrong"),
            (lambda m: m["layers"].update({"\ud800": m["layers"].pop("fc")}),
             r"layers['\ud800'] must have a name that is Unicode"),
            (lambda m: m.pop("factors_sha256"), "factors_sha256 is missing or wrong"),
            (lambda m: m.update(factors_sha256="0"), "its layers do not match factors_sha256"),
            (lambda m: m["layers"]["fc"]["metadata"].update(kept=0.125),
             "its layers do not match factors_sha256"),
            (lambda m: m["layers"]["fc"]["metadata"].update(seed=-1), "layer fc: Iterations "),
            (lambda m: m["layers"]["fc"]["metadata"].update(shape=[10**12, 10**12]),
             "layers['fc'].ranks must be those of 1142857142864000000000 tiles, not 2"),
            (lambda m: m["layers"]["fc"]["config"].update(lanes=10**18),
             "layers['fc'].roms.ip.width must be 5000000000000000000, not 5"),
            (lambda m: m["layers"]["fc"]["config"].update(rank=True),
             "layers['fc'].config must be whole numbers of at least 1"),
            (lambda m: m["layers"]["fc"]["config"].update(rank=4),
             "layers['fc'].config must be that of the metadata"),
            (lambda m: m["layers"]["fc"]["ranks"].__setitem__(0, 65536),
             "layers['fc'].ranks is missing or wrong"),
            (lambda m: m["layers"]["fc"]["ranks"].__setitem__(slice(None), [0, 0]),
             "layer fc: Factor iz must be uint8 of shape"),
            (lambda m: m["layers"]["fc"]["roms"].pop("iz"), "layers['fc'].roms is missing"),
            (lambda m: m["layers"]["fc"]["roms"]["iz"].update(depth=10**9),
             "layers['fc'].roms.iz.depth must be 10, not 1000000000"),
            (lambda m: m["layers"]["fc"]["roms"]["iz"].update(base_addresses=[0, 1]),
             "layers['fc'].roms.iz.base_addresses is missing or wrong"),
            (lambda m: m["layers"]["fc"]["roms"]["iz"].update(sum="x"),
             "layers['fc'].roms.iz.sum is missing or wrong"),
            (lambda m: m["layers"]["fc"]["roms"]["iz"]["files"][0].update(width=4),
             "layers['fc'].roms.iz.files must have the width and depth of their ROM"),
            (lambda m: m["layers"]["fc"]["roms"]["iz"]["files"][0].update(format="exe"),
             "layers['fc'].roms.iz.files has an unknown format 'exe'"),
            (lambda m: m["layers"]["fc"]["roms"]["iz"]["files"][0].update(format=[]),
             "layers['fc'].roms.iz.files.format is missing or wrong"),
            (lambda m: m["layers"]["fc"]["roms"]["iz"]["files"].clear(),
             "layers['fc'].roms.iz.files must be one of each format"),
            (lambda m: m["layers"]["fc"].update(identifier="a; b"),
             "layers['fc'].identifier is missing or wrong"),
            *(
                (lambda m, name=name: m["layers"]["fc"]["roms"]["ip"]["files"][0].update(name=name),
                 f"must be plain names of files in the folder, not {name!r}")
                for name in ("../secret", "/etc/passwd", "a/b", "", "..", "a\0", "a\n", "C:x", ".x",
                             "x" * 300, "a\\b")
            ),
            (lambda m: m["layers"]["fc"]["testbench"].update(name="../x.v"),
             "layers['fc'].testbench must be plain names of files in the folder, not '../x.v'"),
        ],
    )  # fmt: skip
    def test_manifests_that_say_impossible_things(self, folder, change, message):
        rewrite(folder, change)
        text = refusal(folder)
        assert text.startswith(f"ROM folder {folder} cannot be used: ")
        assert message in text

    @settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.data())
    def test_any_value_anywhere_is_taken_or_refused(self, folder, data):
        """No change to a manifest, its digest set right, ends in anything but a refusal."""
        path = folder / "manifest.json"
        text = path.read_text()

        def change(node):
            keys = sorted(node) if isinstance(node, dict) else range(len(node))
            key = data.draw(st.sampled_from(list(keys)))
            if isinstance(node[key], dict | list) and node[key] and data.draw(st.integers(0, 4)):
                change(node[key])
                return
            scalars = st.none() | st.booleans() | st.integers() | st.floats(-9, 9) | st.text()
            odd = [0, -1, 1.0, 10**30, [], {}, [[]], "\ud800", "..", [1, 2], float(2**70)]
            node[key] = data.draw(scalars | st.sampled_from(odd))

        try:
            rewrite(folder, change)
            import_roms(folder)
        except InputError as error:
            assert str(error)
        finally:
            path.write_text(text)

    def test_manifests_that_are_none(self, folder, tmp_path):
        path = folder / "manifest.json"
        text = path.read_text()
        start = f"ROM folder {folder} cannot be used: its manifest.json "
        path.write_text(text.replace('"seed": 0', '"seed": 7'))
        assert refusal(folder).endswith("its layers do not match factors_sha256")
        path.write_text(text[:-20])
        assert refusal(folder) == start + "is no JSON, so it is damaged"
        path.write_bytes(b"\xff\xfe" + text.encode())
        assert refusal(folder) == start + "is no JSON, so it is damaged"
        path.write_text(text.replace('"lanes": 1', '"lanes": NaN'))
        assert refusal(folder).endswith("config must be whole numbers of at least 1")
        path.write_text("[" * 100000)
        assert refusal(folder) == start + "is no JSON, so it is damaged"
        path.write_text("[]")
        assert refusal(folder) == start + "says no format number"
        path.unlink()
        path.mkdir()
        assert refusal(folder) == start + "is a folder, a device or a pipe"
        path.rmdir()
        assert refusal(folder) == f"ROM folder {folder} cannot be used: it has no manifest.json"
        assert refusal(tmp_path / "no") == (
            f"ROM folder {tmp_path}/no cannot be used: there is none"
        )
        (tmp_path / "file").touch()
        assert refusal(tmp_path / "file").endswith("file cannot be used: it is no folder")

    def test_spaces_in_the_manifest_are_free(self, folder, layers):
        path = folder / "manifest.json"
        path.write_text(json.dumps(json.loads(path.read_text()), indent=None))
        assert import_roms(folder) == {"fc": layers["fc"]}

    def test_a_format_that_was_not_exported(self, tmp_path, layers):
        export_roms(layers, tmp_path, formats=["mem", "mif"])
        text = refusal(tmp_path, format="bin")
        assert text == "Format must be one that was exported (mem, mif), not 'bin'"

    def test_fill_rows_must_be_zero(self, tmp_path, layers):
        export_roms({"fc": layers["fc"]}, tmp_path, lanes=2)
        lines = (tmp_path / "fc.ip.mem").read_text().split()
        lines[3] = f"{int(lines[3], 16) | 1 << 9:03x}"
        content = "".join(f"{line}\n" for line in lines).encode()
        (tmp_path / "fc.ip.mem").write_bytes(content)

        def change(manifest):
            file = manifest["layers"]["fc"]["roms"]["ip"]["files"][0]
            file["sha256"] = hashlib.sha256(content).hexdigest()

        rewrite(tmp_path, change)
        assert refusal(tmp_path) == (
            f"ROM folder {tmp_path} cannot be used: layer fc: Rows that fill a tile's last I_p "
            "word must be zero"
        )


DEAD = """
module lrbi_decoder (
  input clk, input rst, output error,
  input [@IZ@:0] s_axis_iz_tdata, input s_axis_iz_tvalid, input s_axis_iz_tlast,
  output s_axis_iz_tready,
  input [@IP@:0] s_axis_ip_tdata, input s_axis_ip_tvalid, input s_axis_ip_tlast,
  output s_axis_ip_tready,
  output [@MASK@:0] m_axis_mask_tdata, output m_axis_mask_tvalid, output m_axis_mask_tlast,
  input m_axis_mask_tready
);
  assign error = @ERROR@;
  assign s_axis_iz_tready = 1;
  assign s_axis_ip_tready = 1;
  assign m_axis_mask_tdata = 0;
  assign m_axis_mask_tvalid = @VALID@;
  assign m_axis_mask_tlast = @LAST@;
endmodule
"""


class TestBench:
    @pytest.fixture
    def roms(self, tmp_path):
        """Tiles of 7 x 13, k = 5, two lanes, three I_z rows a word: nothing divides anything."""
        layer = random_layer(np.random.default_rng(3), (7, 13), (3, 2), 5)
        export_roms({"fc/1": layer}, tmp_path, lanes=2, iz_rows=3, vectors=True)
        return tmp_path

    def decoder(self, folder, rank):
        from lrbi.hw.decoder import Decoder
        from lrbi.hw.emit import verilog

        from lrbi.config import DecoderConfig

        config = DecoderConfig(rank=rank, tile_rows=7, tile_cols=13, lanes=2, iz_rows=3)
        text = verilog(Decoder(config=config), name="lrbi_decoder", reset="rst", command="x")
        (folder / "lrbi_decoder.v").write_text(text)

    @pytest.mark.parametrize("simulator", SIMULATORS)
    def test_with_the_generated_decoder(self, roms, simulator, build_bench):
        self.decoder(roms, 5)
        run = build_bench(simulator, "lrbi_fc_1_tb", "fc_1.tb.v", "lrbi_decoder.v")
        ran = run()
        assert (ran.returncode, ran.stdout.splitlines()[0]) == (0, "PASS: fc_1: 6 tiles, 42 rows")
        assert "FAIL" not in ran.stdout
        whole = contents(roms)

        def faulty(name, line, text):
            lines = whole[name].decode().splitlines()
            lines[line] = text(lines[line])
            (roms / name).write_text("".join(f"{each}\n" for each in lines))
            ran = run()
            (roms / name).write_bytes(whole[name])
            assert ran.returncode != 0
            assert "PASS" not in ran.stdout
            return ran.stdout

        masks = read_roms(roms).layers["fc/1"].mask
        at = next(at for at in range(masks.depth) if at % 4 == 1 and masks.word(at))
        out = faulty("fc_1.ip.mem", at, lambda word: f"{int(word, 16) ^ 0x3FF:03x}")
        assert f"tile {at // 4}, rows from 2: mask must be " in out
        assert "FAIL: fc_1: 1 mismatches in 24 mask beats\n" in out
        out = faulty("fc_1.mask.mem", 9, lambda word: f"{int(word, 16) ^ 1:07x}")
        assert "tile 2, rows from 2: mask must be " in out
        (roms / "fc_1.ip.mem").unlink()
        (roms / "fc_1.mask.mem").unlink()
        assert "FAIL: fc_1: 48 words are missing" in faulty("fc_1.iz.mem", 0, lambda word: word)

    @pytest.mark.skipif("icarus" not in SIMULATORS, reason="no iverilog")
    def test_with_a_decoder_of_larger_rank(self, roms, build_bench):
        self.decoder(roms, 9)
        for macro, line in (
            ("LRBI_RANK=9", "PASS: fc_1: 6 tiles, 42 rows"),
            ("LRBI_RANK=4", "FAIL: fc_1: LRBI_RANK must be at least 5, not 4"),
        ):
            words = ("icarus", "lrbi_fc_1_tb", "fc_1.tb.v", "lrbi_decoder.v")
            assert build_bench(*words, macros=(macro,))().stdout.splitlines()[0] == line

    @pytest.mark.skipif("icarus" not in SIMULATORS, reason="no iverilog")
    @pytest.mark.parametrize(
        ("valid", "last", "error", "line"),
        [
            ("0", "0", "0", "FAIL: fc_1: nothing moved for 1006 clocks after mask beat 0 of 24"),
            ("1'bx", "0", "0", "FAIL: fc_1: nothing moved for 1006 clocks after mask beat 0 of 24"),
            ("1", "0", "0", "beat 24: there are only 24"),
            ("1", "1", "0", "tile 0, rows from 0: tlast must be 0, not 1"),
            ("1", "0", "1'bx", "FAIL: fc_1: error must be 0, not x"),
        ],
    )
    def test_a_decoder_that_is_none(self, roms, build_bench, valid, last, error, line):
        zeros = "0000000\n" * 24
        (roms / "fc_1.mask.mem").write_text(zeros)  # what the stub says, for once, is right
        text = DEAD
        for word, value in (("IZ", 39), ("IP", 15), ("MASK", 31), ("VALID", valid),
                            ("LAST", last), ("ERROR", error)):  # fmt: skip
            text = text.replace(f"@{word}@", str(value))
        (roms / "lrbi_decoder.v").write_text(text)
        ran = build_bench("icarus", "lrbi_fc_1_tb", "fc_1.tb.v", "lrbi_decoder.v")()
        assert ran.returncode == 1
        assert line in ran.stdout
        assert "\nFAIL: fc_1: " in "\n" + ran.stdout
        assert "PASS" not in ran.stdout


def test_worked_example_of_the_format_page(tmp_path):
    """Every file that the page shows is the file that is written."""
    left = np.array([[0, 1], [1, 0], [0, 1], [0, 1], [1, 0]], dtype=bool)
    right = np.array([[1, 0, 1, 1, 0], [0, 1, 1, 0, 1]], dtype=bool)
    mask = lrbi.boolean_product(left, right)
    made = lrbi.compress(np.ones((5, 5)), CompressConfig(rank=2), mask=mask)
    factors = {"row_factors": pack_rows(left)[None], "col_factors": pack_rows(right)[None]}
    layer = dataclasses.replace(made, **factors)
    manifest = export_roms({"L": layer}, tmp_path / "1", formats=ROM_FORMATS, vectors=True)
    export_roms({"L": layer}, tmp_path / "2", lanes=2, iz_rows=2)
    page = Path(__file__).parents[2].joinpath("docs/rom-format.md").read_text()
    shown = re.findall(r"^`(L\.\w+\.\w+)`([^`]*(?:`[^`\n]+`[^`]*)*)\n\n```\n(.*?)^```", page,
                       re.MULTILINE | re.DOTALL)  # fmt: skip
    assert len(shown) == 11
    for name, text, block in shown:
        content = (tmp_path / ("2" if "two" in text else "1") / name).read_bytes()
        expected = content.hex(" ") + "\n" if name.endswith(".bin") else content.decode()
        assert block == expected, name
    iz = manifest["layers"]["L"]["roms"]["iz"]
    assert (iz["sum"], iz["weighted_sum"]) == ("23", "39")
    assert "are 0x0d + 0x16 = 23 and 1 * 0x0d + 2 * 0x16 = 39, hexadecimal" in page


def test_the_page_names_every_key(tmp_path, layers):
    page = Path(__file__).parents[2].joinpath("docs/rom-format.md").read_text()
    manifest = export_roms(layers, tmp_path, vectors=True)
    entry = manifest["layers"]["fc"]
    rom = entry["roms"]["mask"]
    for keys in (manifest, entry, entry["config"], rom, rom["files"][0], entry["testbench"]):
        for key in keys:
            assert f"`{key}`" in page, key
