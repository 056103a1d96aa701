#define HEADRACE_ISA avx2
#include "reduce/kernels.inc.hpp"
