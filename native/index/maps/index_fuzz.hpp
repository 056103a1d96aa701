// Operations on a map, drawn from bytes, against std::map.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>

#include "index/maps/code_map.hpp"

namespace headrace::index {

// Bytes of one operation after the other: what, a code of fewer or more bytes, a shift of it.
class FuzzInput {
 public:
  FuzzInput(const std::uint8_t* data, std::size_t size) : data_(data), left_(size) {}
  bool ended() const { return left_ == 0; }
  std::uint8_t byte() {
    if (left_ == 0) return 0;
    --left_;
    return *data_++;
  }
  std::uint64_t code() {
    std::uint64_t code = 0;
    const auto bytes = byte() % 9;
    for (int i = 0; i < bytes; ++i) code = code << 8 | byte();
    const auto shape = byte();
    if (shape & 64) code = ~code;
    return shape & 128 ? code << (shape % 64) : code;
  }

 private:
  const std::uint8_t* data_;
  std::size_t left_;
};

// Aborts where the two differ, or an invariant is broken (std::logic_error).
inline void fuzz_map(const std::uint8_t* data, std::size_t size) {
  FuzzInput input(data, size);
  const auto check = [](bool holds) {
    if (!holds) std::abort();
  };
  Configuration configuration{.leaf = static_cast<Leaf>(input.byte() % kLeafTypes),
                              .fragment_keys = 8U + input.byte() % 32U,
                              .fragments = 8U + input.byte() % 64U,
                              .initial_fragments = 2U + input.byte() % 6U,
                              .fingerprints = input.byte() % 2 == 0,
                              .leaf_keys = 16U << input.byte() % 4,
                              .fill = 0.3 + input.byte() % 64 * 0.01};
  CodeMap<std::uint32_t> map(configuration);
  std::map<std::uint64_t, std::uint32_t> reference;
  for (std::uint32_t value = 0; !input.ended(); ++value) {
    const auto operation = input.byte() % 16;
    const auto code = input.code();
    if (operation < 8) {
      // A run of neighbours, so that leaves fill up soon.
      const auto run = input.byte() % 64U;
      for (std::uint64_t i = 0; i <= run; ++i) {
        check(map.insert(code + i, value) == reference.emplace(code + i, value).second);
      }
    } else if (operation < 10) {
      auto at = reference.lower_bound(code);
      for (auto run = input.byte() % 64U; run > 0 && at != reference.end(); --run) {
        check(map.erase(at->first));
        at = reference.erase(at);
      }
    } else if (operation == 10) {
      check(map.update(code, value) == reference.contains(code));
      if (reference.contains(code)) reference[code] = value;
    } else if (operation < 13) {
      auto at = reference.lower_bound(code);
      auto cursor = map.lower_bound(code);
      for (int i = 0; i < 20; ++i, ++at, cursor.next()) {
        check(cursor.valid() == (at != reference.end()));
        if (!cursor.valid()) break;
        check(cursor.code() == at->first && cursor.value() == at->second);
      }
    } else if (operation == 13) {
      configuration.leaf = static_cast<Leaf>(input.byte() % kLeafTypes);
      map.configure(configuration);
      auto from = code;
      map.convert(from, 1U + input.byte());
    } else {
      std::uint32_t found = 0;
      const auto at = reference.find(code);
      check(map.get(code, found) == (at != reference.end()));
      check(at == reference.end() || found == at->second);
    }
  }
  map.verify();
  check(map.size() == reference.size());
}

}  // namespace headrace::index
