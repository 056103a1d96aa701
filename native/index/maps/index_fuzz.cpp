// For libFuzzer:
//   clang++ -std=c++20 -fsanitize=fuzzer,address -I native native/index/maps/index_fuzz.cpp
#include "index/maps/index_fuzz.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  headrace::index::fuzz_map(data, size);
  return 0;
}
