// One column of the stream decoder against Eq. 3: any frames, any stalls, a reset at any time.
//
// One I_p beat, chosen freely, is watched from the clock in which it is taken: when as many mask
// beats have left as were on their way before it, the next must be its own. Nothing is assumed but
// that the first clock is one of reset; registers and memories begin with any contents.
//
// The lemmas at the end say how the decoder's own state goes with that of the reference. They are
// asserted like the rest, and make it inductive, so that all of it is proved without a bound.
// Where a planted fault must be caught, they are left out: the properties alone must catch it.
`include "config.vh"

module stream (
  input clk,
  input rst,
  input [(IZ_ROWS + 7) / 8 * 8 - 1:0] iz_data,
  input iz_valid,
  input iz_last,
  input [(LANES*K + 7) / 8 * 8 - 1:0] ip_data,
  input ip_valid,
  input ip_last,
  input mask_ready,
  input watch  // the I_p beat that is taken in this clock
);
  wire iz_ready, ip_ready, mask_valid, mask_last, error;
  wire [(LANES + 7) / 8 * 8 - 1:0] mask_data;
  `PROBES
  reg [3:0] slot;  // the place that the lemmas look into
  lrbi_decoder dut (
    .clk(clk), .rst(rst),
    .s_axis_iz_tdata(iz_data), .s_axis_iz_tvalid(iz_valid),
    .s_axis_iz_tready(iz_ready), .s_axis_iz_tlast(iz_last),
    .s_axis_ip_tdata(ip_data), .s_axis_ip_tvalid(ip_valid),
    .s_axis_ip_tready(ip_ready), .s_axis_ip_tlast(ip_last),
    .m_axis_mask_tdata(mask_data), .m_axis_mask_tvalid(mask_valid),
    .m_axis_mask_tready(mask_ready), .m_axis_mask_tlast(mask_last),
    .error(error), .probe_slot(slot) `PROBED
  );
  wire iz_taken = iz_valid && iz_ready;
  wire ip_taken = ip_valid && ip_ready;
  wire mask_taken = mask_valid && mask_ready;

  reg started = 0;
  always @(posedge clk) started <= 1;
  always @* if (!started) assume (rst);
`ifdef SLEEPING_SINK  // a way to a full buffer, for faults that show only there
  reg [4:0] clock = 0;
  always @(posedge clk) clock <= clock + (clock != 31);
  always @* if (started) assume (!rst && iz_valid && ip_valid && mask_ready == (clock > 22));
`endif

  // The I_z frame that is coming: its rows, and those that were sent; more than K are dropped.
  reg [K-1:0] coming, coming_sent, arrived, arrived_sent;
  reg [7:0] beats;
  reg error_due;  // a frame was too long
  integer row;
  always @* begin
    arrived = coming;
    arrived_sent = coming_sent;
    for (row = 0; row < K; row = row + 1)
      if (row / IZ_ROWS == beats) begin
        arrived[row] = iz_data[row % IZ_ROWS];
        arrived_sent[row] = 1;
      end
  end
  wire too_long = beats == BEATS;
  always @(posedge clk)
    if (rst) begin
      coming <= 0;
      coming_sent <= 0;
      beats <= 0;
      error_due <= 0;
    end else if (iz_taken) begin
      coming <= iz_last ? 0 : arrived;
      coming_sent <= iz_last ? 0 : arrived_sent;
      beats <= iz_last ? 0 : beats + !too_long;
      error_due <= error_due || too_long;
    end

  // The frames that are complete: that of the tile whose I_p comes next, and one ahead.
  reg [K-1:0] playing, playing_sent, next, next_sent;
  reg playing_long, next_long;
  reg [1:0] frames;
  wire pushed = iz_taken && iz_last;
  wire popped = ip_taken && ip_last;
  wire [1:0] left = frames - popped;
  always @(posedge clk)
    if (rst) frames <= 0;
    else begin
      frames <= left + pushed;
      if (popped) {playing, playing_sent, playing_long} <= {next, next_sent, next_long};
      if (pushed && left == 0)
        {playing, playing_sent, playing_long} <= {arrived, arrived_sent, too_long};
      if (pushed && left == 1) {next, next_sent, next_long} <= {arrived, arrived_sent, too_long};
    end

  // Mask beats on their way, and the one that is watched.
  reg [4:0] flying, ahead;
  reg watching, last, long;
  reg [LANES-1:0] bits;
  integer lane;
  always @(posedge clk)
    if (rst) begin
      flying <= 0;
      watching <= 0;
    end else begin
      flying <= flying + ip_taken - mask_taken;
      if (!watching) begin
        watching <= ip_taken && watch;
        ahead <= flying - mask_taken;
        last <= ip_last;
        long <= playing_long;
        for (lane = 0; lane < LANES; lane = lane + 1)
          bits[lane] <= |(ip_data[lane*K +: K] & playing);  // Eq. 3
      end else if (mask_taken) begin
        watching <= ahead != 0;
        ahead <= ahead - 1;
      end
    end
  wire due = watching && ahead == 0 && mask_valid;

  // The mask port a clock before; clocks in which it had nothing to offer though beats were on their
  // way; and those in which nothing moved though nobody held back.
  reg refused, refused_last;
  reg [LANES-1:0] refused_bits;
  reg [7:0] quiet, idle;
  always @(posedge clk) begin
    refused <= mask_valid && !mask_ready && !rst;
    refused_last <= mask_last;
    refused_bits <= mask_data;
    quiet <= rst || mask_valid || flying == 0 ? 0 : quiet + 1;
    idle <= rst || !iz_valid || !ip_valid || !mask_ready || iz_ready || ip_ready || mask_valid
      ? 0 : idle + 1;
  end

  always @* if (started) begin
    // (a) every mask bit is Eq. 3's
    if (due) eq3: assert (mask_data[LANES-1:0] == bits);
    pads: assert (mask_data >> LANES == 0);
    // (b) no beat is lost, doubled or out of order
    if (due) order: assert (mask_last == last);
    if (mask_valid) doubled: assert (flying != 0);
    if (ip_ready) early: assert (frames != 0);  // I_p waits for its I_z
    if (frames == 2) one_ahead: assert (!iz_ready);
    lost: assert (quiet <= STAGES + 3);  // the next beat is offered in so many clocks
    hung: assert (idle <= STAGES + 4);  // something moves, if all sides are willing
    // (c) what is offered stays as it is until it is taken
    if (refused) dropped: assert (mask_valid);
    if (refused) changed: assert (mask_last == refused_last && mask_data == refused_bits);
    // (d) error is raised on a frame too long, and on nothing else
    exact: assert (error == error_due);
    if (due && long) in_time: assert (error);
  end

  // Not vacuous: the last row of a third tile; a beat behind a full buffer; a tile whose frame was
  // too long; a beat that was refused; a frame ahead while beats are on their way.
  reg [1:0] tiles;
  reg held_up;
  always @(posedge clk)
    if (rst) begin
      tiles <= 0;
      held_up <= 0;
    end else begin
      tiles <= tiles + (popped && tiles != 3);
      if (ip_valid && !ip_ready && frames != 0 && flying > 12) held_up <= 1;
    end
  always @* if (started && !rst) begin
    cover (due && bits == {LANES{1'b1}} && tiles >= 2 && !long && last);
    cover (due && held_up);
    cover (due && long);
    cover (refused && due && mask_taken);
    cover (frames == 2 && flying > 2 && !error);
  end

`ifdef LEMMAS
  // First the output buffer: where the watched beat is.
  reg [DEPTH-1:0] at;
  reg stored, offered;
  wire take = available && (!mask_valid || mask_ready);
  always @(posedge clk)
    if (rst) begin
      at <= 0;
      stored <= 0;
      offered <= 0;
    end else begin
      at <= {at, !watching && ip_taken && watch};
      if (at[DEPTH-1]) begin
        stored <= 1;
        slot <= produced;
      end
      if (stored && take && slot == consumed) begin
        stored <= 0;
        offered <= 1;
      end
      if (mask_taken && offered) offered <= 0;
    end
  function [3:0] position(input [3:0] pointer);  // of a place, in the order in which they are used
    integer step;
    reg [3:0] place;
    begin
      place = 1;
      position = 0;
      for (step = 0; step < 15; step = step + 1) begin
        if (place == pointer) position = step;
        place = {place[2:0], place[3] ^ place[2]};
      end
    end
  endfunction
  function [3:0] distance(input [3:0] from, input [3:0] to);
    distance = position(to) - position(from) + (position(to) < position(from) ? 15 : 0);
  endfunction
  function [3:0] ones(input [DEPTH-1:0] value);
    integer bit_;
    begin
      ones = 0;
      for (bit_ = 0; bit_ < DEPTH; bit_ = bit_ + 1) ones = ones + value[bit_];
    end
  endfunction
  wire [3:0] held = distance(consumed, produced);
  wire [3:0] offset = distance(consumed, slot);
  integer i;
  always @* if (started) begin
    assert (produced != 0 && consumed != 0);
    assert (array_produced == produced && array_consumed == consumed);
    assert (available == (held != 0));
    assert (full == mask_valid);
    assert (flying == ones(valid) + held + mask_valid);
    assert (free == 15 - ones(valid >> 1) - held - returned);
    assert (free >= 1);
    if (valid[0]) assert (free >= 2);
    if (ip_ready) assert (free >= 3);
    assert (ones(at) + stored + offered == watching);
    assert ((at & ~valid) == 0);
    for (i = 0; i < DEPTH; i = i + 1)
      if (at[i]) assert (ahead == ones(valid >> (i + 1)) + held + mask_valid && lasts[i] == last);
    if (at[DEPTH-1]) assert (whole == bits);
    if (stored)
      assert (slot != 0 && offset < held && ahead == offset + mask_valid && slot_last == last
              && slot_bits == bits);
    if (offered) assert (ahead == 0 && mask_valid && mask_last == last && mask_data == bits);
    if (watching && long) assert (error_due);
    if (frames != 0 && playing_long) assert (error_due);
    if (frames == 2 && next_long) assert (error_due);
  end

  // Then the loader: which frame is in which half of the memory, and how far the array has it.
  reg [7:0] age;  // clocks since the tile was put in play
  reg behind;  // the token before has one stage to go
  reg [K-1:0] loaded, loaded_sent;
  always @(posedge clk) behind <= !rst && step && age == STAGES - 1;
  always @(posedge clk)
    if (rst) age <= STAGES + 2;
    else if (step) begin
      age <= 0;
      {loaded, loaded_sent} <=
        iz_ready ? {arrived, arrived_sent} : {waiting, waiting_sent};
    end else age <= age + (age != STAGES + 2);
  wire [K-1:0] waiting = in_play ? next : playing;
  wire [K-1:0] waiting_sent = in_play ? next_sent : playing_sent;
  wire waiting_half = !write_half;  // of a frame that waits
  wire load_half = iz_ready ? write_half : waiting_half;  // of the next to be loaded
  wire [K-1:0] write_rows = write_half ? memory1 : memory0;
  wire [K-1:0] waiting_rows = waiting_half ? memory1 : memory0;
  wire [K-1:0] loading_rows = load_half ? memory0 : memory1;  // of the tile in play
  function [BEATS-1:0] bar(input [7:0] count);  // a row of so many ones
    bar = ~(~0 << count);
  endfunction
  function [K-1:0] rows(input [BEATS-1:0] which);  // of these beats
    integer each;
    for (each = 0; each < K; each = each + 1) rows[each] = which[each / IZ_ROWS];
  endfunction
  integer g, r;
  always @* if (started) begin
    assert (frames == in_play + !iz_ready);
    if (ip_ready) assert (in_play);
    assert (fresh == (beats == 0));
    assert (beats <= BEATS);
    if (!iz_ready) assert (beats == 0);
    assert (coming_sent == rows(bar(beats)) && (coming & ~coming_sent) == 0);
    if (beats != 0) assert (written == bar(beats));
    // Where the next beat goes.
    if (iz_ready && beats < BEATS) begin
      assert (write_enable == BANK_OF[beats*BANKS +: BANKS]);
      assert (write_word == WORD_OF[beats*8 +: 8]);
    end else assert (write_enable == 0);
    if (!iz_ready) assert (write_word == 0);
    // What is in the memory.
    assert (((write_rows ^ coming) & coming_sent) == 0);
    if (frames != 0 && !iz_ready) begin
      assert (((waiting_rows ^ waiting) & waiting_sent) == 0);
      assert (rows(written) == waiting_sent);
    end
    if (frames != 0) assert ((playing & ~playing_sent) == 0);
    if (frames == 2) assert ((next & ~next_sent) == 0);
    if (in_play) assert (playing == loaded && playing_sent == loaded_sent);
    // How it gets from there into the array.
    assert (age <= STAGES + 2);
    for (g = 0; g < STAGES; g = g + 1) assert (tokens[g] == (age == g + 1 || (behind && g == STAGES - 1)));
    if (STAGES > 1) assert (ready_to_step == (age >= STAGES - 1));
    assert (loading == (behind ? STAGES - 1 : age >= 1 && age <= STAGES ? age - 1 : 0));
    assert (read_half == (age > STAGES || behind ? load_half : !load_half));
    if (age == 0) assert (rows(written) == loaded_sent);
    if (age >= 1 && (in_play || age < STAGES + 2)) assert (rows(present) == loaded_sent);
    for (r = 0; r < K; r = r + 1)
      if (loaded_sent[r] && (in_play || age < STAGES + 2))
        assert ((age >= 2 + STAGE_OF[r*8 +: 8] ? array_rows[r] : loading_rows[r]) == loaded[r]);
  end
`endif
endmodule
