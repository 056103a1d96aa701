// A disk in memory for tests. It knows what was synced: after a loss of power, any part of the rest
// may be gone, sector by sector and name by name.
#pragma once

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <system_error>
#include <utility>

#include "index/durable/files.hpp"

namespace headrace::index {

class SimulatedFiles final : public Files {
 public:
  using Bytes = std::vector<std::byte>;

  // Bytes that fit on the disk.
  std::uint64_t capacity = ~std::uint64_t{0};

  std::unique_ptr<File> open(const std::string& path, Open how) override {
    std::lock_guard guard(mutex_);
    auto found = names_.find(path);
    if (found == names_.end()) {
      if (how == Open::existing) fail(ENOENT, path);
      found = names_.emplace(path, std::make_shared<Node>()).first;
      unsynced_names_.push_back({path, found->second, ""});
    }
    if (how == Open::emptied) found->second->cut(0);
    return std::make_unique<OpenFile>(*this, path, found->second);
  }
  Mapping map(const std::string& path) override {
    std::lock_guard guard(mutex_);
    auto bytes = std::make_shared<Bytes>(node(path).now);
    return {bytes, *bytes};
  }
  Mapping read(const std::string& path) override { return map(path); }
  FileStamp stamp(const std::string& path) override {
    std::lock_guard guard(mutex_);
    if (const auto lock = locks_.find(path); lock != locks_.end()) {
      return {0, reinterpret_cast<std::uintptr_t>(lock->second.lock().get()), 0, 0};
    }
    const auto& file = node(path);
    return {0, reinterpret_cast<std::uintptr_t>(&file), file.now.size(), file.modified};
  }
  std::vector<std::string> list(const std::string& folder) override {
    std::lock_guard guard(mutex_);
    std::vector<std::string> names;
    for (const auto& [path, node] : names_) {
      if (folder_of(path) == folder) names.push_back(path.substr(folder.size() + 1));
    }
    return names;
  }
  void make_folder(const std::string&) override {}
  void rename(const std::string& from, const std::string& to) override {
    std::lock_guard guard(mutex_);
    node(from);
    unsynced_names_.push_back({to, names_[from], from});
    apply(unsynced_names_.back(), names_);
  }
  void remove(const std::string& path) override {
    std::lock_guard guard(mutex_);
    node(path);
    unsynced_names_.push_back({path, nullptr, ""});
    apply(unsynced_names_.back(), names_);
  }
  void sync_folder(const std::string& path) override {
    std::lock_guard guard(mutex_);
    std::erase_if(unsynced_names_, [&](const NameChange& change) {
      if (folder_of(change.path) != path) return false;
      apply(change, synced_names_);
      return true;
    });
  }
  std::shared_ptr<const void> lock(const std::string& path) override {
    std::lock_guard guard(mutex_);
    auto& held = locks_[path];
    if (!held.expired()) throw std::runtime_error(path + ": the folder is open already");
    auto lock = std::make_shared<int>(0);
    held = lock;
    return lock;
  }

  // What a process leaves that ends now: open files and locks are gone.
  void end_process() {
    std::lock_guard guard(mutex_);
    ++epoch_;
    locks_.clear();
  }
  // What a loss of power leaves.
  void lose_power(std::mt19937_64& random) {
    end_process();
    std::lock_guard guard(mutex_);
    auto in_order = random() % 2 == 0;  // a journal keeps the first so many changes of names
    auto kept = random() % (unsynced_names_.size() + 1);
    for (std::size_t i = 0; i < unsynced_names_.size(); ++i) {
      if (in_order ? i < kept : random() % 2 == 0) apply(unsynced_names_[i], synced_names_);
    }
    unsynced_names_.clear();
    names_ = synced_names_;
    for (auto& [path, node] : names_) node->lose_power(random);
  }

  // The bytes of a file, to be altered by tests.
  Bytes& bytes(const std::string& path) { return node(path).now; }
  // A disk with the same files.
  void copy_from(SimulatedFiles& other) {
    end_process();
    names_.clear();
    for (const auto& [path, node] : other.names_) {
      names_[path] = std::make_shared<Node>(Node{node->now, node->now, {}});
    }
    synced_names_ = names_;
    unsynced_names_.clear();
  }

 private:
  static constexpr std::uint64_t kSectorBytes = 512;
  static inline std::atomic<std::int64_t> clock_{0};  // counts changes

  struct Write {
    std::uint64_t offset;
    Bytes bytes;
    bool cut;  // to `offset` bytes, in place of a write
  };
  struct Node {
    Bytes now, synced;
    std::vector<Write> unsynced;
    std::int64_t modified = ++clock_;

    static void apply(const Write& write, Bytes& to) {
      if (write.cut) return to.resize(write.offset);
      to.resize(std::max<std::size_t>(to.size(), write.offset + write.bytes.size()));
      std::copy(write.bytes.begin(), write.bytes.end(),
                to.begin() + static_cast<std::ptrdiff_t>(write.offset));
    }
    void write(std::uint64_t offset, std::span<const std::byte> bytes) {
      unsynced.push_back({offset, Bytes(bytes.begin(), bytes.end()), false});
      apply(unsynced.back(), now);
      modified = ++clock_;
    }
    void cut(std::uint64_t bytes) {
      unsynced.push_back({bytes, {}, true});
      apply(unsynced.back(), now);
      modified = ++clock_;
    }
    void sync() {
      synced = now;
      unsynced.clear();
    }
    void lose_power(std::mt19937_64& random) {
      auto kept_of_four = random() % 5;
      for (const auto& change : unsynced) {
        if (change.cut) {
          if (random() % 4 < kept_of_four) apply(change, synced);
          continue;
        }
        for (std::uint64_t at = 0; at < change.bytes.size();) {
          auto end = std::min<std::uint64_t>(
              change.bytes.size(), at + kSectorBytes - (change.offset + at) % kSectorBytes);
          auto begin = change.bytes.begin();
          Write sector{change.offset + at,
                       Bytes(begin + static_cast<std::ptrdiff_t>(at),
                             begin + static_cast<std::ptrdiff_t>(end)),
                       false};
          if (random() % 4 < kept_of_four) apply(sector, synced);
          at = end;
        }
      }
      now = synced;
      unsynced.clear();
    }
  };
  using Names = std::map<std::string, std::shared_ptr<Node>>;

  // A name that is given to a file, and perhaps the one it had; a name that is removed.
  struct NameChange {
    std::string path;
    std::shared_ptr<Node> node;
    std::string from;
  };

  class OpenFile final : public File {
   public:
    OpenFile(SimulatedFiles& files, std::string path, std::shared_ptr<Node> node)
        : files_(files), path_(std::move(path)), node_(std::move(node)), epoch_(files.epoch_) {}

    std::size_t write(std::uint64_t offset, std::span<const std::byte> bytes) override {
      std::lock_guard guard(files_.mutex_);
      check();
      auto room = node_->now.size() + (files_.capacity - std::min(files_.capacity, files_.used()));
      if (offset >= room) fail(ENOSPC, path_);
      auto written = static_cast<std::size_t>(std::min<std::uint64_t>(bytes.size(), room - offset));
      node_->write(offset, bytes.first(written));
      return written;
    }
    void truncate(std::uint64_t bytes) override {
      std::lock_guard guard(files_.mutex_);
      check();
      node_->cut(bytes);
    }
    void sync() override {
      std::lock_guard guard(files_.mutex_);
      check();
      node_->sync();
    }

   private:
    void check() const {
      if (epoch_ != files_.epoch_) fail(EBADF, path_);
    }

    SimulatedFiles& files_;
    std::string path_;
    std::shared_ptr<Node> node_;
    int epoch_;
  };

  [[noreturn]] static void fail(int error, const std::string& path) {
    throw std::system_error(error, std::generic_category(), path);
  }
  static void apply(const NameChange& change, Names& names) {
    if (!change.from.empty()) names.erase(change.from);
    if (change.node) {
      names[change.path] = change.node;
    } else {
      names.erase(change.path);
    }
  }
  Node& node(const std::string& path) {
    auto found = names_.find(path);
    if (found == names_.end()) fail(ENOENT, path);
    return *found->second;
  }
  std::uint64_t used() const {
    std::uint64_t bytes = 0;
    for (const auto& [path, node] : names_) bytes += node->now.size();
    return bytes;
  }

  std::mutex mutex_;
  Names names_, synced_names_;
  std::vector<NameChange> unsynced_names_;
  std::map<std::string, std::weak_ptr<int>> locks_;
  int epoch_ = 0;
};

}  // namespace headrace::index
