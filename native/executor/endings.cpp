// How the tasks of the driver end: done, timed out, cancelled, or failed with a cause that all
// ranks get.
#include <algorithm>
#include <cstdio>

#include "executor/driver.hpp"

namespace headrace {
namespace {

using namespace std::chrono_literals;

// Grace period for the control connection of a peer whose data connection ended: a goodbye on it
// distinguishes an orderly end from a death.
constexpr auto kGoodbyeGrace = 1s;
// Maximum number of ranks named in the error of a passed deadline.
constexpr std::size_t kMaxNamed = 8;

}  // namespace

// Determines the cause of ended connections, once no thread owns a stream.
void Driver::check_closed() {
  if (owned_ > 0 || active_.empty()) return;
  try {
    for (auto& peer : channels_) {
      for (auto* data : peer) {
        if (data != nullptr) data->check_unexpected(started_);
      }
    }
    for (auto& stream : streams_) {
      if (!check_closed(*stream)) return;
    }
    check_senders();
  } catch (const ProtocolError& error) {
    fail(options_.rank, error.what());
  }
}

// Returns whether the group goes on and nothing moved.
bool Driver::check_closed(Stream& stream) {
  auto peer = stream.peer();
  auto& control = *controls_[static_cast<std::size_t>(peer)];
  if (!stream.connection().closed_at() && !control.connection().closed_at()) return true;
  // Data sent before the peer's end is still used; only a drained connection with pending tasks
  // counts at once.
  bool messages = stream.channel() == kPointToPointChannel ||
                  stream.channel() == background_messages(options_.channels);
  bool needed = stream.busy() || (messages && mailbox_.waits_for(peer));
  bool dry = stream.connection().closed_at().has_value() && needed;
  // If this pass released the lock for a transfer, the end may be later than the reading of the
  // stream: what was sent between the two is read now.
  if (dry && !helpers_.empty() && stream.progress(Unlock(nullptr, {}))) return false;
  auto since = stream.connection().closed_at() ? *stream.connection().closed_at()
                                               : *control.connection().closed_at();
  bool in_grace = Clock::now() - since < kGoodbyeGrace;
  // The control connection may have more to say since it was last read in this pass.
  if (!control.goodbye_received() && !read_controls()) return false;
  if (control.goodbye_received()) {
    if (!dry) return true;
    fail(peer,
         rank_text(peer) + " left the group before " + active_.front()->describe() + " was done");
  } else if (control.connection().closed_at()) {
    if (!dry && in_grace) return true;
    fail(peer, rank_text(peer) + " died: its connection to " + rank_text(options_.rank) +
                   " ended without a goodbye during " + active_.front()->describe());
  } else {
    if (!dry || in_grace) return true;
    fail(peer, "the connection between " + rank_text(options_.rank) + " and " + rank_text(peer) +
                   " broke during " + active_.front()->describe());
  }
  return false;
}

// Fails once a receive from any rank can have no message: all other ranks have left, and what they
// sent was read.
void Driver::check_senders() {
  const auto* receive = mailbox_.from_any();
  if (receive == nullptr || options_.ranks < 2) return;
  for (std::size_t peer = 0; peer < controls_.size(); ++peer) {
    if (controls_[peer] == nullptr) continue;  // this rank
    if (!controls_[peer]->goodbye_received()) return;
    for (auto* stream : {messages_[peer].normal, messages_[peer].background}) {
      if (!stream->connection().closed_at()) return;
      if (!helpers_.empty() && stream->progress(Unlock(nullptr, {}))) return;  // as above
    }
  }
  fail(options_.rank, "all other ranks left the group before " + receive->describe() + " was done");
}

// A passed deadline ends the group at every rank: the call must not succeed at any rank later.
void Driver::check_deadlines(Clock::time_point now) {
  for (const auto& task : active_) {
    if (now < task->deadline) continue;
    char seconds[32];
    std::snprintf(seconds, sizeof seconds, "%g s", task->timeout_s);
    fail(options_.rank, rank_text(options_.rank) + " timed out: the timeout of " + seconds +
                            " passed in " + task->describe() + silent_ranks(now));
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
std::string Driver::silent_ranks(Clock::time_point now) const {
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

void Driver::complete(const std::shared_ptr<Task>& task, const std::string& error) {
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

void Driver::fail(int culprit, const std::string& text) {
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

void Driver::abort(const std::string& reason) {
  Lock state(state_);
  take_inbox();
  fail(options_.rank, rank_text(options_.rank) + " ended the group: " + reason);
}

void Driver::cancel(std::uint64_t handle) {
  auto task = find(handle);
  Lock state(state_);
  take_inbox();
  if (task->done) return;
  auto* message = dynamic_cast<Message*>(task.get());
  if (message != nullptr && !message->is_send && mailbox_.withdraw(*message)) {
    complete(task, "cancelled");
    return;
  }
  fail(options_.rank, rank_text(options_.rank) + " cancelled " + task->describe());
}

std::string Driver::report_tasks() const {
  std::string text;
  for (const auto& task : active_) text += "  " + task->report() + "\n";
  for (const auto& stream : streams_) {
    if (stream->owned() || !stream->connection().closed_at()) continue;
    text += "  the connection to rank " + std::to_string(stream->peer()) + " on channel " +
            std::to_string(stream->channel()) + " has ended\n";
  }
  return text;
}

std::string Driver::report() {
  Lock state(state_);
  {
    std::lock_guard lock(tasks_);
    if (!failure_.empty()) return failure_;
  }
  return report_tasks();
}

void Driver::throw_if_failed() {
  if (!error_.empty()) throw CommunicationError(error_);
  if (closed_) throw CommunicationError("this group was closed");
  if (!connected_) throw CommunicationError("this executor is not connected yet");
}

}  // namespace headrace
