// Random traffic for one decoder in CXXRTL: every mask bit is compared with Eq. 3, and on every clock
// its ports are held to their rules. Compiled with a header that names the design and its sizes.
//
//   traffic FIRST SECONDS                cases FIRST, FIRST + 1, ... for so long, or until one fails
//   traffic CASE 0 WAVES [KNOB ...]      that case alone, without these knobs; waves to a file, or ""
//
// A case is a number: it decides how the ports stall, how high tiles are, when resets come, and every
// bit. The decoder is new in each, and put into disorder before its first reset, so that a case that
// fails does so again. What came of it is printed as JSON.
#include "design.cc"

#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <set>
#include <string>
#include <vector>
#ifdef WAVES
#include <cxxrtl/cxxrtl_vcd.h>
#endif

#include "sizes.h"

using Chunk = cxxrtl::chunk_t;
constexpr size_t CHUNK = 8 * sizeof(Chunk);
constexpr size_t chunks(size_t bits) { return (bits + CHUNK - 1) / CHUNK; }

// So many bits, the first lowest.
template <size_t N> using Word = std::array<Chunk, chunks(N)>;
using Mask = Word<MASK_BITS>;
template <size_t S> static bool bit(const std::array<Chunk, S> &word, size_t at) {
  return word[at / CHUNK] >> at % CHUNK & 1;
}

// The ports, be they wires or values to CXXRTL.
template <size_t N> static const cxxrtl::value<N> &out(const cxxrtl::value<N> &port) { return port; }
template <size_t N> static const cxxrtl::value<N> &out(const cxxrtl::wire<N> &port) { return port.curr; }
#define SET(port, number) (dut.port.data[0] = (number))
#define GET(port) bool(out(dut.port).data[0] & 1)
template <size_t N> static void put(cxxrtl::value<N> &port, const Word<N> &word) {
  std::copy(word.begin(), word.end(), port.data);
  if (N % CHUNK) port.data[chunks(N) - 1] &= ~(~Chunk(0) << N % CHUNK);
}
template <size_t N> static Word<N> get(const cxxrtl::value<N> &port) {
  Word<N> word;
  std::copy(port.data, port.data + chunks(N), word.begin());
  return word;
}

#ifdef ROM
static const Mask MASKS[TILES * TILE_BEATS] = {
#include "masks.h"
};
#endif

struct Chance {  // SplitMix64
  uint64_t state;
  uint64_t operator()() {
    uint64_t z = state += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
  }
};

static struct {
  uint64_t cases = 0, clocks = 0, tiles = 0, beats = 0, bits = 0, resets = 0, refused = 0;
} total;

struct Failure {
  const char *said;
};
static void must(bool holds, const char *said) {
  if (!holds) throw Failure{said};
}

class Case {
public:
  uint64_t clock = 0;

  Case(uint64_t number, const std::set<std::string> &without) : chance{number} {
    chance.state = chance();
    stall_iz = pick({0, 0, 0.1, 0.5, 0.9});
    stall_ip = pick({0, 0, 0.1, 0.5, 0.9});
    stall_mask = pick({0, 0, 0.2, 0.6, 0.9, 0.98});
    density = pick({-5, -2, 1, 1, 3});
    height = pick({1, 2, 5, 20, 100});
    short_rank = pick({0, 0.3, 0.9});
    too_long = pick({0, 0, 0.02, 0.3});
    resets = pick({0, 0.005, 0.05});
    disorder = pick({0, 30, 100});
    length = pick({200, 1000, 5000});
    if (without.count("stalls")) stall_iz = stall_ip = stall_mask = 0;
    if (without.count("resets")) resets = 0;
    if (without.count("long")) too_long = 0;
    if (without.count("short")) short_rank = 0;
    if (without.count("disorder")) disorder = 0;
  }

  void run(const std::string &waves) {
#ifdef WAVES
    cxxrtl::debug_items items;
    dut.debug_info(&items, nullptr, "");
    if (!waves.empty()) {
      vcd.timescale(1, "ns");
      vcd.add_without_memories(items);
      file.open(waves);
    }
#endif
    for (clock = 0; clock < disorder; clock++) step(false, true);
    for (; clock < disorder + 2; clock++) step(true, false);
    forget();
    for (; clock < disorder + length; clock++) {
      bool reset = chosen(resets);
      step(reset, false);
      if (reset) forget();
      total.clocks++;
      total.resets += reset;
    }
  }

private:
  cxxrtl_design::DESIGN dut;
  Chance chance;
  double stall_iz, stall_ip, stall_mask, height, short_rank, too_long, resets;
  int density;
  uint64_t disorder, length;
#ifdef WAVES
  cxxrtl::vcd_writer vcd;
  std::ofstream file;
#endif

  double pick(std::initializer_list<double> values) { return values.begin()[chance() % values.size()]; }
  bool chosen(double share) { return share > 0 && (chance() >> 11) * 0x1p-53 < share; }
  template <size_t N> Word<N> noise() {
    Word<N> word;
    for (auto &part : word) part = chance();
    return word;
  }
  // Ones as dense as this case has them: n random words ORed, or ANDed where n is negative.
  template <size_t N> Word<N> factor() {
    Word<N> word = noise<N>();
    for (int more = 1; more < std::abs(density); more++)
      for (auto &part : word) part = density < 0 ? part & chance() : part | chance();
    return word;
  }

  // The mask port: what must come out, and whether it was offered before and not taken.
  struct Beat {
    Mask bits;
    bool last;
  };
  std::deque<Beat> due;
  bool refused = false;
  unsigned quiet = 0;

  // Hold the mask port to its rules; whether a beat is taken in this clock.
  bool mask_port(bool ready, unsigned patience) {
    bool valid = GET(p_m__axis__mask__tvalid), last = GET(p_m__axis__mask__tlast);
    if (refused) must(valid, "an offered mask beat was taken back");
    refused = valid && !ready;
    if (!valid) {
      quiet = due.empty() ? 0 : quiet + 1;
      must(quiet <= patience, "a mask beat is lost");
      return false;
    }
    quiet = 0;
    must(!due.empty(), "a mask beat came that nobody asked for");
    must(get(out(dut.p_m__axis__mask__tdata)) == due.front().bits, "a mask bit is not Eq. 3's");
    must(last == due.front().last, "a tile's end is out of place");
    if (!ready) return false;
    total.beats++;
    total.bits += COLUMNS * LANES;
    total.tiles += last;
    due.pop_front();
    return true;
  }

  void edge() {
    SET(CLOCK, 1);
    dut.step();
    sample(2 * clock + 1);
  }
  void settle(bool reset) {
    SET(RESET, reset == RESET_LEVEL);
    SET(CLOCK, 0);
#ifdef MUTATION
    SET(p_mutation, MUTATION);
#endif
    dut.step();
    sample(2 * clock);
  }
  void sample([[maybe_unused]] uint64_t time) {
#ifdef WAVES
    if (!file.is_open()) return;
    vcd.sample(time);
    file << vcd.buffer;
    vcd.buffer.clear();
#endif
  }

#ifndef ROM
  // The sources. A beat that is offered stays; a port that offers nothing shows anything.
  template <size_t N> struct Source {
    Word<N> data{};
    bool valid = false, last = false;
  };
  Source<IZ_BITS> iz;
  Source<IP_BITS> ip;
  unsigned iz_left = 0;  // beats of the frame that is being sent

  // What the decoder has been given: the frame that is coming, and those that are complete.
  struct Frame {
    std::vector<Word<COLUMNS>> rows;
    unsigned beats = 0;
  } coming;
  std::deque<Frame> frames;
  bool error_due = false;
  unsigned idle = 0;

  void forget() {
    due.clear();
    frames.clear();
    coming = Frame();
    iz.valid = ip.valid = false;
    iz_left = quiet = idle = 0;
    error_due = refused = false;
  }

  void offer_iz() {
    if (iz.valid) return;
    iz.data = noise<IZ_BITS>();
    iz.last = chance() & 1;
    if (chosen(stall_iz)) return;
    if (!iz_left) {
      iz_left = BEATS;
      if (chosen(short_rank)) iz_left = 1 + chance() % BEATS;
      if (chosen(too_long)) iz_left = BEATS + 1 + chance() % 4;
    }
    iz.data = factor<IZ_BITS>();
    iz.valid = true;
    iz.last = --iz_left == 0;
  }
  void offer_ip() {
    if (ip.valid) return;
    ip.data = noise<IP_BITS>();
    ip.last = chance() & 1;
    if (chosen(stall_ip)) return;
    ip.data = factor<IP_BITS>();
    ip.valid = true;
    ip.last = chosen(1 / height);
  }

  void step(bool reset, bool wild) {
    if (wild) {
      iz = {noise<IZ_BITS>(), chosen(0.7), chosen(0.3)};
      ip = {noise<IP_BITS>(), chosen(0.7), chosen(0.3)};
    } else {
      offer_iz();
      offer_ip();
    }
    bool ready = !chosen(stall_mask);
    put(dut.p_s__axis__iz__tdata, iz.data);
    put(dut.p_s__axis__ip__tdata, ip.data);
    SET(p_s__axis__iz__tvalid, iz.valid);
    SET(p_s__axis__iz__tlast, iz.last);
    SET(p_s__axis__ip__tvalid, ip.valid);
    SET(p_s__axis__ip__tlast, ip.last);
    SET(p_m__axis__mask__tready, ready);
    settle(reset);
    if (!wild && clock >= disorder + 2) watch(ready);
    edge();
  }

  void watch(bool ready) {
    bool iz_ready = GET(p_s__axis__iz__tready), ip_ready = GET(p_s__axis__ip__tready);
    must(GET(p_error) == error_due, "error is not as it must be");
    must(!ip_ready || !frames.empty(), "I_p is taken before its I_z");
    must(!iz_ready || frames.size() < 2, "a second I_z frame is taken ahead");
    bool offered = GET(p_m__axis__mask__tvalid);
    mask_port(ready, STAGES + 3);
    bool stuck = iz.valid && ip.valid && ready && !iz_ready && !ip_ready && !offered;
    idle = stuck ? idle + 1 : 0;
    must(idle <= STAGES + 4, "nothing moves");
    if (ip.valid && ip_ready) {
      Frame &frame = frames.front();
      Mask bits{};
      for (size_t lane = 0; lane < LANES; lane++) {
        Word<COLUMNS> row{};
        for (size_t rank = 0; rank < frame.rows.size(); rank++)
          if (bit(ip.data, lane * K + rank))
            for (size_t index = 0; index < row.size(); index++) row[index] |= frame.rows[rank][index];
        for (size_t column = 0, at = lane * COLUMNS; column < COLUMNS; column++, at++)
          bits[at / CHUNK] |= Chunk(bit(row, column)) << at % CHUNK;
      }
      due.push_back({bits, ip.last});
      if (ip.last) frames.pop_front();
      ip.valid = false;
    }
    if (iz.valid && iz_ready) {
      for (unsigned row = 0; row < IZ_ROWS && coming.rows.size() < K; row++) {
        coming.rows.emplace_back();
        for (size_t column = 0; column < COLUMNS; column++)
          coming.rows.back()[column / CHUNK] |=
              Chunk(bit(iz.data, row * COLUMNS + column)) << column % CHUNK;
      }
      if (coming.beats == BEATS) {
        error_due = true;
        total.refused++;
      } else coming.beats++;
      if (iz.last) {
        frames.push_back(coming);
        coming = Frame();
      }
      iz.valid = false;
    }
  }
#else
  // What the control says, and what it must say in the next clock.
  bool busy = false, done = false, error = false, checked = false;
  unsigned first = 0, count = 0;

  void forget() {
    due.clear();
    busy = done = error = checked = refused = false;
    quiet = 0;
  }

  void step(bool reset, bool wild) {
    bool start = chosen(0.3), ready = !chosen(stall_mask);
    unsigned from = chance() % (TILES + 1), many = chance() % (TILES - from + 1);
    if (height > 50) from = 0, many = TILES;
    if (chosen(too_long)) from = chance() % TILE_NUMBERS, many = chance() % TILE_NUMBERS;
    SET(p_start, start);
    SET(p_first__tile, from);
    SET(p_tile__count, many);
    SET(p_m__axis__mask__tready, ready);
    settle(reset);
    if (!wild && clock >= disorder + 2) watch(start, from, many, ready);
    edge();
  }

  void watch(bool start, unsigned from, unsigned many, bool ready) {
    must(GET(p_busy) == busy, "busy is not as it must be");
    must(GET(p_done) == done, "done is not as it must be");
    must(GET(p_error) == error, "error is not as it must be");
    bool over = mask_port(ready, BEATS + STAGES + 12) && due.empty();
    bool sampled = start && !busy;
    done = over;
    if (over) busy = false;
    if (checked) {
      if (first + count > TILES) {
        busy = false;
        error = true;
        total.refused++;
      } else if (!count) {
        busy = false;
        done = true;
      } else
        for (unsigned beat = first * TILE_BEATS; beat < (first + count) * TILE_BEATS; beat++)
          due.push_back({MASKS[beat], beat % TILE_BEATS == TILE_BEATS - 1});
    }
    checked = sampled;
    if (sampled) {
      busy = true;
      error = false;
      first = from;
      count = many;
    }
  }
#endif
};

int main(int argc, char **argv) {
  uint64_t number = std::strtoull(argv[1], nullptr, 10);
  double seconds = std::atof(argv[2]);
  const char *waves = argc > 3 ? argv[3] : "";
  std::set<std::string> without(argv + std::min(argc, 4), argv + argc);
  auto start = std::chrono::steady_clock::now();
  auto spent = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
  const char *said = "";
  uint64_t clock = 0;
  do {
    Case one(number, without);
    try {
      one.run(waves);
      total.cases++;
    } catch (const Failure &failure) {
      said = failure.said;
      clock = one.clock;
      break;
    }
    number++;
  } while (spent() < seconds);
  std::printf(
      "{\"cases\": %llu, \"clocks\": %llu, \"tiles\": %llu, \"beats\": %llu, \"bits\": %llu, "
      "\"resets\": %llu, \"refused\": %llu, \"seconds\": %.3f, \"case\": %llu, \"clock\": %llu, "
      "\"said\": \"%s\"}\n",
      (unsigned long long)total.cases, (unsigned long long)total.clocks, (unsigned long long)total.tiles,
      (unsigned long long)total.beats, (unsigned long long)total.bits, (unsigned long long)total.resets,
      (unsigned long long)total.refused, spent(), (unsigned long long)number, (unsigned long long)clock, said);
  return *said ? 1 : 0;
}
