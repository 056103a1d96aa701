#include "embedding/store_log.hpp"

#include <stdexcept>
#include <utility>

namespace headrace::embedding {

StoreLog::StoreLog(RowStore& store, const std::vector<LoggedTable>& tables, RowLog::Options options)
    : store_(store), options_(options) {
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
  const std::lock_guard lock(pending_mutex_);
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
    if (changes != nullptr) changes->put(own, own_values.data());
  });
}

std::vector<RowChanges>& StoreLog::pending(std::uint64_t commit) {
  if (commit < next_) {
    throw std::invalid_argument("rows are of commit " + std::to_string(commit) +
                                ", which is made already; the next one is " +
                                std::to_string(next_));
  }
  auto [entry, is_new] = pending_.try_emplace(commit);
  if (is_new) entry->second.assign(logs_.size(), RowChanges(store_.row_bytes()));
  return entry->second;
}

void StoreLog::put(std::uint64_t commit, const RowIds& rows, std::span<const std::byte> values) {
  if (rows.ends.size() != logs_.size() || values.size() != rows.ids.size() * store_.row_bytes()) {
    throw std::invalid_argument("rows to log need values of " + std::to_string(store_.row_bytes()) +
                                " bytes each, of " + std::to_string(logs_.size()) + " tables");
  }
  const std::lock_guard lock(pending_mutex_);
  auto& changes = pending(commit);
  std::size_t start = 0;
  for (std::size_t t = 0; t < changes.size(); ++t) {
    const auto stop = static_cast<std::size_t>(rows.ends[t]);
    changes[t].put(rows.ids.subspan(start, stop - start),
                   values.data() + start * store_.row_bytes());
    start = stop;
  }
}

std::vector<std::uint64_t> StoreLog::commit(std::uint64_t commit) {
  const std::lock_guard lock(logs_mutex_);
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
