// A ROM player: exactly the words of the tiles asked for, whatever the contents and the stalls.
//
// It is started only while nothing plays, as its contract says, with the first tile given a clock
// before.
`include "config.vh"

module player (
  input clk,
  input rst,
  input start,
  input [TILE_BITS-1:0] first,
  input [TILE_BITS-1:0] count,
  input ready
);
  wire valid, last;
  wire [(WIDTH + 7) / 8 * 8 - 1:0] data;
  wire [WIDTH-1:0] word, next_word, read_word;
  wire [7:0] address, words_left, tiles_left;
  wire playing, read_valid, read_last;
  reg [7:0] at;  // the word that must come next
  reg [7:0] left;  // words that must come
  reg [7:0] place;  // of it, in its tile
  wire [7:0] at_next = at + valid;
  rom_player dut (
    .clk(clk), .rst(rst), .start(start), .first(first), .count(count),
    .stream_tdata(data), .stream_tvalid(valid), .stream_tready(ready), .stream_tlast(last),
    .probe_at(at), .probe_word(word), .probe_address(address), .probe_words_left(words_left),
    .probe_tiles_left(tiles_left), .probe_playing(playing), .probe_read_valid(read_valid),
    .probe_read_last(read_last), .probe_read_word(read_word),
    .probe_next(at_next), .probe_next_word(next_word)
  );
  reg started = 0;
  reg [TILE_BITS-1:0] first_before;
  reg [1:0] starts;
  reg refused, refused_last;
  reg [WIDTH-1:0] refused_word;
  reg [3:0] quiet;
  wire taken = valid && ready;
  wire ended = place == TILE_WORDS - 1;
  always @(posedge clk) begin
    started <= 1;
    first_before <= first;
    refused <= valid && !ready && !rst;
    refused_last <= last;
    refused_word <= data;
    quiet <= rst || !ready || valid || left == 0 ? 0 : quiet + 1;
    if (rst) begin
      left <= 0;
      starts <= 0;
    end else if (start) begin
      at <= first * TILE_WORDS;
      left <= count * TILE_WORDS;
      place <= 0;
      starts <= starts + (starts != 3);
    end else if (taken) begin
      at <= at + 1;
      left <= left - 1;
      place <= ended ? 0 : place + 1;
    end
  end
  always @* begin
    if (!started) assume (rst);
    if (start) begin
      assume (left == 0 && first == first_before);
      assume (count >= 1 && first + count <= TILES);
    end
  end
  always @* if (started) begin
    if (valid) more: assert (left != 0);
    if (valid) right: assert (data == word);
    if (valid) frame: assert (last == ended);
    if (refused) dropped: assert (valid);
    if (refused) changed: assert (data == refused_word && last == refused_last);
    lost: assert (quiet <= 3);
    cover (taken && left == 1 && starts == 2 && at == TILES * TILE_WORDS - 1);
  end

`ifdef LEMMAS
  // Words on their way: one offered, one read, the rest still to be read.
  wire [7:0] unread = left - valid - read_valid;
  wire [7:0] next_place = (place + valid + read_valid) % TILE_WORDS;
  always @* if (started) begin
    assert (left <= TILES * TILE_WORDS && left >= valid + read_valid);
    if (left != 0) assert (place < TILE_WORDS && (place + left) % TILE_WORDS == 0);
    if (left != 0) assert (at + left <= TILES * TILE_WORDS);
    assert (playing == (unread != 0));
    if (playing) assert (address == at + valid + read_valid);
    if (playing) assert (words_left == TILE_WORDS - 1 - next_place);
    if (playing) assert (tiles_left * TILE_WORDS == unread + next_place);
    if (read_valid) assert (read_word == next_word);
    if (read_valid) assert (read_last == ((place + valid) % TILE_WORDS == TILE_WORDS - 1));
  end
`endif
endmodule
