// Fault injection for tests: files whose n-th operation fails, that write a few bytes at a time, or
// that have no room.
#pragma once

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <memory>
#include <system_error>
#include <utility>

#include "index/durable/files.hpp"

namespace headrace::index {

struct FileFaults {
  // Countdown over operations: the one that reaches 0 fails and has no effect; 0 disables it.
  std::atomic<std::int64_t> operations_left{0};
  bool partly = false;         // the failing write writes half of its bytes
  bool dead = false;           // all operations after it fail too, as if the process had ended
  int error = EIO;             // of the failing operation
  std::size_t most_bytes = 0;  // limit of every write; 0: none
  std::atomic<std::int64_t> operations{0};  // counted so far

  // True if this operation fails.
  bool next() {
    ++operations;
    if (dead && failed_) return true;
    if (operations_left <= 0 || --operations_left != 0) return false;
    return failed_ = true;
  }
  bool failed() const { return failed_; }

 private:
  std::atomic<bool> failed_{false};
};

// `faults` and `inner` must live as long as the files and what they opened.
class FaultyFiles final : public Files {
 public:
  FaultyFiles(Files& inner, FileFaults& faults) : inner_(inner), faults_(faults) {}

  std::unique_ptr<File> open(const std::string& path, Open how) override {
    count("open", path);
    return std::make_unique<FaultyFile>(inner_.open(path, how), path, faults_);
  }
  Mapping map(const std::string& path) override {
    count("map", path);
    return inner_.map(path);
  }
  Mapping read(const std::string& path) override {
    count("read", path);
    return inner_.read(path);
  }
  FileStamp stamp(const std::string& path) override {
    count("read the status of", path);
    return inner_.stamp(path);
  }
  std::vector<std::string> list(const std::string& folder) override {
    count("list", folder);
    return inner_.list(folder);
  }
  void make_folder(const std::string& path) override {
    count("create folder", path);
    inner_.make_folder(path);
  }
  void rename(const std::string& from, const std::string& to) override {
    count("rename", from);
    inner_.rename(from, to);
  }
  void remove(const std::string& path) override {
    count("remove", path);
    inner_.remove(path);
  }
  void sync_folder(const std::string& path) override {
    count("sync folder", path);
    inner_.sync_folder(path);
  }
  std::shared_ptr<const void> lock(const std::string& path) override {
    count("lock", path);
    return inner_.lock(path);
  }

 private:
  [[noreturn]] static void fail(const FileFaults& faults, const char* operation,
                                const std::string& path) {
    throw std::system_error(faults.error, std::generic_category(),
                            std::string("cannot ") + operation + " " + path);
  }
  void count(const char* operation, const std::string& path) {
    if (faults_.next()) fail(faults_, operation, path);
  }

  class FaultyFile final : public File {
   public:
    FaultyFile(std::unique_ptr<File> inner, std::string path, FileFaults& faults)
        : inner_(std::move(inner)), path_(std::move(path)), faults_(faults) {}

    std::size_t write(std::uint64_t offset, std::span<const std::byte> bytes) override {
      auto dead = faults_.failed();
      if (faults_.next()) {
        if (faults_.partly && !dead && bytes.size() > 1) {
          write_all(*inner_, offset, bytes.first(bytes.size() / 2));
        }
        fail(faults_, "write", path_);
      }
      auto most = faults_.most_bytes == 0 ? bytes.size() : faults_.most_bytes;
      return inner_->write(offset, bytes.first(std::min(bytes.size(), most)));
    }
    void truncate(std::uint64_t bytes) override {
      if (faults_.next()) fail(faults_, "cut", path_);
      inner_->truncate(bytes);
    }
    void sync() override {
      if (faults_.next()) fail(faults_, "sync", path_);
      inner_->sync();
    }

   private:
    std::unique_ptr<File> inner_;
    std::string path_;
    FileFaults& faults_;
  };

  Files& inner_;
  FileFaults& faults_;
};

}  // namespace headrace::index
