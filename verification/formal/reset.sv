// Two stream decoders with different pasts, from the clock in which both are reset: they do the
// same. One may have been in the middle of anything; the other is any other decoder, a new one too.
//
// The mask beats themselves are the business of stream.sv, which begins with any contents as well.
`include "config.vh"

module reset (
  input clk,
  input rst,
  input [(IZ_ROWS + 7) / 8 * 8 - 1:0] iz_data,
  input iz_valid,
  input iz_last,
  input [(LANES*K + 7) / 8 * 8 - 1:0] ip_data,
  input ip_valid,
  input ip_last,
  input mask_ready
);
  wire [1:0] iz_ready, ip_ready, mask_valid, mask_last, error, fresh;
  wire [(LANES + 7) / 8 * 8 - 1:0] mask_data[0:1];
  wire [STATE-1:0] state[0:1];
  wire [BEATS-1:0] written[0:1];
  wire [7:0] write_word[0:1];
  genvar index;
  generate
    for (index = 0; index < 2; index = index + 1) begin : copy
      lrbi_decoder dut (
        .clk(clk), .rst(rst),
        .s_axis_iz_tdata(iz_data), .s_axis_iz_tvalid(iz_valid),
        .s_axis_iz_tready(iz_ready[index]), .s_axis_iz_tlast(iz_last),
        .s_axis_ip_tdata(ip_data), .s_axis_ip_tvalid(ip_valid),
        .s_axis_ip_tready(ip_ready[index]), .s_axis_ip_tlast(ip_last),
        .m_axis_mask_tdata(mask_data[index]), .m_axis_mask_tvalid(mask_valid[index]),
        .m_axis_mask_tready(mask_ready), .m_axis_mask_tlast(mask_last[index]),
        .error(error[index]), .probe_slot(4'd0), .probe_fresh(fresh[index]),
        .probe_state(state[index]), .probe_written(written[index]),
        .probe_write_word(write_word[index])
      );
    end
  endgenerate

  reg started = 0, was_busy = 0;
  always @(posedge clk) begin
    started <= 1;
    if (started && rst && mask_valid[0] && !fresh[0]) was_busy <= 1;
  end
  always @* if (!started) assume (rst);
  always @* if (started) begin
    takes_i_z: assert (iz_ready[0] == iz_ready[1]);
    takes_i_p: assert (ip_ready[0] == ip_ready[1]);
    gives: assert (mask_valid[0] == mask_valid[1]);
    raises: assert (error[0] == error[1]);
    cover (was_busy && mask_valid[0] && mask_valid[1] && mask_data[0] == 1 && mask_data[1] == 1);
`ifdef LEMMAS
    // Whatever has a reset is the same in both, but tlast, which is a row's; and so is what the
    // loader knows of a frame that has begun.
    assert (state[0] == state[1]);
    assert (write_word[0] == write_word[1]);
    if (!fresh[0]) assert (written[0] == written[1]);
`endif
  end
endmodule
