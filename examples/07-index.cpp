// The index in C++: a header set for C++20. Its headers come with the Python package:
//
//   include=$(python -c 'import headrace.index; print(headrace.index.include())')
//   g++ -std=c++20 -O2 -pthread -I "$include" examples/07-index.cpp -o 07-index
//
// or by CMake: find_package(headrace), and the target headrace::index.
#include <headrace/index/code.hpp>
#include <headrace/index/code_map.hpp>

#include <cstdint>
#include <iostream>
#include <vector>

using headrace::index::CodeMap;
using headrace::index::decode;
using headrace::index::encode;

int main() {
  // Keys of any number type are mapped to ordered codes.
  std::vector<std::uint64_t> codes;
  std::vector<std::uint32_t> rows;
  for (std::uint32_t row = 0; row < 100'000; ++row) {
    codes.push_back(encode(row * 0.25 - 10'000.0));
    rows.push_back(row);
  }
  CodeMap<std::uint32_t> map;
  map.build(codes.data(), rows.data(), codes.size());

  std::uint32_t row = 0;
  const bool found = map.get(encode(-9'999.5), row);
  std::cout << map.size() << " keys, -9999.5 is " << (found ? "in row " : "missing ") << row
            << '\n';

  map.insert_or_assign(encode(0.125), 7);
  map.erase(encode(0.25));
  std::vector<std::uint64_t> scanned(3);
  const auto count = map.scan(encode(0.0), scanned.size(), scanned.data(), rows.data());
  for (std::size_t i = 0; i < count; ++i) {
    std::cout << decode<double>(scanned[i]) << " -> " << rows[i] << '\n';
  }
  map.verify();
}
