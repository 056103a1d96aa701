// Reads a change log back: up to its last whole group.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>

#include "index/durable/change_log.hpp"

namespace headrace::index {

inline constexpr auto kNoLastGroup = std::numeric_limits<std::uint64_t>::max();
inline constexpr auto kWholeLog = std::numeric_limits<std::uint64_t>::max();

// Groups that were being written when a process or the power failed are ignored if they lie at the
// log's end. A group that is not whole and is followed by a whole one was damaged later, or it was
// never synced, and the system wrote the later one first: both are refused, unless asked otherwise.
class ChangeLogReader {
 public:
  // Throws DamageError if the header is not what was written, std::invalid_argument if the log
  // holds rows of another format, std::system_error if it cannot be read.
  ChangeLogReader(Files& files, std::string path, const RowFormat& needed)
      : ChangeLogReader(files.map(path), path, needed) {}
  // The same of bytes that were read from the file.
  ChangeLogReader(Mapping bytes, std::string path, const RowFormat& needed)
      : path_(std::move(path)), mapping_(std::move(bytes)), header_(checked_header()) {
    check_format(path_, {header_.width, header_.keys}, needed);
  }

  // Whether a log is too short to have a header.
  static bool is_cut(Files& files, const std::string& path) {
    return files.map(path).bytes.size() < sizeof(change_log::Header);
  }

  const std::string& path() const { return path_; }
  std::uint64_t generation() const { return header_.generation; }
  std::uint64_t first_sequence() const { return header_.sequence; }
  std::uint64_t previous_bytes() const { return header_.previous_bytes; }
  std::uint64_t file_bytes() const { return mapping_.bytes.size(); }
  // Where its first group begins.
  ChangeLog::End begin() const {
    return {sizeof(change_log::Header), header_.sequence, sizeof(change_log::Header)};
  }

  // Calls visit(Operation, code, value) for the changes of all groups up to the last whole one. The
  // values stay as long as the reader. `accept_unsynced_loss`: ends at the first group that is not
  // whole, even if whole ones follow, as long as none of these proves that it was synced.
  // `last_group`: ends before the group after this one, whatever follows. `most_bytes`: what lies
  // behind them is not read.
  // Throws DamageError, naming the offset of the group, otherwise.
  template <class Visit>
  ChangeLog::End replay(Visit&& visit, bool accept_unsynced_loss = false,
                        std::uint64_t last_group = kNoLastGroup,
                        std::uint64_t most_bytes = kWholeLog) const {
    return replay_from(begin(), visit, accept_unsynced_loss, last_group, most_bytes);
  }
  // The same of groups behind one, at whose end `end` is.
  template <class Visit>
  ChangeLog::End replay_from(ChangeLog::End end, Visit&& visit, bool accept_unsynced_loss = false,
                             std::uint64_t last_group = kNoLastGroup,
                             std::uint64_t most_bytes = kWholeLog) const {
    while (end.bytes < std::min(file_bytes(), most_bytes)) {
      auto group = whole_group(end.bytes, end.sequence);
      if (end.sequence >= last_group && (!group || group->sequence > last_group)) break;
      if (!group) {
        check_tail(end, accept_unsynced_loss);
        break;
      }
      visit_records(end.bytes, *group, visit);
      end.bytes += sizeof(change_log::GroupHeader) + group->bytes;
      end.sequence = group->sequence;
      end.synced_end = group->synced_end;
    }
    return end;
  }

 private:
  change_log::Header checked_header() const {
    if (file_bytes() < sizeof(change_log::Header)) {
      throw DamageError(path_ + ": is cut to " + std::to_string(file_bytes()) +
                        " bytes, within the header of a change log");
    }
    change_log::Header header;
    std::memcpy(&header, mapping_.bytes.data(), sizeof header);
    if (std::memcmp(header.magic, change_log::kMagic, sizeof header.magic) != 0) {
      throw DamageError(path_ + ": is not a change log: its first bytes are others");
    }
    auto found = change_log::header_checksum(header);
    if (header.checksum != found) {
      throw DamageError(path_ + ": the header is damaged: checksum " + hexadecimal(found) +
                        ", recorded is " + hexadecimal(header.checksum));
    }
    if (header.version != change_log::kVersion) {
      throw DamageError(path_ + ": has format version " + std::to_string(header.version) +
                        "; this program reads version " + std::to_string(change_log::kVersion));
    }
    return header;
  }

  // Header of the group at an offset, if its bytes are those that were written.
  std::optional<change_log::GroupHeader> group_at(std::uint64_t offset) const {
    auto rest = mapping_.bytes.subspan(offset);
    change_log::GroupHeader group;
    if (rest.size() < sizeof group) return std::nullopt;
    std::memcpy(&group, rest.data(), sizeof group);
    if (group.magic != change_log::kGroupMagic || group.bytes > rest.size() - sizeof group) {
      return std::nullopt;
    }
    auto bytes = rest.first(sizeof group + group.bytes);
    if (group.checksum != change_log::group_checksum(header_.generation, offset, bytes)) {
      return std::nullopt;
    }
    return group;
  }

  // The same, if it is the one that follows the group of this sequence number.
  std::optional<change_log::GroupHeader> whole_group(std::uint64_t offset,
                                                     std::uint64_t sequence) const {
    auto group = group_at(offset);
    if (group && group->sequence != sequence + (group->changes > 0 ? 1 : 0)) return std::nullopt;
    return group;
  }

  template <class Visit>
  void visit_records(std::uint64_t offset, const change_log::GroupHeader& group,
                     Visit& visit) const {
    auto records = mapping_.bytes.subspan(offset + sizeof group, group.bytes);
    std::uint64_t found = 0;
    auto counted = [&](change_log::Operation operation, std::uint64_t code,
                       const std::byte* value) {
      ++found;
      visit(operation, code, value);
    };
    if (!change_log::for_each_record(records, header_.width, counted) || found != group.changes) {
      throw DamageError(path_ + ": the group at offset " + std::to_string(offset) +
                        " does not have the changes that it announces");
    }
  }

  // Throws if a whole group lies behind the one at `end`, which is not.
  void check_tail(const ChangeLog::End& end, bool accept_unsynced_loss) const {
    auto later = next_whole_group(end);
    if (!later) return;
    auto text = path_ + ": the group at offset " + std::to_string(end.bytes) + ", after group " +
                std::to_string(end.sequence) + ", is damaged; whole groups follow it";
    while (later && accept_unsynced_loss) {
      if (later->second > end.bytes) break;
      later = next_whole_group({later->first, end.sequence, end.synced_end});
    }
    if (!later) return;
    if (later->second > end.bytes) throw DamageError(text + ", and it had been synced");
    throw DamageError(text +
                      ", and it had not been synced: after a loss of power, open with "
                      "accept_unsynced_loss to keep what lies before it");
  }

  // Offset and synced end of the first whole group behind an offset.
  std::optional<std::pair<std::uint64_t, std::uint64_t>> next_whole_group(
      const ChangeLog::End& after) const {
    auto bytes = mapping_.bytes;
    const auto magic = bytes_of(change_log::kGroupMagic);
    for (auto from = after.bytes + 1; from < bytes.size(); ++from) {
      auto rest = bytes.subspan(from);
      auto found = std::search(rest.begin(), rest.end(), magic.begin(), magic.end());
      if (found == rest.end()) break;
      from += static_cast<std::uint64_t>(found - rest.begin());
      auto group = group_at(from);
      if (group && group->sequence >= after.sequence) return {{from, group->synced_end}};
    }
    return std::nullopt;
  }

  std::string path_;
  Mapping mapping_;
  change_log::Header header_;
};

}  // namespace headrace::index
