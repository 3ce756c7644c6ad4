// What the parts of a compiled simulation are made of: see one_pass.py.
#pragma once
#include <cstdint>
#include <cxxrtl/cxxrtl.h>

namespace handshake {

// A memory whose words lie in the part that owns it, written at the end of the evaluation: no queue of writes.
template <size_t Bits, size_t Depth> struct store {
  cxxrtl::value<Bits> data[Depth];
  const cxxrtl::value<Bits> &operator[](size_t place) const { return data[place]; }
  void write(size_t place, const cxxrtl::value<Bits> &word) { data[place] = word; }
  // Some bits of a word; whether that makes a difference.
  bool update(size_t place, const cxxrtl::value<Bits> &word, const cxxrtl::value<Bits> &mask, int) {
    const cxxrtl::value<Bits> before = data[place];
    data[place] = before.update(word, mask);
    return data[place] != before;
  }
};

// An address, which is not compared with the depth where it cannot reach beyond it.
template <size_t Depth> struct place {
  bool valid;
  size_t index;
  template <size_t Bits> explicit place(const cxxrtl::value<Bits> &address) : index(address.data[0]) {
    static_assert(Bits <= 32, "memory address is too wide");
    valid = (uint64_t(1) << Bits) <= Depth || index < Depth;
  }
};

// The next state becomes the present one; whether that makes a difference. 32 bytes at a time.
typedef uint32_t chunk __attribute__((vector_size(32), may_alias));
template <class State> bool moved(State &now, const State &then) {
  chunk *to = reinterpret_cast<chunk *>(&now), changed = {0};
  const chunk *from = reinterpret_cast<const chunk *>(&then);
  for (size_t i = 0; i < sizeof(State) / sizeof(chunk); i++) {
    changed |= to[i] ^ from[i];
    to[i] = from[i];
  }
  uint32_t any = 0;
  for (int i = 0; i < 8; i++) any |= changed[i];
  return any;
}

} // namespace handshake
