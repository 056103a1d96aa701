#include "transport/tls/session.hpp"

#include <openssl/err.h>

#include <cstring>

#include "transport/connection.hpp"
#include "transport/tls/connection.hpp"

namespace headrace::tls {
namespace {

// PSK identity; every connection has its own key, so there is only one.
constexpr unsigned char kIdentity[] = "headrace";
constexpr std::size_t kIdentityBytes = sizeof kIdentity - 1;

// An AEAD cipher; its hash is the one that the key was derived with.
constexpr char kCipher[] = "TLS_AES_128_GCM_SHA256";
constexpr unsigned char kCipherNumber[] = {0x13, 0x01};

// Read buffer: this many records of 16 KiB are read from the socket at once.
constexpr std::size_t kReadBytes = 8 * (SSL3_RT_MAX_PLAIN_LENGTH + 256);

struct FreeContext {
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
};
using Context = std::unique_ptr<SSL_CTX, FreeContext>;

// The key as an external PSK: a made-up session to resume; null on failure.
SSL_SESSION* session_with_key(SSL* ssl) {
  const auto& key = *static_cast<const std::string*>(SSL_get_app_data(ssl));
  const auto* bytes = reinterpret_cast<const unsigned char*>(key.data());
  const auto* cipher = SSL_CIPHER_find(ssl, kCipherNumber);
  auto* made = SSL_SESSION_new();
  if (made != nullptr && cipher != nullptr &&
      SSL_SESSION_set1_master_key(made, bytes, key.size()) == 1 &&
      SSL_SESSION_set_cipher(made, cipher) == 1 &&
      SSL_SESSION_set_protocol_version(made, TLS1_3_VERSION) == 1) {
    return made;
  }
  SSL_SESSION_free(made);
  return nullptr;
}

int offer_key(SSL* ssl, const EVP_MD* /*hash*/, const unsigned char** identity, std::size_t* bytes,
              SSL_SESSION** session) {
  *identity = kIdentity;
  *bytes = kIdentityBytes;
  *session = session_with_key(ssl);
  return *session != nullptr;
}

// Another identity is refused: without a session only certificates are left, of which there are
// none.
int find_key(SSL* ssl, const unsigned char* identity, std::size_t bytes, SSL_SESSION** session) {
  bool ours = bytes == kIdentityBytes && std::memcmp(identity, kIdentity, bytes) == 0;
  *session = ours ? session_with_key(ssl) : nullptr;
  return !ours || *session != nullptr;
}

Context make_context(bool client) {
  Context context(SSL_CTX_new(client ? TLS_client_method() : TLS_server_method()));
  auto* made = context.get();
  if (made == nullptr || SSL_CTX_set_min_proto_version(made, TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_max_proto_version(made, TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_ciphersuites(made, kCipher) != 1 || SSL_CTX_set_num_tickets(made, 0) != 1) {
    throw CommunicationError("cannot set up TLS 1.3: " + take_error());
  }
  SSL_CTX_set_options(made, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  SSL_CTX_set_session_cache_mode(made, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_read_ahead(made, 1);
  SSL_CTX_set_default_read_buffer_len(made, kReadBytes);
  if (client) {
    // No authority is trusted, so a server with a certificate instead of the key is refused.
    SSL_CTX_set_verify(made, SSL_VERIFY_PEER, nullptr);
    SSL_CTX_set_psk_use_session_callback(made, offer_key);
  } else {
    SSL_CTX_set_psk_find_session_callback(made, find_key);
  }
  return context;
}

SSL_CTX* context_for(bool client) {
  static const auto clients = make_context(true);
  static const auto servers = make_context(false);
  return client ? clients.get() : servers.get();
}

}  // namespace

Session make_session(BIO* wire, const std::string& key, bool client) {
  struct FreeBio {
    void operator()(BIO* bio) const { BIO_free(bio); }
  };
  std::unique_ptr<BIO, FreeBio> held(wire);
  if (key.size() != kKeyBytes) {
    throw CommunicationError("a key for TLS has " + std::to_string(key.size()) + " bytes, " +
                             std::to_string(kKeyBytes) + " are needed");
  }
  Session session(SSL_new(context_for(client)));
  if (!session || !held) throw CommunicationError("cannot begin TLS: " + take_error());
  SSL_set_app_data(session.get(), const_cast<std::string*>(&key));
  auto* bio = held.release();
  SSL_set_bio(session.get(), bio, bio);
  if (client) {
    SSL_set_connect_state(session.get());
  } else {
    SSL_set_accept_state(session.get());
  }
  return session;
}

std::string take_error() {
  auto code = ERR_peek_last_error();
  const char* reason = code == 0 ? nullptr : ERR_reason_error_string(code);
  ERR_clear_error();
  return reason == nullptr ? "no reason given" : reason;
}

}  // namespace headrace::tls
