#define HEADRACE_ISA portable
#include "reduce/kernels.inc.hpp"
