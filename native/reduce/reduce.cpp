#include "reduce/reduce.hpp"

#include <cstring>

#include "reduce/kernels.hpp"

namespace headrace {
namespace {

const KernelTable& best_kernels() {
#ifdef HEADRACE_HAVE_AVX2
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) return avx2::kernels();
#endif
  return portable::kernels();
}

template <class T, class Divisor>
void divide_each(void* elements, std::size_t count, Divisor divisor) {
  auto* bytes = static_cast<char*>(elements);
  for (std::size_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, bytes + i * sizeof(T), sizeof(T));
    value = static_cast<T>(value / divisor);
    std::memcpy(bytes + i * sizeof(T), &value, sizeof(T));
  }
}

float bfloat_to_float(std::uint16_t bits) {
  auto wide = static_cast<std::uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

std::uint16_t float_to_bfloat(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<std::uint16_t>((bits >> 16) | 0x40);
  return static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

void divide_bfloat(void* elements, std::size_t count, float divisor) {
  auto* bytes = static_cast<char*>(elements);
  for (std::size_t i = 0; i < count; ++i) {
    std::uint16_t bits;
    std::memcpy(&bits, bytes + 2 * i, 2);
    bits = float_to_bfloat(bfloat_to_float(bits) / divisor);
    std::memcpy(bytes + 2 * i, &bits, 2);
  }
}

}  // namespace

std::size_t element_bytes(DataType type) {
  static constexpr std::size_t sizes[kDataTypes] = {4, 8, 2, 2, 1, 1, 2, 4, 8, 1};
  return sizes[static_cast<std::size_t>(type)];
}

const char* name_of(DataType type) {
  static constexpr const char* names[kDataTypes] = {"float32", "float64", "float16", "bfloat16",
                                                    "int8",    "uint8",   "int16",   "int32",
                                                    "int64",   "bool"};
  auto index = static_cast<std::size_t>(type);
  return index < kDataTypes ? names[index] : "unknown type";
}

const char* name_of(Operator op) {
  static constexpr const char* names[kOperators] = {"sum",  "product", "min", "max",
                                                    "band", "bor",     "bxor"};
  auto index = static_cast<std::size_t>(op);
  return index < kOperators ? names[index] : "unknown operator";
}

ReduceKernel reduce_kernel(DataType type, Operator op) {
  static const KernelTable& table = best_kernels();
  return table[static_cast<std::size_t>(type)][static_cast<std::size_t>(op)];
}

void divide(void* elements, std::size_t count, DataType type, std::int64_t divisor) {
  switch (type) {
    case DataType::kFloat32:
      return divide_each<float>(elements, count, static_cast<float>(divisor));
    case DataType::kFloat64:
      return divide_each<double>(elements, count, static_cast<double>(divisor));
    case DataType::kFloat16:
      return divide_each<_Float16>(elements, count, static_cast<float>(divisor));
    case DataType::kBFloat16:
      return divide_bfloat(elements, count, static_cast<float>(divisor));
    case DataType::kInt8:
      return divide_each<std::int8_t>(elements, count, divisor);
    case DataType::kUInt8:
      return divide_each<std::uint8_t>(elements, count, divisor);
    case DataType::kInt16:
      return divide_each<std::int16_t>(elements, count, divisor);
    case DataType::kInt32:
      return divide_each<std::int32_t>(elements, count, divisor);
    case DataType::kInt64:
      return divide_each<std::int64_t>(elements, count, divisor);
    case DataType::kBool:
      return;
  }
  __builtin_unreachable();
}

}  // namespace headrace
