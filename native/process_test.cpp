// What a child of fork() sees: marks, listeners, locks that another thread held, and objects whose
// threads it does not have.
#include "process.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <future>
#include <mutex>
#include <thread>

#include "check.hpp"
#include "process_testing.hpp"

using namespace headrace;
using headrace::testing::in_child;

namespace {

void test_marks() {
  const ForkMark before;
  CHECK(!before.forked());
  in_child([&] {
    CHECK(before.forked());
    const ForkMark after;
    CHECK(!after.forked());
    in_child([&] { CHECK(before.forked() && after.forked()); });
    auto text = thrown<ForkError>([&] { before.check("orders.map"); });
    CHECK(text.starts_with("orders.map: belongs to the process that opened it"));
  });
  before.check("not thrown in the parent");
}

class Counting final : public ForkListener {
 public:
  void before_fork() noexcept override { ++before; }
  void after_fork_in_parent() noexcept override { ++in_parent; }
  void after_fork_in_child() noexcept override { ++in_child; }
  int before = 0, in_parent = 0, in_child = 0;
};

void test_listeners() {
  Counting first;
  auto second = std::make_unique<Counting>();
  Counting third;
  in_child([&] { CHECK(second->before == 1 && second->in_child == 1 && second->in_parent == 0); });
  second.reset();
  in_child([] {});
  CHECK(first.before == 2 && first.in_parent == 2 && first.in_child == 0 && third.before == 2);
}

// A child forked while another thread holds a lock waits for it for ever, and what the lock guards
// is half changed. With ForkSafeLock neither happens.
void test_lock_that_another_thread_holds() {
  ForkSafeLock<> lock;
  std::uint64_t first = 0, second = 0;  // equal whenever the lock is free
  std::atomic<bool> ended = false;
  std::thread writer([&] {
    while (!ended) {
      {
        const std::lock_guard guard(lock);
        ++first;
        std::this_thread::sleep_for(std::chrono::microseconds(300));
        ++second;
      }
      std::this_thread::yield();
    }
  });
  for (int fork = 0; fork < 50; ++fork) {
    in_child([&] {
      const std::lock_guard guard(lock);
      CHECK(first == second);
    });
  }
  ended = true;
  writer.join();
}

// The destructor of a future waits for its thread, which a child does not have.
void test_thread_that_a_child_lacks() {
  std::promise<void> release;
  {
    ProcessBound<std::future<void>> running(
        "the build", std::async(std::launch::async, [&] { release.get_future().wait(); }));
    const auto begun = &running;
    in_child([begun] {
      auto text = thrown<ForkError>([&] { (*begun)->wait(); });
      CHECK(text.starts_with("the build: belongs to"));
      begun->~ProcessBound();
    });
    release.set_value();
    running->wait();
  }
}

}  // namespace

int main() {
  test_marks();
  test_listeners();
  test_lock_that_another_thread_holds();
  test_thread_that_a_child_lacks();
}
