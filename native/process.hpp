// What fork(2) copies and what it does not: a child has all memory and descriptors of its parent,
// but no thread except the one that called fork.
//
// The rule: in a child, what is in memory alone works as before, on a copy; what has a file, a
// lock, a connection or a thread belongs to the process that made it, and in a child refuses by
// name, writes nothing, and holds no lock (docs/architecture.md, "Forks"). How to follow it:
//
// - ForkMark: a member of what belongs to a process. `forked()` is one load and a comparison;
//   `check()` throws ForkError.
// - ForkListener: a base of what must act at a fork, such as a lock that no other thread may hold
//   then, or a descriptor that the child closes.
// - ForkSafeLock: a lock that the forking thread takes around fork(), so that no other thread is
//   within its critical section; the child's copy is whole and unlocked.
// - ProcessBound: an object whose threads or files a child must neither use, join nor destroy.
//
// Handlers run at fork() itself (pthread_atfork), called from C, Python or a library.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

namespace headrace {

// Something that belongs to another process is used in a child of it.
class ForkError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

class ForkListener;

namespace process {

// Of one module (a program or a shared object); never destroyed, as static objects are listeners.
struct Forks {
  std::atomic<std::uint32_t> generation{0};  // forks that led to this process
  std::mutex mutex;                          // of the list; held from before a fork until after
  ForkListener* first = nullptr;
};
inline constinit Forks forks;

struct ForkHandlers {
  static bool install();
};

}  // namespace process

// The process in which it was made, or that it was copied from.
class ForkMark {
 public:
  bool forked() const {
    return generation_ != process::forks.generation.load(std::memory_order_relaxed);
  }
  // Throws ForkError in a child. `what` begins the message.
  void check(const std::string& what) const {
    if (forked()) refuse(what);
  }
  [[noreturn]] static void refuse(const std::string& what) {
    throw ForkError(what +
                    ": belongs to the process that opened it, and this one was forked from it "
                    "since; open it anew here, or use it in that process alone");
  }

 private:
  std::uint32_t generation_ = process::forks.generation.load(std::memory_order_relaxed);
};

// Its members run in the thread that forks, while none can come or go: they make and destroy none,
// allocate nothing, and wait only briefly. None is on a thread's stack, which a child reuses.
class ForkListener {
 public:
  // While one lives, no fork begins: what is acquired and recorded meanwhile is seen by a listener.
  class Hold {
   public:
    Hold() { process::forks.mutex.lock(); }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;
    ~Hold() { process::forks.mutex.unlock(); }
  };

  ForkListener(const ForkListener&) = delete;
  ForkListener& operator=(const ForkListener&) = delete;

  virtual void before_fork() noexcept {}
  virtual void after_fork_in_parent() noexcept {}
  virtual void after_fork_in_child() noexcept {}

 protected:
  ForkListener() {
    const Hold hold;
    next_ = std::exchange(process::forks.first, this);
    if (next_ != nullptr) next_->previous_ = this;
  }
  ~ForkListener() {
    const Hold hold;
    (previous_ == nullptr ? process::forks.first : previous_->next_) = next_;
    if (next_ != nullptr) next_->previous_ = previous_;
  }

 private:
  friend process::ForkHandlers;
  ForkListener* previous_ = nullptr;
  ForkListener* next_ = nullptr;
};

namespace process {

inline bool ForkHandlers::install() {
  const int error = ::pthread_atfork(
      [] {
        forks.mutex.lock();
        for (auto* at = forks.first; at != nullptr; at = at->next_) at->before_fork();
      },
      [] {
        for (auto* at = forks.first; at != nullptr; at = at->next_) at->after_fork_in_parent();
        forks.mutex.unlock();
      },
      [] {
        forks.generation.fetch_add(1, std::memory_order_relaxed);
        for (auto* at = forks.first; at != nullptr; at = at->next_) at->after_fork_in_child();
        forks.mutex.unlock();
      });
  if (error != 0) throw std::bad_alloc();
  return true;
}

// When the module is loaded. A local static would be initialized by the first thread that needs it:
// a child that is forked meanwhile waits for that thread.
inline const bool fork_handlers_installed = ForkHandlers::install();

}  // namespace process

// A lock that is free in a child: fork() waits for the thread that holds it. A thread must not take
// a second one, nor make or destroy a listener, while it holds one.
template <class Lock = std::mutex>
class ForkSafeLock final : public ForkListener {
 public:
  void lock() { lock_.lock(); }
  bool try_lock() { return lock_.try_lock(); }
  void unlock() { lock_.unlock(); }

  void before_fork() noexcept override { lock_.lock(); }
  void after_fork_in_parent() noexcept override { lock_.unlock(); }
  void after_fork_in_child() noexcept override { lock_.unlock(); }

 private:
  Lock lock_;
};

// Owns a T of the process that made it. In a child, access throws ForkError, and destruction leaves
// the T as it is: its threads do not exist there, and its files are the parent's.
template <class T>
class ProcessBound {
 public:
  // `name` begins the message of an error.
  template <class... Arguments>
  explicit ProcessBound(std::string name, Arguments&&... arguments)
      : name_(std::move(name)), node_(new Node{T(std::forward<Arguments>(arguments)...)}) {}
  ProcessBound(const ProcessBound&) = delete;
  ProcessBound& operator=(const ProcessBound&) = delete;
  ~ProcessBound() {
    if (!mark_.forked()) {
      delete node_;
    } else {
      // Stays reachable, so that it is no leak.
      node_->next = abandoned_.exchange(node_);
    }
  }

  bool forked() const { return mark_.forked(); }
  T* operator->() { return &checked(); }
  const T* operator->() const { return &checked(); }
  T& operator*() { return checked(); }
  const T& operator*() const { return checked(); }

 private:
  struct Node {
    T value;
    Node* next = nullptr;
  };

  T& checked() const {
    if (mark_.forked()) ForkMark::refuse(name_);
    return node_->value;
  }

  inline static std::atomic<Node*> abandoned_{nullptr};
  std::string name_;
  ForkMark mark_;
  Node* node_;
};

}  // namespace headrace
