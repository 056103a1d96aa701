// The encrypted side of a connection: what OpenSSL reads from and writes to.
#pragma once

#include <openssl/bio.h>

#include <memory>

#include "transport/connection.hpp"

namespace headrace::tls {

// Reads come from the socket. Writes are kept, to be sent in large pieces: so OpenSSL's never wait,
// and whoever seals a record finds room for it first.
class Wire {
 public:
  explicit Wire(SocketConnection& socket) : socket_(socket) {}
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;

  // What OpenSSL knows it by; null if there is no memory.
  BIO* bio();

  void ready(bool readable, bool writable, bool hangup);
  bool readable() const { return readable_; }

  bool has_room_for_record() const;
  // Sends what is kept; returns whether all of it went. Closes the connection if it is broken.
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
