"""Where index words come in: the input of every rival."""

from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out, connect, flipped
from lrbi.hw.axis import Axis


class Skid(wiring.Component):
    """A place beside a stream, so that ``tready`` at its source is a register.

    No latency and no clock lost: a beat that cannot go on waits in the place.

    Parameters
    ----------
    bits
        Data bits of the stream.

    Members
    -------
    source : In(Axis(bits))
        The beats.
    sink : Out(Axis(bits))
        The same beats.
    """

    def __init__(self, *, bits: int) -> None:
        self.bits = bits
        super().__init__({"source": In(Axis(bits)), "sink": Out(Axis(bits))})

    def elaborate(self, platform: object) -> Module:
        """The hardware."""
        m = Module()
        source, sink = self.source, self.sink
        offered = Cat(source.tdata[: self.bits], source.tlast)
        waiting = Signal(len(offered), reset_less=True)
        free = Signal(init=1)
        m.d.comb += [
            source.tready.eq(free),
            sink.tvalid.eq(source.tvalid | ~free),
            Cat(sink.tdata[: self.bits], sink.tlast).eq(Mux(free, offered, waiting)),
        ]
        with m.If(free):
            m.d.sync += waiting.eq(offered)
        m.d.sync += free.eq(sink.tready | (free & ~source.tvalid))
        return m


def index_port(m: Module, port: Any, name: str, *, bits: int, skid: bool) -> Any:
    """The stream of a core's port, behind a :class:`Skid` if asked for; pad bits are ignored."""
    pads = port.tdata[bits:]
    if len(pads):  # the name tells lint tools
        m.d.comb += Signal(len(pads), name=f"unused_{name}_pads", attrs={"keep": "true"}).eq(pads)
    if not skid:
        return port
    m.submodules[f"{name}_skid"] = behind = Skid(bits=bits)
    connect(m, flipped(port), behind.source)
    return behind.sink
