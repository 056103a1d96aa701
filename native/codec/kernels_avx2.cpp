#define HEADRACE_ISA avx2
#include "codec/kernels.inc.hpp"
