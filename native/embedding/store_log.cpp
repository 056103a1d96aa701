#include "embedding/store_log.hpp"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace headrace::embedding {

StoreLog::StoreLog(RowStore& store, const std::vector<LoggedTable>& tables, RowLog::Options options,
                   std::uint64_t first_commit, std::uint64_t most_pending_bytes)
    : store_(store),
      options_(options),
      most_pending_bytes_(most_pending_bytes),
      next_(first_commit),
      marked_(first_commit) {
  if (tables.size() != store.options().tables.size()) {
    throw std::invalid_argument("logs are of " + std::to_string(tables.size()) +
                                " tables, need one for each of " +
                                std::to_string(store.options().tables.size()));
  }
  for (std::size_t t = 0; t < tables.size(); ++t) {
    auto& log = logs_.emplace_back(
        std::make_unique<RowLog>(tables[t].folder, store.row_bytes(), options_of(tables[t])));
    load(*log, t, nullptr);
  }
}

void StoreLog::adopt(const std::vector<LoggedTable>& tables, std::uint64_t commit) {
  const std::lock_guard lock(logs_mutex_);
  const std::lock_guard pending_lock(pending_mutex_);
  auto& changes = pending(commit);
  for (std::size_t t = 0; t < tables.size(); ++t) {
    RowLog log(tables[t].folder, store_.row_bytes(), options_of(tables[t]));
    load(log, t, &changes.at(t));
  }
}

RowLog::Options StoreLog::options_of(const LoggedTable& table) const {
  auto options = options_;
  options.groups = table.groups;
  return options;
}

void StoreLog::load(RowLog& log, std::size_t table, RowChanges* changes) {
  const auto& options = store_.options();
  const ShardRule rule(options.shards);
  std::vector<std::int64_t> own;
  std::vector<std::byte> own_values;
  std::vector<std::int64_t> ends(options.tables.size());
  log.load([&](std::span<const std::int64_t> ids, const std::byte* values) {
    own.clear();
    own_values.clear();
    for (auto id : ids) {
      if (rule.shard(id) == options.shard) {
        own.push_back(id);
        own_values.insert(own_values.end(), values, values + store_.row_bytes());
      }
      values += store_.row_bytes();
    }
    for (std::size_t t = 0; t < ends.size(); ++t) {
      ends[t] = t < table ? 0 : static_cast<std::int64_t>(own.size());
    }
    store_.write({own, ends}, own_values);
    if (changes == nullptr) return;
    changes->put(own, own_values.data());
    if (changes->bytes() >= most_pending_bytes_) logs_[table]->append(*changes);
  });
}

std::vector<RowChanges>& StoreLog::pending(std::uint64_t commit) {
  if (commit < next_) {
    throw std::invalid_argument("rows are of commit " + std::to_string(commit) +
                                ", which is made already; the next one is " +
                                std::to_string(next_));
  }
  auto [entry, is_new] = pending_.try_emplace(commit);
  if (is_new) entry->second = no_changes();
  return entry->second;
}

std::vector<RowChanges> StoreLog::no_changes() const {
  return std::vector<RowChanges>(logs_.size(), RowChanges(store_.row_bytes()));
}

// Whether the rows of a commit are to be appended to the logs before it is made.
bool StoreLog::is_full(std::uint64_t commit, const std::vector<RowChanges>& changes) const {
  if (commit != next_ || next_ != marked_) return false;
  std::uint64_t bytes = 0;
  for (const auto& of_table : changes) bytes += of_table.bytes();
  return bytes >= most_pending_bytes_;
}

void StoreLog::append(std::uint64_t commit) {
  const std::lock_guard lock(logs_mutex_);
  std::vector<RowChanges> changes;
  {
    const std::lock_guard pending_lock(pending_mutex_);
    const auto entry = pending_.find(commit);
    // The commit was made, or another thread has appended them, meanwhile.
    if (entry == pending_.end() || !is_full(commit, entry->second)) return;
    changes = std::exchange(entry->second, no_changes());
  }
  append_failed_ = true;
  for (std::size_t t = 0; t < logs_.size(); ++t) logs_[t]->append(changes[t]);
  append_failed_ = false;
}

void StoreLog::put(std::uint64_t commit, const RowIds& rows, std::span<const std::byte> values) {
  if (rows.ends.size() != logs_.size() || values.size() != rows.ids.size() * store_.row_bytes()) {
    throw std::invalid_argument("rows to log need values of " + std::to_string(store_.row_bytes()) +
                                " bytes each, of " + std::to_string(logs_.size()) + " tables");
  }
  {
    const std::lock_guard lock(pending_mutex_);
    auto& changes = pending(commit);
    std::size_t start = 0;
    for (std::size_t t = 0; t < changes.size(); ++t) {
      const auto stop = static_cast<std::size_t>(rows.ends[t]);
      changes[t].put(rows.ids.subspan(start, stop - start),
                     values.data() + start * store_.row_bytes());
      start = stop;
    }
    if (!is_full(commit, changes)) return;
  }
  append(commit);
}

std::vector<std::uint64_t> StoreLog::commit(std::uint64_t commit) {
  const std::lock_guard lock(logs_mutex_);
  if (append_failed_) {
    throw std::runtime_error("commit " + std::to_string(commit) +
                             " lacks rows that the logs did not take: open them again");
  }
  std::vector<RowChanges> changes;
  {
    const std::lock_guard pending_lock(pending_mutex_);
    if (!pending_.empty() && pending_.begin()->first < commit) {
      throw std::invalid_argument("commit " + std::to_string(commit) + " is made before commit " +
                                  std::to_string(pending_.begin()->first));
    }
    changes = std::move(pending(commit));
    pending_.erase(commit);
    next_ = commit + 1;
  }
  std::vector<std::uint64_t> groups;
  for (std::size_t t = 0; t < logs_.size(); ++t) groups.push_back(logs_[t]->commit(changes[t]));
  return groups;
}

void StoreLog::checkpoint_if_due(std::uint64_t commit) {
  const std::lock_guard lock(logs_mutex_);
  {
    const std::lock_guard pending_lock(pending_mutex_);
    marked_ = std::max(marked_, commit + 1);
    if (next_ != commit + 1) return;
  }
  for (auto& log : logs_) log->checkpoint_if_due();
}

void StoreLog::wait_for_checkpoints() {
  const std::lock_guard lock(logs_mutex_);
  for (auto& log : logs_) log->wait_for_checkpoint();
}

void StoreLog::close() {
  const std::lock_guard lock(logs_mutex_);
  for (auto& log : logs_) log->close();
}

}  // namespace headrace::embedding
