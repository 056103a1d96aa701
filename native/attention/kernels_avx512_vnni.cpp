#define HEADRACE_ISA avx512_vnni
#include "attention/kernels.inc.hpp"
