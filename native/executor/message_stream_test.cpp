// Point-to-point messages while another thread owns the stream: every interleaving of callers'
// actions with the moments at which a stream has released the lock.
//
// Regression: a receive posted while another thread read the last piece of its message, with the
// lock released, claimed the message, but its end did not check for claims: it was never delivered.
//
// A stream releases the lock only around calls of its connection, so a connection that runs the
// caller's actions inside its calls reaches every interleaving, on one thread and in a fixed order.
#include "executor/message_stream.hpp"

#include <map>
#include <mutex>
#include <numeric>

#include "check.hpp"
#include "executor/received.hpp"

using namespace headrace;

namespace {

// Two pieces, each large enough for the lock to be released.
constexpr std::size_t kPiece = 32 << 10;
constexpr std::size_t kBytes = 2 * kPiece;
constexpr std::uint32_t kTag = 7;
// Number of points at which callers can act: before every pass and in every window of two messages
// of two pieces there are seven; afterwards everything has arrived.
constexpr int kPoints = 9;

std::vector<std::byte> payload(int number) {
  std::vector<std::byte> bytes(kBytes);
  for (std::size_t i = 0; i < kBytes; ++i) {
    bytes[i] = static_cast<std::byte>(i / 64 + static_cast<std::size_t>(number) * 101);
  }
  return bytes;
}

// Received bytes are fixed; sent ones are recorded. Moves a piece per call, and calls `window` in
// each call made without the lock.
class Scripted final : public testing::Received {
 public:
  Scripted(std::unique_lock<std::mutex>& state, std::function<void()> window)
      : state_(state), window_(std::move(window)) {}

  std::vector<std::byte> outgoing;

  std::size_t send(const iovec* parts, int count, std::uint32_t) override {
    open_window();
    std::size_t sent = 0;
    for (int i = 0; i < count; ++i) {
      auto* from = static_cast<const std::byte*>(parts[i].iov_base);
      auto bytes = std::min(parts[i].iov_len, kPiece - sent);
      outgoing.insert(outgoing.end(), from, from + bytes);
      sent += bytes;
    }
    return sent;
  }
  std::size_t receive(std::byte* into, std::size_t bytes, const Hints& hints) override {
    auto moved = Received::receive(into, std::min(bytes, kPiece), hints);
    open_window();
    return moved;
  }

 private:
  void open_window() {
    if (state_.owns_lock()) return;
    std::lock_guard lock(*state_.mutex());
    window_();
  }

  std::unique_lock<std::mutex>& state_;
  std::function<void()> window_;
};

struct Receive {
  std::vector<std::byte> data = std::vector<std::byte>(kBytes);
  std::shared_ptr<Message> message = std::make_shared<Message>();
  int finished = 0;
  std::string error;

  explicit Receive(std::uint64_t bytes = kBytes) {
    message->peer = 1;
    message->tag = kTag;
    message->bytes = bytes;
    message->data = data.data();
  }
};

// One run: two messages arrive, and `act` is called with the number of every point at which callers
// can act.
struct World {
  std::mutex lock;
  std::unique_lock<std::mutex> state{lock};
  int point = 0;
  std::function<void(int)> act;
  std::map<const Message*, Receive*> receives;
  Mailbox mailbox{[this](const auto& message, const auto& error) {
    auto found = receives.find(message.get());
    if (found == receives.end()) return;
    ++found->second->finished;
    found->second->error = error;
  }};
  Scripted* connection = nullptr;
  std::unique_ptr<MessageStream> stream;

  World() {
    auto made = std::make_unique<Scripted>(state, [this] { act(point++); });
    connection = made.get();
    stream = std::make_unique<MessageStream>(std::move(made), 1, kPointToPointChannel, mailbox);
  }
  // Adds a message to what has arrived; `bytes_in_all` is its length, of which no more have.
  void arrives(int number, std::uint32_t element = 0, std::uint32_t bytes_in_all = kBytes) {
    Header header{element << 24, kTag, kPointToPointLane, bytes_in_all};
    auto* raw = reinterpret_cast<const std::byte*>(&header);
    auto bytes = payload(number);
    connection->incoming.insert(connection->incoming.end(), raw, raw + sizeof header);
    connection->incoming.insert(connection->incoming.end(), bytes.begin(), bytes.end());
  }
  void post(Receive& receive) {
    receives[receive.message.get()] = &receive;
    mailbox.post(receive.message);
  }
  // Runs until nothing moves and no action is left.
  void run() {
    Unlock unlock(&state, [] {});
    bool any = true;
    while (any || point < kPoints) {
      act(point++);
      any = stream->progress(unlock);
    }
  }
};

// A receive returns the sender's element type, whenever it is posted.
void every_receive_learns_the_type() {
  for (int first = 0; first < kPoints; ++first) {
    World world;
    Receive one;
    world.arrives(1, 200);
    world.act = [&](int point) {
      if (point == first) world.post(one);
    };
    world.run();
    CHECK(one.finished == 1 && one.data == payload(1));
    CHECK(one.message->came_as == 200);
  }
}

// Two receives are posted in order, each at any point, for two messages that arrive in order.
void every_receive_gets_its_message() {
  for (int second = 0; second < kPoints; ++second) {
    for (int first = 0; first <= second; ++first) {
      World world;
      Receive one;
      Receive other;
      world.arrives(1);
      world.arrives(2);
      world.act = [&](int point) {
        if (point == first) world.post(one);
        if (point == second) world.post(other);
      };
      world.run();
      CHECK(one.finished == 1 && one.error.empty() && one.data == payload(1));
      CHECK(other.finished == 1 && other.error.empty() && other.data == payload(2));
      CHECK(world.mailbox.empty() && !world.stream->busy());
    }
  }
}

// A receive of another length fails alone, wherever it is posted; the next message is delivered.
void a_wrong_length_fails_alone() {
  for (int at = 0; at < kPoints; ++at) {
    World world;
    Receive wrong(kBytes - 4);
    Receive right;
    world.arrives(1);
    world.arrives(2);
    world.act = [&](int point) {
      if (point == at) {
        world.post(wrong);
        world.post(right);
      }
    };
    world.run();
    CHECK(wrong.finished == 1 && wrong.error.find("has room for exactly") != std::string::npos);
    CHECK(right.finished == 1 && right.error.empty() && right.data == payload(2));
    CHECK(world.mailbox.empty());
  }
}

// A receive is posted at any point and withdrawn at any later one: either the withdrawal succeeds
// and the next receive gets the message, or the receive has (part of) the message and gets all of
// it.
void what_is_withdrawn_takes_nothing() {
  for (int back = 0; back < kPoints; ++back) {
    for (int at = 0; at <= back; ++at) {
      World world;
      Receive one;
      Receive next;
      bool withdrawn = false;
      world.arrives(1);
      world.act = [&](int point) {
        if (point == at) world.post(one);
        if (point == back && one.finished == 0) {
          withdrawn = world.mailbox.withdraw(*one.message);
          if (withdrawn) world.post(next);
        }
      };
      world.run();
      auto& got = withdrawn ? next : one;
      auto& none = withdrawn ? one : next;
      CHECK(got.finished == 1 && got.data == payload(1) && none.finished == 0);
      CHECK(world.mailbox.empty());
    }
  }
}

// Messages are added while an earlier one is being sent.
void sends_keep_their_order() {
  for (int at = 0; at < kPoints; ++at) {
    World world;
    std::vector<std::vector<std::byte>> data{payload(1), payload(2)};
    std::vector<Receive> sends(2);
    auto add = [&](std::size_t index) {
      auto& message = *sends[index].message;
      message.is_send = true;
      message.data = data[index].data();
      world.receives[&message] = &sends[index];
      world.stream->add_send(sends[index].message);
    };
    world.act = [&](int point) {
      if (point == 0) add(0);
      if (point == at) add(1);
    };
    world.run();
    World expected;
    expected.arrives(1);
    expected.arrives(2);
    CHECK(world.connection->outgoing == expected.connection->incoming);
    CHECK(sends[0].finished == 1 && sends[1].finished == 1 && !world.stream->busy());
  }
}

// Regression: of a message the whole was kept, whatever its size, where its receive came late. Now
// it waits for that, or for another receive of its sender's that it may stand before.
void what_is_too_large_waits_for_a_receive() {
  constexpr std::uint32_t kMostKeptBytes = 256 << 20;
  for (auto tag : {kTag, kTag + 1}) {
    World world;
    Receive receive(tag == kTag ? kMostKeptBytes : kBytes);
    receive.message->tag = tag;
    world.arrives(1, 0, kMostKeptBytes);
    world.act = [](int) {};
    world.run();
    CHECK(world.mailbox.unexpected_bytes() == 0);
    world.post(receive);
    world.run();
    CHECK(world.mailbox.unexpected_bytes() == (tag == kTag ? 0 : kBytes));
    if (tag == kTag) CHECK(receive.data == payload(1));
  }
}

}  // namespace

int main() {
  every_receive_learns_the_type();
  every_receive_gets_its_message();
  a_wrong_length_fails_alone();
  what_is_withdrawn_takes_nothing();
  sends_keep_their_order();
  what_is_too_large_waits_for_a_receive();
}
