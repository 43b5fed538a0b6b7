"""Tables of measured hardware on the docs' page, and the plots beside them."""

import csv

import numpy as np
import pytest
from lrbi.hw.rivals import catalog

from benchmarks import hardware, report, sweep


def facts(clock, **counts):
    return {
        "lut": 10, "lut_ram": 6, "ff": 20, "bram": 1, "fmax_mhz": clock,
        "fmax_mhz_seeds": [] if clock is None else [clock - 4, clock + 4],
        "bits_per_clock": 12.5, "gbit_per_s": None if clock is None else 2.5,
        "mbit_per_s_per_lut": None if clock is None else 156.3,
    } | counts  # fmt: skip


def decoder(name, **changes):
    return {
        "name": name, "beat": 16, "index_bits": 1234, "rom_bits": 1300, "kept": 0.25,
        "simulation": {"clocks": 4321}, "core": facts(200.0), "with_rom": facts(150.0),
    } | changes  # fmt: skip


FOUND = {
    "cases": [{
        "case": "made up", "shape": [8, 16], "sparsity": 0.9, "rank": 2,
        "decoders": [
            decoder("lrbi"),
            decoder("bitmap", kept=1.0, core=facts(900.0, lut=0, lut_ram=0, ff=0)),
            decoder("viterbi-4", kept=None, core=facts(None), with_rom=facts(None)),
        ],
    }]
}  # fmt: skip


def test_a_table_says_what_was_found_and_nothing_where_nothing_was():
    lines = report.rivals_table(FOUND["cases"][0]).splitlines()
    assert lines[0] == "**made up**, 8 x 16, S = 0.9, k = 2."
    alone, with_roms = lines[4:7], lines[10:13]
    assert alone == [
        "| lrbi | 16 | 1,234 | 0.250 | 10 | 6 | 20 | 200 (196-204) | 12.5 | 2.5 | 156.3 |",
        "| bitmap | 16 | 1,234 | 1.000 | 0 | 0 | 0 | - | 12.5 | - | - |",
        "| viterbi-4 | 16 | 1,234 | - | 10 | 6 | 20 | - | 12.5 | - | - |",
    ]
    assert with_roms[0] == (
        "| lrbi | 16 | 1,300 | 1 | 10 | 6 | 20 | 150 (146-154) | 4,321 | 2.5 | 156.3 |"
    )


def test_json_and_plots_are_the_same_each_time(tmp_path):
    for name in ("a", "b"):
        report.write_rivals(FOUND, tmp_path / name)
    names = ["rivals.json", "rivals.png", "rivals.svg"]
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == names
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_the_sweep_as_csv_and_table(tmp_path):
    rows = [
        {"rank": rank, "columns": 32, "stage_ranks": stage, "lanes": lanes, "lut_over_floor": 1.1}
        | {"ff_over_floor": 1.2}
        | facts(200.0, mbit_per_s_per_lut=10.0 * stage + lanes)
        for rank in (4, 8) for stage in (2, 3) for lanes in (1, 2)
    ]  # fmt: skip
    report.write_sweep(rows, sweep.FIELDS, tmp_path)
    with (tmp_path / "sweep.csv").open() as file:
        read = list(csv.DictReader(file))
    assert len(read) == 8
    assert read[1]["mbit_per_s_per_lut"] == "22.0"
    assert tuple(read[0]) == sweep.FIELDS
    assert report.sweep_table(rows).splitlines() == [
        "| k | C | d = 2 | d = 3 |",
        "| --- | --- | --- | --- |",
        "| 4 | 32 | 10 + 6 / 20 / 200 / 21.0 | 10 + 6 / 20 / 200 / **31.0** |",
        "| 8 | 32 | 10 + 6 / 20 / 200 / 21.0 | 10 + 6 / 20 / 200 / **31.0** |",
    ]


def test_a_page_is_filled_between_its_marks(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- x -->\nold\n<!-- end of x -->\nafter\n")
    for _ in range(2):
        report.fill(page, "x", "new\nlines")
        assert page.read_text() == "before\n<!-- x -->\nnew\nlines\n<!-- end of x -->\nafter\n"
    with pytest.raises(ValueError, match="has no place marked 'y'"):
        report.fill(page, "y", "")


def test_the_sweep_takes_every_combination_once():
    points = [(c.rank, c.tile_cols, c.stage_ranks, c.lanes) for c in sweep.configs()]
    assert len(points) == len(set(points))
    assert {point for point in points if point[3] == 1} >= {(32, 128, 6, 1), (4, 32, 2, 1)}
    assert all(stage <= rank for rank, _, stage, _ in points)


def test_plots_show_index_and_luts_where_they_say():
    """Bits of index for a weight on the left, LUT4s with ROMs on the right; rates upwards."""
    found = {"cases": [dict(FOUND["cases"][0], decoders=FOUND["cases"][0]["decoders"][:1])]}
    left, right = report.plot_rivals(found).axes
    assert left.collections[0].get_offsets().tolist() == [[1234 / 128, 2.5]]
    assert right.collections[0].get_offsets().tolist() == [[16, 2.5]]
    assert left.get_xlabel() == "index bits for a weight"


def test_sustained_rates_are_from_the_first_beat_to_the_last():
    mask = np.random.default_rng(0).random((12, 32)) < 0.2
    figures = hardware.simulated(hardware.theirs(catalog.bitmap(mask, beat=32)))
    assert figures["mask_bits"] == 12 * 32
    assert figures["bits_per_clock"] == 32.0  # a row a clock, whenever the first one came
    assert figures["clocks"] > 12
