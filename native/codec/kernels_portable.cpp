#define HEADRACE_ISA portable
#include "codec/kernels.inc.hpp"
