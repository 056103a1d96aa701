// The encrypted side of a connection: OpenSSL's transport (BIO).
#pragma once

#include <openssl/bio.h>

#include <memory>

#include "transport/connection.hpp"

namespace headrace::tls {

// Reads come from the socket. Writes are buffered and sent in large pieces, so OpenSSL's never
// block; check `has_room_for_record` before encrypting one.
class Wire {
 public:
  explicit Wire(SocketConnection& socket) : socket_(socket) {}
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;

  // The BIO for OpenSSL; null if there is no memory.
  BIO* bio();

  void ready(bool readable, bool writable, bool hangup);
  bool readable() const { return readable_; }

  bool has_room_for_record() const;
  // Sends the buffered bytes; returns whether all were sent. Closes a broken connection.
  bool flush();

 private:
  static int read(BIO* bio, char* into, int bytes);
  static int write(BIO* bio, const char* from, int bytes);
  static long control(BIO* bio, int command, long number, void* pointer);
  static BIO_METHOD* method();

  SocketConnection& socket_;
  bool readable_ = true;
  bool writable_ = true;
  bool hangup_ = false;
  std::unique_ptr<char[]> kept_;  // [begin_, end_) is to be sent
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
};

}  // namespace headrace::tls
