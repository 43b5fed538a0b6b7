"""Scenes for the benches: random tiles, and every corner by its name."""

import itertools

import numpy as np
from lrbi.sim.cycles import mask_clocks, rom_mask_clocks
from lrbi.sim.scene import Scene, Stalls

from lrbi import boolean_product
from lrbi.layout import to_words


class Tiles:
    """Random tiles of a decoder, as frames."""

    def __init__(self, config, seed):
        self.config = config
        self.rng = np.random.default_rng(seed)

    def tile(self, height=None, rank=None, density=0.35, extra=0):
        """I_z, I_p and mask beats of one tile; ``extra`` I_z beats more than there may be."""
        config, rng = self.config, self.rng
        height = height or int(rng.integers(1, 14))
        rank = rank or int(rng.integers(1, config.rank + 1))
        if extra:
            rank = (config.iz_depth + extra) * config.iz_rows
        row_factor = rng.random((height, config.rank)) < density
        col_factor = rng.random((rank, config.tile_cols)) < density
        used = min(rank, config.rank)
        mask = boolean_product(row_factor[:, :used], col_factor[:used])
        return (
            to_words(col_factor, config.iz_rows),
            to_words(row_factor, config.lanes),
            to_words(mask, config.lanes),
        )

    def scene(self, tiles, **options):
        iz, ip, mask = map(list, zip(*tiles, strict=True))
        return Scene(iz=iz, ip=ip, mask=mask, **({"latency": self.config.latency} | options))

    def random(self, count, **options):
        return self.scene([self.tile() for _ in range(count)], **options)

    def padded(self, mask_rows):
        return to_words(mask_rows, self.config.lanes)


def stream_scenes(config, seed=0, tiles=150):
    """Every corner by name, stalls crossed, resets at random times, and many random tiles."""
    make = Tiles(config, seed)
    full = make.config.full_rate_beats * config.lanes
    scenes = {
        "rank_one": make.scene([make.tile(rank=1) for _ in range(6)]),
        "short_rank": make.scene(
            [make.tile(3, rank, 1.0) for rank in (config.rank, 1, config.rank, 1)]
        ),
        "one_row_tile": make.scene([make.tile(height=1) for _ in range(9)]),
        "all_zero_tile": make.scene([make.tile(4, config.rank, 0.0), make.tile()]),
        "all_one_tile": make.scene([make.tile(4, config.rank, 1.1), make.tile()]),
        "ragged_last_tile": make.scene([make.tile(8), make.tile(8), make.tile(1), make.tile(5)]),
        "back_to_back_tiles": make.scene([make.tile(full, config.rank) for _ in range(6)]),
        "changing_height_and_rank": make.scene(
            [make.tile(*sizes) for sizes in itertools.product((1, 2, 9), (1, config.rank))]
        ),
        "random_tiles": make.random(tiles),
    }
    for rates in itertools.product((0.0, 0.3, 0.8), repeat=3):
        if any(rates):
            scenes[f"stalls {rates}"] = make.random(8, stalls=Stalls(*rates, seed=seed))
    for number, clock in enumerate(make.rng.integers(0, 80, 12)):
        stalls = Stalls(0.2, 0.2, 0.6, number) if number % 2 else Stalls()
        scenes[f"reset_mid_tile {clock} {number}"] = make.random(
            8, stalls=stalls, reset_at=int(clock), reset_clocks=1 + number % 3
        )
    scenes["drowsy_sink"] = make.scene([make.tile(60)], stalls=Stalls(mask=0.97, seed=seed))
    scenes["trickle"] = make.scene([make.tile(99)], stalls=Stalls(ip=0.95, mask=0.9, seed=seed))
    for extra in (1, 4):
        scenes[f"too_long {extra}"] = make.scene(
            [make.tile(60), make.tile(60), make.tile(60), make.tile(extra=extra), make.tile()]
        )
    return scenes


def rom_scenes(config, tiles, masks, seed=0):
    """Ranges of a ROM decoder's tiles, with stalls and resets."""
    rng = np.random.default_rng(seed)

    def scene(ranges, **options):
        within = [(first, count) for first, count in ranges if first + count <= tiles]
        frames = [masks[tile] for first, count in within for tile in range(first, first + count)]
        return Scene(mask=frames, ranges=ranges, tiles=tiles, **options)

    whole = (0, tiles)
    most = (1 << tiles.bit_length()) - 1  # that the ports can say
    scenes = {
        "whole": scene([whole]),
        "one by one": scene([(tile, 1) for tile in range(tiles)]),
        "every count": scene([(tiles - count, count) for count in range(1, tiles + 1)]),
        "beyond the last": scene(
            [
                (tiles, 1),
                (0, 1),
                (tiles - 1, 2),
                (1, tiles),
                (1, 1),
                (0, tiles),
                (tiles, tiles),
                (most, 0),
                (most, 1),
                (0, most),
                (most, most),
                (most, 0),
            ]
        ),
        "nothing between": scene([(1, 1), (0, 0), whole, (tiles, 0), (tiles - 1, 1)]),
    }
    for rate in (0.3, 0.8, 0.95):
        scenes[f"stall {rate}"] = scene([whole, (1, 1)], stalls=Stalls(mask=rate, seed=seed))
    for number, clock in enumerate(rng.integers(1, 90, 10)):
        stalls = Stalls(mask=0.5 * (number % 2), seed=number)
        scenes[f"reset {clock} {number}"] = scene(
            [whole], stalls=stalls, reset_at=int(clock), reset_clocks=1 + number % 3
        )
    for nothing, clock in itertools.product([(tiles, 1), (0, 0)], (5, 6)):
        # Error or done is up, or about to be, in every other clock.
        scenes[f"reset with {nothing} {clock}"] = scene(
            [nothing] * 4 + [whole], reset_at=clock, reset_clocks=1
        )
    return scenes


def check(config, scenes, outcomes):
    """All that must come out came out, when the model says; returns how many beats."""
    assert len(outcomes) == len(scenes)
    beats = 0
    for (name, scene), outcome in zip(scenes.items(), outcomes, strict=True):
        assert outcome.stopped == "", name
        assert outcome.wrong == [], name
        assert outcome.wrong_beats == 0, name
        assert outcome.beats == sum(map(len, scene.mask)) > 0, name
        if name.startswith("too_long"):
            assert outcome.errors[0] is False, name
            assert outcome.errors[3:] == [True, True], name
        elif scene.iz:  # a ROM decoder's is looked at with every ``done``
            assert not any(outcome.errors), name
        if not any((scene.stalls.iz, scene.stalls.ip, scene.stalls.mask)):
            assert outcome.spans == model_spans(config, scene), name
        # Stalls that were asked for must have slowed it down.
        if scene.stalls.ip or scene.stalls.mask >= 0.5 or scene.stalls.iz >= 0.8:
            assert outcome.spans[-1][1] > model_spans(config, scene)[-1][1], name
        if name == "drowsy_sink":  # all places of the buffer are used, but the one that must not
            assert outcome.most_under_way == config.buffer_depth - 1, name
        beats += outcome.beats
    return beats


def model_spans(config, scene):
    """First and last clock of every frame by the cycle model."""
    if scene.iz:
        sizes = [(len(iz), len(ip)) for iz, ip in zip(scene.iz, scene.ip, strict=True)]
        clocks = mask_clocks(config, sizes)
    else:
        clocks, start = [], 0
        for first, count in scene.ranges:
            refused = scene.tiles is not None and first + count > scene.tiles
            part = [] if refused else rom_mask_clocks(config, count)
            clocks += [start + clock for clock in part]
            # The next start comes with done, a clock after the last beat; of nothing, and with an
            # error, two after.
            start += part[-1] + 1 if part else 2
    clocks = iter(clocks)
    spans = []
    for frame in scene.mask:
        at = [next(clocks) for _ in frame]
        spans.append((at[0], at[-1]))
    return spans
