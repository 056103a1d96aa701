// The durable logs of a store's tables, and what is written between two commits.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "embedding/row_log.hpp"
#include "embedding/row_store.hpp"

namespace headrace::embedding {

// A table's folder, and the groups that it is opened with: see RowLog.
struct LoggedTable {
  std::string folder;
  std::uint64_t groups = index::kNoLastGroup;
};

// Writes are collected by the commit that they belong to, as those of the next one can arrive
// before a commit is complete. Where they take much memory, they are appended to the logs before
// their commit is made, but not before the last one is marked: no snapshot may merge them. Several
// threads may call at once.
class StoreLog {
 public:
  static constexpr std::uint64_t kMostPendingBytes = std::uint64_t{64} << 20;

  // Opens the folders of all tables and writes their rows to the store, which outlives this. Throws
  // what RowLog's constructor throws, and what RowStore::write does.
  StoreLog(RowStore& store, const std::vector<LoggedTable>& tables, RowLog::Options options = {},
           std::uint64_t first_commit = 0, std::uint64_t most_pending_bytes = kMostPendingBytes);

  // Adds those rows of other servers' folders to the store, and to a commit, that are this
  // server's. One of `tables` is the folder of one of the store's tables.
  void adopt(const std::vector<LoggedTable>& tables, std::uint64_t commit);

  // Rows that the store has, as they were written to it. Throws std::invalid_argument where their
  // number is wrong, or the commit is made already, and std::system_error where the logs take no
  // more: the commit fails then, too.
  void put(std::uint64_t commit, const RowIds& rows, std::span<const std::byte> values);
  // Returns the groups of every table's log, with the rows of the commit on the device. Commits are
  // made in their order. After a failure the folders are opened again.
  std::vector<std::uint64_t> commit(std::uint64_t commit);
  // All servers have made this commit. Snapshots may merge it, unless a later one is in the logs:
  // that one may have to be undone.
  void checkpoint_if_due(std::uint64_t commit);
  void wait_for_checkpoints();
  void close();

 private:
  RowLog::Options options_of(const LoggedTable& table) const;
  void load(RowLog& log, std::size_t table, RowChanges* changes);
  std::vector<RowChanges>& pending(std::uint64_t commit);
  std::vector<RowChanges> no_changes() const;
  bool is_full(std::uint64_t commit, const std::vector<RowChanges>& changes) const;
  void append(std::uint64_t commit);

  RowStore& store_;
  RowLog::Options options_;
  std::uint64_t most_pending_bytes_;
  std::mutex logs_mutex_;
  std::vector<std::unique_ptr<RowLog>> logs_;
  bool append_failed_ = false;
  std::mutex pending_mutex_;
  std::map<std::uint64_t, std::vector<RowChanges>> pending_;  // [tables], by commit
  // Commits below these are made, and marked.
  std::uint64_t next_;
  std::uint64_t marked_;
};

}  // namespace headrace::embedding
