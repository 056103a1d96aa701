// Rows of one table that survive the server: a folder with a snapshot, and a log of the groups that
// were committed since (index/durable/durable_folder.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "index/durable/durable_folder.hpp"

namespace headrace::embedding {

// Rows as they were written since a commit, in that order: what the next one adds to the log.
class RowChanges {
 public:
  explicit RowChanges(std::size_t row_bytes) : row_bytes_(row_bytes) {}

  // `values`: one row after the other.
  void put(std::span<const std::int64_t> ids, const std::byte* values);
  std::size_t rows() const;
  // Of the log that they would add.
  std::uint64_t bytes() const;
  std::size_t row_bytes() const { return row_bytes_; }

 private:
  friend class RowLog;
  // Rows are gathered in groups of about this size: larger buffers come from the system anew, page
  // by page, and are copied to others as they grow, which took as long as writing them.
  static constexpr std::uint64_t kMostGroupBytes = std::uint64_t{1} << 20;

  std::size_t row_bytes_;
  std::vector<index::Changes> groups_;
};

// Used by one thread at a time.
class RowLog {
 public:
  struct Options {
    // The folder is opened with as many groups: those after them were not committed by all servers.
    // Its files may be links to those of a server that still writes. kNoLastGroup: with all.
    std::uint64_t groups = index::kNoLastGroup;
    index::Files* files = &index::system_files();
    // See DurableOptions.
    std::uint64_t checkpoint_log_bytes = index::DurableOptions().checkpoint_log_bytes;
  };

  // Creates the folder (its parent exists) or opens it. Throws what DurableFolder's constructor
  // throws.
  RowLog(std::string folder, std::size_t row_bytes, const Options& options);

  // Calls visit(ids, values) with all rows, rising by id, some at a time. Once, before any commit.
  // Throws DamageError naming the file if one is not what was written.
  template <class Visit>
  void load(Visit&& visit) {
    const auto base = folder_.snapshot();
    auto changes = folder_.load();
    Block block(row_bytes_);
    index::durable::merge_rows(
        base.get(), changes.sorted(),
        [&](std::uint64_t from, std::uint64_t to) {
          base->verify(from, to);
          for (auto row = from; row < to; ++row) {
            block.add(base->codes()[row], base->values() + row * row_bytes_, visit);
          }
        },
        [&](const index::MergedChanges::Change& change) {
          block.add(change.code, change.value, visit);
        });
    block.end(visit);
  }

  // Appends the changes, which are empty then: they are on the device with the next commit. Of a
  // failure some of them may be left: the folder is opened again with the groups before.
  void append(RowChanges& changes);
  // Appends them, and returns the number of groups when all are on the device.
  std::uint64_t commit(RowChanges& changes);
  // The groups are committed by all servers: a snapshot may merge them. It is written by a thread.
  void checkpoint_if_due() { folder_.checkpoint_if_due(); }
  // Returns once no snapshot is being written; throws the failure of one.
  void wait_for_checkpoint() { folder_.wait(); }
  std::uint64_t groups() const { return folder_.sequence(); }
  void close() { folder_.close(); }

 private:
  class Block {
   public:
    explicit Block(std::size_t row_bytes) : row_bytes_(row_bytes) {
      ids_.reserve(kRows);
      values_.reserve(kRows * row_bytes);
    }
    template <class Visit>
    void add(std::uint64_t code, const std::byte* value, Visit&& visit) {
      ids_.push_back(static_cast<std::int64_t>(code));
      values_.insert(values_.end(), value, value + row_bytes_);
      if (ids_.size() == kRows) end(visit);
    }
    template <class Visit>
    void end(Visit&& visit) {
      if (!ids_.empty()) visit(std::span<const std::int64_t>(ids_), values_.data());
      ids_.clear();
      values_.clear();
    }

   private:
    static constexpr std::size_t kRows = 1024;

    std::size_t row_bytes_;
    std::vector<std::int64_t> ids_;
    std::vector<std::byte> values_;
  };

  std::size_t row_bytes_;
  index::DurableFolder folder_;
};

}  // namespace headrace::embedding
