// The rows of a durable folder for reading alone, also while another process changes them.
#pragma once

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "index/durable/durable_merge.hpp"
#include "index/durable/files_system.hpp"
#include "index/maps/code_map.hpp"

namespace headrace::index {

namespace folder_view {

// Logs may be cut by the process that opens their folder after a failure: a copy of their bytes
// stays.
inline Mapping copied(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) files_system::fail("cannot open", path);
  auto bytes = std::make_shared<std::vector<char>>(std::filesystem::file_size(path));
  file.read(bytes->data(), std::ssize(*bytes));
  const std::span all(*bytes);
  return {bytes, std::as_bytes(all.first(static_cast<std::size_t>(file.gcount())))};
}

}  // namespace folder_view

// As of the opening, or of the last refresh(): all groups that were committed by then. No lock is
// taken and nothing is written. One thread at a time; a child of a fork has a copy that works.
template <class Value, class Map = CodeMap<Value>>
class FolderView {
  static constexpr auto kWidth = static_cast<std::uint32_t>(value_bytes<Value>);

 public:
  // Throws std::runtime_error if the folder has no rows' files, DamageError naming a file that is
  // missing, cut or altered, std::invalid_argument if it holds rows of another format.
  FolderView(std::string path, KeyKind keys)
      : path_(without_slash(std::move(path))), format_{kWidth, keys} {
    again([this] { load(); });
  }

  // Reads what was committed since, and returns whether rows may have changed. If a snapshot was
  // written since the last time, it reads all rows: they may be others than those of the logs
  // before it (DurableFolder::replace), and a checkpoint is due when the logs have as many bytes.
  bool refresh() {
    const auto snapshot = snapshot_;
    const auto sequence = sequence_;
    again([this] { update(); });
    return snapshot_ != snapshot || sequence_ != sequence;
  }

  const Map& tree() const { return tree_; }
  std::uint64_t sequence() const { return sequence_; }  // of the last group that was read
  const std::string& path() const { return path_; }

 private:
  static constexpr int kAttempts = 8;

  struct Survey {
    std::optional<std::uint64_t> snapshot;  // the newest
    std::map<std::uint64_t, std::string> logs;
  };

  // Files of which a listing tells may be replaced before they are read: the listing is made again.
  template <class Read>
  void again(const Read& read) {
    for (int attempt = 1;; ++attempt) {
      try {
        return read();
      } catch (const DamageError&) {
        if (attempt == kAttempts) throw;
      } catch (const std::system_error&) {
        if (attempt == kAttempts) throw;
      }
    }
  }

  Survey survey() const {
    Survey files;
    for (const auto& name : system_files().list(path_)) {
      if (const auto number = durable::number_of(name, "snapshot-")) {
        files.snapshot = std::max(files.snapshot.value_or(0), *number);
      }
      if (const auto number = durable::number_of(name, "changes-")) files.logs[*number] = name;
    }
    if (files.logs.empty() && !files.snapshot) {
      throw std::runtime_error(path_ + ": has no files of a durable map");
    }
    return files;
  }

  ChangeLogReader log(std::uint64_t number) const {
    const auto path = join_path(path_, "changes-" + std::to_string(number));
    return ChangeLogReader(folder_view::copied(path), path, format_);
  }

  void load() {
    const auto files = survey();
    std::shared_ptr<const Snapshot> base;
    if (files.snapshot) {
      base = std::make_shared<const Snapshot>(
          system_files(), join_path(path_, "snapshot-" + std::to_string(*files.snapshot)), format_);
    }
    const auto first = files.snapshot.value_or(0);
    auto sequence = base ? base->sequence() : 0;
    const auto newest = files.logs.empty() ? first : std::max(first, files.logs.rbegin()->first);
    MergedChanges changes;
    std::uint64_t bytes = 0;
    for (auto number = first; number <= newest; ++number) {
      auto reader = log(number);
      check_follows(reader, sequence);
      bytes = reader.file_bytes();
      sequence = changes.add(std::move(reader)).sequence;
    }
    build(base.get(), changes.sorted());
    snapshot_ = files.snapshot;
    number_ = newest;
    bytes_ = bytes;
    sequence_ = sequence;
  }

  void update() {
    const auto files = survey();
    if (files.snapshot != snapshot_ || !files.logs.contains(number_)) return load();
    const auto newest = files.logs.rbegin()->first;
    const auto path = join_path(path_, files.logs.at(number_));
    if (newest == number_ && std::filesystem::file_size(path) == bytes_) return;
    for (auto number = number_; number <= newest; ++number) {
      const auto reader = log(number);
      if (number > number_) check_follows(reader, sequence_);
      // Changes that were read before are made again, and end where they did.
      const auto end = reader.replay([this](change_log::Operation, std::uint64_t code,
                                            const std::byte* value) { apply(code, value); });
      sequence_ = end.sequence;
      number_ = number;
      bytes_ = reader.file_bytes();
    }
  }

  static void check_follows(const ChangeLogReader& reader, std::uint64_t sequence) {
    if (reader.first_sequence() == sequence) return;
    throw DamageError(reader.path() + ": follows group " + std::to_string(reader.first_sequence()) +
                      ", what lies before it ends at " + "group " + std::to_string(sequence));
  }

  void build(const Snapshot* base, const std::vector<MergedChanges::Change>& changes) {
    std::vector<std::uint64_t> codes;
    std::vector<Value> values;
    durable::merge_rows(
        base, changes,
        [&](std::uint64_t from, std::uint64_t to) {
          base->verify(from, to);
          codes.insert(codes.end(), base->codes() + from, base->codes() + to);
          const auto at = values.size();
          values.resize(at + (to - from));
          std::memcpy(values.data() + at, base->values() + from * kWidth, (to - from) * kWidth);
        },
        [&](const MergedChanges::Change& change) {
          codes.push_back(change.code);
          std::memcpy(&values.emplace_back(), change.value, kWidth);
        });
    Map tree;
    tree.build(codes.data(), values.data(), codes.size());
    tree_ = std::move(tree);
  }

  void apply(std::uint64_t code, const std::byte* bytes) {
    if (bytes == nullptr) {
      tree_.erase(code);
      return;
    }
    Value value;
    std::memcpy(&value, bytes, kWidth);
    tree_.insert_or_assign(code, value);
  }

  std::string path_;
  RowFormat format_;
  Map tree_;
  std::optional<std::uint64_t> snapshot_;  // the newest, of which rows were read
  std::uint64_t number_ = 0;               // of the newest log
  std::uint64_t bytes_ = 0;                // of it, when it was read
  std::uint64_t sequence_ = 0;
};

}  // namespace headrace::index
