#include "reduce/reduce.hpp"

#include "reduce/kernels.hpp"

namespace headrace {
namespace {

const KernelTable& best_kernels() {
  static const KernelTable& best = *kernel_tables().back();
  return best;
}

}  // namespace

std::vector<const KernelTable*> kernel_tables() {
  std::vector<const KernelTable*> tables = {&portable::kernels()};
#ifdef HEADRACE_X86_KERNELS
  // Each condition names every extension that CMakeLists.txt lets the compiler use for the table.
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) {
    tables.push_back(&avx2::kernels());
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
      tables.push_back(&avx512::kernels());
    }
  }
#endif
  return tables;
}

std::size_t element_bytes(DataType type) {
  static constexpr std::size_t sizes[kDataTypes] = {4, 8, 2, 2, 1, 1, 1, 2, 4, 8, 1, 2, 4, 8, 1};
  return sizes[static_cast<std::size_t>(type)];
}

const char* name_of(DataType type) {
  static constexpr const char* names[kDataTypes] = {
      "float32", "float64", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8", "int16",
      "int32",   "int64",   "uint8",   "uint16",   "uint32",        "uint64",      "bool"};
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
  return best_kernels().reduce[static_cast<std::size_t>(type)][static_cast<std::size_t>(op)];
}

void divide(void* elements, std::size_t count, DataType type, std::int64_t divisor) {
  best_kernels().divide[static_cast<std::size_t>(type)](elements, count, divisor);
}

}  // namespace headrace
