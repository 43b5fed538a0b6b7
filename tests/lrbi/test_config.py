import numpy as np
import pytest

from lrbi.config import CompressConfig, DecoderConfig
from lrbi.errors import InputError


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sparsity": 1.0}, "Sparsity must be between 0 and 1, both excluded, not 1.0"),
        ({"sparsity": float("nan")}, "Sparsity must be between 0 and 1, both excluded, not nan"),
        ({"sparsity": "0.5"}, "Sparsity must be between 0 and 1, both excluded, not '0.5'"),
        ({"rank": 0}, "Rank must be a whole number of at least 1, not 0"),
        ({"rank": 2.5}, "Rank must be a whole number of at least 1, not 2.5"),
        ({"rank": True}, "Rank must be a whole number of at least 1, not True"),
        ({"rank": 70000}, "Rank must be at most 65535, not 70000"),
        ({"rank": "auto"}, "Ratio must be a positive number with rank 'auto', not None"),
        (
            {"rank": "auto", "ratio": float("inf")},
            "Ratio must be a positive number with rank 'auto', not inf",
        ),
        ({"ratio": 3.0}, "Ratio goes with rank 'auto' only, not with rank 4"),
        ({"tile": (0, 4)}, "Tile rows must be a whole number of at least 1, not 0"),
        ({"tile": (4,)}, "Tile must be a pair of rows and columns, not (4,)"),
        ({"method": 4}, "Method must be 1, 2 or 3, not 4"),
        ({"engine": "svd"}, "Engine must be one of hals, nimfa, not 'svd'"),
        ({"effort": "slow"}, "Effort must be one of fast, normal, high, not 'slow'"),
        ({"objective": 1}, "Objective must be one of paper, mixed, all, not 1"),
        ({"iterations": 0}, "Iterations must be a whole number of at least 1, not 0"),
        ({"seed": -1}, "Seed must be a whole number of at least 0, not -1"),
        (
            {"sparsity": None, "sparsity_per_tile": True},
            "Sparsity per tile needs a sparsity, not a given mask",
        ),
    ],
)
def test_wrong_compress_config(changes, message):
    with pytest.raises(InputError) as refusal:
        CompressConfig(**({"sparsity": 0.5, "rank": 4} | changes))
    assert str(refusal.value) == message


def test_numbers_of_any_type_become_plain():
    config = CompressConfig(
        sparsity=np.float32(0.5), rank=np.int64(4), tile=[np.uint8(3), 5], seed=np.int8(1)
    )
    plain = CompressConfig(sparsity=0.5, rank=4, tile=(3, 5), seed=1)
    assert config == plain
    assert type(config.sparsity) is float
    assert type(config.rank) is type(config.tile[0]) is type(config.seed) is int


def test_decoder_widths_and_depths():
    config = DecoderConfig(rank=16, tile_rows=100, tile_cols=125, lanes=3, iz_rows=5)
    assert config.stages == (4, 6, 6)
    assert (config.ip_width, config.iz_width, config.mask_width) == (48, 625, 375)
    assert (config.ip_depth, config.iz_depth) == (34, 4)
    assert DecoderConfig(**config.as_dict()) == config


@pytest.mark.parametrize("stage_ranks", [1, 3, 5, 7, 16, 40])
def test_stages_hold_every_rank_once_and_the_short_one_comes_first(stage_ranks):
    stages = DecoderConfig(rank=16, tile_rows=1, tile_cols=1, stage_ranks=stage_ranks).stages
    assert sum(stages) == 16
    assert all(stage == stage_ranks for stage in stages[1:])
    assert 1 <= stages[0] <= stage_ranks


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rank": 0}, "Rank must be a whole number of at least 1, not 0"),
        ({"tile_cols": "8"}, "Tile columns must be a whole number of at least 1, not '8'"),
        ({"lanes": 0}, "Lanes must be a whole number of at least 1, not 0"),
        ({"reset": "rstn"}, "Reset must be 'rst' or 'aresetn', not 'rstn'"),
        ({"lut_inputs": 5}, "LUT inputs must be 4 or 6, not 5"),
        ({"lut_inputs": True}, "LUT inputs must be 4 or 6, not True"),
        ({"memory": "bram"}, "Memory must be 'distributed' or 'block', not 'bram'"),
    ],
)
def test_wrong_decoder_config(changes, message):
    with pytest.raises(InputError) as refusal:
        DecoderConfig(**({"rank": 4, "tile_rows": 8, "tile_cols": 8} | changes))
    assert str(refusal.value) == message


@pytest.mark.parametrize("rows", [1, 3, 4, 7, 8, 9, 40])
@pytest.mark.parametrize(("lanes", "iz_rows"), [(1, 1), (3, 1), (2, 4)])
def test_sustained_bits_are_those_of_the_cycle_model(rows, lanes, iz_rows):
    from lrbi.sim.cycles import mask_clocks

    config = DecoderConfig(
        rank=8, tile_rows=rows, tile_cols=10, stage_ranks=3, lanes=lanes, iz_rows=iz_rows
    )
    tiles = 50
    clocks = mask_clocks(config, [(config.iz_depth, config.ip_depth)] * tiles)
    period = (clocks[-1] - clocks[config.ip_depth - 1]) / (tiles - 1)
    assert config.sustained_bits == pytest.approx(rows * 10 / period)
