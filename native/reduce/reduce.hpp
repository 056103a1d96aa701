// Element-wise reduction kernels: destination = destination (op) source.
#pragma once

#include <cstddef>
#include <cstdint>

namespace headrace {

enum class DataType : std::uint8_t {
  kFloat32,
  kFloat64,
  kFloat16,
  kBFloat16,
  kInt8,
  kUInt8,
  kInt16,
  kInt32,
  kInt64,
  kBool,
};
inline constexpr int kDataTypes = 10;

enum class Operator : std::uint8_t { kSum, kProduct, kMin, kMax, kBand, kBor, kBxor };
inline constexpr int kOperators = 7;

std::size_t element_bytes(DataType type);
const char* name_of(DataType type);
const char* name_of(Operator op);

// Pointers need no alignment. `count` is in elements.
using ReduceKernel = void (*)(void* destination, const void* source, std::size_t count);

// Returns the kernel for this processor, or nullptr where the operator has no meaning for the
// type (bitwise operators on floating point).
ReduceKernel reduce_kernel(DataType type, Operator op);

// elements /= divisor (integers: rounded towards zero).
void divide(void* elements, std::size_t count, DataType type, std::int64_t divisor);

}  // namespace headrace
