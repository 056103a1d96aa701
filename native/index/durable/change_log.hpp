// The end of a change log that is being written.
#pragma once

#include <algorithm>
#include <memory>
#include <system_error>
#include <utility>

#include "index/durable/change_log_format.hpp"

namespace headrace::index {

// One writer. All members throw std::system_error if the system refuses an operation.
class ChangeLog {
 public:
  struct Start {
    RowFormat format;
    std::uint64_t generation = 0;
    std::uint64_t sequence = 0;
    std::uint64_t previous_bytes = 0;
  };
  // Where the last whole group of an existing log ends.
  struct End {
    std::uint64_t bytes = 0;
    std::uint64_t sequence = 0;
    std::uint64_t synced_end = 0;  // known to be on the device up to here
  };

  // Writes the header of a new log to a file that is not yet visible; show() makes it so.
  ChangeLog(Files& files, std::string path, const Start& start)
      : files_(files),
        path_(std::move(path)),
        generation_(start.generation),
        file_(files.open(unfinished(path_), Open::emptied)),
        sequence_(start.sequence) {
    change_log::Header header;
    std::memcpy(header.magic, change_log::kMagic, sizeof header.magic);
    header.keys = start.format.keys;
    header.width = start.format.width;
    header.generation = start.generation;
    header.sequence = start.sequence;
    header.previous_bytes = start.previous_bytes;
    header.checksum = change_log::header_checksum(header);
    write_all(*file_, 0, bytes_of(header));
    file_->sync();
    end_ = synced_end_ = sizeof header;
  }

  // Continues an existing log of `file_bytes`: those behind the last whole group are cut.
  ChangeLog(Files& files, std::string path, std::uint64_t generation, const End& end,
            std::uint64_t file_bytes)
      : files_(files),
        path_(std::move(path)),
        generation_(generation),
        file_(files.open(path_, Open::existing)),
        end_(end.bytes),
        sequence_(end.sequence),
        synced_end_(end.synced_end) {
    if (end_ == file_bytes) return;
    file_->truncate(end_);
    file_->sync();
    synced_end_ = end_;
  }

  // Gives the file its name and syncs the folder. After a failure the name may or may not be there.
  void show() {
    files_.rename(unfinished(path_), path_);
    files_.sync_folder(folder_of(path_));
  }

  // Appends the changes as one group; with `sync`, returns once it and all before it are on the
  // device. After a failure the group is not there, and may be appended again, unless broken().
  // Throws std::invalid_argument for a group of more than 2^30 bytes.
  void append(Changes& changes, bool sync) {
    check_usable();
    if (changes.log_bytes() > change_log::kMostGroupBytes) {
      throw std::invalid_argument("changes: a group has " + std::to_string(changes.log_bytes()) +
                                  " bytes, at most 2^30 are possible: commit several groups");
    }
    auto sequence = sequence_ + (changes.empty() ? 0 : 1);
    auto group = changes.group(generation_, end_, sequence, synced_end_);
    write_or_cut(group);
    if (sync) sync_file(end_ + group.size());
    end_ += group.size();
    sequence_ = sequence;
  }

  // Returns once all groups are on the device.
  void sync() {
    check_usable();
    if (synced_end_ < end_) sync_file(end_);
  }

  // Syncs the log and ends it by a mark of that, so that damage of any group is recognised later.
  // Nothing is done if the log is broken.
  void close() {
    if (broken_ || end_ == marked_end_) return;
    sync();
    Changes mark(0);
    append(mark, true);
    marked_end_ = end_;
  }

  // The file's end is unknown after a failure: groups can be appended only once it was read again.
  bool broken() const { return broken_; }
  std::uint64_t bytes() const { return end_; }
  std::uint64_t sequence() const { return sequence_; }
  std::uint64_t generation() const { return generation_; }
  const std::string& path() const { return path_; }

 private:
  void check_usable() const {
    if (!broken_) return;
    throw std::runtime_error(path_ + ": takes no more changes since an operation on it failed; " +
                             "open the folder again");
  }

  void write_or_cut(std::span<const std::byte> group) {
    try {
      write_all(*file_, end_, group);
    } catch (...) {
      broken_ = true;
      try {
        file_->truncate(end_);
        broken_ = false;
      } catch (const std::system_error&) {
        // Stays broken; the first failure is the one to report.
      }
      throw;
    }
  }

  void sync_file(std::uint64_t end) {
    // After a failure the system may drop what it could not write, and report success later.
    broken_ = true;
    file_->sync();
    broken_ = false;
    synced_end_ = end;
  }

  Files& files_;
  std::string path_;
  std::uint64_t generation_;
  std::unique_ptr<File> file_;
  std::uint64_t end_ = 0;
  std::uint64_t sequence_ = 0;
  std::uint64_t synced_end_ = 0;
  std::uint64_t marked_end_ = 0;
  bool broken_ = false;
};

}  // namespace headrace::index
