// What a thread does between two tries.
#pragma once

namespace headrace::index::detail {

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace headrace::index::detail
