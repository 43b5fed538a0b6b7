"""The cycle model: on which clock each mask beat leaves the decoder when nothing stalls."""

from collections.abc import Sequence

from lrbi.hw.rom import START_CLOCKS

from lrbi.config import DecoderConfig


def mask_clocks(config: DecoderConfig, tiles: Sequence[tuple[int, int]]) -> list[int]:
    """The clock of every mask beat, for tiles of (I_z beats, I_p beats).

    Clock 0 is the first after reset; from there on both sources always have a beat to offer and
    the sink always takes one. The model is exact.
    """
    stages = len(config.stages)
    clocks: list[int] = []
    iz_free = 0  # when the next I_z frame may begin
    ip_over = first_row = -stages  # the last and the first I_p beat of the tile before
    for iz_beats, ip_beats in tiles:
        iz_complete = iz_free + iz_beats - 1
        # The tile comes into play when its I_z is complete, the tile before it is taken whole,
        # and the token of that one has left room for another.
        in_play = max(iz_complete, ip_over, first_row + stages - 1)
        iz_free = first_row = in_play + 1
        ip_over = first_row + ip_beats - 1
        clocks += range(first_row + config.latency, ip_over + config.latency + 1)
    return clocks


def rom_mask_clocks(config: DecoderConfig, tiles: int) -> list[int]:
    """The clock of every mask beat of the ROM decoder, counted from the clock of its start.

    The sink always takes a beat. ``done`` comes in the clock after the last one.
    """
    frames = [(config.iz_depth, config.ip_depth)] * tiles
    return [START_CLOCKS + clock for clock in mask_clocks(config, frames)]
