#include "executor/executor.hpp"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "transport/shm/connection.hpp"
#include "transport/tcp/connection.hpp"
#include "transport/tls/connection.hpp"

namespace headrace {
namespace {

// Larger tasks take longer to copy than the driver takes to wake.
constexpr std::uint64_t kMostKickBytes = 64 << 10;
// Limits of finished collectives kept for reuse.
constexpr std::size_t kMostSpares = 16;
constexpr std::size_t kMostSpareBytes = 1 << 20;

constexpr int kMostRanks = 1 << 16;
constexpr int kMostChannels = (1 << 16) / kPriorities;
constexpr int kMostThreads = 1024;

void require(bool holds, const std::string& what) {
  if (!holds) throw std::invalid_argument(what);
}

Executor::Options checked(Executor::Options options) {
  auto wrong = [](const char* what, int found, int most) {
    return std::string(what) + " is " + std::to_string(found) + ", needs 1 to " +
           std::to_string(most);
  };
  require(options.ranks >= 1 && options.ranks <= kMostRanks,
          wrong("ranks", options.ranks, kMostRanks));
  require(
      options.rank >= 0 && options.rank < options.ranks,
      "there is no rank " + std::to_string(options.rank) + " of " + std::to_string(options.ranks));
  require(options.channels >= 1 && options.channels <= kMostChannels,
          wrong("channels", options.channels, kMostChannels));
  require(options.threads >= 1 && options.threads <= kMostThreads,
          wrong("threads", options.threads, kMostThreads));
  return options;
}

void require_memory(std::uintptr_t address, std::uint64_t bytes) {
  std::uint64_t end = 0;
  bool fits = !__builtin_add_overflow(address, bytes, &end) && end >> 56 == 0;
  if (fits && (address != 0 || bytes == 0)) return;  // the fast path makes no text
  throw std::invalid_argument(std::to_string(bytes) + " bytes at address " +
                              std::to_string(address) + " are not valid memory");
}

std::uint64_t next_handle() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

Clock::time_point after(Clock::time_point begin, double seconds) {
  if (!(seconds >= 0)) {  // also true for NaN
    throw std::invalid_argument("the deadline is " + std::to_string(seconds) +
                                " s, needs at least 0 s");
  }
  auto bounded = std::min(seconds, 1e9);
  return begin +
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(bounded));
}

}  // namespace

Executor::Executor(Options options)
    : options_(checked(std::move(options))),
      process_(::getpid()),
      mailbox_([this](const auto& message, const auto& error) { complete(message, error); }),
      controls_(static_cast<std::size_t>(options_.ranks)),
      messages_(static_cast<std::size_t>(options_.ranks)),
      channels_(static_cast<std::size_t>(options_.ranks)) {
  if (!options_.completions) options_.completions = std::make_shared<Completions>();
}

Executor::Watch::Watch()
    : epoll(::epoll_create1(EPOLL_CLOEXEC)), event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  epoll_event wanted{EPOLLIN, {.ptr = nullptr}};
  if (!epoll || !event || ::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, event.get(), &wanted) != 0) {
    throw CommunicationError(std::string("cannot create an event queue: ") + std::strerror(errno));
  }
}

void Executor::Watch::add(int fd, Stream* stream) {
  epoll_event wanted{EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, {.ptr = stream}};
  if (::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &wanted) != 0) {
    throw CommunicationError(std::string("cannot watch a connection: ") + std::strerror(errno));
  }
}

void Executor::Watch::wake() const {
  std::uint64_t one = 1;
  (void)!::write(event.get(), &one, sizeof one);
}

Executor::~Executor() { close(); }

std::unique_ptr<Connection> Executor::connection_of(Link& link) {
  std::unique_ptr<Connection> made;
  if (link.memory) {
    made = std::make_unique<shm::Connection>(std::move(link.fd), link.memory,
                                             options_.rank < link.peer);
  } else if (!link.key.empty()) {
    made = tls::make(
        std::move(link.fd),
        {.key = std::move(link.key), .client = options_.rank > link.peer, .peer = link.peer});
  } else {
    made = std::make_unique<tcp::Connection>(std::move(link.fd));
  }
  if (!options_.faults.any()) return made;
  return std::make_unique<faulty::Connection>(std::move(made), options_.faults,
                                              link.channel != kControlChannel);
}

void Executor::connect(std::vector<Link> links, double deadline_s) {
  Lock state(state_);
  auto deadline = after(Clock::now(), deadline_s);
  require(!connected_ && streams_.empty(), "this executor is already connected");
  {
    std::lock_guard lock(tasks_);
    if (!error_.empty()) throw CommunicationError(error_);
    if (closed_) throw CommunicationError("this group was closed");
  }
  try {
    add(links);
    open(state, deadline);
  } catch (...) {
    std::lock_guard members(members_);
    streams_.clear();  // else the peers would wait for us
    controls_.assign(controls_.size(), nullptr);
    messages_.assign(messages_.size(), nullptr);
    throw;
  }
  connected_ = true;
  thread_ = std::thread([this] { io_thread(); });
  for (int i = 1; i < options_.threads; ++i) helpers_.emplace_back([this] { run_helper(); });
}

void Executor::add(std::vector<Link>& links) {
  std::lock_guard members(members_);
  const auto data_channels = kPriorities * options_.channels;
  auto expected =
      static_cast<std::size_t>(options_.ranks - 1) * static_cast<std::size_t>(data_channels + 2);
  require(links.size() == expected, std::to_string(links.size()) + " connections, " +
                                        std::to_string(expected) + " are needed");
  for (auto& data : channels_) data.assign(static_cast<std::size_t>(data_channels), nullptr);
  for (auto& link : links) {
    auto channel = link.channel;
    auto member = link.peer >= 0 && link.peer < options_.ranks && link.peer != options_.rank;
    if (!member || channel < kControlChannel || channel >= data_channels) {
      throw std::invalid_argument("the connection to rank " + std::to_string(link.peer) +
                                  " on channel " + std::to_string(channel) + " is not expected");
    }
    auto peer = static_cast<std::size_t>(link.peer);
    bool again = channel == kControlChannel ? controls_[peer] != nullptr
                 : channel == kPointToPointChannel
                     ? messages_[peer] != nullptr
                     : channels_[peer][static_cast<std::size_t>(channel)] != nullptr;
    require(!again, "rank " + std::to_string(link.peer) + " has two connections on channel " +
                        std::to_string(channel));
    auto connection = connection_of(link);
    if (channel == kControlChannel) {
      auto stream = std::make_unique<ControlStream>(std::move(connection), link.peer, channel,
                                                    options_.ranks);
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
    all_.add(stream->connection().fd(), stream);
    if (channel == kControlChannel) own_.add(stream->connection().fd(), stream);
  }
  // Order within a pass: control, urgent data, messages, other data.
  auto place = [this](const std::unique_ptr<Stream>& stream) {
    auto channel = stream->channel();
    if (channel == kControlChannel) return -2;
    if (channel == kPointToPointChannel) return options_.channels;
    return channel < options_.channels ? channel : channel + 1;
  };
  std::stable_sort(streams_.begin(), streams_.end(),
                   [&](const auto& a, const auto& b) { return place(a) < place(b); });
  first_data_ = static_cast<std::size_t>(options_.ranks - 1);
  first_background_ =
      std::partition_point(streams_.begin(), streams_.end(),
                           [&](const auto& stream) {
                             return stream->channel() < (kPriorities - 1) * options_.channels;
                           }) -
      streams_.begin();
}

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
  task->handle = 0;
  task->notify = false;
  task->bind(call.segments, call.type, call.op, call.average);
  task->epoch = call.epoch;
  task->priority = call.priority;
  return task;
}

// A finished collective of this program, or a new one.
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

// Keeps a finished collective for the next call of its program, if it has no other owner.
void Executor::keep_spare(std::shared_ptr<Collective> collective) {
  Lock state(state_, std::try_to_lock);  // the driver drops its reference under this lock
  if (!state || collective.use_count() > 1 || collective->scratch_bytes() > kMostSpareBytes) return;
  std::lock_guard lock(tasks_);
  if (spares_.size() == kMostSpares) spares_.pop_back();
  spares_.insert(spares_.begin(), std::move(collective));
}

void Executor::enqueue(std::shared_ptr<Task> task, double deadline_s) {
  auto now = Clock::now();
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

// Returns the handle of the task.
std::uint64_t Executor::enqueue_named(std::shared_ptr<Task> task, double deadline_s, bool notify) {
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
void Executor::kick(std::uint64_t bytes) {
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

std::uint64_t Executor::submit(const Call& call, bool notify) {
  return enqueue_named(bind(call), call.deadline_s, notify);
}

void Executor::run(const Call& call) {
  auto task = bind(call);
  enqueue(task, call.deadline_s);
  finish_wait(task);
  keep_spare(std::move(task));
}

Trace Executor::trace(const Call& call) {
  auto task = bind(call);
  task->trace();
  Trace found;
  found.called_ns = now_ns();
  enqueue(task, call.deadline_s);
  finish_wait(task);
  found.ended_ns = now_ns();
  found.times = task->times;
  for (const auto& state : task->states) found.bytes.push_back(state.bytes);
  keep_spare(std::move(task));
  return found;
}

std::uint64_t Executor::send(std::uintptr_t address, std::uint64_t bytes, int peer,
                             std::uint32_t tag, double deadline_s, bool notify,
                             std::uint8_t element) {
  if (peer < 0 || peer >= options_.ranks || peer == options_.rank) {
    throw std::invalid_argument("cannot send to " + rank_text(peer) + " from " +
                                rank_text(options_.rank) + " of " + std::to_string(options_.ranks));
  }
  require_memory(address, bytes);
  auto task = std::make_shared<Message>();
  task->is_send = true;
  task->peer = peer;
  task->tag = tag;
  task->data = reinterpret_cast<std::byte*>(address);
  task->bytes = bytes;
  task->element = element;
  return enqueue_named(std::move(task), deadline_s, notify);
}

std::uint64_t Executor::receive(std::uintptr_t address, std::uint64_t bytes, int peer,
                                std::uint32_t tag, double deadline_s, bool notify,
                                std::uint8_t element) {
  if (peer < -1 || peer >= options_.ranks || peer == options_.rank) {
    throw std::invalid_argument("cannot receive from " + rank_text(peer) + " at " +
                                rank_text(options_.rank) + " of " + std::to_string(options_.ranks));
  }
  require_memory(address, bytes);
  auto task = std::make_shared<Message>();
  task->peer = peer;
  task->tag = tag;
  task->data = reinterpret_cast<std::byte*>(address);
  task->bytes = bytes;
  task->element = element;
  return enqueue_named(std::move(task), deadline_s, notify);
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

// Nothing in progress or submitted; requires `state_`.
bool Executor::idle() const { return active_.empty() && !has_mail_; }

int Executor::wait(std::uint64_t handle, std::array<std::uint8_t, 2>* types) {
  auto task = find(handle);
  auto source = finish_wait(task);
  if (types != nullptr && task->as_collective() == nullptr) {
    const auto& message = static_cast<const Message&>(*task);
    bool known = message.came_as != 0 && message.element != 0;
    if (known && message.came_as != message.element) *types = {message.came_as, message.element};
  }
  return source;
}

int Executor::finish_wait(const std::shared_ptr<Task>& task) {
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
  return task->as_collective() != nullptr ? -1 : static_cast<const Message&>(*task).source;
}

bool Executor::poll(std::uint64_t handle) { return find(handle)->done; }

void Executor::cancel(std::uint64_t handle) {
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

std::string Executor::report_tasks() const {
  std::string text;
  for (const auto& task : active_) text += "  " + task->report() + "\n";
  for (const auto& stream : streams_) {
    if (stream->owned() || !stream->connection().closed_at()) continue;
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
  return {finished_collectives_, finished_messages_, mailbox_.unexpected_bytes(), std::move(peers)};
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
  require(peer >= 0 && peer < options_.ranks && peer != options_.rank,
          "there is no connection to " + rank_text(peer));
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
    Halt halt(*this);
    for (auto* control : controls_) {
      if (control != nullptr) control->send_goodbye();
    }
    for (const auto& task : std::exchange(active_, {})) {
      complete(task, "this group was closed before " + task->describe() + " was done");
    }
    mailbox_.drop();
    for (auto& stream : streams_) stream->drop();
  }
  wake_io_thread();
  wake();
  help_.notify_all();
  if (thread_.joinable()) thread_.join();
  for (auto& helper : helpers_) helper.join();
  Lock state(state_);
  // Another thread may still drive; it checks `stop_` every tick.
  while (driving_) {
    state.unlock();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
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
  require(::getpid() != process_,
          "only a forked child may abandon an executor: its threads are the parent's; use close");
  closed_ = true;
  for (auto& stream : streams_) stream->connection().abandon();
  for (auto* watch : {&all_, &own_}) {
    watch->epoll.reset();
    watch->event.reset();
  }
  if (thread_.joinable()) thread_.detach();
  for (auto& helper : helpers_) helper.detach();
  helpers_.clear();
  // The copies of the parent's waiting threads are counted in these, and destroying a condition
  // variable waits for its waiters.
  for (auto* one : {&done_, &help_, &all_released_}) new (one) std::condition_variable;
}

}  // namespace headrace
