"""A self-checking bench, in plain Verilog, for a layer's ROM files and its decoder."""

from lrbi.config import DecoderConfig


def testbench(config: DecoderConfig, *, tiles: int, stem: str, identifier: str) -> str:
    """The Verilog module ``lrbi_<identifier>_tb`` for the files ``<stem>.ip.mem`` and so on.

    It plays all tiles through ``lrbi_decoder`` and compares every mask beat with
    ``<stem>.mask.mem``.
    """
    values = {
        "STEM": stem,
        "MODULE": f"lrbi_{identifier}_tb",
        "RANK": config.rank,
        "ROWS": config.tile_rows,
        "COLS": config.tile_cols,
        "LANES": config.lanes,
        "IZ_ROWS": config.iz_rows,
        "TILES": tiles,
    }
    text = _BENCH
    for word, value in values.items():
        text = text.replace(f"@{word}@", str(value))
    return text


_BENCH = """\
// SPDX-License-Identifier: CC0-1.0
// Made by lrbi export --vectors: a self-checking bench of layer @STEM@.
//
// For the decoder of this layer's own rank, tile, lanes and I_z rows, whose stream widths it has:
//   lrbi generate --rank @RANK@ --tile @ROWS@x@COLS@ --lanes @LANES@ --iz-rows @IZ_ROWS@ -o rtl
// A decoder of a larger rank does too: give that rank as the macro LRBI_RANK. LRBI_MODULE names a
// decoder that was made with --prefix, LRBI_ARESETN is for one made with --reset aresetn.
//
// Run it in the folder of the .mem files, or name them by LRBI_IP_FILE, LRBI_IZ_FILE and
// LRBI_MASK_FILE:
//   $ iverilog -g2005 -o bench @STEM@.tb.v rtl/lrbi_decoder.v && vvp bench
//   $ verilator --binary --timing --top-module @MODULE@ @STEM@.tb.v rtl/lrbi_decoder.v
//   $ obj_dir/V@MODULE@
// One line says PASS or FAIL, after what differs; with FAIL both simulators end with an error.
`ifndef LRBI_MODULE
`define LRBI_MODULE lrbi_decoder
`endif
`ifndef LRBI_RANK
`define LRBI_RANK @RANK@
`endif
`ifndef LRBI_IP_FILE
`define LRBI_IP_FILE "@STEM@.ip.mem"
`endif
`ifndef LRBI_IZ_FILE
`define LRBI_IZ_FILE "@STEM@.iz.mem"
`endif
`ifndef LRBI_MASK_FILE
`define LRBI_MASK_FILE "@STEM@.mask.mem"
`endif

module @MODULE@;
  localparam RANK = @RANK@, ROWS = @ROWS@, COLS = @COLS@, LANES = @LANES@, IZ_ROWS = @IZ_ROWS@;
  localparam TILES = @TILES@, DECODER_RANK = `LRBI_RANK;
  localparam IP_WORDS = (ROWS + LANES - 1) / LANES, IZ_WORDS = (RANK + IZ_ROWS - 1) / IZ_ROWS;
  localparam IP_DEPTH = TILES * IP_WORDS, IZ_DEPTH = TILES * IZ_WORDS;
  localparam IP_BITS = (LANES * DECODER_RANK + 7) / 8 * 8;
  localparam IZ_BITS = (IZ_ROWS * COLS + 7) / 8 * 8;
  localparam MASK_BITS = (LANES * COLS + 7) / 8 * 8;
  // Clocks in which nothing is taken anywhere before the decoder is called dead, and clocks
  // after the last beat in which no other may come.
  localparam PATIENCE = 1000 + IP_WORDS + IZ_WORDS, AFTER = 100 + DECODER_RANK;
  localparam SHOWN = 8;

  // verilator lint_off WIDTH
  // (indices are integers, wider than the memories need)
  reg [LANES*RANK-1:0] ip_rom [0:IP_DEPTH-1];
  reg [IZ_ROWS*COLS-1:0] iz_rom [0:IZ_DEPTH-1];
  reg [LANES*COLS-1:0] mask_rom [0:IP_DEPTH-1];

  reg clk, rst;
  reg [IP_BITS-1:0] ip_tdata;
  reg [IZ_BITS-1:0] iz_tdata;
  reg ip_tvalid, ip_tlast, iz_tvalid, iz_tlast, mask_tready;
  wire ip_tready, iz_tready, mask_tvalid, mask_tlast, error;
  wire [MASK_BITS-1:0] mask_tdata;
  integer ip_next, iz_next, mask_next, idle, wrong, index, lane;

  `LRBI_MODULE decoder (
`ifdef LRBI_ARESETN
    .aclk(clk), .aresetn(!rst), .error(error),
`else
    .clk(clk), .rst(rst), .error(error),
`endif
    .s_axis_iz_tdata(iz_tdata), .s_axis_iz_tvalid(iz_tvalid),
    .s_axis_iz_tready(iz_tready), .s_axis_iz_tlast(iz_tlast),
    .s_axis_ip_tdata(ip_tdata), .s_axis_ip_tvalid(ip_tvalid),
    .s_axis_ip_tready(ip_tready), .s_axis_ip_tlast(ip_tlast),
    .m_axis_mask_tdata(mask_tdata), .m_axis_mask_tvalid(mask_tvalid),
    .m_axis_mask_tready(mask_tready), .m_axis_mask_tlast(mask_tlast)
  );

  initial begin
    clk = 0;
    rst = 1;
    wrong = 0;
    $readmemh(`LRBI_IP_FILE, ip_rom);
    $readmemh(`LRBI_IZ_FILE, iz_rom);
    $readmemh(`LRBI_MASK_FILE, mask_rom);
    // Words that no file gave would pass for equal ones.
    for (index = 0; index < IP_DEPTH; index = index + 1)
      wrong = wrong + (^ip_rom[index] === 1'bx) + (^mask_rom[index] === 1'bx);
    for (index = 0; index < IZ_DEPTH; index = index + 1)
      wrong = wrong + (^iz_rom[index] === 1'bx);
`ifdef VERILATOR
    // It has no x: what no file gave is zero.
    count(`LRBI_IP_FILE, IP_DEPTH);
    count(`LRBI_IZ_FILE, IZ_DEPTH);
    count(`LRBI_MASK_FILE, IP_DEPTH);
`endif
    if (wrong != 0) begin
      $display("FAIL: @STEM@: %0d words are missing from the .mem files", wrong);
      fail;
    end
    if (DECODER_RANK < RANK) begin
      $display("FAIL: @STEM@: LRBI_RANK must be at least %0d, not %0d", RANK, DECODER_RANK);
      fail;
    end
    repeat (4) @(negedge clk);
    rst = 0;
  end

  always #5 clk = ~clk;

`ifdef VERILATOR
  task count(input [8*1024-1:0] name, input integer depth);
    integer file, letter, lines;
    begin
      lines = 0;
      file = $fopen(name, "r");
      if (file != 0) begin
        letter = $fgetc(file);
        while (letter != -1) begin
          if (letter == 10) lines = lines + 1;
          letter = $fgetc(file);
        end
        $fclose(file);
      end
      if (lines < depth) wrong = wrong + depth - lines;
    end
  endtask
`endif

  task fail;
    begin
`ifdef VERILATOR
      $fatal;
`elsif __ICARUS__
      $finish_and_return(1);
`else
      $finish;
`endif
    end
  endtask

  // Sample on the rising edge, write after it.
  always @(posedge clk)
    if (rst) begin
      iz_next <= 0;
      iz_tvalid <= 0;
      iz_tlast <= 0;
      iz_tdata <= 0;
    end else if (!iz_tvalid || iz_tready === 1'b1) begin
      iz_tvalid <= iz_next < IZ_DEPTH;
      if (iz_next < IZ_DEPTH) begin
        iz_tdata <= iz_rom[iz_next];
        iz_tlast <= iz_next % IZ_WORDS == IZ_WORDS - 1;
        iz_next <= iz_next + 1;
      end
    end

  always @(posedge clk)
    if (rst) begin
      ip_next <= 0;
      ip_tvalid <= 0;
      ip_tlast <= 0;
      ip_tdata <= 0;
    end else if (!ip_tvalid || ip_tready === 1'b1) begin
      ip_tvalid <= ip_next < IP_DEPTH;
      if (ip_next < IP_DEPTH) begin
        for (lane = 0; lane < LANES; lane = lane + 1)
          ip_tdata[lane*DECODER_RANK +: RANK] <= ip_rom[ip_next][lane*RANK +: RANK];
        ip_tlast <= ip_next % IP_WORDS == IP_WORDS - 1;
        ip_next <= ip_next + 1;
      end
    end

  always @(posedge clk)
    if (rst) begin
      mask_next <= 0;
      mask_tready <= 0;
      idle <= 0;
    end else begin
      mask_tready <= 1;
      idle <= idle + 1;
      if ((iz_tvalid && iz_tready === 1'b1) || (ip_tvalid && ip_tready === 1'b1)) idle <= 0;
      if (mask_tvalid === 1'b1 && mask_tready) begin
        idle <= 0;
        mask_next <= mask_next + 1;
        if (mask_next >= IP_DEPTH) begin
          wrong = wrong + 1;
          if (wrong <= SHOWN) $display("beat %0d: there are only %0d", mask_next, IP_DEPTH);
        end else begin
          if (mask_tdata !== mask_rom[mask_next]) begin
            wrong = wrong + 1;
            if (wrong <= SHOWN)
              $display("tile %0d, rows from %0d: mask must be %h, not %h", mask_next / IP_WORDS,
                mask_next % IP_WORDS * LANES, mask_rom[mask_next], mask_tdata);
          end
          if (mask_tlast !== (mask_next % IP_WORDS == IP_WORDS - 1)) begin
            wrong = wrong + 1;
            if (wrong <= SHOWN)
              $display("tile %0d, rows from %0d: tlast must be %b, not %b", mask_next / IP_WORDS,
                mask_next % IP_WORDS * LANES, mask_next % IP_WORDS == IP_WORDS - 1, mask_tlast);
          end
        end
      end
      if (idle > PATIENCE && mask_next < IP_DEPTH) begin
        $display("FAIL: @STEM@: nothing moved for %0d clocks after mask beat %0d of %0d",
          PATIENCE, mask_next, IP_DEPTH);
        fail;
      end else if (mask_next >= IP_DEPTH && (idle > AFTER || mask_next > IP_DEPTH + SHOWN)) begin
        if (error !== 1'b0) begin
          $display("FAIL: @STEM@: error must be 0, not %b", error);
          fail;
        end else if (wrong != 0) begin
          $display("FAIL: @STEM@: %0d mismatches in %0d mask beats", wrong, mask_next);
          fail;
        end else begin
          $display("PASS: @STEM@: %0d tiles, %0d rows", TILES, TILES * ROWS);
          $finish;
        end
      end
    end
endmodule
"""
