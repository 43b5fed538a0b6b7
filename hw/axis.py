"""AXI4-Stream, as far as the decoder uses it."""

from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from lrbi.layout import row_bytes


class Axis(wiring.Signature):
    """An AXI4-Stream of ``bits`` data bits: ``tdata`` padded to bytes, no tkeep, tstrb or tid.

    A beat passes on a clock edge where ``tvalid`` and ``tready`` are both high. Once high,
    ``tvalid`` stays, and ``tdata`` and ``tlast`` with it, until the beat has passed. ``tlast``
    marks the last beat of a frame.
    """

    def __init__(self, bits: int) -> None:
        self.bits = bits
        super().__init__(
            {
                "tdata": Out(8 * row_bytes(bits)),
                "tvalid": Out(1),
                "tready": In(1),
                "tlast": Out(1),
            }
        )
