// Signs of life of a process: a byte on a socket at intervals, from a thread of its own that needs
// neither the interpreter nor the thread that trains. It stops with the process, or with its host.
#pragma once

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>

#include "process.hpp"

namespace headrace::embedding {

namespace pulse {

// The thread, and a socket of its own.
class Beat {
 public:
  Beat(int socket, std::chrono::duration<double> interval)
      : socket_(::fcntl(socket, F_DUPFD_CLOEXEC, 0)), interval_(interval) {
    if (socket_ < 0) throw std::system_error(errno, std::generic_category(), "pulse");
    try {
      thread_ = std::thread([this] { run(); });
    } catch (const std::system_error& error) {
      ::close(socket_);
      throw std::system_error(error.code(), "pulse: the system refuses a thread");
    }
  }
  Beat(const Beat&) = delete;
  Beat& operator=(const Beat&) = delete;
  ~Beat() {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
    }
    changed_.notify_all();
    thread_.join();
    ::shutdown(socket_, SHUT_RDWR);  // a child may have a copy
    ::close(socket_);
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    do {
      // A full socket has signs of life that have not arrived.
      const auto sent = ::send(socket_, "\n", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (sent < 0 && errno != EAGAIN && errno != EINTR) return;
    } while (!changed_.wait_for(lock, interval_, [this] { return closed_; }));
  }

  int socket_;
  std::chrono::duration<double> interval_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool closed_ = false;
  std::thread thread_;
};

}  // namespace pulse

// One thread calls at a time. A child of fork() has no pulse of its own.
class Pulse {
 public:
  // Sends on a copy of the socket. Throws std::system_error where the system refuses the copy, or a
  // thread.
  Pulse(int socket, double interval_s)
      : beat_("pulse",
              std::make_unique<pulse::Beat>(socket, std::chrono::duration<double>(interval_s))) {}

  // Ends the pulse and its connection; idempotent.
  void close() {
    if (!beat_.forked()) beat_->reset();
  }

 private:
  ProcessBound<std::unique_ptr<pulse::Beat>> beat_;
};

}  // namespace headrace::embedding
