// The kernel tables, one per instruction set; `reduce.cpp` picks one at run time.
#pragma once

#include <array>

#include "reduce/reduce.hpp"

namespace headrace {

using KernelRow = std::array<ReduceKernel, kOperators>;
using KernelTable = std::array<KernelRow, kDataTypes>;

namespace portable {
const KernelTable& kernels();
}
namespace avx2 {
const KernelTable& kernels();
}

}  // namespace headrace
