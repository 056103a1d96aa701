#include "reduce/reduce.hpp"

#include "reduce/kernels.hpp"
#include "simd/instruction_sets.hpp"

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
  if (has_avx2()) tables.push_back(&avx2::kernels());
  if (has_avx512()) tables.push_back(&avx512::kernels());
#endif
  return tables;
}

const char* name_of(DataType type) {
  auto index = static_cast<std::size_t>(type);
  return index < kDataTypes ? kDataTypeTable[index].name : "unknown type";
}

const char* name_of(Operator op) {
  auto index = static_cast<std::size_t>(op);
  return index < kOperators ? kOperatorTable[index] : "unknown operator";
}

ReduceKernel reduce_kernel(DataType type, Operator op) {
  return best_kernels().reduce[static_cast<std::size_t>(type)][static_cast<std::size_t>(op)];
}

void divide(void* elements, std::size_t count, DataType type, std::int64_t divisor) {
  best_kernels().divide[static_cast<std::size_t>(type)](elements, count, divisor);
}

}  // namespace headrace
