// The executor's driver: moves data, detects ended connections and deadlines, completes and fails.
#include <sched.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include "executor/executor.hpp"

namespace headrace {
namespace {

using namespace std::chrono_literals;

// Grace period for the control connection of a peer whose data connection ended: a goodbye on it
// distinguishes an orderly end from a death.
constexpr auto kGoodbyeGrace = 1s;
// Spin phase: how long a driver polls shared memory before it sleeps.
constexpr auto kSpin = 50us;
constexpr auto kBusySpin = 2us;  // of which without yielding the processor
// Limit of passes that moved something before a driver polls events and deadlines.
constexpr int kMaxPasses = 256;
// Maximum number of ranks named in the error of a passed deadline.
constexpr std::size_t kMaxNamed = 8;

// Batch scheduling for the calling thread: on waking it does not preempt computing threads, which
// run until their processor is free or their time slice ends.
void use_batch_scheduling() {
  sched_param same{};  // this policy has no parameters
  if (::sched_getscheduler(0) == SCHED_OTHER) ::sched_setscheduler(0, SCHED_BATCH, &same);
}

}  // namespace

// Waits until all connections are open.
void Executor::open(Lock& state, Clock::time_point deadline) {
  for (;;) {
    const Stream* missing = nullptr;
    for (auto& stream : streams_) {
      bool open = false;
      try {
        open = stream->connection().open();
      } catch (const ProtocolError& error) {
        throw CommunicationError(rank_text(options_.rank) + " is not connected: " + error.what());
      }
      if (open) continue;
      missing = stream.get();
      if (missing->connection().closed_at()) {
        throw CommunicationError(rank_text(options_.rank) +
                                 " is not connected: " + rank_text(missing->peer()) +
                                 " ended a connection during its handshake");
      }
    }
    if (missing == nullptr) return;
    if (Clock::now() >= deadline) {
      throw CommunicationError(rank_text(options_.rank) +
                               " is not connected in time: the handshake " + "with " +
                               rank_text(missing->peer()) + " did not end");
    }
    sleep_for_events(all_, state, static_cast<int>(kTick.count()));
    state.unlock();
    if (options_.interrupted) options_.interrupted();
    state.lock();
    if (stop_) throw CommunicationError("this group was closed");
  }
}

// Drives while no caller does. Sleeps on the control connections in any case, so that heartbeats
// are answered and aborts take effect while no call is under way, or the driving caller is busy in
// Python.
void Executor::io_thread() {
  if (shares_memory_) use_batch_scheduling();  // other ranks compute on these processors
  Lock state(state_);
  while (!stop_) {
    sleep_for_events(own_, state, -1);
    io_thread_woken_ = false;
    take_inbox();
    read_controls();
    if (!stop_ && !driving_ && !idle()) drive(state, nullptr);
  }
}

// Helper thread: progresses streams while other threads own theirs without the lock.
void Executor::run_helper() {
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
void Executor::wake_helper() {
  if (helpers_active_ + helpers_wanted_ == helpers_.size()) return;
  bool work = std::any_of(streams_.begin(), streams_.end(),
                          [](const auto& stream) { return !stream->owned() && stream->busy(); });
  if (!work) return;
  ++helpers_wanted_;
  help_.notify_one();
}

Executor::Halt::Halt(Executor& executor) : executor_(executor) {
  ++executor.halted_;
  Lock state(executor.state_, std::adopt_lock);
  executor.all_released_.wait(state, [&] { return executor.owned_ == 0; });
  state.release();
}

void Executor::wake_io_thread() {
  if (!io_thread_woken_.exchange(true)) own_.wake();
}

// Moves data until `target` is done (without one: until nothing is left to do).
void Executor::drive(Lock& state, const Task* target) {
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
      // deadlines.
      poll_events(all_);
      pass(state);
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

void Executor::yield_lock(Lock& state) {
  state.unlock();
  ::sched_yield();
  state.lock();
}

// Spin phase: polls for a while, as a peer that shares memory answers sooner than a sleeper wakes.
// Returns whether something moved.
bool Executor::spin(Lock& state) {
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

void Executor::wait_for_events(Lock& state) {
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
void Executor::poll_events(const Watch& watch) { take_events(watch, 0, nullptr); }

// Waits for events, without the lock; -1: no timeout.
void Executor::sleep_for_events(const Watch& watch, Lock& state, int timeout_ms) {
  take_events(watch, timeout_ms, &state);
}

void Executor::take_events(const Watch& watch, int timeout_ms, Lock* state) {
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

// Reads the control connections; returns whether the group goes on.
bool Executor::read_controls() {
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

bool Executor::pass(Lock& state) {
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

bool Executor::progress(Stream& stream, const Unlock& unlock) {
  struct Ownership {
    Executor& executor;
    Stream& stream;
    Ownership(Executor& by, Stream& which) : executor(by), stream(which) {
      stream.acquire();
      ++executor.owned_;
    }
    ~Ownership() {
      stream.release();
      if (--executor.owned_ == 0 && executor.halted_ > 0) executor.all_released_.notify_all();
    }
  } ownership(*this, stream);
  return stream.progress(unlock);
}

void Executor::take_inbox() {
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

void Executor::start(const std::shared_ptr<Task>& task) {
  if (failed_) {  // since the check at submission; only a driver changes the cause
    complete(task, error_);
    return;
  }
  if (task->as_collective() == nullptr) {
    auto message = std::static_pointer_cast<Message>(task);
    if (message->is_send) {
      messages_[static_cast<std::size_t>(message->peer)]->add_send(message);
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

// Determines the cause of ended connections, once no thread owns a stream.
void Executor::check_closed() {
  if (owned_ > 0 || active_.empty()) return;
  try {
    for (auto& peer : channels_) {
      for (auto* data : peer) {
        if (data != nullptr) data->check_unexpected(started_);
      }
    }
  } catch (const ProtocolError& error) {
    fail(options_.rank, error.what());
    return;
  }
  for (auto& stream : streams_) {
    auto peer = stream->peer();
    auto& control = *controls_[static_cast<std::size_t>(peer)];
    if (!stream->connection().closed_at() && !control.connection().closed_at()) continue;
    // Data sent before the peer's end is still used; only a drained connection with pending tasks
    // counts at once.
    bool needed =
        stream->busy() || (stream->channel() == kPointToPointChannel && mailbox_.waits_for(peer));
    bool dry = stream->connection().closed_at().has_value() && needed;
    auto since = stream->connection().closed_at() ? *stream->connection().closed_at()
                                                  : *control.connection().closed_at();
    bool in_grace = Clock::now() - since < kGoodbyeGrace;
    if (control.goodbye_received()) {
      if (!dry) continue;
      fail(peer,
           rank_text(peer) + " left the group before " + active_.front()->describe() + " was done");
    } else if (control.connection().closed_at()) {
      if (!dry && in_grace) continue;
      fail(peer, rank_text(peer) + " died: its connection to " + rank_text(options_.rank) +
                     " ended without a goodbye during " + active_.front()->describe());
    } else {
      if (!dry || in_grace) continue;
      fail(peer, "the connection between " + rank_text(options_.rank) + " and " + rank_text(peer) +
                     " broke during " + active_.front()->describe());
    }
    return;
  }
}

// A passed deadline ends the group at every rank: the call must not succeed at any rank later.
void Executor::check_deadlines(Clock::time_point now) {
  for (const auto& task : active_) {
    if (now < task->deadline) continue;
    fail(options_.rank,
         rank_text(options_.rank) + " ran out of time in " + task->describe() + silent_ranks(now));
    return;
  }
  if (active_.empty() || now - last_beat_ < kBeat) return;
  last_beat_ = now;
  for (auto* control : controls_) {
    if (control != nullptr) control->beat(now);
  }
}

// Error text naming the ranks whose processes do not run, whether or not this rank waits for them
// itself.
std::string Executor::silent_ranks(Clock::time_point now) const {
  std::string text;
  std::size_t count = 0;
  for (const auto* control : controls_) {
    if (control == nullptr || !control->unanswered() || control->goodbye_received()) continue;
    auto silence = std::chrono::duration<double>(now - *control->unanswered());
    if (silence < kSilent || ++count > kMaxNamed) continue;
    char seconds[32];
    std::snprintf(seconds, sizeof seconds, "%.1f s", silence.count());
    text += "; " + rank_text(control->peer()) + " has not answered for " + seconds;
  }
  if (count > kMaxNamed) text += "; so have " + std::to_string(count - kMaxNamed) + " others";
  if (count == 0) return text;
  return text + (count == 1 ? "; it seems to be stopped" : "; they seem to be stopped");
}

void Executor::complete(const std::shared_ptr<Task>& task, const std::string& error) {
  std::shared_ptr<Task> keep = task;
  std::erase(active_, keep);
  if (keep->as_collective() != nullptr) {
    ++finished_collectives_;
  } else {
    ++finished_messages_;
  }
  bool notify = keep->notify;
  {
    std::lock_guard lock(tasks_);
    keep->error = error;
    if (notify) by_handle_.erase(keep->handle);
    keep->done = true;
  }
  if (notify) options_.completions->push({keep->handle, error});
  done_.notify_all();
  // The driver may be asleep while another thread completes its target.
  if (driving_ && driver_ != std::this_thread::get_id()) wake();
}

void Executor::fail(int culprit, const std::string& text) {
  bool first = false;
  {
    std::lock_guard lock(tasks_);
    first = error_.empty();
    if (first) {
      error_ = text;
      failed_ = true;
      failure_ = active_.empty() ? "  no call was under way\n" : report_tasks();
    }
  }
  // No bytes may be moved to or from the buffers of finished tasks, whichever thread failed first:
  // other threads' callers may release theirs as soon as this returns.
  Halt halt(*this);
  if (!first) return;
  for (auto* control : controls_) {
    if (control != nullptr) control->send_abort(culprit, text);
  }
  for (auto& stream : streams_) stream->drop();
  mailbox_.drop();
  for (const auto& task : std::exchange(active_, {})) complete(task, text);
}

void Executor::wake() { all_.wake(); }

}  // namespace headrace
