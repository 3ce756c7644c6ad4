// Test bench of a compiled simulation: the same steps in each cycle as amaranth_engine.py.
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>
#if WAVEFORM
#include <cxxrtl/cxxrtl_vcd.h>
#include <fstream>
#endif

namespace handshake {

// A port is a value or, where it is driven by a register, a wire with a current value.
template <size_t Bits> cxxrtl::value<Bits> &current(cxxrtl::value<Bits> &port) { return port; }
template <size_t Bits> cxxrtl::value<Bits> &current(cxxrtl::wire<Bits> &port) { return port.curr; }

struct Nothing {
  uint32_t data[1] = {0};
};
inline Nothing &current(Nothing &port) { return port; }

template <class Port> void put(Port &port, const uint32_t *words, size_t count) {
  std::copy(words, words + count, current(port).data);
}
template <class Port> void put_bit(Port &port, bool bit) { current(port).data[0] = bit; }
template <class Port> bool get_bit(Port &port) { return current(port).data[0] & 1; }

struct Source {
  const uint32_t *words = nullptr;
  const uint8_t *flags = nullptr, *pattern = nullptr;
  int64_t beats = 0, period = 1, next = 0;
  bool offered = false;
  size_t width = 0;
  std::vector<int64_t> taken;
  std::function<void(const uint32_t *, uint8_t)> drive;
  std::function<bool()> is_ready;

  bool done() const { return next == beats; }
  void offer(int64_t cycle) {
    offered = !done() && (offered || pattern[cycle % period]);
    if (offered)
      drive(words + next * width, flags[next]);
    else
      drive(nullptr, 0);
  }
  bool take(int64_t cycle) {
    if (!offered || !is_ready())
      return false;
    taken.push_back(cycle), next++, offered = false;
    return true;
  }
};

struct Sink {
  const uint8_t *pattern = nullptr;
  int64_t period = 1;
  size_t width = 0;
  bool accepts = false;
  std::vector<int64_t> cycles;
  std::vector<uint8_t> flags;
  std::vector<uint32_t> words;
  std::function<void(bool)> ready;
  std::function<uint8_t()> offered;
  std::function<const uint32_t *()> payload;

  void open(int64_t cycle) { accepts = pattern[cycle % period], ready(accepts); }
  bool take(int64_t cycle) {
    uint8_t flag = offered();
    if (!flag || !accepts)
      return false;
    cycles.push_back(cycle), flags.push_back(flag);
    const uint32_t *from = payload();
    words.insert(words.end(), from, from + width);
    return true;
  }
  bool ended() const { return !flags.empty() && flags.back() > 1; }
};

struct Bench {
  cxxrtl_design::p_top top;
  Nothing nothing;
  std::vector<Source> sources;
  std::vector<Sink> sinks;
  std::vector<std::function<void(const uint32_t *, size_t)>> levels;
  std::vector<std::function<void(uint32_t *)>> probes;
  int64_t now = 0, last = 0;
  bool settles = false;
#if WAVEFORM
  cxxrtl::debug_items items;
  cxxrtl::vcd_writer writer;
  std::ofstream file;
  void keep(int64_t time) { writer.sample(time), file << writer.buffer, writer.buffer.clear(); }
#else
  void keep(int64_t) {}
#endif

  void connect();
  Bench() { connect(); }

  void offer(int64_t now) {
    for (auto &each : sources) each.offer(now);
    for (auto &each : sinks) each.open(now);
  }
  bool take(int64_t now) {
    bool moved = false;
    for (auto &each : sources) moved |= each.take(now);
    for (auto &each : sinks) moved |= each.take(now);
    return moved;
  }
  bool cycle(int64_t now) {
    offer(now);
    top.step();
    return take(now);
  }
  bool over(int64_t idle, int64_t quiet, bool stop_at_eos) const {
    if (idle > quiet)
      return true;
    bool done = std::all_of(sources.begin(), sources.end(), [](const Source &s) { return s.done(); });
    bool ended = std::all_of(sinks.begin(), sinks.end(), [](const Sink &s) { return s.ended(); });
    return stop_at_eos && done && ended;
  }
};

} // namespace handshake
using namespace handshake;

// A circuit of gates alone has no clock.
template <class Top> auto clock_of(Top &top, bool level, int) -> decltype(top.p_clk, void()) {
  top.p_clk.set(level);
}
template <class Top> void clock_of(Top &, bool, long) {}

// Where all logic settles in one pass, the evaluation that moves the registers shows the outputs as they
// were before it, so one evaluation per cycle will do: half the work.
template <class Top> auto cycle_at_once(Bench &bench, Top &top, int64_t now, int)
    -> decltype(top.prev_p_clk, bool()) {
  bench.offer(now);
  clock_of(top, true, 0);
  top.eval();
  bool moved = bench.take(now);
  top.commit();
  clock_of(top, false, 0);
  top.prev_p_clk = top.p_clk;
  return moved;
}
template <class Top> bool cycle_at_once(Bench &bench, Top &, int64_t now, long) { return bench.cycle(now); }
template <class Top> auto has_clock(Top &top, int) -> decltype(top.prev_p_clk, bool()) { return true; }
template <class Top> bool has_clock(Top &, long) { return false; }

#define BENCH_BEGIN void handshake::Bench::connect() {
#define SOURCE(index, count, data_, valid_, eos_, ready_)                                             \
  sources.emplace_back();                                                                            \
  sources[index].width = count;                                                                      \
  sources[index].drive = [this](const uint32_t *from, uint8_t flags) {                               \
    static const uint32_t zero[count + 1] = {0};                                                     \
    Bench &bench = *this;                                                                            \
    (void)bench;                                                                                     \
    put(data_, from ? from : zero, count), put_bit(valid_, flags & 1), put_bit(eos_, flags & 2);      \
  };                                                                                                 \
  sources[index].is_ready = [this] { return get_bit(ready_); };
#define SINK(index, count, data_, valid_, eos_, ready_)                                               \
  sinks.emplace_back();                                                                              \
  sinks[index].width = count;                                                                        \
  sinks[index].ready = [this](bool level) { put_bit(ready_, level); };                               \
  sinks[index].offered = [this] { return uint8_t(get_bit(valid_) | get_bit(eos_) << 1); };           \
  sinks[index].payload = [this]() -> const uint32_t * {                                              \
    Bench &bench = *this;                                                                            \
    (void)bench;                                                                                     \
    return current(data_).data;                                                                       \
  };
#define LEVEL(index, port)                                                                           \
  levels.push_back([this](const uint32_t *from, size_t count) { put(port, from, count); });
#define PROBE(index, port)                                                                           \
  probes.push_back([this](uint32_t *to) {                                                            \
    std::copy(current(port).data, current(port).data + current(port).chunks, to);                    \
  });
#define BENCH_END }

extern "C" {
void *bench_create() { return new Bench; }
void bench_destroy(void *handle) { delete static_cast<Bench *>(handle); }
void bench_feed(void *handle, int index, const uint32_t *words, long long, const uint8_t *flags,
                long long beats, const uint8_t *pattern, long long period) {
  Source &source = static_cast<Bench *>(handle)->sources[index];
  source.words = words, source.flags = flags, source.beats = beats;
  source.pattern = pattern, source.period = period;
}
void bench_ready(void *handle, int index, const uint8_t *pattern, long long period) {
  Sink &sink = static_cast<Bench *>(handle)->sinks[index];
  sink.pattern = pattern, sink.period = period;
}
void bench_level(void *handle, int index, const uint32_t *words, long long count) {
  static_cast<Bench *>(handle)->levels[index](words, count);
}
void bench_begin(void *handle, const char *vcd) {
  Bench &bench = *static_cast<Bench *>(handle);
#if WAVEFORM
  bench.top.debug_info(&bench.items, nullptr, "");
  bench.writer.timescale(1, "ns");
  bench.writer.add_without_memories(bench.items);
  bench.file.open(vcd);
#endif
  clock_of(bench.top, false, 0);
  bench.settles = bench.top.eval() && has_clock(bench.top, 0) && !WAVEFORM;
  bench.top.commit();
}
// Some cycles at a time, so that who called can be interrupted; whether that was all.
int bench_run(void *handle, long long limit, long long quiet, int stop_at_eos, long long some) {
  Bench &bench = *static_cast<Bench *>(handle);
  for (const int64_t until = bench.now + some; bench.now < until; bench.now++) {
    const int64_t now = bench.now;
    if (now >= limit || bench.over(now - bench.last, quiet, stop_at_eos))
      return 1;
    if (bench.settles ? cycle_at_once(bench, bench.top, now, 0) : bench.cycle(now))
      bench.last = now;
    if (bench.settles)
      continue;
    bench.keep(10 * now);
    clock_of(bench.top, true, 0);
    bench.top.step();
    clock_of(bench.top, false, 0);
    bench.keep(10 * now + 5);
  }
  return 0;
}
// How many cycles it took; -1 if the waveform could not be kept.
long long bench_end(void *handle) {
  Bench &bench = *static_cast<Bench *>(handle);
  bench.top.step();
#if WAVEFORM
  bench.file.close();
  if (!bench.file)
    return -1;
#endif
  return bench.now;
}
long long bench_count(void *handle, int outward, int index) {
  Bench &bench = *static_cast<Bench *>(handle);
  return outward ? bench.sinks[index].cycles.size() : bench.sources[index].taken.size();
}
void bench_taken(void *handle, int index, int64_t *to) {
  auto &taken = static_cast<Bench *>(handle)->sources[index].taken;
  std::copy(taken.begin(), taken.end(), to);
}
void bench_left(void *handle, int index, int64_t *cycles, uint8_t *flags, uint32_t *words) {
  Sink &sink = static_cast<Bench *>(handle)->sinks[index];
  std::copy(sink.cycles.begin(), sink.cycles.end(), cycles);
  std::copy(sink.flags.begin(), sink.flags.end(), flags);
  std::copy(sink.words.begin(), sink.words.end(), words);
}
void bench_probe(void *handle, int index, uint32_t *to) {
  static_cast<Bench *>(handle)->probes[index](to);
}
}
