"""``python docs/waveform.py``: the waveform in docs/decoder.md, as the decoder really makes it.

Two tiles, back to back, in Amaranth's simulator; written as WaveDrom's source, and rendered.
"""

import json
import sys
from pathlib import Path
from typing import Any

from amaranth.hdl import Cat
from amaranth.sim import Simulator
from lrbi.hw.decoder import Decoder

from lrbi.config import DecoderConfig

CONFIG = DecoderConfig(rank=4, tile_rows=5, tile_cols=8, stage_ranks=2)
ROWS = {"s_axis_iz": 4, "s_axis_ip": 5, "m_axis_mask": 5}
TARGET = Path(__file__).with_name("decoder-wave.json")


def waveform() -> dict[str, Any]:
    """Two tiles of five rows, A and B, through a decoder of k = 4 and d = 2."""
    dut = Decoder(config=CONFIG)
    ports = {name: getattr(dut, name) for name in ROWS}
    passed = dict.fromkeys(ROWS, 0)
    samples: dict[str, list[tuple[int, int, int, str]]] = {name: [] for name in ROWS}

    async def bench(ctx: Any) -> None:
        ctx.set(dut.m_axis_mask.tready, 1)
        while passed["m_axis_mask"] < 2 * ROWS["m_axis_mask"]:
            for name in ("s_axis_iz", "s_axis_ip"):
                port, done, rows = ports[name], passed[name], ROWS[name]
                ctx.set(port.tvalid, done < 2 * rows)
                ctx.set(port.tlast, done % rows == rows - 1)
            *_, values = await ctx.tick().sample(
                Cat((port.tvalid, port.tready, port.tlast) for port in ports.values())
            )
            for index, (name, rows) in enumerate(ROWS.items()):
                valid, ready, last = (values >> 3 * index + bit & 1 for bit in range(3))
                tile, row = divmod(passed[name], rows)
                samples[name].append((valid, ready, last, f"{'AB '[tile]}{row}" if valid else ""))
                passed[name] += valid & ready

    simulator = Simulator(dut)
    simulator.add_clock(1e-8)
    simulator.add_testbench(bench)
    simulator.run()
    lanes: list[Any] = [{"name": "clk", "wave": "p" + "." * (len(samples["s_axis_iz"]) - 1)}]
    for name, values in samples.items():
        valid, ready, last, label = zip(*values, strict=True)
        lanes.append({})
        lanes.append(
            [
                name,
                {"name": "tvalid", "wave": _bits(valid)},
                {"name": "tready", "wave": _bits(ready)},
                {"name": "tdata", **_labels(label)},
                {"name": "tlast", "wave": _bits(last)},
            ]
        )
    return {"signal": lanes, "head": {"text": "k = 4, d = 2: two tiles of five rows", "tick": 0}}


def _bits(values: tuple[int, ...]) -> str:
    return "".join(
        "." if index and value == values[index - 1] else str(value)
        for index, value in enumerate(values)
    )


def _labels(values: tuple[str, ...]) -> dict[str, Any]:
    wave, data = "", []
    for index, value in enumerate(values):
        if index and value == values[index - 1]:
            wave += "."
        elif value:
            wave += "4" if value[0] == "B" else "3"
            data.append(value)
        else:
            wave += "x"
    return {"wave": wave, "data": data}


def main() -> None:
    """Write the source and the picture."""
    import wavedrom

    text = json.dumps(waveform(), indent=2) + "\n"
    TARGET.write_text(text)
    wavedrom.render(text).saveas(str(TARGET.with_suffix(".svg")))
    print(f"wrote {TARGET.name} and {TARGET.with_suffix('.svg').name}", file=sys.stderr)


if __name__ == "__main__":
    main()
