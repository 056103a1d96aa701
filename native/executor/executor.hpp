// Runs programs between the ranks of one group. Independent of Python and torch.
//
// One thread drives the connections: the caller of `run` or `wait` where possible (no thread switch
// in the latency of a small message), else the executor's io thread. While it moves many bytes of
// one connection, helper threads progress the others. Collectives of one priority progress in
// submission order on every connection; different connections progress independently. Errors are
// sticky: after one, every call throws its cause.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "executor/completions.hpp"
#include "executor/control_stream.hpp"
#include "executor/data_stream.hpp"
#include "executor/message_stream.hpp"
#include "executor/task.hpp"
#include "transport/faulty/connection.hpp"
#include "transport/statistics.hpp"

namespace headrace {

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
  // `channels` data channels for each priority, most urgent first, each once. Waits for their
  // handshakes. Throws std::invalid_argument if one is missing, and CommunicationError if one fails
  // or is not open by the deadline.
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
  // Returns a handle for wait, poll and cancel; each handle must be waited for, polled to its end,
  // or submitted with `notify`.
  std::uint64_t submit(const Call& call, bool notify = false);
  // Submits and waits on the calling thread.
  void run(const Call& call);
  // Runs as `run` and returns the times of every step at this rank.
  Trace trace(const Call& call);

  // `element` is the caller's number of the element type; 0: unknown.
  std::uint64_t send(std::uintptr_t address, std::uint64_t bytes, int peer, std::uint32_t tag,
                     double deadline_s, bool notify, std::uint8_t element = 0);
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
  std::uint64_t submitted() const { return submitted_.load(); }
  std::uint64_t finished() const { return finished_collectives_.load(); }
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
  using Lock = std::unique_lock<std::mutex>;

  std::shared_ptr<Collective> bind(const Call& call);
  std::shared_ptr<Collective> spare(const std::shared_ptr<const Program>& program);
  void keep_spare(std::shared_ptr<Collective> collective);
  std::shared_ptr<Task> find(std::uint64_t handle);
  void enqueue(std::shared_ptr<Task> task, double deadline_s);
  std::uint64_t enqueue_named(std::shared_ptr<Task> task, double deadline_s, bool notify);
  void start(const std::shared_ptr<Task>& task);
  void kick(std::uint64_t bytes);
  int finish_wait(const std::shared_ptr<Task>& task);

  void drive(Lock& state, const Task* target);
  bool pass(Lock& state);
  bool progress(Stream& stream, const Unlock& unlock);
  void run_helper();
  void wake_helper();
  // While one exists, no thread acquires a stream. Requires `state_`, and releases it until all
  // owned streams are released.
  struct Halt {
    explicit Halt(Executor& executor);
    ~Halt() { --executor_.halted_; }
    Halt(const Halt&) = delete;
    Halt& operator=(const Halt&) = delete;
    Executor& executor_;
  };
  void take_inbox();
  std::unique_ptr<Connection> connection_of(Link& link);
  void add(std::vector<Link>& links);
  void open(Lock& state, Clock::time_point deadline);
  bool spin(Lock& state);
  void yield_lock(Lock& state);
  // An event queue (epoll), and an eventfd that ends a sleep on it.
  struct Watch {
    Watch();
    void add(int fd, Stream* stream);
    void wake() const;
    Fd epoll;
    Fd event;
  };
  void poll_events(const Watch& watch);
  void sleep_for_events(const Watch& watch, Lock& state, int timeout_ms);
  void take_events(const Watch& watch, int timeout_ms, Lock* state);
  void wait_for_events(Lock& state);
  bool read_controls();
  void check_closed();
  void check_deadlines(Clock::time_point now);
  std::string silent_ranks(Clock::time_point now) const;
  void complete(const std::shared_ptr<Task>& task, const std::string& error);
  std::string report_tasks() const;
  void fail(int culprit, const std::string& text);
  void io_thread();
  void wake();
  void wake_io_thread();
  bool idle() const;
  void throw_if_failed();

  // Interval at which a waiting driver checks deadlines and interrupts.
  static constexpr std::chrono::milliseconds kTick{100};
  // Maximum age of the control connections' state when a call begins: another rank may have ended
  // the group since.
  static constexpr std::chrono::milliseconds kStale{1};
  // Interval of heartbeats from a waiting rank, and the age of an unanswered one at which the error
  // of a passed deadline names the peer.
  static constexpr std::chrono::milliseconds kBeat{500};
  static constexpr std::chrono::milliseconds kSilent{1000};

  Options options_;
  pid_t process_;  // that created it
  // `state_` guards the connections and the tasks in progress.
  std::mutex state_;
  bool driving_ = false;
  std::thread::id driver_;
  bool stop_ = false;
  std::size_t owned_ = 0;           // streams owned by threads that move their bytes
  std::size_t helpers_wanted_ = 0;  // helpers woken that do not run yet
  std::size_t helpers_active_ = 0;  // helpers running
  std::size_t halted_ = 0;          // number of `Halt`s
  std::condition_variable help_;
  std::condition_variable all_released_;
  Watch all_;                       // for the driver: every connection
  Watch own_;                       // for the io thread: the control connections
  Clock::time_point events_until_;  // events up to then are handled
  Clock::time_point last_beat_;     // time of the last heartbeats
  Mailbox mailbox_;
  std::vector<std::unique_ptr<Stream>> streams_;  // changes require `members_`, too
  std::uint32_t started_ = 0;                     // collectives below this number have begun
  bool busy_spin_ = true;                         // before it yields its processor
  bool shares_memory_ = false;                    // any connection does
  bool has_sockets_ = false;                      // some data uses sockets
  std::vector<ControlStream*> controls_;          // by peer; null for ourselves
  std::vector<MessageStream*> messages_;          // by peer
  std::size_t first_data_ = 0;        // index of the first stream that is not for control
  std::size_t first_background_ = 0;  // index of the first stream of the lowest priority
  std::vector<std::vector<DataStream*>> channels_;  // by peer, priority and channel
  std::vector<std::shared_ptr<Task>> active_;
  std::vector<std::shared_ptr<Task>> arrived_;  // swapped with the inbox
  std::atomic<std::uint64_t> finished_collectives_{0};
  std::uint64_t finished_messages_ = 0;

  // Guards `streams_` against additions and removals; a lock of its own, as the driver keeps
  // `state_` as long as data flows.
  std::mutex members_;

  std::atomic<bool> io_thread_woken_{false};  // since the io thread last checked for work

  // `tasks_` guards what callers and the driver exchange.
  std::mutex tasks_;
  std::condition_variable done_;
  std::vector<std::shared_ptr<Task>> inbox_;
  std::atomic<bool> has_mail_{false};                // the inbox is not empty
  std::atomic<Clock::time_point> mailed_{};          // time of the latest submission
  std::vector<std::shared_ptr<Collective>> spares_;  // latest first
  std::unordered_map<std::uint64_t, std::shared_ptr<Task>> by_handle_;
  std::atomic<std::uint64_t> submitted_{0};
  std::atomic<bool> failed_{false};
  std::string error_;    // the first cause, once failed
  std::string failure_;  // tasks under way then
  bool closed_ = false;
  bool connected_ = false;

  std::thread thread_;
  std::vector<std::thread> helpers_;
};

}  // namespace headrace
