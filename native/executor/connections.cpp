// The driver's connections: set up, watched for events, counted and closed.
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <system_error>

#include "executor/driver.hpp"
#include "transport/shm/connection.hpp"
#include "transport/tcp/connection.hpp"
#include "transport/tls/connection.hpp"

namespace headrace {

Driver::Watch::Watch()
    : epoll(::epoll_create1(EPOLL_CLOEXEC)), event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  epoll_event wanted{EPOLLIN, {.ptr = nullptr}};
  if (!epoll || !event || ::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, event.get(), &wanted) != 0) {
    throw CommunicationError(std::string("cannot create an event queue: ") + std::strerror(errno));
  }
}

void Driver::Watch::add(int fd, Stream* stream) {
  epoll_event wanted{EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, {.ptr = stream}};
  if (::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &wanted) != 0) {
    throw CommunicationError(std::string("cannot watch a connection: ") + std::strerror(errno));
  }
}

void Driver::Watch::wake() const {
  std::uint64_t one = 1;
  (void)!::write(event.get(), &one, sizeof one);
}

std::vector<Driver::Opened> Driver::connections_of(std::vector<Link>& links) {
  const auto count = data_channels(options_.channels);
  std::vector<Opened> opened;
  for (auto& link : links) {
    auto member = link.peer >= 0 && link.peer < options_.ranks && link.peer != options_.rank;
    auto channels = link.memory ? kControlChannel + 1 : count;
    if (!member || link.channel < kControlChannel || link.channel >= channels) {
      throw std::invalid_argument("the connection to rank " + std::to_string(link.peer) +
                                  " on channel " + std::to_string(link.channel) +
                                  " is not expected");
    }
    if (link.memory) {
      auto channel = kControlChannel;
      for (auto& connection : shm::connections_of(std::move(link.fd), link.memory,
                                                  static_cast<std::size_t>(count - kControlChannel),
                                                  options_.rank < link.peer)) {
        opened.push_back({link.peer, channel++, std::move(connection)});
      }
    } else if (!link.key.empty()) {
      opened.push_back({link.peer, link.channel,
                        tls::make(std::move(link.fd), {.key = std::move(link.key),
                                                       .client = options_.rank > link.peer,
                                                       .peer = link.peer})});
    } else {
      opened.push_back(
          {link.peer, link.channel, std::make_unique<tcp::Connection>(std::move(link.fd))});
    }
  }
  auto expected =
      static_cast<std::size_t>(options_.ranks - 1) * static_cast<std::size_t>(count + 2);
  require(opened.size() == expected, std::to_string(opened.size()) + " connections, " +
                                         std::to_string(expected) + " are needed");
  if (!options_.faults.any()) return opened;
  for (auto& [peer, channel, connection] : opened) {
    connection = std::make_unique<faulty::Connection>(std::move(connection), options_.faults,
                                                      channel != kControlChannel);
  }
  return opened;
}

void Driver::connect(std::vector<Link> links, double deadline_s) {
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
    start_threads();
  } catch (...) {
    std::lock_guard members(members_);
    streams_.clear();  // else the peers would wait for us
    controls_.assign(controls_.size(), nullptr);
    messages_.assign(messages_.size(), {});
    throw;
  }
  connected_ = true;
}

void Driver::start_threads() {
  helpers_.reserve(static_cast<std::size_t>(options_.threads));
  try {
    thread_ = std::thread([this] { io_thread(); });
  } catch (const std::system_error& error) {
    throw CommunicationError(
        rank_text(options_.rank) + " is not connected: the system refuses a thread (" +
        error.what() +
        "): end others, or raise the limit of the user (ulimit -u) or of the container (pids)");
  }
  try {
    for (int i = 1; i < options_.threads; ++i) helpers_.emplace_back([this] { run_helper(); });
  } catch (const std::system_error&) {
    // Fewer threads move the same bytes.
  }
}

void Driver::add(std::vector<Link>& links) {
  std::lock_guard members(members_);
  const auto background = background_messages(options_.channels);
  for (auto& data : channels_) data.assign(static_cast<std::size_t>(background), nullptr);
  for (auto& [peer, channel, connection] : connections_of(links)) {
    auto at = static_cast<std::size_t>(peer);
    const bool is_messages = channel == kPointToPointChannel || channel == background;
    auto*& messages = channel == background ? messages_[at].background : messages_[at].normal;
    bool again = channel == kControlChannel ? controls_[at] != nullptr
                 : is_messages ? messages != nullptr
                               : channels_[at][static_cast<std::size_t>(channel)] != nullptr;
    require(!again, "rank " + std::to_string(peer) + " has two connections on channel " +
                        std::to_string(channel));
    if (channel == kControlChannel) {
      auto stream =
          std::make_unique<ControlStream>(std::move(connection), peer, channel, options_.ranks);
      controls_[at] = stream.get();
      streams_.push_back(std::move(stream));
    } else if (is_messages) {
      auto stream = std::make_unique<MessageStream>(std::move(connection), peer, channel, mailbox_);
      messages = stream.get();
      streams_.push_back(std::move(stream));
    } else {
      auto stream = std::make_unique<DataStream>(std::move(connection), peer, channel);
      channels_[at][static_cast<std::size_t>(channel)] = stream.get();
      streams_.push_back(std::move(stream));
    }
    auto* stream = streams_.back().get();
    bool memory = stream->connection().shares_memory();
    shares_memory_ |= memory;
    has_sockets_ |= !memory && channel != kControlChannel;
    // Ranks that share memory have one socket, which counts as the control connection's.
    if (!memory || channel == kControlChannel) all_.add(stream->connection().fd(), stream);
    if (channel == kControlChannel) own_.add(stream->connection().fd(), stream);
  }
  // Order within a pass: control, urgent data, messages, other data, background messages.
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

// Waits until all connections are open.
void Driver::open(Lock& state, Clock::time_point deadline) {
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

Counters Driver::counters() {
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

std::vector<ConnectionStatistics> Driver::statistics() {
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

void Driver::set_pacing(int peer, std::uint64_t bytes_per_s) {
  require(peer >= 0 && peer < options_.ranks && peer != options_.rank,
          "there is no connection to " + rank_text(peer));
  Lock state(state_);
  for (auto& stream : streams_) {
    if (stream->peer() == peer) tcp::set_pacing(stream->connection().fd(), bytes_per_s);
  }
}

void Driver::close() {
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
  // Another thread may still drive; it checks `stop_` every tick. So may this one, in whose wait a
  // signal handler closes the group.
  while (driving_ && driver_ != std::this_thread::get_id()) {
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

void Driver::abandon() {
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
  // The parent's threads may have held these at the fork, and destruction locks them.
  for (auto* one : {&state_, &tasks_, &members_}) new (one) std::mutex;
  // The copies of the parent's waiting threads are counted in these, and destroying a condition
  // variable waits for its waiters.
  for (auto* one : {&done_, &help_, &all_released_}) new (one) std::condition_variable;
}

}  // namespace headrace
