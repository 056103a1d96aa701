// The driver's loop: takes submitted tasks, moves data, and waits for events.
#include "executor/driver.hpp"

#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>

namespace headrace {
namespace {

using namespace std::chrono_literals;

// Spin phase: how long a driver polls shared memory before it sleeps.
constexpr auto kSpin = 50us;
constexpr auto kBusySpin = 2us;  // of which without yielding the processor
// Limit of passes that moved something before a driver polls events and deadlines.
constexpr int kMaxPasses = 256;
// Larger tasks take longer to copy than the driver takes to wake.
constexpr std::uint64_t kMostKickBytes = 64 << 10;

// Batch scheduling for the calling thread: on waking it does not preempt computing threads, which
// run until their processor is free or their time slice ends.
void use_batch_scheduling() {
  sched_param same{};  // this policy has no parameters
  if (::sched_getscheduler(0) == SCHED_OTHER) ::sched_setscheduler(0, SCHED_BATCH, &same);
}

std::uint64_t next_handle() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

}  // namespace

Driver::Driver(Executor::Options options)
    : options_(std::move(options)),
      process_(::getpid()),
      mailbox_([this](const auto& message, const auto& error) { complete(message, error); }),
      controls_(static_cast<std::size_t>(options_.ranks)),
      messages_(static_cast<std::size_t>(options_.ranks)),
      channels_(static_cast<std::size_t>(options_.ranks)) {}

Driver::~Driver() { close(); }

void Driver::enqueue(std::shared_ptr<Task> task, double deadline_s) {
  auto now = Clock::now();
  task->timeout_s = deadline_s;
  task->deadline = after(now, deadline_s);
  std::lock_guard lock(tasks_);
  throw_if_failed();
  if (auto* collective = task->as_collective()) {
    collective->sequence = static_cast<std::uint32_t>(submitted_++);
  }
  if (task->handle != 0) by_handle_[task->handle] = task;
  inbox_.push_back(std::move(task));
  mailed_ = now;
  has_mail_ = true;
}

std::uint64_t Driver::submit(std::shared_ptr<Task> task, double deadline_s, bool notify) {
  auto handle = next_handle();
  task->handle = handle;
  task->notify = notify;
  auto bytes = task->bytes;
  enqueue(std::move(task), deadline_s);
  kick(bytes);
  return handle;
}

// Starts a new task of `bytes`: a small one on this thread if the connections are free, else by
// waking the driver.
void Driver::kick(std::uint64_t bytes) {
  Lock state(state_, std::defer_lock);
  if (bytes > kMostKickBytes || !state.try_lock()) {
    // The owner of the lock may drive on, or be about to stop without another check.
    wake();
    wake_io_thread();
    return;
  }
  // One pass sends the first bytes; the driver does the rest, so that the caller can return.
  pass(state);
  if (driving_) {
    wake();  // there may be another event to wait for now
  } else if (!idle()) {
    wake_io_thread();
  }
}

std::shared_ptr<Task> Driver::find(std::uint64_t handle) {
  std::lock_guard lock(tasks_);
  auto it = by_handle_.find(handle);
  if (it == by_handle_.end()) {
    throw std::invalid_argument("handle " + std::to_string(handle) +
                                " is unknown or was waited for already");
  }
  return it->second;
}

void Driver::wait(const std::shared_ptr<Task>& task) {
  try {
    while (!task->done) {
      Lock state(state_, std::try_to_lock);
      if (state && !driving_) {
        drive(state, task.get());
        if (!idle()) wake_io_thread();
        continue;
      }
      // Another thread drives: start the task, then sleep until it is done.
      if (state) {
        while (!task->done && pass(state)) {
        }
        state.unlock();
      } else {
        wake();
        wake_io_thread();
      }
      Lock lock(tasks_);
      done_.wait_for(lock, kTick, [&] { return task->done.load(); });
      lock.unlock();
      if (options_.interrupted) options_.interrupted();
    }
  } catch (...) {
    Lock state(state_);
    fail(options_.rank,
         rank_text(options_.rank) + " was interrupted while waiting for " + task->describe());
    throw;
  }
  if (task->handle != 0) {
    std::lock_guard lock(tasks_);
    by_handle_.erase(task->handle);
  }
  if (!task->error.empty()) throw CommunicationError(task->error);
}

bool Driver::released(const std::shared_ptr<Collective>& collective) {
  Lock state(state_, std::try_to_lock);  // the driver drops its reference under this lock
  return state && collective.use_count() == 1;
}

// Nothing in progress or submitted; requires `state_`.
bool Driver::idle() const { return active_.empty() && !has_mail_; }

// Moves data until `target` is done (without one: until nothing is left to do).
void Driver::drive(Lock& state, const Task* target) {
  driving_ = true;
  driver_ = std::this_thread::get_id();
  auto finished = [&] { return stop_ || (target != nullptr ? target->done.load() : idle()); };
  auto last_check = Clock::now();
  try {
    for (;;) {
      int passes = 0;
      bool moved = false;
      do {
        // Without a target no caller waits, and computing threads may need this processor.
        if (target == nullptr) yield_lock(state);
        moved = !finished() && pass(state);
      } while (moved && ++passes < kMaxPasses);
      if (finished()) break;
      if (moved) {
        poll_events(all_);
      } else if (owned_ > 0) {
        // The thread that owns a stream may finish at any moment, and raises no event then.
        yield_lock(state);
        if (has_sockets_) poll_events(all_);
      } else if (!spin(state)) {
        wait_for_events(state);
      }
      // Checking for interrupts can cost more than a small collective: once a tick is enough.
      auto now = Clock::now();
      if (now - last_check < kTick) continue;
      last_check = now;
      // This process may have been stopped: events that came meanwhile are handled before
      // deadlines. If the target is done, a pass would read the next message before its receive.
      poll_events(all_);
      if (!finished()) pass(state);
      if (finished()) break;
      check_deadlines(now);
      if (target == nullptr || !options_.interrupted) continue;
      state.unlock();
      options_.interrupted();
      state.lock();
    }
  } catch (...) {
    if (!state.owns_lock()) state.lock();
    driving_ = false;
    throw;
  }
  driving_ = false;
}

bool Driver::pass(Lock& state) {
  take_inbox();
  if (!read_controls()) return false;
  bool any = false;
  Unlock unlock(helpers_.empty() ? nullptr : &state, [this] { wake_helper(); });
  try {
    for (auto i = first_data_; i < streams_.size() && halted_ == 0; ++i) {
      // Background streams progress only if no other did.
      if (i == first_background_ && any) break;
      if (!streams_[i]->owned()) any |= progress(*streams_[i], unlock);
    }
  } catch (const ProtocolError& error) {
    fail(options_.rank, error.what());
    return false;
  }
  if (halted_ > 0) return false;
  for (const auto& task : active_) {
    if (auto* collective = task->as_collective()) any |= collective->run_local();
  }
  // `complete` changes the list.
  for (std::size_t i = 0; i < active_.size();) {
    auto* collective = active_[i]->as_collective();
    if (collective != nullptr && collective->lanes_left == 0) {
      collective->finish_result();
      complete(std::shared_ptr<Task>(active_[i]), "");
      any = true;
    } else {
      ++i;
    }
  }
  // Progress may let other lanes use what a peer sent before it left.
  if (!any) check_closed();
  return any;
}

bool Driver::progress(Stream& stream, const Unlock& unlock) {
  struct Ownership {
    Driver& driver;
    Stream& stream;
    Ownership(Driver& by, Stream& which) : driver(by), stream(which) {
      stream.acquire();
      ++driver.owned_;
    }
    ~Ownership() {
      stream.release();
      if (--driver.owned_ == 0 && driver.halted_ > 0) driver.all_released_.notify_all();
    }
  } ownership(*this, stream);
  return stream.progress(unlock);
}

void Driver::take_inbox() {
  if (!has_mail_) return;
  // Another rank may have ended the group long before this call began, and all data that the call
  // needs may have been sent before: unchecked, it would succeed here although it failed there.
  if (mailed_.load() - events_until_ > kStale) {
    poll_events(all_);
    read_controls();
  }
  {
    std::lock_guard lock(tasks_);
    inbox_.swap(arrived_);
    has_mail_ = false;
  }
  for (auto& task : arrived_) {
    active_.push_back(task);
    start(task);
  }
  arrived_.clear();
}

void Driver::start(const std::shared_ptr<Task>& task) {
  if (failed_) {  // since the check at submission; only a driver changes the cause
    complete(task, error_);
    return;
  }
  if (task->as_collective() == nullptr) {
    auto message = std::static_pointer_cast<Message>(task);
    if (message->is_send && message->peer == options_.rank) {
      mailbox_.deliver_here(message);
    } else if (message->is_send) {
      const auto& streams = messages_[static_cast<std::size_t>(message->peer)];
      const bool background = message->priority == Priority::kBackground;
      (background ? streams.background : streams.normal)->add_send(message);
    } else {
      mailbox_.post(message);
    }
    return;
  }
  auto collective = std::static_pointer_cast<Collective>(task);
  started_ = collective->sequence + 1;
  const auto& lanes = collective->program->lanes();
  for (std::uint32_t l = 0; l < lanes.size(); ++l) {
    if (lanes[l].direction == Direction::kLocal || lanes[l].steps == 0) continue;
    auto channel = static_cast<int>(collective->priority) * options_.channels + lanes[l].channel;
    auto* stream =
        channels_[static_cast<std::size_t>(lanes[l].peer)][static_cast<std::size_t>(channel)];
    if (lanes[l].direction == Direction::kSend) {
      stream->add_send(collective, l);
    } else {
      stream->add_receive(collective, l);
    }
  }
}

// Reads the control connections; returns whether the group goes on.
bool Driver::read_controls() {
  bool any = false;
  try {
    for (auto* control : controls_) any |= control != nullptr && control->progress();
  } catch (const ProtocolError& error) {
    fail(options_.rank, error.what());
  }
  if (!any || failed_) return !failed_;
  for (auto* control : controls_) {
    if (control == nullptr || !control->aborted()) continue;
    auto [culprit, text] = *control->aborted();
    fail(culprit, text);
    return false;
  }
  return true;
}

// Spin phase: polls for a while, as a peer that shares memory answers sooner than a sleeper wakes.
// Returns whether something moved.
bool Driver::spin(Lock& state) {
  if (!shares_memory_) return false;
  auto begin = Clock::now();
  // An answer often comes sooner than a system call returns, unless it depends on a rank that waits
  // for this processor: predicted by the previous spin.
  while (busy_spin_ && Clock::now() - begin < kBusySpin) {
    if (stop_ || pass(state)) return true;
  }
  busy_spin_ = false;
  auto end = begin + kSpin;
  do {
    yield_lock(state);  // ranks may outnumber processors
    if (has_sockets_) poll_events(all_);
    if (stop_ || pass(state)) {
      busy_spin_ = Clock::now() - begin < kBusySpin;
      return true;
    }
  } while (Clock::now() < end);
  return false;
}

void Driver::wait_for_events(Lock& state) {
  if (!shares_memory_) {
    sleep_for_events(all_, state, static_cast<int>(kTick.count()));
    return;
  }
  if (owned_ > 0) return;  // since the last check
  for (auto& stream : streams_) stream->connection().announce_sleep(true);
  bool changed = false;
  try {
    for (auto& stream : streams_) changed |= stream->connection().changed();
  } catch (const ProtocolError& error) {
    fail(options_.rank, error.what());
    changed = true;
  }
  if (!changed) sleep_for_events(all_, state, static_cast<int>(kTick.count()));
  for (auto& stream : streams_) stream->connection().announce_sleep(false);
}

// Handles pending events.
void Driver::poll_events(const Watch& watch) { take_events(watch, 0, nullptr); }

// Waits for events, without the lock; -1: no timeout.
void Driver::sleep_for_events(const Watch& watch, Lock& state, int timeout_ms) {
  take_events(watch, timeout_ms, &state);
}

void Driver::take_events(const Watch& watch, int timeout_ms, Lock* state) {
  epoll_event events[64];
  int n = 64;
  for (auto timeout = timeout_ms; n == 64; timeout = 0) {
    auto now = Clock::now();  // later events may be missed
    if (state != nullptr) state->unlock();
    n = ::epoll_wait(watch.epoll.get(), events, 64, timeout);
    if (state != nullptr) state->lock();
    if (stop_) return;
    for (int i = 0; i < n; ++i) {
      if (events[i].data.ptr == nullptr) {
        std::uint64_t ignored;
        (void)!::read(watch.event.get(), &ignored, sizeof ignored);
        continue;
      }
      auto mask = events[i].events;
      bool hangup = mask & (EPOLLRDHUP | EPOLLHUP | EPOLLERR);
      static_cast<Stream*>(events[i].data.ptr)
          ->ready(mask & EPOLLIN || hangup, mask & EPOLLOUT || hangup, hangup);
    }
    events_until_ = std::max(events_until_, now);
  }
}

void Driver::yield_lock(Lock& state) {
  state.unlock();
  ::sched_yield();
  state.lock();
}

// Drives while no caller does. Sleeps on the control connections in any case, so that heartbeats
// are answered and aborts take effect while no call is under way, or the driving caller is busy in
// Python.
void Driver::io_thread() {
  if (shares_memory_) use_batch_scheduling();  // other ranks compute on these processors
  Lock state(state_);
  while (!stop_) {
    sleep_for_events(own_, state, -1);
    io_thread_woken_ = false;
    take_inbox();
    read_controls();
    if (stop_) return;
    if (!driving_ && !idle()) {
      drive(state, nullptr);
    } else if (driving_ && shares_memory_) {
      leave_events_to_driver(state);
    }
  }
}

// Ranks that share memory have one socket for all connections, so that each event wakes this thread
// beside the one that drives. The latter reads the control connections in every pass: this one may
// sleep for a while, unless it is woken for a task.
void Driver::leave_events_to_driver(Lock& state) {
  pollfd task{own_.event.get(), POLLIN, 0};
  state.unlock();
  ::poll(&task, 1, static_cast<int>(kDriverAlone.count()));
  state.lock();
}

// Helper thread: progresses streams while other threads own theirs without the lock.
void Driver::run_helper() {
  Lock state(state_);
  for (;;) {
    help_.wait(state, [this] { return stop_ || helpers_wanted_ > 0; });
    if (stop_) return;
    --helpers_wanted_;
    ++helpers_active_;
    while (!stop_ && !idle() && (pass(state) || owned_ > 0)) yield_lock(state);
    --helpers_active_;
    if (driving_) {
      wake();  // there may be another event to wait for now
    } else if (!idle()) {
      wake_io_thread();
    }
  }
}

// Before the lock is released around a transfer: wakes a helper if another stream has work.
void Driver::wake_helper() {
  if (helpers_active_ + helpers_wanted_ == helpers_.size()) return;
  bool work = std::any_of(streams_.begin(), streams_.end(),
                          [](const auto& stream) { return !stream->owned() && stream->busy(); });
  if (!work) return;
  ++helpers_wanted_;
  help_.notify_one();
}

Driver::Halt::Halt(Driver& driver) : driver_(driver) {
  ++driver.halted_;
  Lock state(driver.state_, std::adopt_lock);
  driver.all_released_.wait(state, [&] { return driver.owned_ == 0; });
  state.release();
}

void Driver::wake_io_thread() {
  if (!io_thread_woken_.exchange(true)) own_.wake();
}

void Driver::wake() { all_.wake(); }

}  // namespace headrace
