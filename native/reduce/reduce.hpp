// Element-wise reduction kernels: destination = a (op) b.
#pragma once

#include <cstddef>
#include <cstdint>

namespace headrace {

enum class DataType : std::uint8_t {
  kFloat32,
  kFloat64,
  kFloat16,
  kBFloat16,
  kFloat8E4M3,  // without infinities: results too large for it become its largest number
  kFloat8E5M2,
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kUInt8,
  kUInt16,
  kUInt32,
  kUInt64,
  kBool,
};
inline constexpr int kDataTypes = 15;

enum class Operator : std::uint8_t { kSum, kProduct, kMin, kMax, kBand, kBor, kBxor };
inline constexpr int kOperators = 7;

std::size_t element_bytes(DataType type);
const char* name_of(DataType type);
const char* name_of(Operator op);

// Pointers need no alignment. `count` is in elements. `destination` may be `a` or `b` itself, but
// must not overlap them in part. Types narrower than float are computed in float and rounded once
// per element, to nearest, ties to even.
using ReduceKernel = void (*)(void* destination, const void* a, const void* b, std::size_t count);

// Returns the kernel for this processor, or nullptr where the operator has no meaning for the
// type (bitwise operators on floating point).
ReduceKernel reduce_kernel(DataType type, Operator op);

// elements /= divisor, which is positive (integers: rounded towards zero; bool: left alone).
void divide(void* elements, std::size_t count, DataType type, std::int64_t divisor);

}  // namespace headrace
