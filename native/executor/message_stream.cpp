#include "executor/message_stream.hpp"

#include <algorithm>
#include <cstring>

namespace headrace {
namespace {

constexpr std::size_t kReceiveBudget = 1 << 20;
constexpr std::uint64_t kMostKeptBytes = 256 << 20;
// Fetched with a header: a small message. The rest of a larger one is read to its destination.
constexpr std::size_t kHeaderFetch = 4 << 10;
// Position of the element type in a header, above the length's upper bits.
constexpr unsigned kElementShift = 24;

std::string mismatch(const Message& message, int source, std::uint64_t found) {
  return "rank " + std::to_string(source) + " sent " + std::to_string(found) + " bytes with tag " +
         std::to_string(message.tag) + ", the receive has room for exactly " +
         std::to_string(message.bytes);
}

bool matches(const Message& receive, int source, std::uint32_t tag) {
  return receive.tag == tag && (receive.peer < 0 || receive.peer == source);
}

}  // namespace

void Mailbox::post(std::shared_ptr<Message> receive) {
  auto it = std::find_if(unexpected_.begin(), unexpected_.end(), [&](const auto& kept) {
    return !kept->claimed && matches(*receive, kept->source, kept->tag);
  });
  if (it == unexpected_.end()) {
    receives_.push_back(std::move(receive));
    return;
  }
  auto kept = *it;
  kept->claimed = std::move(receive);
  ++claimed_;
  deliver(kept);
}

void Mailbox::arrived(const std::shared_ptr<Unexpected>& message) {
  message->complete = true;
  deliver(message);
}

// Delivers a message of this rank to itself: it is kept until its receive is posted.
void Mailbox::deliver_here(const std::shared_ptr<Message>& send) {
  auto kept = keep(send->peer, send->tag, send->bytes, send->element);
  kept->data.assign(send->data, send->data + send->bytes);
  kept->claimed = match(send->peer, send->tag);
  if (kept->claimed) ++claimed_;
  arrived(kept);
  finish_(send, "");
}

// Delivers a message once it is complete and claimed, in either order: the lock is released while a
// stream reads, so a receive may be posted between its last byte and its end.
void Mailbox::deliver(const std::shared_ptr<Unexpected>& message) {
  if (!message->complete || !message->claimed) return;
  if (auto receive = adopt(message)) finish_(receive, "");
}

bool Mailbox::withdraw(const Message& receive) {
  return receives_.remove_if([&](const auto& posted) { return posted.get() == &receive; }) > 0;
}

std::shared_ptr<Message> Mailbox::match(int source, std::uint32_t tag) {
  auto it = std::find_if(receives_.begin(), receives_.end(),
                         [&](const auto& receive) { return matches(*receive, source, tag); });
  if (it == receives_.end()) return nullptr;
  auto found = *it;
  receives_.erase(it);
  return found;
}

std::shared_ptr<Unexpected> Mailbox::keep(int source, std::uint32_t tag, std::uint64_t bytes,
                                          std::uint8_t element) {
  auto kept = std::make_shared<Unexpected>();
  kept->source = source;
  kept->tag = tag;
  kept->bytes = bytes;
  kept->element = element;
  kept_bytes_ += bytes;
  unexpected_.push_back(kept);
  return kept;
}

std::shared_ptr<Message> Mailbox::adopt(const std::shared_ptr<Unexpected>& message) {
  auto receive = std::exchange(message->claimed, nullptr);
  if (!receive) return nullptr;
  --claimed_;
  kept_bytes_ -= message->bytes;
  unexpected_.remove(message);
  return accept(*message, receive) ? receive : nullptr;
}

// Copies the bytes received so far; if the lengths differ, fails the receive and returns false.
bool Mailbox::accept(const Unexpected& from, const std::shared_ptr<Message>& to) {
  to->source = from.source;
  to->came_as = from.element;
  if (from.bytes != to->bytes) {
    finish_(to, mismatch(*to, from.source, from.bytes));
    return false;
  }
  if (!from.data.empty()) std::memcpy(to->data, from.data.data(), from.data.size());
  return true;
}

bool Mailbox::waits_for(int peer) const {
  return std::any_of(receives_.begin(), receives_.end(),
                     [&](const auto& receive) { return receive->peer == peer; });
}

const Message* Mailbox::from_any() const {
  auto it = std::ranges::find_if(receives_, [](const auto& receive) { return receive->peer < 0; });
  return it == receives_.end() ? nullptr : it->get();
}

bool Mailbox::full_for(int peer) const {
  if (kept_bytes_ < kMostKeptBytes) return false;
  return std::none_of(receives_.begin(), receives_.end(), [&](const auto& receive) {
    return receive->peer < 0 || receive->peer == peer;
  });
}

void Mailbox::drop() {
  kept_bytes_ = 0;
  receives_.clear();
  unexpected_.clear();
  claimed_ = 0;
}

void MessageStream::drop() {
  sends_.clear();
  receiving_.reset();
  keeping_.reset();
  dropped_ = true;
  connection().close();  // perhaps in the middle of a frame: nothing more can be read or sent
}

bool MessageStream::progress(const Unlock& unlock) {
  if (dropped_) return false;
  bool sent = send_some(unlock);
  bool received = receive_some(unlock);
  return sent || received;
}

bool MessageStream::send_some(const Unlock& unlock) {
  bool any = false;
  while (!sends_.empty()) {
    auto message = sends_.front();
    auto above = static_cast<std::uint32_t>(message->bytes >> 32);
    Header header{std::uint32_t{message->element} << kElementShift | above, message->tag,
                  kPointToPointLane, static_cast<std::uint32_t>(message->bytes)};
    auto left = message->bytes - message->moved;
    iovec parts[2] = {
        {reinterpret_cast<char*>(&header) + header_sent_, sizeof header - header_sent_},
        {message->data + message->moved, left}};
    auto total = parts[0].iov_len + left;
    auto sent = unlock.during(total, [&] { return connection().send(parts, 2, 0); });
    if (sent == 0) break;
    any = true;
    auto of_header = std::min(sent, parts[0].iov_len);
    header_sent_ += of_header;
    message->moved += sent - of_header;
    if (sent == total) {
      header_sent_ = 0;
      sends_.pop_front();
      mailbox_.finish(message, "");
    }
  }
  return any;
}

// Destination of the next `room` bytes of the incoming message. An unexpected one gets memory only
// as its bytes come: its length is the peer's claim. One that fits no receive is not kept, and its
// bytes overwrite each other.
std::byte* MessageStream::target(std::size_t room) {
  if (receiving_) return receiving_->data + moved_;
  auto at = keeping_->bytes == bytes_ ? moved_ : 0;
  if (keeping_->data.size() < at + room) keeping_->data.resize(at + room);
  return keeping_->data.data() + at;
}

void MessageStream::finish_incoming() {
  in_payload_ = false;
  if (auto message = std::exchange(receiving_, nullptr)) mailbox_.finish(message, "");
  if (auto kept = std::exchange(keeping_, nullptr)) mailbox_.arrived(kept);
}

// Matches the message whose header was read.
void MessageStream::begin_incoming(const Header& header) {
  in_payload_ = true;
  auto above = header.epoch & ((1u << kElementShift) - 1);
  bytes_ = std::uint64_t{above} << 32 | header.length;
  auto element = static_cast<std::uint8_t>(header.epoch >> kElementShift);
  moved_ = 0;
  receiving_ = mailbox_.match(peer(), header.collective);
  if (receiving_) {
    receiving_->source = peer();
    receiving_->came_as = element;
  }
  if (receiving_ && receiving_->bytes != bytes_) {
    mailbox_.finish(receiving_, mismatch(*receiving_, peer(), bytes_));
    receiving_.reset();
    // The payload is read all the same, to reach later messages.
    keeping_ = std::make_shared<Unexpected>();
  }
  if (!receiving_ && !keeping_)
    keeping_ = mailbox_.keep(peer(), header.collective, bytes_, element);
}

bool MessageStream::receive_some(const Unlock& unlock) {
  bool any = false;
  std::size_t budget = kReceiveBudget;
  while (budget > 0) {
    if (!in_payload_) {
      Header header;
      if (mailbox_.full_for(peer()) || !take_header(header, kHeaderFetch)) return any;
      begin_incoming(header);
      any = true;
    }
    if (keeping_ && keeping_->claimed) {
      receiving_ = mailbox_.adopt(keeping_);
      // Of another length: its receive has failed, and it is not kept.
      keeping_ = receiving_ ? nullptr : std::make_shared<Unexpected>();
    }
    if (moved_ < bytes_) {
      bool kept = keeping_ && keeping_->bytes == bytes_;
      if (kept && mailbox_.full_for(peer())) return any;
      auto room = std::min<std::uint64_t>(bytes_ - moved_, budget);
      auto* into = target(room);
      auto received = unlock.during(room, [&] { return connection().receive(into, room, {}); });
      if (received == 0) return any;
      if (keeping_) mailbox_.came_unexpected(received);
      moved_ += received;
      budget -= received;
      any = true;
    }
    if (moved_ == bytes_) {
      finish_incoming();
      return true;  // its receiver may post the next receive before the next header
    }
  }
  return any;
}

}  // namespace headrace
