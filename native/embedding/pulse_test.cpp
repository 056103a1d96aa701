// A pulse on a pair of sockets: bytes until it is closed, and no end by a peer that is gone.
#include "embedding/pulse.hpp"

#include <array>

#include "check.hpp"
#include "process_testing.hpp"

using namespace headrace;
using embedding::Pulse;

namespace {

constexpr double kInterval = 0.002;

std::array<int, 2> pair_of_sockets() {
  std::array<int, 2> ends;
  CHECK(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()) == 0);
  return ends;
}

std::size_t received(int socket) {
  std::array<char, 64> bytes;
  const auto count = ::recv(socket, bytes.data(), bytes.size(), 0);
  CHECK(count >= 0);
  return static_cast<std::size_t>(count);
}

void test_bytes_come_until_it_is_closed() {
  auto [own, peer] = pair_of_sockets();
  Pulse pulse(own, kInterval);
  ::close(own);
  for (std::size_t count = 0; count < 5;) {
    const auto bytes = received(peer);
    CHECK(bytes > 0);
    count += bytes;
  }
  testing::in_child([&] { pulse.close(); });  // the parent's goes on
  CHECK(received(peer) > 0);
  pulse.close();
  pulse.close();
  while (received(peer) > 0) continue;
  ::close(peer);
}

void test_the_peer_may_go() {
  auto [own, peer] = pair_of_sockets();
  Pulse pulse(own, kInterval);
  CHECK(received(peer) > 0);
  ::close(peer);
  std::this_thread::sleep_for(std::chrono::duration<double>(5 * kInterval));
  ::close(own);
}

// Programs that the process starts kept the connection open after its end.
void test_programs_do_not_inherit_it() {
  auto [own, peer] = pair_of_sockets();
  const int lowest = ::dup(own);  // which the pulse takes next
  ::close(lowest);
  Pulse pulse(own, kInterval);
  CHECK(::fcntl(lowest, F_GETFD) == FD_CLOEXEC);
  ::close(own);
  ::close(peer);
}

void test_a_socket_is_needed() {
  CHECK(thrown<std::system_error>([] { Pulse(-1, kInterval); }).starts_with("pulse"));
}

// The descriptor stayed open, and the other end waited for signs of life.
void test_a_refused_thread_leaves_no_descriptor() {
  auto [own, peer] = pair_of_sockets();
  {
    const testing::RefusedThreads refused;
    CHECK(thrown<std::system_error>([&] {
            Pulse(own, kInterval);
          }).starts_with("pulse: the system refuses a thread"));
  }
  ::close(own);
  CHECK(received(peer) == 0);
  ::close(peer);
}

}  // namespace

int main() {
  test_bytes_come_until_it_is_closed();
  test_the_peer_may_go();
  test_programs_do_not_inherit_it();
  test_a_socket_is_needed();
  test_a_refused_thread_leaves_no_descriptor();
}
