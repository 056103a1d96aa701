// The executor's progress engine. One thread drives the connections: the caller of `wait` where
// possible (no thread switch in the latency of a small message), else the io thread. While it moves
// many bytes of one connection, helper threads progress the others. Collectives of one priority
// progress in submission order on every connection; different connections progress independently.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "executor/control_stream.hpp"
#include "executor/data_stream.hpp"
#include "executor/executor.hpp"
#include "executor/message_stream.hpp"

namespace headrace {

inline void require(bool holds, const std::string& what) {
  if (!holds) throw std::invalid_argument(what);
}

inline Clock::time_point after(Clock::time_point begin, double seconds) {
  if (!(seconds >= 0)) {  // also true for NaN
    throw std::invalid_argument("the deadline is " + std::to_string(seconds) +
                                " s, needs at least 0 s");
  }
  auto bounded = std::min(seconds, 1e9);
  return begin +
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(bounded));
}

class Driver {
 public:
  explicit Driver(Executor::Options options);  // checked
  ~Driver();

  void connect(std::vector<Link> links, double deadline_s);

  // Adds a task for the next driver.
  void enqueue(std::shared_ptr<Task> task, double deadline_s);
  // Adds a task and starts it: on this thread where possible. Returns its handle.
  std::uint64_t submit(std::shared_ptr<Task> task, double deadline_s, bool notify);
  std::shared_ptr<Task> find(std::uint64_t handle);
  // Drives, or waits for the thread that does, until the task is done. Throws CommunicationError if
  // it failed.
  void wait(const std::shared_ptr<Task>& task);
  // Whether the caller has the only reference to a finished collective, if that is known at once.
  bool released(const std::shared_ptr<Collective>& collective);
  void cancel(std::uint64_t handle);
  void abort(const std::string& reason);

  std::string report();
  Counters counters();
  std::uint64_t submitted() const { return submitted_.load(); }
  std::uint64_t finished() const { return finished_collectives_.load(); }
  std::vector<ConnectionStatistics> statistics();
  void set_pacing(int peer, std::uint64_t bytes_per_s);
  void abandon();
  void close();

 private:
  using Lock = std::unique_lock<std::mutex>;

  void start(const std::shared_ptr<Task>& task);
  void kick(std::uint64_t bytes);

  void drive(Lock& state, const Task* target);
  bool pass(Lock& state);
  bool progress(Stream& stream, const Unlock& unlock);
  void run_helper();
  void wake_helper();
  // While one exists, no thread acquires a stream. Requires `state_`, and releases it until all
  // owned streams are released.
  struct Halt {
    explicit Halt(Driver& driver);
    ~Halt() { --driver_.halted_; }
    Halt(const Halt&) = delete;
    Halt& operator=(const Halt&) = delete;
    Driver& driver_;
  };
  void take_inbox();
  struct Opened {
    int peer;
    std::int32_t channel;
    std::unique_ptr<Connection> connection;
  };
  std::vector<Opened> connections_of(std::vector<Link>& links);
  void add(std::vector<Link>& links);
  void open(Lock& state, Clock::time_point deadline);
  void start_threads();
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
  bool check_closed(Stream& stream);
  void check_senders();
  void check_deadlines(Clock::time_point now);
  std::string silent_ranks(Clock::time_point now) const;
  void complete(const std::shared_ptr<Task>& task, const std::string& error);
  std::string report_tasks() const;
  void fail(int culprit, const std::string& text);
  void io_thread();
  void leave_events_to_driver(Lock& state);
  void wake();
  void wake_io_thread();
  bool idle() const;
  void throw_if_failed();

  // How long the io thread leaves events to another thread that drives.
  static constexpr std::chrono::milliseconds kDriverAlone{20};
  // Interval at which a waiting driver checks deadlines and interrupts.
  static constexpr std::chrono::milliseconds kTick{100};
  // Maximum age of the control connections' state when a call begins: another rank may have ended
  // the group since.
  static constexpr std::chrono::milliseconds kStale{1};
  // Interval of heartbeats from a waiting rank, and the age of an unanswered one at which the error
  // of a passed deadline names the peer.
  static constexpr std::chrono::milliseconds kBeat{500};
  static constexpr std::chrono::milliseconds kSilent{1000};

  Executor::Options options_;
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
  struct MessageStreams {
    MessageStream* normal = nullptr;
    MessageStream* background = nullptr;
  };
  std::vector<MessageStreams> messages_;  // by peer
  std::size_t first_data_ = 0;            // index of the first stream that is not for control
  std::size_t first_background_ = 0;      // index of the first stream of the lowest priority
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
  std::atomic<bool> has_mail_{false};        // the inbox is not empty
  std::atomic<Clock::time_point> mailed_{};  // time of the latest submission
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
