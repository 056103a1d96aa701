// Assertions of the native tests: they stay on in release builds and print file and line.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <string>

#define CHECK(condition)                                                           \
  do {                                                                             \
    if (!(condition)) {                                                            \
      std::fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                \
    }                                                                              \
  } while (false)

namespace headrace {

// Message of the exception of type E that `action` throws; aborts if there is none.
template <class E>
std::string thrown(const std::function<void()>& action) {
  try {
    action();
  } catch (const E& error) {
    return error.what();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "threw something else: %s\n", error.what());
    std::abort();
  }
  std::fprintf(stderr, "threw nothing\n");
  std::abort();
}

}  // namespace headrace
