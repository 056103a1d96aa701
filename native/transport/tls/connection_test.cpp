// Connections over TLS: the same stream of bytes, confidential and tamper-proof.
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <poll.h>
#include <sys/wait.h>

#include <cstring>
#include <random>

#include "check.hpp"
#include "executor/testing.hpp"
#include "transport/tls/connection.hpp"
#include "transport/tls/proxy.hpp"

using namespace headrace;
using namespace headrace::testing;
using headrace::tls::proxied_pair;
using headrace::tls::Proxy;

namespace {

using namespace std::chrono_literals;
using Bytes = std::vector<std::byte>;

const std::string kKey(tls::kKeyBytes, 'k');
const std::string kOtherKey(tls::kKeyBytes, 'o');

std::unique_ptr<Connection> client_of(Fd fd, const std::string& key = kKey) {
  return tls::make(std::move(fd), {.key = key, .client = true, .peer = 0, .records_per_key = 5});
}

std::unique_ptr<Connection> server_of(Fd fd, const std::string& key = kKey) {
  return tls::make(std::move(fd), {.key = key, .client = false, .peer = 1, .records_per_key = 5});
}

// Waits for an event of a single connection, as the executor does; returns whether one came.
bool await(Connection& connection, bool writable = false, int most_ms = 20'000) {
  pollfd event{connection.fd(), static_cast<short>(POLLIN | (writable ? POLLOUT : 0)), 0};
  if (::poll(&event, 1, most_ms) == 0) return false;
  bool hangup = event.revents & (POLLHUP | POLLERR | POLLRDHUP);
  connection.ready(event.revents & POLLIN || hangup, event.revents & POLLOUT || hangup, hangup);
  return true;
}

// Whether the handshake completed before the connection's end or the timeout.
bool opened(Connection& connection, int timeout_ms = 20'000) {
  while (!connection.open()) {
    if (connection.closed_at() || !await(connection, false, timeout_ms)) return false;
  }
  return true;
}

Bytes random_bytes(std::size_t size, unsigned seed) {
  std::mt19937 random(seed);
  Bytes bytes(size);
  for (auto& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// Sends everything in random pieces while receiving `size` bytes in random ways, until the
// connection ends; returns what was received.
Bytes exchange(Connection& connection, const Bytes& out, std::size_t size, unsigned seed) {
  std::mt19937 random(seed);
  auto some = [&](std::size_t most) {
    std::size_t scales[] = {3, 200, 20'000, 200'000};
    return std::min<std::size_t>(most, random() % scales[random() % 4]);
  };
  Bytes in;
  std::size_t sent = 0;
  std::size_t offered = 0;
  while ((sent < out.size() || in.size() < size) &&
         (!connection.closed_at() || connection.holds_bytes())) {
    offered = std::max(offered, std::min(out.size(), sent + some(out.size())));
    std::vector<iovec> parts;
    for (auto at = sent; at < offered && parts.size() < 30;) {
      auto piece = parts.size() == 29 ? offered - at : some(offered - at);
      parts.push_back({const_cast<std::byte*>(out.data()) + at, piece});
      at += piece;
    }
    auto moved =
        parts.empty() ? 0 : connection.send(parts.data(), static_cast<int>(parts.size()), 0);
    sent += moved;
    auto before = in.size();
    if (random() % 2 == 0) {
      auto most = 1 + random() % (128 << 10);
      auto came = connection.peek(1 + random() % std::min<std::size_t>(most, 64), most);
      auto used = std::min(came.size(), some(came.size()) + 1);
      in.insert(in.end(), came.begin(), came.begin() + static_cast<std::ptrdiff_t>(used));
      connection.use(used);
    } else {
      in.resize(before + some(size - before) + 1);
      auto room = in.size() - before;
      in.resize(before + connection.receive(in.data() + before, room, {}));
    }
    if (moved == 0 && in.size() == before && !connection.closed_at()) {
      CHECK(await(connection, sent < out.size()));
    }
  }
  return in;
}

void moves_bytes_both_ways() {
  for (unsigned round = 0; round < 6; ++round) {
    auto [mine, its] = round % 2 == 0 ? unix_pair() : tcp_pair();
    int little = 5000;
    if (round % 2 == 0) {  // sends block often
      CHECK(::setsockopt(mine.get(), SOL_SOCKET, SO_SNDBUF, &little, sizeof little) == 0);
      CHECK(::setsockopt(its.get(), SOL_SOCKET, SO_SNDBUF, &little, sizeof little) == 0);
    }
    auto forth = random_bytes(300'000 << round % 3, round);
    auto back = random_bytes(200'000, round + 100);
    auto client = client_of(std::move(mine));
    std::thread other([&, server = server_of(std::move(its))] {
      CHECK(opened(*server));
      CHECK(exchange(*server, back, forth.size(), round + 200) == forth);
      CHECK(server->traffic().received_bytes == forth.size());
    });
    CHECK(opened(*client));
    CHECK(exchange(*client, forth, back.size(), round + 300) == back);
    CHECK(client->traffic().sent_bytes == forth.size());
    other.join();
  }
}

// Result of one end of a connection.
struct End {
  bool opened = false;
  Bytes in;
  std::string error;
};

End live(std::unique_ptr<Connection> connection, const Bytes& out, std::size_t size) {
  End end;
  try {
    end.opened = opened(*connection, 300);  // a wrong length makes it wait for bytes
    if (end.opened) end.in = exchange(*connection, out, size, 1);
  } catch (const ProtocolError& error) {
    end.error = error.what();
  }
  return end;
}

std::pair<End, End> live_together(std::unique_ptr<Connection> client,
                                  std::unique_ptr<Connection> server, const Bytes& data) {
  End other;
  std::thread thread([&] { other = live(std::move(server), {}, data.size()); });
  auto end = live(std::move(client), data, 0);
  thread.join();
  return {end, other};
}

void different_keys_fail() {
  auto [mine, its] = tcp_pair();
  auto [client, server] =
      live_together(client_of(std::move(mine), kOtherKey), server_of(std::move(its)), Bytes(10));
  CHECK(!client.opened && !server.opened);
  CHECK(server.error.find("TLS with rank 1 failed") != std::string::npos);
  thrown<CommunicationError>([] { client_of(Fd(), "short"); });
}

// Whichever byte is changed on the way, only sent bytes are received: after the handshake it is
// always an error, before its end nearly always (the version in a clear record has no meaning).
void changes_are_noticed() {
  constexpr std::uint64_t kHandshakeBytes = 200;  // at least, each way; less than 1000
  auto data = random_bytes(100'000, 1);
  std::mt19937 random(3);
  constexpr int kRounds = 60;
  int refused = 0;
  int wrong_records = 0;
  for (int round = 0; round < kRounds; ++round) {
    bool forth = round % 3 > 0;
    bool later = round % 3 > 1;
    std::uint64_t place = later ? 1000 + random() % 90'000 : random() % kHandshakeBytes;
    auto [mine, its, proxy] = proxied_pair([&](bool first, auto offset, auto bytes) {
      if (first != forth || place < offset || place >= offset + bytes.size()) return;
      bytes[place - offset] ^= static_cast<char>(1 << random() % 8);
    });
    auto [client, server] =
        live_together(client_of(std::move(mine)), server_of(std::move(its)), data);
    CHECK(std::equal(server.in.begin(), server.in.end(), data.begin()));
    if (server.in.size() == data.size()) {
      CHECK(!later);
      continue;
    }
    ++refused;
    wrong_records += server.error.find("bad record mac") != std::string::npos;
  }
  CHECK(refused >= kRounds / 3);  // those after the handshake
  CHECK(wrong_records > 0);       // all but changes of a record's length
}

// The end of the socket is the end of the connection, wherever it comes; complete records are used.
void an_end_is_an_end() {
  for (std::size_t size : {0, 1, 100'000}) {
    auto [mine, its] = tcp_pair();
    auto client = client_of(std::move(mine));
    auto data = random_bytes(size, 1);
    std::thread other([&, server = server_of(std::move(its))] {
      CHECK(opened(*server));
      CHECK(exchange(*server, {}, size + 1, 1) == data);
      CHECK(server->closed_at() && !server->holds_bytes());
      CHECK(server->peek(1, 100).empty());
    });
    CHECK(opened(*client));
    exchange(*client, data, 0, 1);
    client.reset();
    other.join();
  }
}

void nothing_can_be_read_on_the_way() {
  std::string secret = "weights of the model";
  std::string seen;
  std::mutex lock;
  auto [mine, its, proxy] = proxied_pair([&](bool, auto, auto bytes) {
    std::lock_guard guard(lock);
    seen.append(bytes.data(), bytes.size());
  });
  Bytes data(secret.size());
  std::memcpy(data.data(), secret.data(), secret.size());
  auto [client, server] =
      live_together(client_of(std::move(mine)), server_of(std::move(its)), data);
  CHECK(server.in == data);
  proxy.reset();
  CHECK(seen.size() > data.size() && seen.find(secret) == std::string::npos);
}

// A peer that sends clear text gets neither a clear-text answer nor data.
void clear_text_is_refused() {
  auto [mine, its] = tcp_pair();
  Bytes hello(1000, std::byte{'h'});
  CHECK(::send(its.get(), hello.data(), hello.size(), 0) == 1000);
  auto server = server_of(std::move(mine));
  auto text = thrown<ProtocolError>([&] { opened(*server); });
  CHECK(text.find("TLS with rank 1 failed") != std::string::npos);
  CHECK(server->closed_at());
}

// Error text for a peer that speaks TLS without our key, until either end gives up.
std::string refusal(std::unique_ptr<Connection> ours, Fd theirs, SSL_CTX* context, bool client) {
  std::thread unauthenticated([&] {
    auto* ssl = SSL_new(context);
    CHECK(::fcntl(theirs.get(), F_SETFL, 0) == 0);  // blocking
    CHECK(SSL_set_fd(ssl, theirs.get()) == 1);
    if (client) {
      SSL_connect(ssl);
    } else {
      SSL_accept(ssl);
    }
    SSL_free(ssl);
    theirs.reset();
  });
  auto text = thrown<ProtocolError>([&] { CHECK(!opened(*ours)); });
  ours.reset();
  unauthenticated.join();
  return text;
}

// Neither a certificate nor an older version of TLS replaces the key.
void unauthenticated_peers_are_refused() {
  auto* context = SSL_CTX_new(TLS_method());
  auto* pair = EVP_EC_gen("P-256");
  auto* certificate = X509_new();
  X509_gmtime_adj(X509_getm_notBefore(certificate), -1000);
  X509_gmtime_adj(X509_getm_notAfter(certificate), 1000);
  CHECK(X509_set_pubkey(certificate, pair) == 1);
  CHECK(X509_sign(certificate, pair, EVP_sha256()) > 0);
  CHECK(SSL_CTX_use_certificate(context, certificate) == 1);
  CHECK(SSL_CTX_use_PrivateKey(context, pair) == 1);
  for (int newest : {TLS1_3_VERSION, TLS1_2_VERSION}) {
    CHECK(SSL_CTX_set_max_proto_version(context, newest) == 1);
    for (bool client : {true, false}) {
      auto [mine, its] = tcp_pair();
      auto ours = client ? server_of(std::move(mine)) : client_of(std::move(mine));
      auto text = refusal(std::move(ours), std::move(its), context, client);
      if (newest == TLS1_3_VERSION && !client) {
        CHECK(text.find("certificate verify failed") != std::string::npos);
      }
    }
  }
  X509_free(certificate);
  EVP_PKEY_free(pair);
  SSL_CTX_free(context);
}

// A forked child closes silently: the parent's connection goes on.
void a_child_lets_go() {
  auto [mine, its] = tcp_pair();
  auto client = client_of(std::move(mine));
  Bytes data(1000, std::byte{7});
  std::thread other([&, server = server_of(std::move(its))] {
    CHECK(opened(*server));
    CHECK(exchange(*server, {}, data.size(), 1) == data);
  });
  CHECK(opened(*client));
  auto child = ::fork();
  if (child == 0) {
    client->abandon();
    client.reset();
    ::_exit(0);
  }
  int status = 1;
  CHECK(::waitpid(child, &status, 0) == child && status == 0);
  exchange(*client, data, 0, 1);
  other.join();
}

// Error text at rank 0 of two, while `peer` handles the other ends.
std::string error_beside(const std::function<void(std::vector<Link>&)>& peer, double deadline_s) {
  auto links = links_of(2, 1, Via::kTls);
  std::thread other([&] { peer(links[1]); });
  Executor::Options options;
  options.ranks = 2;
  Executor executor(options);
  auto text =
      thrown<CommunicationError>([&] { executor.connect(std::move(links[0]), deadline_s); });
  other.join();
  return text;
}

void connect_errors_name_the_cause() {
  auto begin = Clock::now();
  auto silent = error_beside([](auto&) {}, 0.3);
  CHECK(silent.find("the handshake with rank 1 did not end") != std::string::npos);
  auto dead = error_beside([](auto& links) { links.clear(); }, 600);
  CHECK(dead.find("rank 1 ended a connection") != std::string::npos);
  auto connect = [](auto& links) {
    for (auto& link : links) link.key = link.channel == 1 ? kOtherKey : link.key;
    Executor::Options options;
    options.rank = 1;
    options.ranks = 2;
    Executor executor(options);
    thrown<CommunicationError>([&] { executor.connect(std::move(links), 600); });
  };
  auto wrong = error_beside(connect, 600);
  CHECK(wrong.find("TLS with rank 1 failed") != std::string::npos);
  CHECK(Clock::now() - begin < 60s);
}

// A changed byte of a collective is an error at every rank, never a wrong result.
void changed_collectives_fail() {
  for (std::uint64_t place : {2'000, 50'000, 300'000}) {
    auto links = links_of(2, 1, Via::kTls);
    std::vector<std::unique_ptr<Proxy>> proxies;
    for (std::size_t i = 0; i < links[0].size(); ++i) {
      auto [mine, its, proxy] = proxied_pair([place](bool first, auto offset, auto bytes) {
        if (first && place >= offset && place < offset + bytes.size()) bytes[place - offset] ^= 4;
      });
      links[0][i].fd = std::move(mine);
      links[1][i].fd = std::move(its);
      proxies.push_back(std::move(proxy));
    }
    std::vector<std::thread> ranks;
    for (int rank : {0, 1}) {
      ranks.emplace_back([&, rank] {
        Executor::Options options;
        options.rank = rank;
        options.ranks = 2;
        Executor executor(options);
        executor.connect(std::move(links[static_cast<std::size_t>(rank)]));
        std::vector<float> data(200'000, 1.0f);
        auto call = call_on(data, program_of(rank, 2, 2, ring_allreduce(2)), DataType::kFloat32);
        auto text = thrown<CommunicationError>([&] { executor.run(call); });
        CHECK(text.find("TLS with rank ") != std::string::npos);
      });
    }
    for (auto& rank : ranks) rank.join();
  }
}

}  // namespace

int main() {
  moves_bytes_both_ways();
  different_keys_fail();
  changes_are_noticed();
  an_end_is_an_end();
  nothing_can_be_read_on_the_way();
  clear_text_is_refused();
  unauthenticated_peers_are_refused();
  a_child_lets_go();
  connect_errors_name_the_cause();
  changed_collectives_fail();
}
