// Runs programs between the ranks of one group. Knows nothing of Python or torch.
//
// One thread drives the connections: the caller of `run` or `wait` where it can (no thread switch
// on the way of a small message), else the executor's own thread. While it moves many bytes of one
// connection, helpers see to others. Collectives of one priority proceed in submission order on
// every connection; different connections proceed on their own.
// Errors are sticky: after one, every call throws its cause.
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

// Bytes by peer are those of the connections that are open.
struct Counters {
  std::uint64_t collectives = 0;
  std::uint64_t messages = 0;
  std::uint64_t unexpected_bytes = 0;  // of messages that came before anyone asked for them
  std::vector<PeerBytes> peers;
};

class Executor {
 public:
  // `interrupted` is called now and then while a caller waits; what it throws ends the wait (and
  // the group: the buffers of unfinished tasks may be gone afterwards).
  struct Options {
    int rank = 0;
    int ranks = 1;
    int channels = 1;
    int threads = 1;                           // that move bytes at one time
    std::shared_ptr<Completions> completions;  // made if absent
    std::function<void()> interrupted;
    faulty::Faults faults;  // tests
  };

  explicit Executor(Options options);
  ~Executor();

  const std::shared_ptr<Completions>& completions() const { return options_.completions; }
  // Takes over the connections: to every peer its control and point-to-point channels and
  // `channels` data channels for each priority, most urgent first, each once. Waits for the
  // handshakes of those that have one. Throws std::invalid_argument if one is missing, and
  // CommunicationError if one fails or is not open by the deadline.
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
  // Returns a handle for wait, poll and cancel; each handle is to be waited for, polled to its
  // end, or submitted with `notify`.
  std::uint64_t submit(const Call& call, bool notify = false);
  // Submits and waits on the calling thread.
  void run(const Call& call);
  // As `run`, and tells when every step moved at this rank.
  Trace trace(const Call& call);

  // `element` numbers the type of what is moved, as the caller likes; 0: not told.
  std::uint64_t send(std::uintptr_t address, std::uint64_t bytes, int peer, std::uint32_t tag,
                     double deadline_s, bool notify, std::uint8_t element = 0);
  std::uint64_t receive(std::uintptr_t address, std::uint64_t bytes, int peer, std::uint32_t tag,
                        double deadline_s, bool notify, std::uint8_t element = 0);

  // Throws CommunicationError if the task failed; returns a receive's source (else -1). `types`, if
  // given, becomes the sender's element type and the receive's, if both were told and differ.
  int wait(std::uint64_t handle, std::array<std::uint8_t, 2>* types = nullptr);
  bool poll(std::uint64_t handle);
  // Forgets an unmatched receive; ends the group for anything that peers may already count on.
  void cancel(std::uint64_t handle);

  // Ends the group for all ranks: what is under way fails here and there, and says why.
  void abort(const std::string& reason);

  // What is under way, lane by lane; after a failure, what was when it came. For people to read.
  std::string report();

  Counters counters();
  // Collectives submitted, and finished (well or not), so far. From any thread, without waiting.
  std::uint64_t submitted() const { return submitted_.load(); }
  std::uint64_t finished() const { return finished_collectives_.load(); }
  // Every open connection. From any thread; does not wait for whoever drives the connections.
  std::vector<ConnectionStatistics> statistics();
  void set_pacing(int peer, std::uint64_t bytes_per_s);
  // For a forked child: lets go of the parent's connections without a word to anybody, and takes
  // no lock (who held it may not exist here). Nothing but destruction is allowed afterwards. Throws
  // std::invalid_argument in the process that made it, whose threads go on.
  void abandon();
  // Says goodbye and closes all connections; outstanding tasks fail. Idempotent.
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
  bool progress(Stream& stream, const Leave& leave);
  void help();
  void call_help();
  // While there is one, nobody takes a stream. Needs `state_`, and lets go of it until those that
  // were taken are given back.
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
  void give_way(Lock& state);
  // An event queue, and an event of its own that ends a sleep on it.
  struct Watch {
    Watch();
    void add(int fd, Stream* stream);
    void wake() const;
    Fd epoll;
    Fd event;
  };
  void look_for_events(const Watch& watch);
  void sleep_for_events(const Watch& watch, Lock& state, int timeout_ms);
  void take_events(const Watch& watch, int timeout_ms, Lock* state);
  void wait_for_events(Lock& state);
  bool read_controls();
  void judge();
  void check_deadlines(Clock::time_point now);
  std::string silent_ranks(Clock::time_point now) const;
  void complete(const std::shared_ptr<Task>& task, const std::string& error);
  std::string report_tasks() const;
  void fail(int culprit, const std::string& text);
  void io_thread();
  void wake();
  void nudge();
  bool idle() const;
  void throw_if_failed();

  // How often a waiting driver looks at deadlines and interrupts.
  static constexpr std::chrono::milliseconds kTick{100};
  // A call does not begin on a look at the control connections that is older than this: by then
  // another rank may have ended the group.
  static constexpr std::chrono::milliseconds kStale{1};
  // How often a rank that waits sends heartbeats, and how long one is unanswered before the error
  // of a passed deadline names the peer.
  static constexpr std::chrono::milliseconds kBeat{500};
  static constexpr std::chrono::milliseconds kSilent{1000};

  Options options_;
  pid_t process_;  // that made it
  // `state_` guards the connections and the tasks in progress.
  std::mutex state_;
  bool driving_ = false;
  std::thread::id driver_;
  bool stop_ = false;
  std::size_t taken_ = 0;    // streams, by the threads that move their bytes
  std::size_t wanted_ = 0;   // helpers that were called and have not come yet
  std::size_t helping_ = 0;  // helpers that have
  std::size_t halted_ = 0;   // how many `Halt`s there are
  std::condition_variable help_;
  std::condition_variable given_back_;
  Watch all_;                 // what a driver sleeps on: every connection
  Watch own_;                 // what the executor's own thread does: the control connections
  Clock::time_point looked_;  // events up to then have been taken
  Clock::time_point beaten_;  // the last heartbeats
  Mailbox mailbox_;
  std::vector<std::unique_ptr<Stream>> streams_;    // to add or remove, `members_` is needed, too
  std::uint32_t started_ = 0;                       // collectives below this number were begun
  bool stares_ = true;                              // before it yields its processor
  bool shares_memory_ = false;                      // some connection does
  bool has_sockets_ = false;                        // some data goes over sockets
  std::vector<ControlStream*> controls_;            // by peer; null for ourselves
  std::vector<MessageStream*> messages_;            // by peer
  std::size_t first_data_ = 0;                      // of the streams, after those for control
  std::size_t first_background_ = 0;                // and the first of the lowest priority
  std::vector<std::vector<DataStream*>> channels_;  // by peer, priority and channel
  std::vector<std::shared_ptr<Task>> active_;
  std::vector<std::shared_ptr<Task>> arrived_;  // memory for the inbox
  std::atomic<std::uint64_t> finished_collectives_{0};
  std::uint64_t finished_messages_ = 0;

  // Keeps connections from being added or closed; a lock of its own, as the driver keeps `state_`
  // for as long as data flows.
  std::mutex members_;

  std::atomic<bool> nudged_{false};  // the executor's own thread, since it last looked for work

  // `tasks_` guards what callers and the driver exchange.
  std::mutex tasks_;
  std::condition_variable done_;
  std::vector<std::shared_ptr<Task>> inbox_;
  std::atomic<bool> has_mail_{false};                // something is in the inbox
  std::atomic<Clock::time_point> mailed_{};          // the latest of it
  std::vector<std::shared_ptr<Collective>> spares_;  // the latest first
  std::unordered_map<std::uint64_t, std::shared_ptr<Task>> by_handle_;
  std::atomic<std::uint64_t> submitted_{0};
  std::atomic<bool> failed_{false};
  std::string error_;    // the first cause, once failed
  std::string failure_;  // what was under way then
  bool closed_ = false;
  bool connected_ = false;

  std::thread thread_;
  std::vector<std::thread> helpers_;
};

}  // namespace headrace
