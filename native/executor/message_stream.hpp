// Point-to-point messages: matched by (source, tag) in order; unexpected ones are kept.
#pragma once

#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <vector>

#include "executor/stream.hpp"
#include "executor/task.hpp"

namespace headrace {

// A message that arrived (or is arriving) before its receive was posted.
struct Unexpected {
  int source;
  std::uint32_t tag;
  std::uint64_t bytes;
  std::uint8_t element;
  std::vector<std::byte> data;  // received so far
  bool complete = false;
  std::shared_ptr<Message> claimed;  // a receive posted while it is arriving
};

// Posted receives and unexpected messages, over all peers of a group.
class Mailbox {
 public:
  // Called with every message that is finished (error text empty) or impossible.
  using Finish = std::function<void(const std::shared_ptr<Message>&, const std::string&)>;
  explicit Mailbox(Finish finish) : finish_(std::move(finish)) {}

  void post(std::shared_ptr<Message> receive);
  void deliver_here(const std::shared_ptr<Message>& send);
  bool withdraw(const Message& receive);
  // The receive for a message from `source`, removed from the list; or nullptr.
  std::shared_ptr<Message> match(int source, std::uint32_t tag);
  std::shared_ptr<Unexpected> keep(int source, std::uint32_t tag, std::uint64_t bytes,
                                   std::uint8_t element);
  // Marks a kept message as completely received.
  void arrived(const std::shared_ptr<Unexpected>& message);
  // The receive that claimed an arriving message, with the bytes received so far; the rest is read
  // straight to it. nullptr if there is none, or it expects another length.
  std::shared_ptr<Message> adopt(const std::shared_ptr<Unexpected>& message);
  void finish(const std::shared_ptr<Message>& message, const std::string& error) {
    finish_(message, error);
  }
  bool waits_for(int peer) const;
  // The first posted receive from any rank; nullptr if there is none.
  const Message* from_any() const;
  // Whether unexpected messages take so much memory that senders must wait. A posted receive that
  // `peer` may be about to match lifts this.
  bool full_for(int peer) const;
  bool empty() const { return receives_.empty() && claimed_ == 0; }
  // Bytes of messages received before their receives were posted, so far; each is copied once more.
  std::uint64_t unexpected_bytes() const { return unexpected_bytes_; }
  void came_unexpected(std::uint64_t bytes) { unexpected_bytes_ += bytes; }
  void drop();

 private:
  void deliver(const std::shared_ptr<Unexpected>& message);
  bool accept(const Unexpected& from, const std::shared_ptr<Message>& to);

  Finish finish_;
  std::list<std::shared_ptr<Message>> receives_;
  std::list<std::shared_ptr<Unexpected>> unexpected_;
  std::size_t claimed_ = 0;
  std::uint64_t kept_bytes_ = 0;
  std::uint64_t unexpected_bytes_ = 0;
};

class MessageStream final : public Stream {
 public:
  MessageStream(std::unique_ptr<Connection> connection, int peer, std::int32_t channel,
                Mailbox& mailbox)
      : Stream(std::move(connection), peer, channel), mailbox_(mailbox) {}

  void add_send(std::shared_ptr<Message> message) { sends_.push_back(std::move(message)); }

  bool progress(const Unlock& unlock) override;
  bool busy() const override { return !sends_.empty() || receiving_ != nullptr; }
  void drop() override;

 private:
  bool send_some(const Unlock& unlock);
  bool receive_some(const Unlock& unlock);
  void begin_incoming(const Header& header);
  std::byte* target(std::size_t room);
  void finish_incoming();

  Mailbox& mailbox_;
  bool dropped_ = false;
  std::deque<std::shared_ptr<Message>> sends_;
  std::size_t header_sent_ = 0;
  bool in_payload_ = false;
  std::uint64_t bytes_ = 0;  // of the incoming message
  std::uint64_t moved_ = 0;
  std::shared_ptr<Message> receiving_;
  std::shared_ptr<Unexpected> keeping_;
};

}  // namespace headrace
