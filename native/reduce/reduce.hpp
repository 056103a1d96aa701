// Element-wise reduction kernels: destination = a (op) b.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>

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

// Name, as torch's, and size of every element type, by `DataType`.
struct DataTypeRow {
  const char* name;
  std::size_t bytes;
};
inline constexpr DataTypeRow kDataTypeTable[] = {
    {"float32", 4},     {"float64", 8}, {"float16", 2}, {"bfloat16", 2}, {"float8_e4m3fn", 1},
    {"float8_e5m2", 1}, {"int8", 1},    {"int16", 2},   {"int32", 4},    {"int64", 8},
    {"uint8", 1},       {"uint16", 2},  {"uint32", 4},  {"uint64", 8},   {"bool", 1}};
inline constexpr int kDataTypes = std::size(kDataTypeTable);

enum class Operator : std::uint8_t { kSum, kProduct, kMin, kMax, kBand, kBor, kBxor };

// Name of every operator, by `Operator`.
inline constexpr const char* kOperatorTable[] = {"sum",  "product", "min", "max",
                                                 "band", "bor",     "bxor"};
inline constexpr int kOperators = std::size(kOperatorTable);

inline constexpr std::size_t element_bytes(DataType type) {
  return kDataTypeTable[static_cast<std::size_t>(type)].bytes;
}
// For values that a peer sent, too: "unknown type", "unknown operator".
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
