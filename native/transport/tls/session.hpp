// TLS 1.3 between two who share a key, by OpenSSL: no certificates, no older version, no way back
// to clear text.
#pragma once

#include <openssl/ssl.h>

#include <memory>
#include <string>

namespace headrace::tls {

struct FreeSession {
  void operator()(SSL* session) const { SSL_free(session); }
};
using Session = std::unique_ptr<SSL, FreeSession>;

// One end of a connection whose bytes `wire` carries (it is taken over). `key` has to outlive the
// session. Throws CommunicationError.
Session make_session(BIO* wire, const std::string& key, bool client);

// What the last call on this thread had to complain of; empties OpenSSL's queue of errors.
std::string take_error();

}  // namespace headrace::tls
