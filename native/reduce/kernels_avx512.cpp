#define HEADRACE_ISA avx512
#include "reduce/kernels.inc.hpp"
