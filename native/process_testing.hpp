// For tests of forks, children that end by themselves or are killed; and threads that are refused.
#pragma once

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "check.hpp"

namespace headrace::testing {

// Longer than any child takes on a busy machine.
constexpr std::chrono::seconds kChildDeadline{60};

// The exit status of a child; -1: it was killed after the deadline, or ended by a signal.
inline int status_of(pid_t child) {
  const auto until = std::chrono::steady_clock::now() + kChildDeadline;
  int status = 0;
  while (::waitpid(child, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > until) {
      ::kill(child, SIGKILL);
      ::waitpid(child, &status, 0);
      return -1;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// Runs `action` in a child; a failed check there, or a hang, fails here.
template <class Action>
void in_child(const Action& action) {
  const auto child = ::fork();
  CHECK(child >= 0);
  if (child == 0) {
    action();
    ::_exit(0);
  }
  CHECK(status_of(child) == 0);
}

// As long as it lives the system refuses threads: no address space has room for their stacks.
class RefusedThreads {
 public:
  RefusedThreads() {
    CHECK(::pthread_getattr_default_np(&usual_) == 0);
    ::pthread_attr_t refused;
    CHECK(::pthread_attr_init(&refused) == 0);
    CHECK(::pthread_attr_setstacksize(&refused, std::size_t{1} << 47) == 0);
    CHECK(::pthread_setattr_default_np(&refused) == 0);
    ::pthread_attr_destroy(&refused);
  }
  RefusedThreads(const RefusedThreads&) = delete;
  RefusedThreads& operator=(const RefusedThreads&) = delete;
  ~RefusedThreads() {
    ::pthread_setattr_default_np(&usual_);
    ::pthread_attr_destroy(&usual_);
  }

 private:
  ::pthread_attr_t usual_;
};

}  // namespace headrace::testing
