#define HEADRACE_ISA avx512
#include "codec/kernels.inc.hpp"
