// What a measurement reads: clocks, bytes of malloc, resident bytes; and a line of JSON.
#pragma once

#include <malloc.h>
#include <time.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>

namespace headrace::index::bench {

inline std::uint64_t nanoseconds(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 +
         static_cast<std::uint64_t>(now.tv_nsec);
}

// Elapsed time, and processor time of this thread: on a machine with other work the latter is
// nearer to the elapsed time of an idle one.
class Stopwatch {
 public:
  std::uint64_t elapsed() const { return nanoseconds(CLOCK_MONOTONIC) - elapsed_; }
  std::uint64_t processor() const { return nanoseconds(CLOCK_THREAD_CPUTIME_ID) - processor_; }

 private:
  std::uint64_t elapsed_ = nanoseconds(CLOCK_MONOTONIC);
  std::uint64_t processor_ = nanoseconds(CLOCK_THREAD_CPUTIME_ID);
};

// Bytes that malloc has handed out, its own headers included.
inline std::uint64_t allocated_bytes() {
  auto info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

// Resident bytes that belong to no file: the workload's pages are not among them.
inline std::uint64_t resident_bytes() {
  std::ifstream status("/proc/self/status");
  std::string name;
  std::uint64_t kilobytes = 0;
  while (status >> name) {
    if (name == "RssAnon:" && status >> kilobytes) return 1024 * kilobytes;
  }
  return 0;
}

// Prints one object of JSON on a line.
class Line {
 public:
  explicit Line(const char* kind) : text_(std::string("{\"kind\": \"") + kind + '"') {}
  Line& add(const char* name, std::uint64_t value) { return raw(name, std::to_string(value)); }
  Line& add(const char* name, double value) { return raw(name, std::to_string(value)); }
  Line& add(const char* name, const std::string& value) { return raw(name, '"' + value + '"'); }
  void print() const {
    std::printf("%s}\n", text_.c_str());
    std::fflush(stdout);
  }

 private:
  Line& raw(const char* name, const std::string& value) {
    text_ += std::string(", \"") + name + "\": " + value;
    return *this;
  }

  std::string text_;
};

}  // namespace headrace::index::bench
