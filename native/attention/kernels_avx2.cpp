#define HEADRACE_ISA avx2
#include "attention/kernels.inc.hpp"
