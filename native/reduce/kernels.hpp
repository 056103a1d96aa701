// The kernel tables, one per instruction set; `reduce.cpp` picks one at run time.
#pragma once

#include <array>
#include <vector>

#include "reduce/reduce.hpp"

namespace headrace {

using DivideKernel = void (*)(void* elements, std::size_t count, std::int64_t divisor);

struct KernelTable {
  const char* name;  // of the instruction set
  std::array<std::array<ReduceKernel, kOperators>, kDataTypes> reduce;
  std::array<DivideKernel, kDataTypes> divide;
};

namespace portable {
const KernelTable& kernels();
}
namespace avx2 {
const KernelTable& kernels();
}
namespace avx512 {
const KernelTable& kernels();
}

// The tables supported by this processor, the fastest last.
std::vector<const KernelTable*> kernel_tables();

}  // namespace headrace
