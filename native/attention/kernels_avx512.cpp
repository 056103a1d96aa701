#define HEADRACE_ISA avx512
#include "attention/kernels.inc.hpp"
