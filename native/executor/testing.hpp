// For the native tests: groups of ranks as threads, and programs from lists of transfers.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "check.hpp"
#include "executor/executor.hpp"
#include "transport/shm/connection.hpp"
#include "transport/tls/connection.hpp"
#include "transport/wire.hpp"

namespace headrace::testing {

struct Transfer {
  int from;
  int to;
  int slot;
  bool reduce;
  int channel = 0;
};

// The program of one rank: lanes in order of first use; every step depends on all earlier steps of
// the same rank that touch its slot.
inline std::shared_ptr<const Program> program_of(int rank, int ranks, int slots,
                                                 const std::vector<Transfer>& transfers) {
  using Key = std::tuple<Direction, int, int>;
  struct Pending {
    Key lane;
    Op op;
    int slot;
    std::vector<std::size_t> after;
  };
  std::vector<Pending> pending;
  for (const auto& t : transfers) {
    if (t.from != rank && t.to != rank) continue;
    Pending step{t.from == rank ? Key{Direction::kSend, t.to, t.channel}
                                : Key{Direction::kReceive, t.from, t.channel},
                 t.from == rank ? Op::kSend : (t.reduce ? Op::kReceiveReduce : Op::kReceive),
                 t.slot,
                 {}};
    for (std::size_t i = 0; i < pending.size(); ++i) {
      if (pending[i].slot == step.slot && pending[i].lane != step.lane) step.after.push_back(i);
    }
    pending.push_back(step);
  }
  std::map<Key, std::vector<std::size_t>> lanes;
  for (std::size_t i = 0; i < pending.size(); ++i) lanes[pending[i].lane].push_back(i);
  std::vector<std::uint8_t> direction;
  std::vector<std::uint8_t> op;
  std::vector<std::int32_t> peer, channel, lane_of, slot, source, count, waiting, awaited;
  std::map<std::size_t, std::int32_t> index;
  for (const auto& [key, members] : lanes) {
    for (auto i : members) {
      index[i] = static_cast<std::int32_t>(op.size());
      lane_of.push_back(static_cast<std::int32_t>(direction.size()));
      op.push_back(static_cast<std::uint8_t>(pending[i].op));
      slot.push_back(pending[i].slot);
      source.push_back(-1);
      count.push_back(1);
    }
    direction.push_back(static_cast<std::uint8_t>(std::get<0>(key)));
    peer.push_back(std::get<1>(key));
    channel.push_back(std::get<2>(key));
  }
  std::vector<std::pair<std::int32_t, std::int32_t>> edges;
  for (std::size_t i = 0; i < pending.size(); ++i) {
    for (auto j : pending[i].after) edges.emplace_back(index[i], index[j]);
  }
  std::sort(edges.begin(), edges.end());
  for (auto [step, on] : edges) {
    waiting.push_back(step);
    awaited.push_back(on);
  }
  ProgramColumns columns{direction, peer,   channel, lane_of, op,
                         slot,      source, count,   waiting, awaited};
  auto all = static_cast<std::uint32_t>(slots);
  return std::make_shared<Program>(rank, ranks, all, 0, 0, all, columns);
}

inline std::vector<Transfer> ring_allreduce(int ranks) {
  std::vector<Transfer> transfers;
  for (int phase = 0; phase < 2; ++phase) {
    for (int round = 0; round < ranks - 1; ++round) {
      for (int r = 0; r < ranks; ++r) {
        int slot = ((r - round + phase) % ranks + ranks) % ranks;
        transfers.push_back({r, (r + 1) % ranks, slot, phase == 0});
      }
    }
  }
  return transfers;
}

// Two ends of a TCP connection over loopback.
inline std::pair<Fd, Fd> tcp_pair() {
  Fd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* any = reinterpret_cast<sockaddr*>(&address);
  CHECK(::bind(listener.get(), any, size) == 0 && ::listen(listener.get(), 1) == 0);
  CHECK(::getsockname(listener.get(), any, &size) == 0);
  Fd dialled(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  CHECK(::connect(dialled.get(), any, size) == 0);
  Fd accepted(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  int yes = 1;
  for (const auto* fd : {&dialled, &accepted}) {
    CHECK(::setsockopt(fd->get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes) == 0);
    CHECK(::fcntl(fd->get(), F_SETFL, ::fcntl(fd->get(), F_GETFL) | O_NONBLOCK) == 0);
  }
  return {std::move(dialled), std::move(accepted)};
}

inline std::pair<Fd, Fd> unix_pair() {
  int ends[2];
  CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
  return {Fd(ends[0]), Fd(ends[1])};
}

// Memory of two ranks' connections: control, and `others`.
inline Fd memory_of(std::size_t ring_bytes, std::size_t others) {
  Fd memory(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  auto bytes = shm::control_bytes() + others * (shm::RingMemory::page_bytes() + 2 * ring_bytes);
  CHECK(memory && ::ftruncate(memory.get(), static_cast<off_t>(bytes)) == 0);
  CHECK(::fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK) == 0);
  return memory;
}

enum class Via { kTcp, kMemory, kBoth, kTls };  // both: one host has the even ranks, one the odd

// All connection types of this build.
inline std::vector<Via> every_via() {
  std::vector<Via> all{Via::kTcp, Via::kMemory, Via::kBoth};
  if (tls::available()) all.push_back(Via::kTls);
  return all;
}

// The links of every rank; rings of the smallest size, so that they are often full.
inline std::vector<std::vector<Link>> links_of(int ranks, int channels, Via via,
                                               std::size_t ring_bytes = 16 << 10) {
  std::vector<std::vector<Link>> links(static_cast<std::size_t>(ranks));
  for (int a = 0; a < ranks; ++a) {
    for (int b = a + 1; b < ranks; ++b) {
      bool memory = via == Via::kMemory || (via == Via::kBoth && a % 2 == b % 2);
      auto end = memory ? kControlChannel + 1 : data_channels(channels);
      auto others = static_cast<std::size_t>(data_channels(channels) + 1);
      for (auto channel = kControlChannel; channel < end; ++channel) {
        auto [mine, its] = memory ? unix_pair() : tcp_pair();
        Fd shared = memory ? memory_of(ring_bytes, others) : Fd();
        Fd same(shared ? ::dup(shared.get()) : -1);
        std::string key;
        if (via == Via::kTls) {
          key =
              "key " + std::to_string(a) + " " + std::to_string(b) + " " + std::to_string(channel);
          key.resize(tls::kKeyBytes);
        }
        links[static_cast<std::size_t>(a)].push_back(
            {std::move(mine), b, channel, std::move(shared), key});
        links[static_cast<std::size_t>(b)].push_back(
            {std::move(its), a, channel, std::move(same), key});
      }
    }
  }
  return links;
}

// Number of executor threads: tests run with helpers, too.
inline int threads_wanted() {
  const char* text = std::getenv("HEADRACE_TEST_THREADS");
  return text == nullptr ? 1 : std::atoi(text);
}

struct GroupOptions {
  Via via = Via::kTcp;
  int channels = 1;
  faulty::Faults faults_of_rank_0{};
  int threads = threads_wanted();
};

class Group {
 public:
  explicit Group(int ranks, GroupOptions wanted = {}) {
    auto links = links_of(ranks, wanted.channels, wanted.via);
    for (int r = 0; r < ranks; ++r) {
      Executor::Options options;
      options.rank = r;
      options.ranks = ranks;
      options.channels = wanted.channels;
      options.threads = wanted.threads;
      if (r == 0) options.faults = wanted.faults_of_rank_0;
      executors_.push_back(std::make_unique<Executor>(options));
    }
    each([&](int rank, Executor& executor) {
      executor.connect(std::move(links[static_cast<std::size_t>(rank)]));
    });
  }

  template <class Action>
  void each(const Action& action) {
    std::vector<std::thread> threads;
    for (std::size_t r = 0; r < executors_.size(); ++r) {
      threads.emplace_back([&, r] { action(static_cast<int>(r), *executors_[r]); });
    }
    for (auto& thread : threads) thread.join();
  }

  Executor& operator[](int rank) { return *executors_[static_cast<std::size_t>(rank)]; }
  int size() const { return static_cast<int>(executors_.size()); }

 private:
  std::vector<std::unique_ptr<Executor>> executors_;
};

// Runs `attempt(faults)`, rank 0's calls on a connection that breaks at the n-th call that moves
// bytes, for n = 1, 2, 4, ..., until there are fewer such calls. `attempt` returns whether rank 0
// had an error: it must if, and only if, a connection broke. The number of runs depends on timing.
template <class Attempt>
void break_one_call_after_the_other(const Attempt& attempt) {
  for (std::int64_t n = 1;; n *= 2) {
    std::atomic<bool> broke = false;
    bool failed = attempt(faulty::Faults{.calls_left = n, .broken = [&] { broke = true; }});
    CHECK(failed == broke);
    CHECK(broke || n > 1);  // something must move
    if (!broke) return;
  }
}

// Far above the time of any call or message: a sanitized build on a busy machine is fifty times
// slower, and ctest ends a test that hangs.
constexpr double kDeadlineS = 100;

template <class Data>
Executor::Call call_on(Data& data, std::shared_ptr<const Program> program, DataType type,
                       double deadline_s = kDeadlineS) {
  Executor::Call call;
  auto chunks = program->slots();
  call.program = std::move(program);
  call.segments = {{reinterpret_cast<std::uintptr_t>(data.data()), data.size(), 1, chunks}};
  call.type = type;
  call.deadline_s = deadline_s;
  return call;
}

}  // namespace headrace::testing
