// Layout of a change log: groups of changes in the order in which they were committed.
//
//   header | group | group | ...          group: header | record | record | ...
//
// A record is one byte (put or erase), the code, and for a put the value. A group's checksum covers
// the log's generation and the group's offset too, so that a group that lies elsewhere, within a
// value for example, does not pass for one. Numbers are little-endian.
#pragma once

#include <limits>
#include <vector>

#include "index/durable/snapshot_format.hpp"

namespace headrace::index {
namespace change_log {

inline constexpr char kMagic[8] = {'h', 'r', 'l', 'o', 'g', '\r', '\n', '\0'};
inline constexpr std::uint32_t kVersion = 1;
inline constexpr std::uint32_t kGroupMagic = 0xc5a7'91e3;
inline constexpr std::uint64_t kMostGroupBytes = 1ULL << 30;

struct Header {
  char magic[8] = {};
  std::uint32_t version = kVersion;
  KeyKind keys = KeyKind::unsigned_integer;
  std::uint32_t width = 0;
  std::uint32_t zero = 0;
  std::uint64_t generation = 0;      // follows the snapshot of this generation
  std::uint64_t sequence = 0;        // of the last group before this log
  std::uint64_t previous_bytes = 0;  // length of the log of the generation before; 0: none
  std::uint64_t reserved = 0;
  std::uint32_t zeros = 0;
  std::uint32_t checksum = 0;  // of the fields above
};
static_assert(sizeof(Header) == 64);

struct GroupHeader {
  std::uint32_t magic = kGroupMagic;
  std::uint32_t checksum = 0;    // of generation, offset, the fields below, and the records
  std::uint32_t bytes = 0;       // of the records
  std::uint32_t changes = 0;     // 0: only a mark of how far the log was synced
  std::uint64_t sequence = 0;    // one more than that of the group before; a mark: the same
  std::uint64_t synced_end = 0;  // the log was on the device up to here when this was written
};
static_assert(sizeof(GroupHeader) == 32);

enum class Operation : std::uint8_t { put = 1, erase = 2 };

inline constexpr std::size_t kRecordBytes = 1 + sizeof(std::uint64_t);  // without the value

inline std::uint32_t header_checksum(const Header& header) {
  return crc32c(bytes_of(header).first(offsetof(Header, checksum)));
}

// `group`: header and records.
inline std::uint32_t group_checksum(std::uint64_t generation, std::uint64_t offset,
                                    std::span<const std::byte> group) {
  const std::uint64_t where[2] = {generation, offset};
  return crc32c(group.subspan(offsetof(GroupHeader, bytes)), crc32c(bytes_of(where)));
}

// Calls visit(Operation, code, value), value being null for an erase, for every record. False if
// the bytes are not whole records.
template <class Visit>
bool for_each_record(std::span<const std::byte> records, std::uint32_t width, Visit&& visit) {
  while (!records.empty()) {
    if (records.size() < kRecordBytes) return false;
    auto operation = static_cast<Operation>(records[0]);
    std::uint64_t code;
    std::memcpy(&code, records.data() + 1, sizeof code);
    const auto* value = records.data() + kRecordBytes;
    if (operation == Operation::put) {
      if (records.size() < kRecordBytes + width) return false;
      visit(Operation::put, code, value);
      records = records.subspan(kRecordBytes + width);
    } else if (operation == Operation::erase) {
      visit(Operation::erase, code, static_cast<const std::byte*>(nullptr));
      records = records.subspan(kRecordBytes);
    } else {
      return false;
    }
  }
  return true;
}

}  // namespace change_log

// Changes that are to be committed as one group: all of them survive a failure, or none.
class Changes {
 public:
  // `width`: bytes of a value.
  explicit Changes(std::uint32_t width) : width_(width) { clear(); }

  void put(std::uint64_t code, const void* value) {
    auto* at = grow(change_log::Operation::put, code, width_);
    if (width_ > 0) std::memcpy(at, value, width_);
  }
  void erase(std::uint64_t code) { grow(change_log::Operation::erase, code, 0); }

  std::size_t size() const { return count_; }
  bool empty() const { return count_ == 0; }
  std::uint64_t log_bytes() const { return bytes_.size(); }
  void clear() {
    bytes_.resize(sizeof(change_log::GroupHeader));
    count_ = 0;
  }

  // Calls visit(Operation, code, value) in order.
  template <class Visit>
  void for_each(Visit&& visit) const {
    change_log::for_each_record(records(), width_, visit);
  }
  std::span<const std::byte> records() const {
    return std::span(bytes_).subspan(sizeof(change_log::GroupHeader));
  }

  // The group as it is written, its header filled in.
  std::span<const std::byte> group(std::uint64_t generation, std::uint64_t offset,
                                   std::uint64_t sequence, std::uint64_t synced_end) {
    change_log::GroupHeader header;
    header.bytes = static_cast<std::uint32_t>(records().size());
    header.changes = static_cast<std::uint32_t>(count_);
    header.sequence = sequence;
    header.synced_end = synced_end;
    std::memcpy(bytes_.data(), &header, sizeof header);
    header.checksum = change_log::group_checksum(generation, offset, bytes_);
    std::memcpy(bytes_.data(), &header, sizeof header);
    return bytes_;
  }

 private:
  std::byte* grow(change_log::Operation operation, std::uint64_t code, std::uint32_t width) {
    auto at = bytes_.size();
    bytes_.resize(at + change_log::kRecordBytes + width);
    bytes_[at] = static_cast<std::byte>(operation);
    std::memcpy(bytes_.data() + at + 1, &code, sizeof code);
    ++count_;
    return bytes_.data() + at + change_log::kRecordBytes;
  }

  std::uint32_t width_;
  std::size_t count_ = 0;
  std::vector<std::byte> bytes_;  // room for the group's header, then the records
};

}  // namespace headrace::index
