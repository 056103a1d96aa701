// Instruction sets that kernels are compiled for, and whether this processor has them. Each
// condition names every extension that CMakeLists.txt lets the compiler use for the set.
#pragma once

namespace headrace {

#ifdef HEADRACE_X86_KERNELS
inline bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c"); }
// Products and sums in one instruction: with either set, for kernels that may round so.
inline bool has_fma() { return __builtin_cpu_supports("fma"); }
inline bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
// Products of 16-bit numbers that are added up in one instruction.
inline bool has_avx512_vnni() { return has_avx512() && __builtin_cpu_supports("avx512vnni"); }
#endif

}  // namespace headrace
