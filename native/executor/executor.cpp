#include "executor/executor.hpp"

#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "transport/shm/connection.hpp"
#include "transport/tcp/connection.hpp"

namespace headrace {
namespace {

using namespace std::chrono_literals;

// A data connection that ends is judged by its peer's control connection, which tells an orderly
// end from a death; it gets this long to say so.
constexpr auto kVerdictPatience = 1s;
// How often a waiting driver looks at deadlines and interrupts.
constexpr auto kTick = 100ms;
// Collectives that are over and may be used again.
constexpr std::size_t kMostSpares = 16;
constexpr std::size_t kMostSpareBytes = 1 << 20;
// How long a driver looks for bytes in shared memory before it sleeps.
constexpr auto kSpin = 50us;
constexpr auto kStare = 2us;  // and how long before it lets others have the processor

std::uint64_t next_handle() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

Clock::time_point after(double seconds) {
  auto bounded = std::min(seconds, 1e9);
  return Clock::now() +
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(bounded));
}

std::string rank_text(int rank) { return "rank " + std::to_string(rank); }

}  // namespace

Executor::Executor(Options options)
    : options_(std::move(options)),
      faults_(options_.faults),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      mailbox_([this](const auto& message, const auto& error) { complete(message, error); }),
      controls_(static_cast<std::size_t>(options_.ranks)),
      messages_(static_cast<std::size_t>(options_.ranks)),
      channels_(static_cast<std::size_t>(options_.ranks)) {
  if (!options_.completions) options_.completions = std::make_shared<Completions>();
  epoll_event event{EPOLLIN, {.ptr = nullptr}};
  if (!epoll_ || !event_ || ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, event_.get(), &event) != 0) {
    throw CommunicationError(std::string("cannot make an event queue: ") + std::strerror(errno));
  }
}

Executor::~Executor() { close(); }

std::unique_ptr<Connection> Executor::connection_of(Link& link) {
  std::unique_ptr<Connection> made;
  if (link.memory) {
    made = std::make_unique<shm::Connection>(std::move(link.fd), link.memory,
                                             options_.rank < link.peer);
  } else {
    made = std::make_unique<tcp::Connection>(std::move(link.fd));
  }
  if (!faults_.any()) return made;
  return std::make_unique<faulty::Connection>(std::move(made), faults_);
}

void Executor::connect(std::vector<Link> links) {
  Lock state(state_);
  std::lock_guard members(members_);
  if (connected_) throw std::invalid_argument("this executor is already connected");
  const auto data_channels = kPriorities * options_.channels;
  for (auto& data : channels_) data.resize(static_cast<std::size_t>(data_channels));
  for (auto& link : links) {
    auto channel = link.channel;
    auto member = link.peer >= 0 && link.peer < options_.ranks && link.peer != options_.rank;
    if (!member || channel < kControlChannel || channel >= data_channels) {
      throw std::invalid_argument("no connection to rank " + std::to_string(link.peer) +
                                  " on channel " + std::to_string(channel) + " is wanted");
    }
    auto peer = static_cast<std::size_t>(link.peer);
    auto connection = connection_of(link);
    if (channel == kControlChannel) {
      auto stream = std::make_unique<ControlStream>(std::move(connection), link.peer, channel);
      controls_[peer] = stream.get();
      streams_.push_back(std::move(stream));
    } else if (channel == kPointToPointChannel) {
      auto stream =
          std::make_unique<MessageStream>(std::move(connection), link.peer, channel, mailbox_);
      messages_[peer] = stream.get();
      streams_.push_back(std::move(stream));
    } else {
      auto stream = std::make_unique<DataStream>(std::move(connection), link.peer, channel);
      channels_[peer][static_cast<std::size_t>(channel)] = stream.get();
      streams_.push_back(std::move(stream));
    }
    auto* stream = streams_.back().get();
    bool memory = stream->connection().shares_memory();
    shares_memory_ |= memory;
    has_sockets_ |= !memory && channel != kControlChannel;
    epoll_event event{EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, {.ptr = stream}};
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, stream->connection().fd(), &event) != 0) {
      throw CommunicationError(std::string("cannot watch a connection: ") + std::strerror(errno));
    }
  }
  auto expected = static_cast<std::size_t>((options_.ranks - 1) * (data_channels + 2));
  if (streams_.size() != expected) {
    throw std::invalid_argument(std::to_string(streams_.size()) + " connections, " +
                                std::to_string(expected) + " are needed");
  }
  // The order in which a pass looks at them: control, urgent data, messages, other data.
  auto place = [this](const std::unique_ptr<Stream>& stream) {
    auto channel = stream->channel();
    if (channel == kControlChannel) return -2;
    if (channel == kPointToPointChannel) return options_.channels;
    return channel < options_.channels ? channel : channel + 1;
  };
  std::stable_sort(streams_.begin(), streams_.end(),
                   [&](const auto& a, const auto& b) { return place(a) < place(b); });
  first_background_ =
      std::partition_point(streams_.begin(), streams_.end(),
                           [&](const auto& stream) {
                             return stream->channel() < (kPriorities - 1) * options_.channels;
                           }) -
      streams_.begin();
  connected_ = true;
  thread_ = std::thread([this] { io_thread(); });
}

// ---- callers ------------------------------------------------------------------------------

void Executor::throw_if_failed() {
  if (!error_.empty()) throw CommunicationError(error_);
  if (closed_) throw CommunicationError("this group was closed");
  if (!connected_) throw CommunicationError("this executor is not connected yet");
}

std::shared_ptr<Collective> Executor::bind(const Call& call) {
  if (!call.program) throw std::invalid_argument("no program");
  const auto& program = *call.program;
  if (program.rank() != options_.rank || program.ranks() != options_.ranks) {
    throw std::invalid_argument("the program is for rank " + std::to_string(program.rank()) +
                                " of " + std::to_string(program.ranks()) + ", this is rank " +
                                std::to_string(options_.rank) + " of " +
                                std::to_string(options_.ranks));
  }
  if (program.channels() > options_.channels) {
    throw std::invalid_argument("the program needs " + std::to_string(program.channels()) +
                                " channels, this group has " + std::to_string(options_.channels));
  }
  auto task = spare(call.program);
  task->bind(call.segments, call.type, call.op, call.average);
  task->epoch = call.epoch;
  task->priority = call.priority;
  return task;
}

// A collective of this program that is over, or a new one.
std::shared_ptr<Collective> Executor::spare(const std::shared_ptr<const Program>& program) {
  {
    std::lock_guard lock(tasks_);
    auto it = std::find_if(spares_.begin(), spares_.end(),
                           [&](const auto& one) { return one->program == program; });
    if (it != spares_.end()) {
      auto found = std::move(*it);
      spares_.erase(it);
      return found;
    }
  }
  return std::make_shared<Collective>(program);
}

// Keeps a collective that is over for the next call of its program, if nobody else holds it.
void Executor::keep_spare(std::shared_ptr<Collective> collective) {
  Lock state(state_, std::try_to_lock);  // whoever drives lets go of it under this lock
  if (!state || collective.use_count() > 1 || collective->scratch_bytes() > kMostSpareBytes) return;
  std::lock_guard lock(tasks_);
  if (spares_.size() == kMostSpares) spares_.pop_back();
  spares_.insert(spares_.begin(), std::move(collective));
}

void Executor::enqueue(std::shared_ptr<Task> task, double deadline_s, bool notify) {
  task->handle = next_handle();
  task->deadline = after(deadline_s);
  task->notify = notify;
  std::lock_guard lock(tasks_);
  throw_if_failed();
  if (auto* collective = dynamic_cast<Collective*>(task.get())) {
    collective->sequence = static_cast<std::uint32_t>(submitted_++);
  }
  by_handle_[task->handle] = task;
  inbox_.push_back(std::move(task));
}

// Gets a new task going: on this thread if the connections are free, else by waking the driver.
void Executor::kick() {
  Lock state(state_, std::try_to_lock);
  if (!state) {
    // Whoever holds the connections may drive on, or be about to stop and not look again.
    wake();
    nudge();
    return;
  }
  // One pass gets the first bytes going; the rest is the driver's, or the caller would be kept.
  bool more = pass();
  if (!driving_ && !idle()) {
    nudge();
  } else if (driving_ && more) {
    wake();
  }
}

std::uint64_t Executor::submit(const Call& call) {
  auto task = bind(call);
  enqueue(task, call.deadline_s, call.notify);
  kick();
  return task->handle;
}

void Executor::run(const Call& call) {
  auto task = bind(call);
  enqueue(task, call.deadline_s, false);
  finish_wait(task);
  keep_spare(std::move(task));
}

std::uint64_t Executor::send(std::uintptr_t address, std::uint64_t bytes, int peer,
                             std::uint32_t tag, double deadline_s, bool notify) {
  if (peer < 0 || peer >= options_.ranks || peer == options_.rank) {
    throw std::invalid_argument("cannot send to " + rank_text(peer) + " from " +
                                rank_text(options_.rank) + " of " + std::to_string(options_.ranks));
  }
  auto task = std::make_shared<Message>();
  task->is_send = true;
  task->peer = peer;
  task->tag = tag;
  task->data = reinterpret_cast<std::byte*>(address);
  task->bytes = bytes;
  enqueue(task, deadline_s, notify);
  kick();
  return task->handle;
}

std::uint64_t Executor::receive(std::uintptr_t address, std::uint64_t bytes, int peer,
                                std::uint32_t tag, double deadline_s, bool notify) {
  if (peer < -1 || peer >= options_.ranks || peer == options_.rank) {
    throw std::invalid_argument("cannot receive from " + rank_text(peer) + " at " +
                                rank_text(options_.rank) + " of " + std::to_string(options_.ranks));
  }
  auto task = std::make_shared<Message>();
  task->peer = peer;
  task->tag = tag;
  task->data = reinterpret_cast<std::byte*>(address);
  task->bytes = bytes;
  enqueue(task, deadline_s, notify);
  kick();
  return task->handle;
}

std::shared_ptr<Task> Executor::find(std::uint64_t handle) {
  std::lock_guard lock(tasks_);
  auto it = by_handle_.find(handle);
  if (it == by_handle_.end()) {
    throw std::invalid_argument("handle " + std::to_string(handle) +
                                " is unknown or was waited for already");
  }
  return it->second;
}

// Nothing in progress and nothing submitted; needs `state_`.
bool Executor::idle() {
  std::lock_guard lock(tasks_);
  return active_.empty() && inbox_.empty();
}

bool Executor::is_done(const Task& task) {
  std::lock_guard lock(tasks_);
  return task.done;
}

int Executor::wait(std::uint64_t handle) { return finish_wait(find(handle)); }

int Executor::finish_wait(const std::shared_ptr<Task>& task) {
  try {
    while (!is_done(*task)) {
      Lock state(state_, std::try_to_lock);
      if (state && !driving_) {
        drive(state, task.get());
        if (!idle()) nudge();
        continue;
      }
      // Somebody else drives: make sure the task is on its way, then sleep until it is done.
      if (state) {
        while (pass()) {
        }
        state.unlock();
      } else {
        wake();
        nudge();
      }
      Lock lock(tasks_);
      done_.wait_for(lock, kTick, [&] { return task->done; });
      lock.unlock();
      if (options_.interrupted) options_.interrupted();
    }
  } catch (...) {
    Lock state(state_);
    fail(options_.rank,
         rank_text(options_.rank) + " was interrupted while waiting for " + task->describe());
    throw;
  }
  std::lock_guard lock(tasks_);
  by_handle_.erase(task->handle);
  if (!task->error.empty()) throw CommunicationError(task->error);
  auto* message = dynamic_cast<Message*>(task.get());
  return message != nullptr ? message->source : -1;
}

bool Executor::poll(std::uint64_t handle) {
  auto task = find(handle);
  return is_done(*task);
}

void Executor::cancel(std::uint64_t handle) {
  auto task = find(handle);
  Lock state(state_);
  take_inbox();
  if (is_done(*task)) return;
  auto* message = dynamic_cast<Message*>(task.get());
  if (message != nullptr && !message->is_send && mailbox_.withdraw(*message)) {
    complete(task, "cancelled");
    return;
  }
  fail(options_.rank, rank_text(options_.rank) + " cancelled " + task->describe());
}

std::string Executor::report_tasks() const {
  std::string text;
  for (const auto& task : active_) text += "  " + task->report() + "\n";
  for (const auto& stream : streams_) {
    if (!stream->connection().closed_at()) continue;
    text += "  the connection to rank " + std::to_string(stream->peer()) + " on channel " +
            std::to_string(stream->channel()) + " has ended\n";
  }
  return text;
}

void Executor::abort(const std::string& reason) {
  Lock state(state_);
  take_inbox();
  fail(options_.rank, rank_text(options_.rank) + " ended the group: " + reason);
}

std::string Executor::report() {
  Lock state(state_);
  {
    std::lock_guard lock(tasks_);
    if (!failure_.empty()) return failure_;
  }
  return report_tasks();
}

Counters Executor::counters() {
  Lock state(state_);
  std::vector<PeerBytes> peers(static_cast<std::size_t>(options_.ranks));
  for (const auto& stream : streams_) {
    const auto& traffic = stream->connection().traffic();
    auto& peer = peers[static_cast<std::size_t>(stream->peer())];
    peer.sent_bytes += traffic.sent_bytes;
    peer.received_bytes += traffic.received_bytes;
  }
  return {finished_collectives_, finished_messages_, std::move(peers)};
}

std::vector<ConnectionStatistics> Executor::statistics() {
  std::lock_guard members(members_);
  std::vector<ConnectionStatistics> found;
  found.reserve(streams_.size());
  for (const auto& stream : streams_) {
    const auto& connection = stream->connection();
    const auto& traffic = connection.traffic();
    found.push_back({stream->peer(), stream->channel(), traffic.sent_bytes, traffic.sends,
                     traffic.received_bytes, tcp_statistics(connection.fd())});
  }
  return found;
}

void Executor::set_pacing(int peer, std::uint64_t bytes_per_s) {
  Lock state(state_);
  for (auto& stream : streams_) {
    if (stream->peer() == peer) tcp::set_pacing(stream->connection().fd(), bytes_per_s);
  }
}

void Executor::close() {
  {
    std::lock_guard lock(tasks_);
    if (std::exchange(closed_, true)) return;
  }
  {
    Lock state(state_);
    stop_ = true;
    take_inbox();
    for (auto* control : controls_) {
      if (control != nullptr) control->send_goodbye();
    }
    for (const auto& task : std::exchange(active_, {})) {
      complete(task, "this group was closed before " + task->describe() + " was done");
    }
    mailbox_.drop();
    for (auto& stream : streams_) stream->drop();
  }
  nudge();
  wake();
  if (thread_.joinable()) thread_.join();
  Lock state(state_);
  // Another thread may still be driving; it sees `stop_` within a tick.
  while (driving_) {
    state.unlock();
    std::this_thread::sleep_for(1ms);
    state.lock();
  }
  {
    std::lock_guard members(members_);
    streams_.clear();
  }
  controls_.assign(controls_.size(), nullptr);
  options_.completions->wake();
}

void Executor::abandon() {
  closed_ = true;
  for (auto& stream : streams_) stream->connection().abandon();
  epoll_.reset();
  event_.reset();
  if (thread_.joinable()) thread_.detach();
}

// ---- the driver ---------------------------------------------------------------------------

void Executor::io_thread() {
  for (;;) {
    {
      std::unique_lock lock(nap_);
      io_.wait(lock, [this] { return nudged_; });
      nudged_ = false;
    }
    Lock state(state_);
    if (stop_) return;
    take_inbox();
    if (!driving_ && !idle()) drive(state, nullptr);
    if (stop_) return;
  }
}

void Executor::nudge() {
  {
    std::lock_guard lock(nap_);
    nudged_ = true;
  }
  io_.notify_one();
}

// Moves data until `target` is done (or, without one, until nothing is left to do).
void Executor::drive(Lock& state, const Task* target) {
  driving_ = true;
  driver_ = std::this_thread::get_id();
  auto finished = [&] { return stop_ || (target != nullptr ? is_done(*target) : idle()); };
  auto looked = Clock::now();
  try {
    for (;;) {
      while (pass() && !finished()) {
      }
      if (finished()) break;
      if (!spin(state)) wait_for_events(state);
      // Asking after interrupts can cost more than a small collective: once a tick is enough.
      auto now = Clock::now();
      if (now - looked < kTick) continue;
      looked = now;
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

// Looks again and again for a while: a peer that shares our memory answers sooner than a sleeper
// wakes. Returns whether something moved.
bool Executor::spin(Lock& state) {
  if (!shares_memory_) return false;
  auto begin = Clock::now();
  // An answer is often there before a system call would have returned, unless it has to come from
  // a rank that waits for our processor: the last time tells.
  while (stares_ && Clock::now() - begin < kStare) {
    if (stop_ || pass()) return true;
  }
  stares_ = false;
  auto end = begin + kSpin;
  do {
    state.unlock();
    ::sched_yield();  // ranks may outnumber processors
    state.lock();
    if (has_sockets_) look_for_events(state, 0);
    if (stop_ || pass()) {
      stares_ = Clock::now() - begin < kStare;
      return true;
    }
  } while (Clock::now() < end);
  return false;
}

void Executor::wait_for_events(Lock& state) {
  if (!shares_memory_) {
    look_for_events(state, static_cast<int>(kTick.count()));
    return;
  }
  for (auto& stream : streams_) stream->connection().announce_sleep(true);
  bool news = false;
  try {
    for (auto& stream : streams_) news |= stream->connection().news();
  } catch (const ProtocolError& error) {
    fail(options_.rank, error.what());
    news = true;
  }
  if (!news) look_for_events(state, static_cast<int>(kTick.count()));
  for (auto& stream : streams_) stream->connection().announce_sleep(false);
}

void Executor::look_for_events(Lock& state, int timeout_ms) {
  epoll_event events[64];
  if (timeout_ms > 0) state.unlock();
  int n = ::epoll_wait(epoll_.get(), events, 64, timeout_ms);
  if (timeout_ms > 0) state.lock();
  if (stop_) return;
  for (int i = 0; i < n; ++i) {
    if (events[i].data.ptr == nullptr) {
      std::uint64_t ignored;
      (void)!::read(event_.get(), &ignored, sizeof ignored);
      continue;
    }
    auto mask = events[i].events;
    bool hangup = mask & (EPOLLRDHUP | EPOLLHUP | EPOLLERR);
    static_cast<Stream*>(events[i].data.ptr)
        ->connection()
        .ready(mask & EPOLLIN || hangup, mask & EPOLLOUT || hangup, hangup);
  }
}

bool Executor::pass() {
  take_inbox();
  bool any = false;
  try {
    for (std::size_t i = 0; i < streams_.size(); ++i) {
      // What is in the background moves when nothing else can.
      if (i == first_background_ && any) break;
      any |= streams_[i]->progress();
    }
  } catch (const ProtocolError& error) {
    fail(options_.rank, error.what());
    return false;
  }
  for (const auto& task : active_) {
    if (auto* collective = dynamic_cast<Collective*>(task.get())) any |= collective->run_local();
  }
  // Completing a task changes the list.
  for (std::size_t i = 0; i < active_.size();) {
    auto* collective = dynamic_cast<Collective*>(active_[i].get());
    if (collective != nullptr && collective->lanes_left == 0) {
      collective->finish_result();
      complete(std::shared_ptr<Task>(active_[i]), "");
      any = true;
    } else {
      ++i;
    }
  }
  // What just moved may let other lanes use what a peer sent before it left.
  if (!any) judge();
  return any;
}

void Executor::take_inbox() {
  {
    std::lock_guard lock(tasks_);
    if (inbox_.empty()) return;
    inbox_.swap(arrived_);
  }
  // Starting a task may fail the group, which takes this inbox again.
  auto arrived = std::move(arrived_);
  for (auto& task : arrived) {
    active_.push_back(task);
    start(task);
  }
  arrived.clear();
  arrived_ = std::move(arrived);
}

void Executor::start(const std::shared_ptr<Task>& task) {
  {
    std::lock_guard lock(tasks_);
    if (!error_.empty()) {
      // Failed between the check at submission and now.
      task->error = error_;
    }
  }
  if (!task->error.empty()) {
    complete(task, std::string(task->error));
    return;
  }
  if (auto message = std::dynamic_pointer_cast<Message>(task)) {
    if (message->is_send) {
      messages_[static_cast<std::size_t>(message->peer)]->add_send(message);
    } else {
      mailbox_.post(message);
    }
    return;
  }
  auto collective = std::dynamic_pointer_cast<Collective>(task);
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

// Decides what ended connections mean.
void Executor::judge() {
  for (auto* control : controls_) {
    if (control == nullptr) continue;
    if (control->aborted()) {
      auto [culprit, text] = *control->aborted();
      fail(culprit, text);
      return;
    }
  }
  if (active_.empty()) return;
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
    // What the peer sent before it ended is still used; only a connection that has run dry and is
    // needed counts at once.
    bool needed =
        stream->busy() || (stream->channel() == kPointToPointChannel && mailbox_.waits_for(peer));
    bool dry = stream->connection().closed_at().has_value() && needed;
    auto since = stream->connection().closed_at() ? *stream->connection().closed_at()
                                                  : *control.connection().closed_at();
    bool patient = Clock::now() - since < kVerdictPatience;
    if (control.said_goodbye()) {
      if (!dry) continue;
      fail(peer,
           rank_text(peer) + " left the group before " + active_.front()->describe() + " was done");
    } else if (control.connection().closed_at()) {
      if (!dry && patient) continue;
      fail(peer, rank_text(peer) + " died: its connection to " + rank_text(options_.rank) +
                     " ended without a goodbye during " + active_.front()->describe());
    } else {
      if (!dry || patient) continue;
      fail(peer, "the connection between " + rank_text(options_.rank) + " and " + rank_text(peer) +
                     " broke during " + active_.front()->describe());
    }
    return;
  }
}

void Executor::check_deadlines(Clock::time_point now) {
  for (const auto& task : active_) {
    if (now < task->deadline) continue;
    auto text = rank_text(options_.rank) + " ran out of time in " + task->describe();
    auto* message = dynamic_cast<Message*>(task.get());
    if (message != nullptr && !message->is_send && mailbox_.withdraw(*message)) {
      complete(std::shared_ptr<Task>(task), text);
    } else {
      fail(options_.rank, text);
    }
    return;
  }
}

void Executor::complete(const std::shared_ptr<Task>& task, const std::string& error) {
  std::shared_ptr<Task> keep = task;
  std::erase(active_, keep);
  if (dynamic_cast<Collective*>(keep.get()) != nullptr) {
    ++finished_collectives_;
  } else {
    ++finished_messages_;
  }
  bool notify = keep->notify;
  {
    std::lock_guard lock(tasks_);
    keep->done = true;
    keep->error = error;
    if (notify) by_handle_.erase(keep->handle);
  }
  if (notify) options_.completions->push({keep->handle, error});
  done_.notify_all();
  // Whoever drives may be asleep while another thread completes its target.
  if (driving_ && driver_ != std::this_thread::get_id()) wake();
}

void Executor::fail(int culprit, const std::string& text) {
  {
    std::lock_guard lock(tasks_);
    if (!error_.empty()) return;
    error_ = text;
    failure_ = report_tasks();
  }
  for (auto* control : controls_) {
    if (control != nullptr) control->send_abort(culprit, text);
  }
  for (auto& stream : streams_) stream->drop();
  mailbox_.drop();
  for (const auto& task : std::exchange(active_, {})) complete(task, text);
}

void Executor::wake() {
  std::uint64_t one = 1;
  (void)!::write(event_.get(), &one, sizeof one);
}

}  // namespace headrace
