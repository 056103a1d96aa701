// Runs programs between the ranks of one group. Independent of Python and torch. Errors are sticky:
// after one, every call throws its cause. See driver.hpp for how bytes move.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "executor/completions.hpp"
#include "executor/task.hpp"
#include "transport/connection.hpp"
#include "transport/faulty/connection.hpp"
#include "transport/statistics.hpp"

namespace headrace {

class Driver;

struct PeerBytes {
  std::uint64_t sent_bytes = 0;
  std::uint64_t received_bytes = 0;
};

// Bytes by peer: sums over the open connections.
struct Counters {
  std::uint64_t collectives = 0;
  std::uint64_t messages = 0;
  std::uint64_t unexpected_bytes = 0;  // of messages that came before their receive was posted
  std::vector<PeerBytes> peers;
};

class Executor {
 public:
  // `interrupted` is called regularly while a caller waits; an exception from it ends the wait (and
  // the group: the buffers of unfinished tasks may be gone afterwards).
  struct Options {
    int rank = 0;
    int ranks = 1;
    int channels = 1;
    int threads = 1;                           // maximum number of threads moving bytes
    std::shared_ptr<Completions> completions;  // created if absent
    std::function<void()> interrupted;
    faulty::Faults faults;  // for tests
  };

  explicit Executor(Options options);
  ~Executor();

  const std::shared_ptr<Completions>& completions() const { return options_.completions; }
  // Takes ownership of the connections: to every peer its control and point-to-point channels and
  // `data_channels(channels)` others, each once. Waits for their handshakes. Throws
  // std::invalid_argument if one is missing, and CommunicationError if one fails or is not open by
  // the deadline.
  void connect(std::vector<Link> links, double deadline_s = 30);

  struct Call {
    std::shared_ptr<const Program> program;
    std::vector<Segment> segments;
    DataType type = DataType::kFloat32;
    Operator op = Operator::kSum;
    bool average = false;
    std::uint32_t epoch = 0;
    Priority priority = Priority::kNormal;
    double deadline_s = 60;
  };
  // Returns a handle for wait, poll and cancel; each handle must be waited for, unless it was
  // submitted with `notify`.
  std::uint64_t submit(const Call& call, bool notify = false);
  // Submits and waits on the calling thread.
  void run(const Call& call);
  // Runs as `run` and returns the times of every step at this rank.
  Trace trace(const Call& call);

  // `element` is the caller's number of the element type; 0: unknown. Messages of one tag arrive in
  // the order in which they were sent, but for background ones, which others overtake.
  std::uint64_t send(std::uintptr_t address, std::uint64_t bytes, int peer, std::uint32_t tag,
                     double deadline_s, bool notify, std::uint8_t element = 0,
                     Priority priority = Priority::kNormal);
  std::uint64_t receive(std::uintptr_t address, std::uint64_t bytes, int peer, std::uint32_t tag,
                        double deadline_s, bool notify, std::uint8_t element = 0);

  // Throws CommunicationError if the task failed; returns a receive's source (else -1). If the
  // element types of sender and receive are known and differ, `types`, if given, becomes (sender's,
  // receive's).
  int wait(std::uint64_t handle, std::array<std::uint8_t, 2>* types = nullptr);
  bool poll(std::uint64_t handle);
  // Withdraws an unmatched receive; for any task that peers may count on, ends the group.
  void cancel(std::uint64_t handle);

  // Ends the group at all ranks: unfinished tasks fail everywhere with this reason.
  void abort(const std::string& reason);

  // Tasks under way, lane by lane; after a failure, those at its time. For users to read.
  std::string report();

  Counters counters();
  // Number of collectives submitted, and finished (or failed), so far. Thread-safe, without
  // waiting.
  std::uint64_t submitted() const;
  std::uint64_t finished() const;
  // All open connections. Thread-safe; does not wait for the driver.
  std::vector<ConnectionStatistics> statistics();
  void set_pacing(int peer, std::uint64_t bytes_per_s);
  // For a forked child: closes its copies of the connections without notifying any peer, and takes
  // no lock (its owner may not exist here). Only destruction is allowed afterwards. Throws
  // std::invalid_argument in the creating process, whose threads go on.
  void abandon();
  // Sends goodbye and closes all connections; outstanding tasks fail. Idempotent.
  void close();

 private:
  std::shared_ptr<Collective> bind(const Call& call);
  std::shared_ptr<Collective> spare(const std::shared_ptr<const Program>& program);
  void keep_spare(std::shared_ptr<Collective> collective);

  Options options_;
  std::mutex spare_;                                 // guards `spares_`
  std::vector<std::shared_ptr<Collective>> spares_;  // latest first
  std::unique_ptr<Driver> driver_;
};

}  // namespace headrace
