#include "executor/executor.hpp"

#include <algorithm>

#include "executor/driver.hpp"

namespace headrace {
namespace {

// Limits of finished collectives kept for reuse.
constexpr std::size_t kMostSpares = 16;
constexpr std::size_t kMostSpareBytes = 1 << 20;

constexpr int kMostRanks = 1 << 16;
constexpr int kMostChannels = (1 << 16) / kPriorities;
constexpr int kMostThreads = 1024;

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

std::shared_ptr<Message> message_of(std::uintptr_t address, std::uint64_t bytes, int peer,
                                    std::uint32_t tag, std::uint8_t element) {
  require_memory(address, bytes);
  auto task = std::make_shared<Message>();
  task->peer = peer;
  task->tag = tag;
  task->data = reinterpret_cast<std::byte*>(address);
  task->bytes = bytes;
  task->element = element;
  return task;
}

}  // namespace

Executor::Executor(Options options) : options_(checked(std::move(options))) {
  if (!options_.completions) options_.completions = std::make_shared<Completions>();
  driver_ = std::make_unique<Driver>(options_);
}

Executor::~Executor() = default;

void Executor::connect(std::vector<Link> links, double deadline_s) {
  driver_->connect(std::move(links), deadline_s);
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
    std::lock_guard lock(spare_);
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
  if (collective->scratch_bytes() > kMostSpareBytes || !driver_->released(collective)) return;
  std::lock_guard lock(spare_);
  if (spares_.size() == kMostSpares) spares_.pop_back();
  spares_.insert(spares_.begin(), std::move(collective));
}

std::uint64_t Executor::submit(const Call& call, bool notify) {
  return driver_->submit(bind(call), call.deadline_s, notify);
}

void Executor::run(const Call& call) {
  auto task = bind(call);
  driver_->enqueue(task, call.deadline_s);
  driver_->wait(task);
  keep_spare(std::move(task));
}

Trace Executor::trace(const Call& call) {
  auto task = bind(call);
  task->trace();
  Trace found;
  found.called_ns = now_ns();
  driver_->enqueue(task, call.deadline_s);
  driver_->wait(task);
  found.ended_ns = now_ns();
  found.times = task->times;
  for (const auto& state : task->states) found.bytes.push_back(state.bytes);
  keep_spare(std::move(task));
  return found;
}

std::uint64_t Executor::send(std::uintptr_t address, std::uint64_t bytes, int peer,
                             std::uint32_t tag, double deadline_s, bool notify,
                             std::uint8_t element, Priority priority) {
  if (peer < 0 || peer >= options_.ranks) {
    throw std::invalid_argument("cannot send to " + rank_text(peer) + " from " +
                                rank_text(options_.rank) + " of " + std::to_string(options_.ranks));
  }
  auto task = message_of(address, bytes, peer, tag, element);
  task->is_send = true;
  task->priority = priority;
  return driver_->submit(std::move(task), deadline_s, notify);
}

std::uint64_t Executor::receive(std::uintptr_t address, std::uint64_t bytes, int peer,
                                std::uint32_t tag, double deadline_s, bool notify,
                                std::uint8_t element) {
  if (peer < -1 || peer >= options_.ranks) {
    throw std::invalid_argument("cannot receive from " + rank_text(peer) + " at " +
                                rank_text(options_.rank) + " of " + std::to_string(options_.ranks));
  }
  return driver_->submit(message_of(address, bytes, peer, tag, element), deadline_s, notify);
}

int Executor::wait(std::uint64_t handle, std::array<std::uint8_t, 2>* types) {
  auto task = driver_->find(handle);
  driver_->wait(task);
  if (task->as_collective() != nullptr) return -1;
  const auto& message = static_cast<const Message&>(*task);
  bool known = message.came_as != 0 && message.element != 0;
  if (types != nullptr && known && message.came_as != message.element) {
    *types = {message.came_as, message.element};
  }
  return message.source;
}

bool Executor::poll(std::uint64_t handle) { return driver_->find(handle)->done; }
void Executor::cancel(std::uint64_t handle) { driver_->cancel(handle); }
void Executor::abort(const std::string& reason) { driver_->abort(reason); }
std::string Executor::report() { return driver_->report(); }
Counters Executor::counters() { return driver_->counters(); }
std::uint64_t Executor::submitted() const { return driver_->submitted(); }
std::uint64_t Executor::finished() const { return driver_->finished(); }
std::vector<ConnectionStatistics> Executor::statistics() { return driver_->statistics(); }
void Executor::set_pacing(int peer, std::uint64_t bytes_per_s) {
  driver_->set_pacing(peer, bytes_per_s);
}
void Executor::abandon() { driver_->abandon(); }
void Executor::close() { driver_->close(); }

}  // namespace headrace
