// A peer that violates the protocol: whatever it sends, every task ends, with or without an error,
// and claimed lengths allocate no memory. (Peers are authenticated; this covers broken ones.)
#include <sys/resource.h>

#include <array>
#include <cstring>
#include <random>

#include "check.hpp"
#include "executor/executor.hpp"
#include "executor/testing.hpp"
#include "transport/shm/connection.hpp"
#include "transport/tcp/connection.hpp"

using namespace headrace;
using namespace headrace::testing;

namespace {

// Rank 0 of two, and the other ends of its connections.
struct Victim {
  explicit Victim(Via via) {
    auto links = links_of(2, 1, via);
    Executor::Options options;
    options.ranks = 2;
    executor = std::make_unique<Executor>(options);
    executor->connect(std::move(links[0]));
    for (auto& link : links[1]) {
      if (link.memory) {
        connections =
            shm::connections_of(std::move(link.fd), link.memory, data_channels(1) + 2, false);
      } else {
        connections.push_back(std::make_unique<tcp::Connection>(std::move(link.fd)));
      }
    }
  }
  std::unique_ptr<Executor> executor;
  std::vector<std::unique_ptr<Connection>>
      connections;  // control, messages, data by priority, background messages
};

template <class T>
iovec part_of(T& bytes) {
  return {bytes.data(), bytes.size()};
}

// Headers that are correct but for some fields or bits, and random bytes.
std::vector<std::byte> nonsense(std::mt19937& random) {
  std::vector<std::byte> bytes;
  auto pick = [&](std::initializer_list<std::uint32_t> some) {
    return random() % 3 == 0 ? static_cast<std::uint32_t>(random())
                             : *(some.begin() + random() % some.size());
  };
  for (unsigned frames = random() % 4; frames > 0; --frames) {
    Header header{pick({0, 0, 1}), pick({0, 1, 7}),
                  pick({Signature{9} << 16, kPointToPointLane, kGoodbyeLane, kAbortLane}),
                  pick({0, 4, 4000, 2000})};
    auto* raw = reinterpret_cast<const std::byte*>(&header);
    bytes.insert(bytes.end(), raw, raw + sizeof header);
  }
  for (unsigned more = random() % 5000; more > 0; --more) {
    bytes.push_back(static_cast<std::byte>(random()));
  }
  return bytes;
}

void survives_nonsense(Via via) {
  std::mt19937 random(11);
  for (int round = 0; round < 150; ++round) {
    Victim victim(via);
    std::vector<float> data(2000, 1.0f);
    std::vector<float> message(1000);
    auto call = call_on(data, program_of(0, 2, 2, ring_allreduce(2)), DataType::kFloat32, 0.3);
    auto address = reinterpret_cast<std::uintptr_t>(message.data());
    auto receive = victim.executor->receive(address, 4000, 1, 7, 0.3, false);
    auto handle = victim.executor->submit(call);
    for (int burst = 0; burst < 3; ++burst) {
      auto bytes = nonsense(random);
      auto part = part_of(bytes);
      victim.connections[random() % victim.connections.size()]->send(&part, 1, 0);
    }
    for (auto task : {receive, handle}) {
      try {
        victim.executor->wait(task);
      } catch (const CommunicationError& error) {
        CHECK(std::string(error.what()).find("rank") != std::string::npos);
      }
    }
  }
}

// The most memory that the process has had so far.
long most_resident_kib() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  return used.ru_maxrss;
}

// An announced message of an exabyte allocates nothing until its bytes come.
void gives_no_memory_for_claims(Via via) {
  Victim victim(via);
  auto before = most_resident_kib();
  std::array<std::byte, sizeof(Header)> bytes;
  Header header{1u << 28, 7, kPointToPointLane, 0};
  std::memcpy(bytes.data(), &header, sizeof header);
  auto part = part_of(bytes);
  CHECK(victim.connections[1]->send(&part, 1, 0) == sizeof header);
  int value = 0;
  auto other =
      victim.executor->receive(reinterpret_cast<std::uintptr_t>(&value), 4, 1, 8, 0.3, false);
  thrown<CommunicationError>([&] { victim.executor->wait(other); });
  CHECK(most_resident_kib() - before < 64 << 10);
}

// Regression: the payload of a message that does not fit its receive was kept, to be dropped.
void gives_no_memory_for_what_fits_no_receive(Via via) {
  Group group(2, {via});
  std::vector<std::byte> large(256 << 20, std::byte{1});
  auto before = most_resident_kib();
  std::uint32_t value = 0;
  auto receive = [&](std::uint32_t tag) {
    return group[0].receive(reinterpret_cast<std::uintptr_t>(&value), 4, 1, tag, kDeadlineS, false);
  };
  auto mismatched = receive(7);
  auto next = receive(8);
  group.each([&](int rank, Executor& executor) {
    if (rank == 0) {
      executor.wait(next);
      return;
    }
    auto address = reinterpret_cast<std::uintptr_t>(large.data());
    executor.wait(executor.send(address, large.size(), 0, 7, kDeadlineS, false));
    executor.wait(executor.send(address, 4, 0, 8, kDeadlineS, false));
  });
  CHECK(value == 0x01010101);
  auto text = thrown<CommunicationError>([&] { group[0].wait(mismatched); });
  CHECK(text.find("has room for exactly 4") != std::string::npos);
  CHECK(most_resident_kib() - before < 64 << 10);
}

}  // namespace

int main() {
  for (auto via : {Via::kTcp, Via::kMemory}) {
    gives_no_memory_for_claims(via);
    gives_no_memory_for_what_fits_no_receive(via);
    survives_nonsense(via);
  }
}
