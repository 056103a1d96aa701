// Regression: connections within a host on a system whose pages are 64 KiB, as of some for aarch64,
// were refused, as their memory was cut for pages of 4 KiB.
#include <dlfcn.h>
#include <unistd.h>

#include <cstddef>
#include <numeric>
#include <vector>

#include "check.hpp"
#include "executor/testing.hpp"
#include "transport/shm/connection.hpp"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
int main() {}  // their runtimes call sysconf() before another one can be found
#else

namespace {

constexpr std::size_t kPageBytes = 64 << 10;

}  // namespace

// In place of the C library's. Memory that is cut for larger pages fits those of this system, too.
extern "C" long sysconf(int name) noexcept {
  static const auto next = reinterpret_cast<long (*)(int)>(::dlsym(RTLD_NEXT, "sysconf"));
  return name == _SC_PAGESIZE ? long{kPageBytes} : next(name);
}

int main() {
  using namespace headrace;
  constexpr std::size_t kRingBytes = 2 * kPageBytes;
  auto memory = testing::memory_of(kRingBytes, 2);
  auto [mine, its] = testing::unix_pair();
  auto senders = shm::connections_of(std::move(mine), memory, 3, true);
  auto receivers = shm::connections_of(std::move(its), memory, 3, false);
  for (std::size_t number = 0; number < senders.size(); ++number) {
    std::vector<std::uint8_t> sent(number == 0 ? kPageBytes : kRingBytes);
    std::iota(sent.begin(), sent.end(), static_cast<std::uint8_t>(number));
    std::vector<std::uint8_t> received(sent.size());
    iovec part{sent.data(), sent.size()};
    CHECK(senders[number]->send(&part, 1, 0) == sent.size());
    auto* into = reinterpret_cast<std::byte*>(received.data());
    CHECK(receivers[number]->receive(into, received.size(), {}) == sent.size());
    CHECK(received == sent);
  }
}

#endif
