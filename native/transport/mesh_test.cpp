#include "transport/mesh.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <thread>

#include "check.hpp"
#include "transport/wire.hpp"

using namespace headrace;
using namespace std::chrono_literals;

namespace {

void connects_every_pair_on_every_channel() {
  constexpr int kRanks = 4;
  constexpr int kChannels = 2;
  std::vector<std::unique_ptr<Mesh>> meshes;
  std::vector<std::string> addresses;
  for (int r = 0; r < kRanks; ++r) {
    meshes.push_back(std::make_unique<Mesh>(r, kRanks, "127.0.0.1", "secret", kChannels));
    addresses.push_back(meshes.back()->address());
  }
  std::vector<std::vector<Link>> links(kRanks);
  std::vector<std::thread> threads;
  for (int r = 0; r < kRanks; ++r) {
    threads.emplace_back([&, r] {
      links[static_cast<std::size_t>(r)] =
          meshes[static_cast<std::size_t>(r)]->connect(addresses, Clock::now() + 10s);
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& mine : links) {
    CHECK(mine.size() == (kRanks - 1) * (kChannels + 2));
  }
}

int dial(const std::string& address) {
  auto port = static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1)));
  int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in target{};
  target.sin_family = AF_INET;
  target.sin_port = htons(port);
  target.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  CHECK(::connect(fd, reinterpret_cast<sockaddr*>(&target), sizeof target) == 0);
  return fd;
}

// Neither a stranger with the wrong token nor one talking another protocol gets in or in the way.
void turns_strangers_away() {
  Mesh first(0, 2, "127.0.0.1", "secret", 1);
  Mesh second(1, 2, "127.0.0.1", "secret", 1);
  std::vector<std::string> addresses{first.address(), second.address()};
  int talker = dial(first.address());
  std::string request = "GET / HTTP/1.1\r\nHost: another.example\r\nAccept: everything\r\n\r\n";
  request.resize(sizeof(Hello) + 1, ' ');
  CHECK(::send(talker, request.data(), request.size(), 0) == static_cast<ssize_t>(request.size()));
  int impostor = dial(first.address());
  Hello hello{Hello::kMagic, 1, 0, {}};
  CHECK(::send(impostor, &hello, sizeof hello, 0) == sizeof hello);
  std::vector<Link> links;
  std::thread accepting([&] { links = first.connect(addresses, Clock::now() + 10s); });
  auto others = second.connect(addresses, Clock::now() + 10s);
  accepting.join();
  CHECK(links.size() == 3 && others.size() == 3);
  ::close(talker);
  ::close(impostor);
}

void names_the_rank_that_is_missing() {
  Mesh lonely(0, 3, "127.0.0.1", "", 1);
  auto text = thrown<CommunicationError>([&] {
    lonely.connect({lonely.address(), "127.0.0.1:1", "127.0.0.1:1"}, Clock::now() + 100ms);
  });
  CHECK(text.find("rank 1, 2 did not connect to rank 0") != std::string::npos);
  Mesh caller(1, 2, "127.0.0.1", "", 1);
  text = thrown<CommunicationError>(
      [&] { caller.connect({"127.0.0.1:1", caller.address()}, Clock::now() + 100ms); });
  CHECK(text.find("rank 0 at 127.0.0.1:1 could not be reached") != std::string::npos);
}

void refuses_bad_arguments() {
  thrown<std::invalid_argument>([] { Mesh(2, 2, "127.0.0.1", "", 1); });
  thrown<std::invalid_argument>([] { Mesh(0, 2, "localhost.example", "", 1); });
  thrown<std::invalid_argument>([] { Mesh(0, 2, "127.0.0.1", std::string(65, 'x'), 1); });
  thrown<std::invalid_argument>([] { Mesh(0, 2, "127.0.0.1", "", 0); });
  thrown<std::invalid_argument>(
      [] { Mesh(0, 2, "127.0.0.1", "", 1).connect({"127.0.0.1:1"}, Clock::now() + 100ms); });
}

}  // namespace

int main() {
  connects_every_pair_on_every_channel();
  turns_strangers_away();
  names_the_rank_that_is_missing();
  refuses_bad_arguments();
}
