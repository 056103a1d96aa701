// TLS 1.3 with a pre-shared key, by OpenSSL: no certificates, no older version, no fallback to
// clear text.
#pragma once

#include <openssl/ssl.h>

#include <memory>
#include <string>

namespace headrace::tls {

struct FreeSession {
  void operator()(SSL* session) const { SSL_free(session); }
};
using Session = std::unique_ptr<SSL, FreeSession>;

// One end of a connection; takes ownership of `wire`, its transport. `key` must outlive the
// session. Throws CommunicationError.
Session make_session(BIO* wire, const std::string& key, bool client);

// Text of the last OpenSSL error on this thread; clears the error queue.
std::string take_error();

}  // namespace headrace::tls
