// The rows of a durable folder for reading alone, also while another process changes them.
#pragma once

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "index/durable/closing_record.hpp"
#include "index/durable/durable_merge.hpp"
#include "index/durable/files_system.hpp"
#include "index/maps/code_map.hpp"

namespace headrace::index {

// As of the opening, or of the last refresh(): all groups that were committed by then, to the
// folder that has the path then: another one may have taken its place. No lock is taken and nothing
// is written. One thread at a time, but that read() may run beside readers of the tree; a child of
// a fork has a copy that works.
template <class Value, class Map = CodeMap<Value>>
class FolderView {
  static constexpr auto kWidth = static_cast<std::uint32_t>(value_bytes<Value>);

 public:
  // What was committed since, read from the files: a tree in place of the view's, or logs whose
  // changes follow those that it has.
  class News;

 private:
  struct SnapshotFile {
    std::uint64_t number;
    FileStamp stamp;
    bool operator==(const SnapshotFile&) const = default;
  };

  // Up to where rows were read.
  struct Place {
    std::optional<SnapshotFile> snapshot;  // the newest
    std::uint64_t number = 0;              // of the newest log
    FileStamp stamp;                       // of it, before it was read
    std::uint64_t bytes = 0;               // of its whole groups, with its header
    std::uint32_t checksum = 0;            // of these bytes
    std::uint64_t sequence = 0;            // of the last group
  };

 public:
  class News {
   public:
    // Whether rows may be others.
    explicit operator bool() const { return tree.has_value() || !logs.empty(); }

   private:
    friend FolderView;
    // A log, and where the groups in it begin that the view lacks.
    struct Log {
      ChangeLogReader reader;
      ChangeLog::End begin;
    };
    std::optional<Map> tree;
    std::vector<Log> logs;
    Place place;
  };

  // Throws std::runtime_error if the folder has no rows' files, DamageError naming a file that is
  // missing, cut or altered, std::invalid_argument if it holds rows of another format.
  FolderView(std::string path, KeyKind keys, Files& files = system_files())
      : files_(files), path_(without_slash(std::move(path))), format_{kWidth, keys} {
    auto news = again([this] { return load(); });
    apply(news);
  }

  // Reads what was committed since, and returns whether rows may have changed. If a snapshot was
  // written since the last time, it reads all rows: they may be others than those of the logs
  // before it (DurableFolder::replace), and a checkpoint is due when the logs have as many bytes.
  bool refresh() {
    auto news = read();
    apply(news);
    return static_cast<bool>(news);
  }

  // refresh() in two parts: this one leaves the view as it is, throws what the constructor throws,
  News read() const {
    return again([this] { return update(); });
  }
  // and this one opens no file. The news keeps the tree that it replaces, if it has one.
  void apply(News& news) {
    if (news.tree) std::swap(tree_, *news.tree);
    for (const auto& log : news.logs) {
      log.reader.replay_from(log.begin, [this](change_log::Operation, std::uint64_t code,
                                               const std::byte* value) { change(code, value); });
    }
    place_ = news.place;
  }

  const Map& tree() const { return tree_; }
  std::uint64_t sequence() const { return place_.sequence; }  // of the last group that was read
  const std::string& path() const { return path_; }

 private:
  static constexpr int kAttempts = 8;

  struct Survey {
    std::optional<ClosingRecord> closed;
    std::optional<SnapshotFile> snapshot;  // the newest
    std::map<std::uint64_t, std::string> logs;
  };

  // Files of which a listing tells may be replaced before they are read: the listing is made again.
  template <class Read>
  static News again(const Read& read) {
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
    // Before the listing: what it records was in the files by then.
    const auto before = files_.list(path_);
    if (std::find(before.begin(), before.end(), "closed") != before.end()) {
      files.closed = closing_record::read(files_, join_path(path_, "closed"));
    }
    std::optional<std::uint64_t> snapshot;
    for (const auto& name : files_.list(path_)) {
      if (const auto number = durable::number_of(name, "snapshot-")) {
        snapshot = std::max(snapshot.value_or(0), *number);
      }
      if (const auto number = durable::number_of(name, "changes-")) files.logs[*number] = name;
    }
    if (files.logs.empty() && !snapshot) {
      throw std::runtime_error(path_ + ": has no files of a durable map");
    }
    if (snapshot) files.snapshot = {*snapshot, files_.stamp(snapshot_path(*snapshot))};
    return files;
  }

  // Throws unless what was read is one moment of the folder, with all that it had when it was
  // closed. A log may follow rows that a snapshot newer than the listing replaced: groups are
  // committed to it once that snapshot is visible, so a listing after the log was read shows it.
  void check(const Survey& files, std::uint64_t sequence) const {
    if (survey().snapshot != files.snapshot) {
      throw DamageError(path_ + ": its snapshot was replaced as often as it was read");
    }
    if (files.closed && sequence < files.closed->sequence) {
      throw DamageError(path_ + ": ends after group " + std::to_string(sequence) +
                        "; it was closed with " + std::to_string(files.closed->sequence) +
                        " groups: restore what was cut or removed, or open it for writing and "
                        "accept the loss");
    }
  }

  std::string snapshot_path(std::uint64_t number) const {
    return join_path(path_, "snapshot-" + std::to_string(number));
  }

  // The log of a number, which the place has as its newest from then on. Logs may be cut by the
  // process that opens their folder after a failure: a copy of their bytes stays.
  Mapping log(std::uint64_t number, Place& place) const {
    const auto path = log_path(number);
    place.number = number;
    place.stamp = files_.stamp(path);
    return files_.read(path);
  }
  std::string log_path(std::uint64_t number) const {
    return join_path(path_, "changes-" + std::to_string(number));
  }

  // Notes that a log's bytes were read up to the end of its last whole group.
  static void note(const Mapping& log, const ChangeLog::End& end, Place& place) {
    place.bytes = end.bytes;
    place.checksum = crc32c(log.bytes.first(end.bytes));
    place.sequence = end.sequence;
  }

  // Whether a log begins with what was read of it: else it is one of another folder, or its groups
  // were cut.
  bool continues(const Mapping& log) const {
    return log.bytes.size() >= place_.bytes &&
           crc32c(log.bytes.first(place_.bytes)) == place_.checksum;
  }

  News load() const {
    const auto files = survey();
    std::shared_ptr<const Snapshot> base;
    if (files.snapshot) {
      base =
          std::make_shared<const Snapshot>(files_, snapshot_path(files.snapshot->number), format_);
    }
    const auto first = files.snapshot ? files.snapshot->number : 0;
    const auto last = files.logs.empty() ? first : std::max(first, files.logs.rbegin()->first);
    News news;
    news.place.snapshot = files.snapshot;
    news.place.sequence = base ? base->sequence() : 0;
    MergedChanges changes;
    for (auto number = first; number <= last; ++number) {
      const auto bytes = log(number, news.place);
      ChangeLogReader reader(bytes, log_path(number), format_);
      check_follows(reader, news.place.sequence);
      note(bytes, changes.add(std::move(reader)), news.place);
    }
    check(files, news.place.sequence);
    news.tree = built(base.get(), changes.sorted());
    return news;
  }

  News update() const {
    const auto files = survey();
    if (files.snapshot != place_.snapshot || !files.logs.contains(place_.number)) return load();
    News news;
    news.place = place_;
    const auto last = files.logs.rbegin()->first;
    if (last == place_.number && files_.stamp(log_path(last)) == place_.stamp) return news;
    for (auto number = place_.number; number <= last; ++number) {
      const auto bytes = log(number, news.place);
      const bool continued = number == place_.number;
      if (continued && !continues(bytes)) return load();
      ChangeLogReader reader(bytes, log_path(number), format_);
      if (!continued) check_follows(reader, news.place.sequence);
      const ChangeLog::End read_before{place_.bytes, place_.sequence, 0};
      const auto begin = continued ? read_before : reader.begin();
      note(bytes, reader.replay_from(begin, [](auto&&...) {}), news.place);  // for damage
      news.logs.push_back({std::move(reader), begin});
    }
    check(files, news.place.sequence);
    if (news.place.sequence == place_.sequence) {
      news.logs.clear();  // there is a part of a group at most
    }
    return news;
  }

  static void check_follows(const ChangeLogReader& reader, std::uint64_t sequence) {
    if (reader.first_sequence() == sequence) return;
    throw DamageError(reader.path() + ": follows group " + std::to_string(reader.first_sequence()) +
                      ", what lies before it ends at " + "group " + std::to_string(sequence));
  }

  static Map built(const Snapshot* base, const std::vector<MergedChanges::Change>& changes) {
    std::vector<std::uint64_t> codes;
    std::vector<Element<Value>> values;
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
    tree.build(codes.data(), value_array<Value>(values), codes.size());
    return tree;
  }

  void change(std::uint64_t code, const std::byte* bytes) {
    if (bytes == nullptr) {
      tree_.erase(code);
      return;
    }
    Value value;
    std::memcpy(&value, bytes, kWidth);
    tree_.insert_or_assign(code, value);
  }

  Files& files_;
  std::string path_;
  RowFormat format_;
  Map tree_;
  Place place_;
};

}  // namespace headrace::index
