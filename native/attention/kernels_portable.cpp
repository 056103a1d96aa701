#define HEADRACE_ISA portable
#include "attention/kernels.inc.hpp"
