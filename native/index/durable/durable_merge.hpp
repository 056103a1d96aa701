// A new snapshot from the one before it and the logs of changes since: read from files alone, so
// that the map that wrote them stays usable meanwhile.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "index/durable/change_log_reader.hpp"
#include "index/durable/snapshot.hpp"
#include "index/durable/snapshot_writer.hpp"

namespace headrace::index {

// The last change of every code in some logs, ascending by code. It takes up to 32 bytes of memory
// per change in the logs, half of them while it is made.
class MergedChanges {
 public:
  struct Change {
    std::uint64_t code;
    const std::byte* value;  // within a log's mapping; null: erased
  };

  // Adds the changes of a log, which follow those added before. Throws what replay() throws.
  ChangeLog::End add(ChangeLogReader reader, bool accept_unsynced_loss = false,
                     std::uint64_t last_group = kNoLastGroup,
                     std::uint64_t most_bytes = kWholeLog) {
    readers_.push_back(std::move(reader));
    return readers_.back().replay(
        [this](change_log::Operation, std::uint64_t code, const std::byte* value) {
          changes_.push_back({code, value});
        },
        accept_unsynced_loss, last_group, most_bytes);
  }

  const std::vector<Change>& sorted() {
    auto by_code = [](const Change& a, const Change& b) { return a.code < b.code; };
    std::stable_sort(changes_.begin(), changes_.end(), by_code);
    std::size_t kept = 0;
    for (std::size_t i = 0; i < changes_.size(); ++i) {
      if (i + 1 < changes_.size() && changes_[i + 1].code == changes_[i].code) continue;
      changes_[kept++] = changes_[i];
    }
    changes_.resize(kept);
    return changes_;
  }

 private:
  std::vector<ChangeLogReader> readers_;
  std::vector<Change> changes_;
};

namespace durable {

// Number of a file whose name begins with a prefix; none if it is another file.
inline std::optional<std::uint64_t> number_of(const std::string& name, const std::string& prefix) {
  if (!name.starts_with(prefix)) return std::nullopt;
  const auto digits = name.substr(prefix.size());
  const auto all_digits = digits.find_first_not_of("0123456789") == std::string::npos;
  if (digits.empty() || digits.size() > 18 || !all_digits) return std::nullopt;
  return std::stoull(digits);
}

// Whether a file was being written to a folder when that failed: others of such an end stay.
inline bool is_unfinished_own(const std::string& name) {
  if (!is_unfinished(name)) return false;
  const auto own = finished(name);
  return own == "closed" || number_of(own, "snapshot-") || number_of(own, "changes-");
}

inline std::uint64_t rows_of(const Snapshot* base) { return base ? base->size() : 0; }

// Calls keep(from, to) for rows of `base` that stay and put(change) for changes that are rows, in
// ascending order of codes.
template <class Keep, class Put>
void merge_rows(const Snapshot* base, const std::vector<MergedChanges::Change>& changes,
                Keep&& keep, Put&& put) {
  std::uint64_t row = 0;
  for (const auto& change : changes) {
    auto at = base ? base->lower_bound(change.code) : 0;
    if (at > row) keep(row, at);
    row = at;
    if (row < rows_of(base) && base->code(row) == change.code) ++row;
    if (change.value) put(change);
  }
  if (row < rows_of(base)) keep(row, rows_of(base));
}

}  // namespace durable

// Writes base (null: no rows) with `changes` as a snapshot to `path`. Throws DamageError if a block
// of `base` is damaged, std::system_error if the system refuses an operation.
inline void write_merged(Files& files, const std::string& path, const Snapshot* base,
                         const std::vector<MergedChanges::Change>& changes,
                         SnapshotWriter::Contents contents) {
  contents.count = 0;
  durable::merge_rows(
      base, changes, [&](std::uint64_t from, std::uint64_t to) { contents.count += to - from; },
      [&](const MergedChanges::Change&) { ++contents.count; });
  SnapshotWriter writer(files, path, contents);
  durable::merge_rows(
      base, changes,
      [&](std::uint64_t from, std::uint64_t to) {
        base->verify(from, to);
        writer.append(base->codes() + from, base->values() + from * contents.format.width,
                      to - from);
      },
      [&](const MergedChanges::Change& change) { writer.append(change.code, change.value); });
  writer.finish();
}

}  // namespace headrace::index
