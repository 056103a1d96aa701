#include "transport/tls/connection.hpp"

#include <openssl/err.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "transport/staging.hpp"
#include "transport/tls/session.hpp"
#include "transport/tls/wire.hpp"

namespace headrace::tls {
namespace {

constexpr std::size_t kRecordBytes = SSL3_RT_MAX_PLAIN_LENGTH;
// Limit of bytes sent per turn of a stream. Encryption can be slower than the network, so that a
// full socket would never end a turn.
constexpr std::size_t kSendBudget = 64 << 10;

// Iterates over the parts of a send, one record at a time.
class Parts {
 public:
  Parts(const iovec* parts, int count) : part_(parts), end_(parts + count) { skip(0); }

  bool empty() const { return part_ == end_; }
  // Skips bytes; returns how many there were.
  std::size_t skip(std::size_t bytes) {
    std::size_t skipped = 0;
    while (part_ != end_) {
      auto step = std::min(bytes - skipped, part_->iov_len - at_);
      at_ += step;
      skipped += step;
      if (at_ < part_->iov_len) break;
      ++part_;
      at_ = 0;
    }
    return skipped;
  }
  // Bytes of the next record: in place, or gathered in `together` if they are in pieces.
  std::span<const std::byte> next(std::span<std::byte, kRecordBytes> together) {
    std::span<const std::byte> rest{static_cast<const std::byte*>(part_->iov_base) + at_,
                                    part_->iov_len - at_};
    if (rest.size() >= kRecordBytes || part_ + 1 == end_) {
      auto record = rest.first(std::min(rest.size(), kRecordBytes));
      skip(record.size());
      return record;
    }
    std::size_t size = 0;
    while (size < kRecordBytes && part_ != end_) {
      auto step = std::min(kRecordBytes - size, part_->iov_len - at_);
      std::memcpy(together.data() + size, static_cast<const std::byte*>(part_->iov_base) + at_,
                  step);
      size += step;
      skip(step);
    }
    return together.first(size);
  }

 private:
  const iovec* part_;
  const iovec* end_;
  std::size_t at_ = 0;  // in the first part; never at its end
};

class TlsConnection final : public SocketConnection {
 public:
  TlsConnection(Fd fd, Options options)
      : SocketConnection(std::move(fd)),
        options_(std::move(options)),
        wire_(*this),
        session_(make_session(wire_.bio(), options_.key, options_.client)) {}

  bool open() override;
  std::size_t send(const iovec* parts, int count, std::uint32_t zero_copy) override;
  std::size_t receive(std::byte* into, std::size_t bytes, const Hints& hints) override;
  std::span<const std::byte> peek(std::size_t least, std::size_t most) override;
  bool use(std::size_t bytes) override {
    staging_.use(bytes);
    return true;
  }
  bool holds_bytes() const override {
    return staging_.size() > 0 || (!ended_ && SSL_pending(ssl()) > 0);
  }

  void ready(bool readable, bool writable, bool hangup) override {
    wire_.ready(readable, writable, hangup);
  }
  void announce_sleep(bool) override {}
  bool changed() override { return false; }
  bool shares_memory() const override { return false; }
  void abandon() override {
    SocketConnection::abandon();
    // Freeing it may need a lock held by a thread that does not exist in the child.
    (void)session_.release();
  }

 private:
  SSL* ssl() const { return session_.get(); }
  bool seal(std::span<const std::byte> record);
  std::size_t fetch(std::byte* into, std::size_t bytes);
  bool waits(int result);

  Options options_;
  Wire wire_;
  Session session_;
  bool open_ = false;
  bool ended_ = false;         // nothing can be received any more
  std::uint64_t records_ = 0;  // sent with the present key
  std::size_t sealed_ = 0;     // bytes of parts in kept records, not reported as sent yet
  bool turn_over_ = false;     // the next call sends nothing
  std::string error_;          // thrown by the next receive
  Staging staging_;
};

// Returns true if the failed OpenSSL call is to be retried later; else closes the connection, and
// throws unless the peer closed it.
bool TlsConnection::waits(int result) {
  auto error = SSL_get_error(ssl(), result);
  if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) return true;
  auto reason = take_error();
  ended_ = true;
  wire_.flush();  // may hold an alert for the peer
  bool ended = closed_at() || error == SSL_ERROR_ZERO_RETURN;
  close();
  if (ended) return false;
  throw ProtocolError("TLS with rank " + std::to_string(options_.peer) + " failed (" + reason +
                      "): the two ends have different keys, or the bytes were changed on the way");
}

bool TlsConnection::open() {
  if (open_ || closed_at()) return open_;
  ERR_clear_error();
  auto result = SSL_do_handshake(ssl());
  if (result != 1 && !waits(result)) return false;
  if (result == 1 && SSL_session_reused(ssl()) != 1) {
    close();
    throw ProtocolError("rank " + std::to_string(options_.peer) +
                        " did not use the key of this connection for TLS");
  }
  bool flushed = wire_.flush();
  open_ = result == 1 && flushed;
  return open_;
}

// Encrypts bytes into a record; requires room for it.
bool TlsConnection::seal(std::span<const std::byte> record) {
  ERR_clear_error();
  // A cipher has a limit of records per key (RFC 8446, 5.5).
  if (++records_ > options_.records_per_key) {
    records_ = 1;
    SSL_key_update(ssl(), SSL_KEY_UPDATE_NOT_REQUESTED);
  }
  std::size_t written = 0;
  auto result = SSL_write_ex(ssl(), record.data(), record.size(), &written);
  if (result == 1) {
    sealed_ += written;
    return true;
  }
  try {
    // Room was checked, so no wait is possible.
    if (waits(result)) throw ProtocolError("TLS refused a record although there was room for it");
  } catch (const ProtocolError& error) {
    close();
    error_ = error.what();  // `send` must not throw
  }
  return false;
}

std::size_t TlsConnection::send(const iovec* parts, int count, std::uint32_t) {
  if (std::exchange(turn_over_, false)) return 0;
  std::array<std::byte, kRecordBytes> together;
  Parts left(parts, count);
  left.skip(sealed_);
  std::size_t sent = 0;
  while (!closed_at() && wire_.flush()) {
    sent += std::exchange(sealed_, 0);
    if (sent >= kSendBudget || left.empty()) break;
    while (!left.empty() && wire_.has_room_for_record() && seal(left.next(together))) {
    }
  }
  // With more to send, the next call comes at once and yields the turn to other streams.
  turn_over_ = sent >= kSendBudget && !left.empty();
  if (sent > 0) count_sent(sent);
  return sent;
}

std::size_t TlsConnection::fetch(std::byte* into, std::size_t bytes) {
  if (!error_.empty()) throw ProtocolError(std::exchange(error_, {}));
  std::size_t fetched = 0;
  // Bytes buffered in OpenSSL stay valid after the connection's end.
  while (fetched < bytes && !ended_ &&
         ((wire_.readable() && !closed_at()) || SSL_has_pending(ssl()) == 1)) {
    ERR_clear_error();
    std::size_t got = 0;
    auto result = SSL_read_ex(ssl(), into + fetched, bytes - fetched, &got);
    fetched += got;
    if (result != 1) {
      waits(result);
      break;
    }
  }
  count_received(fetched);
  return fetched;
}

std::span<const std::byte> TlsConnection::peek(std::size_t least, std::size_t most) {
  if (staging_.size() < least) {
    auto room = staging_.room(most - staging_.size());
    staging_.fill(fetch(static_cast<std::byte*>(room.iov_base), room.iov_len));
  }
  return staging_.bytes();
}

std::size_t TlsConnection::receive(std::byte* into, std::size_t bytes, const Hints&) {
  auto staged = staging_.take(into, bytes);
  return staged > 0 ? staged : fetch(into, bytes);
}

}  // namespace

bool available() { return true; }

std::unique_ptr<Connection> make(Fd fd, Options options) {
  return std::make_unique<TlsConnection>(std::move(fd), std::move(options));
}

}  // namespace headrace::tls
