// Threads for parts of a call. They sleep between calls: none spins.
#pragma once

#include <cstddef>
#include <functional>

namespace headrace::attention {

// Calls work(0) to work(count - 1) on up to `threads` threads, one of them the caller's, and
// returns when all have returned. `work` must not throw. One call at a time has the threads: others
// beside it, and calls in a forked child whose parent's threads were at work, use their own alone.
void run_parts(std::size_t count, std::size_t threads,
               const std::function<void(std::size_t)>& work);

}  // namespace headrace::attention
