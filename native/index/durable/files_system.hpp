// Files of the operating system (Linux).
#pragma once

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <memory>
#include <span>
#include <system_error>
#include <utility>
#include <vector>

#include "index/durable/files.hpp"
#include "process.hpp"

namespace headrace::index {
namespace files_system {

[[noreturn]] inline void fail(const char* operation, const std::string& path) {
  throw std::system_error(errno, std::generic_category(), std::string(operation) + " " + path);
}

// Makes a system call until no signal interrupts it. Returns its result; -1 with errno: it failed.
template <class Call>
int uninterrupted(const Call& call) {
  int result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

// An owned descriptor. A child closes its copy when it is forked: the open file, with its lock,
// stays the parent's alone.
class Descriptor final : public ForkListener {
 public:
  Descriptor(const std::string& path, int flags) : path_(path) {
    const Hold hold;
    fd_ = uninterrupted([&] { return ::open(path.c_str(), flags | O_CLOEXEC, 0666); });
    if (fd_ < 0) fail("cannot open", path);
  }
  ~Descriptor() {
    const Hold hold;
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }

  // Throws ForkError in a child.
  int get() const {
    if (fd_ < 0) ForkMark::refuse(path_);
    return fd_;
  }
  bool is_open() const { return fd_ >= 0; }

  void after_fork_in_child() noexcept override {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }

 private:
  std::string path_;
  int fd_ = -1;
};

// A lock of the system on a file. A child that has not yet closed its copy of the descriptor does
// not prolong it: the owner unlocks.
class FileLock {
 public:
  explicit FileLock(const std::string& path) : fd_(path, O_RDWR | O_CREAT) {
    if (uninterrupted([&] { return ::flock(fd_.get(), LOCK_EX | LOCK_NB); }) == 0) return;
    if (errno != EWOULDBLOCK) fail("cannot lock", path);
    throw std::runtime_error(path + ": the folder is open already, here or in another process");
  }
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;
  ~FileLock() {
    if (fd_.is_open()) ::flock(fd_.get(), LOCK_UN);
  }

 private:
  Descriptor fd_;
};

class SystemFile final : public File {
 public:
  SystemFile(const std::string& path, Open how)
      : path_(finished(path)), fd_(path, O_RDWR | (how == Open::emptied ? O_CREAT | O_TRUNC : 0)) {}

  std::size_t write(std::uint64_t offset, std::span<const std::byte> bytes) override {
    for (;;) {
      auto written = ::pwrite(fd_.get(), bytes.data(), bytes.size(), static_cast<::off_t>(offset));
      if (written > 0) return static_cast<std::size_t>(written);
      if (written == 0) errno = ENOSPC;  // not expected: nothing of some bytes
      if (errno != EINTR) fail("cannot write", path_);
    }
  }
  void truncate(std::uint64_t bytes) override {
    const auto cut = [&] { return ::ftruncate(fd_.get(), static_cast<::off_t>(bytes)); };
    if (uninterrupted(cut) != 0) fail("cannot cut", path_);
  }
  void sync() override {
    if (uninterrupted([&] { return ::fdatasync(fd_.get()); }) != 0) fail("cannot sync", path_);
    struct stat status{};
    if (::fstat(fd_.get(), &status) != 0) fail("cannot read the status of", path_);
    if (status.st_nlink == 0) {  // what was written is lost when this process ends
      errno = ENOENT;
      fail("cannot sync, as it was removed:", path_);
    }
  }

 private:
  std::string path_;
  Descriptor fd_;
};

}  // namespace files_system

class SystemFiles final : public Files {
 public:
  std::unique_ptr<File> open(const std::string& path, Open how) override {
    return std::make_unique<files_system::SystemFile>(path, how);
  }

  Mapping map(const std::string& path) override {
    const auto fd = std::make_unique<files_system::Descriptor>(path, O_RDONLY);
    struct stat status{};
    if (::fstat(fd->get(), &status) != 0) files_system::fail("cannot read the length of", path);
    auto bytes = static_cast<std::size_t>(status.st_size);
    if (bytes == 0) return {};
    auto* mapped = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd->get(), 0);
    if (mapped == MAP_FAILED) files_system::fail("cannot map", path);
    std::shared_ptr<const void> owner(
        mapped, [bytes](const void* at) { ::munmap(const_cast<void*>(at), bytes); });
    return {std::move(owner), {static_cast<const std::byte*>(mapped), bytes}};
  }

  Mapping read(const std::string& path) override {
    std::ifstream file(path, std::ios::binary);
    if (!file) files_system::fail("cannot open", path);
    auto bytes = std::make_shared<std::vector<char>>(std::filesystem::file_size(path));
    file.read(bytes->data(), std::ssize(*bytes));
    if (file.bad()) files_system::fail("cannot read", path);  // else it was cut meanwhile
    const std::span all(*bytes);
    return {bytes, std::as_bytes(all.first(static_cast<std::size_t>(file.gcount())))};
  }

  FileStamp stamp(const std::string& path) override {
    struct stat status{};
    if (::stat(path.c_str(), &status) != 0) files_system::fail("cannot read the status of", path);
    constexpr std::int64_t kNanoseconds = 1'000'000'000;
    return {status.st_dev, status.st_ino, static_cast<std::uint64_t>(status.st_size),
            status.st_mtim.tv_sec * kNanoseconds + status.st_mtim.tv_nsec};
  }

  std::vector<std::string> list(const std::string& folder) override {
    std::vector<std::string> names;
    std::error_code error;
    std::filesystem::directory_iterator entry(folder, error), end;
    for (; !error && entry != end; entry.increment(error)) {
      names.push_back(entry->path().filename().string());
    }
    if (error) throw std::system_error(error, "cannot list " + folder);
    return names;
  }

  void make_folder(const std::string& path) override {
    if (::mkdir(path.c_str(), 0777) == 0) return;
    if (errno != EEXIST || !std::filesystem::is_directory(path)) {
      files_system::fail("cannot create folder", path);
    }
  }

  void rename(const std::string& from, const std::string& to) override {
    if (std::rename(from.c_str(), to.c_str()) != 0) files_system::fail("cannot rename", from);
  }

  void remove(const std::string& path) override {
    if (::unlink(path.c_str()) != 0) files_system::fail("cannot remove", path);
  }

  void sync_folder(const std::string& path) override {
    std::unique_ptr<files_system::Descriptor> fd;
    try {
      fd = std::make_unique<files_system::Descriptor>(path, O_RDONLY | O_DIRECTORY);
    } catch (const std::system_error& error) {
      if (error.code().value() != EACCES) throw;
      // One that may be written to and not read: all files are synced.
      ::sync();
      return;
    }
    const auto sync = [&] { return ::fsync(fd->get()); };
    if (files_system::uninterrupted(sync) == 0) return;
    // The answer of a file system that syncs no folders, as one that a virtual machine shares with
    // its host.
    if (errno != EINVAL) files_system::fail("cannot sync folder", path);
  }

  std::shared_ptr<const void> lock(const std::string& path) override {
    return std::make_shared<files_system::FileLock>(path);
  }
};

namespace files_system {
inline SystemFiles instance;
}

// The one of this process.
inline Files& system_files() { return files_system::instance; }

}  // namespace headrace::index
