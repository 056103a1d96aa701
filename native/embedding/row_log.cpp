#include "embedding/row_log.hpp"

#include <stdexcept>
#include <utility>

namespace headrace::embedding {

void RowChanges::put(std::span<const std::int64_t> ids, const std::byte* values) {
  for (auto id : ids) {
    if (groups_.empty() || groups_.back().log_bytes() >= kMostGroupBytes) {
      groups_.emplace_back(static_cast<std::uint32_t>(row_bytes_));
    }
    groups_.back().put(static_cast<std::uint64_t>(id), values);
    values += row_bytes_;
  }
}

std::size_t RowChanges::rows() const {
  std::size_t rows = 0;
  for (const auto& group : groups_) rows += group.size();
  return rows;
}

std::uint64_t RowChanges::bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& group : groups_) bytes += group.log_bytes();
  return bytes;
}

RowLog::RowLog(std::string folder, std::size_t row_bytes, const Options& options)
    : row_bytes_(row_bytes),
      folder_(std::move(folder), static_cast<std::uint32_t>(row_bytes),
              {.checkpoint_log_bytes = options.checkpoint_log_bytes,
               .last_group = options.groups,
               .new_log = options.groups != index::kNoLastGroup,
               .automatic_checkpoints = false,
               .files = options.files}) {}

void RowLog::append(RowChanges& changes) {
  if (changes.row_bytes() != row_bytes_) {
    throw std::invalid_argument("changes have rows of " + std::to_string(changes.row_bytes()) +
                                " bytes, the log's have " + std::to_string(row_bytes_));
  }
  for (auto& group : changes.groups_) folder_.commit(group, index::Sync::no);
  changes.groups_.clear();
}

std::uint64_t RowLog::commit(RowChanges& changes) {
  append(changes);
  folder_.sync();
  return folder_.sequence();
}

}  // namespace headrace::embedding
