"""Windows into an emitted module, through which the lemmas of a proof see its state."""

import re
from collections.abc import Iterable, Mapping

from lrbi.hw.array import LoadPlan, bits_for

from lrbi.config import DecoderConfig

Probes = Mapping[str, tuple[int, str]]
"""By name: how many bits, and what they show, in the module's own names."""


def probed(text: str, probes: Probes, places: Mapping[str, int]) -> str:
    """The module with an output for each probe, and inputs of so many bits for ``places``.

    Nothing else is changed.
    """
    ports = "".join(f",\n  input wire [{bits - 1}:0] probe_{name}" for name, bits in places.items())
    ports += "".join(
        f",\n  output wire [{bits - 1}:0] probe_{name}" for name, (bits, _) in probes.items()
    )
    shown = "".join(f"  assign probe_{name} = {what};\n" for name, (_, what) in probes.items())
    return text.replace("\n);\n", f"{ports}\n);\n", 1).replace("endmodule", f"{shown}endmodule")


def header(constants: Mapping[str, int | str], probes: Probes) -> str:
    """What a harness includes: its sizes, and wires for the probes."""
    lines = [f"localparam {name} = {value};" for name, value in constants.items()]
    wires = " ".join(f"wire [{bits - 1}:0] {name};" for name, (bits, _) in probes.items())
    lines.append(f"`define PROBES {wires}")
    lines.append("`define PROBED " + "".join(f", .probe_{name}({name})" for name in probes))
    return "\n".join(lines) + "\n"


def decoder_probes(config: DecoderConfig, text: str) -> Probes:
    """The state of a stream decoder of one column."""
    plan, stages = LoadPlan(config), len(config.stages)
    registers = re.findall(r"^  reg (?:\[\d+:0\] )?(\w+);", text, re.MULTILINE)

    def register(*patterns: str, default: str = "0") -> str:
        """The first that is there: what a small configuration does without is a constant."""
        found = (name for pattern in patterns for name in registers if re.fullmatch(pattern, name))
        return next(found, default)

    def row(half: int, rank: int) -> str:
        bank, position = plan.place(rank)
        word, _ = plan.beat_place(rank // config.iz_rows)
        bits = bits_for(-(-(plan.skip + plan.beats - bank) // plan.banks))
        return f"columns0_bank{bank}[{half << bits | word}][{position}]"

    # Registers whose reset is their own; that of others is hidden in a net of several causes.
    state = [
        name
        for name in re.findall(r"^    if \(rst\) (\w+) <=", text, re.MULTILINE)
        if not name.endswith("tlast")
    ]
    width = {
        name: int(high or 0) + 1
        for high, name in re.findall(r"reg (?:\[(\d+):0\] )?(\w+)(?:;|,\n|\n\))", text)
    }
    pointer = (config.buffer_depth - 1).bit_length()
    return {
        "valid": (stages + 2, register(r"valid(_\d+)?")),
        "lasts": (stages + 2, "last"),
        "produced": (pointer, "write__addr"),
        "consumed": (pointer, "read__addr"),
        "array_produced": (pointer, "columns0_produced"),
        "array_consumed": (pointer, "columns0_consumed"),
        "free": (pointer, "free"),
        "available": (1, "available"),
        "full": (1, "full"),
        "returned": (1, "returned"),
        "slot_last": (1, "buffer[probe_slot]"),
        "slot_bits": (config.lanes, "columns0_buffer[probe_slot]"),
        "whole": (config.lanes, f"columns0_partial{stages - 1}"),
        "step": (1, "step"),
        "in_play": (1, "playing"),
        "fresh": (1, "fresh"),
        "written": (plan.beats, "written"),
        "present": (plan.beats, "present"),
        "write_enable": (plan.banks, "write_enable"),
        "write_word": (8, register("word")),
        "write_half": (1, register("half", "write_word")),
        "read_half": (1, "columns0_half"),
        "tokens": (stages, _joined(f"columns0_token{stage}" for stage in range(stages))),
        "ready_to_step": (1, register("idle", default="1")),
        "loading": (8, register("columns0_loading")),
        "memory0": (config.rank, _joined(row(0, rank) for rank in range(config.rank))),
        "memory1": (config.rank, _joined(row(1, rank) for rank in range(config.rank))),
        "array_rows": (config.rank, _joined(f"columns0_iz{stage}" for stage in range(stages))),
        "state": (sum(width[name] for name in state), _joined(state)),
    }


def decoder_constants(config: DecoderConfig, probes: Probes) -> dict[str, int | str]:
    """The sizes of a stream decoder, and where its loader puts a frame's beats."""
    plan, stages = LoadPlan(config), len(config.stages)
    places = [plan.beat_place(beat) for beat in range(plan.beats)]
    stage_of = [stage for stage, ranks in enumerate(plan.stages) for _ in ranks]
    return {
        "K": config.rank,
        "LANES": config.lanes,
        "IZ_ROWS": config.iz_rows,
        "STAGES": stages,
        "DEPTH": stages + 2,
        "BEATS": plan.beats,
        "BANKS": plan.banks,
        "STAGE_OF": _packed(stage_of, 8),
        "BANK_OF": _packed([1 << bank for _, bank in places], plan.banks),
        "WORD_OF": _packed([word for word, _ in places], 8),
        "STATE": probes["state"][0],
    }


def _joined(parts: Iterable[str]) -> str:
    """The first part lowest."""
    return "{" + ", ".join(reversed(list(parts))) + "}"


def _packed(values: list[int], bits: int) -> str:
    number = sum(value << index * bits for index, value in enumerate(values))
    return f"{len(values) * bits}'h{number:x}"
