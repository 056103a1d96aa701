// What a folder had when it was closed: a file of its own, `closed`, by which an opening tells a
// log that was cut or removed since from one that a failure ended.
//
// The record is a lower bound for good: later changes only add groups, so it stays valid while the
// folder is open, after a failure, and for programs that do not know it. Numbers are little-endian.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>

#include "index/durable/snapshot_format.hpp"

namespace headrace::index {

struct ClosingRecord {
  static constexpr char kMagic[8] = {'h', 'r', 'c', 'l', 's', '\r', '\n', '\0'};
  static constexpr std::uint32_t kVersion = 1;

  char magic[8] = {'h', 'r', 'c', 'l', 's', '\r', '\n', '\0'};
  std::uint32_t version = kVersion;
  std::uint32_t zero = 0;
  std::uint64_t generation = 0;  // of the newest log
  std::uint64_t sequence = 0;    // of its last group
  std::uint64_t log_bytes = 0;   // its length
  std::uint32_t zeros = 0;
  std::uint32_t checksum = 0;  // of the fields above

  bool operator==(const ClosingRecord&) const = default;
};
static_assert(sizeof(ClosingRecord) == 48);

namespace closing_record {

inline std::uint32_t checksum_of(const ClosingRecord& record) {
  return crc32c(bytes_of(record).first(offsetof(ClosingRecord, checksum)));
}

// Throws DamageError naming the file if its bytes are not those of a record.
inline ClosingRecord read(Files& files, const std::string& path) {
  const auto mapping = files.map(path);
  const std::string remedy = "; if snapshot and logs are whole, remove this file";
  ClosingRecord record;
  if (mapping.bytes.size() != sizeof record) {
    throw DamageError(path + ": has " + std::to_string(mapping.bytes.size()) +
                      " bytes, a closing record has " + std::to_string(sizeof record) + remedy);
  }
  std::memcpy(&record, mapping.bytes.data(), sizeof record);
  if (std::memcmp(record.magic, ClosingRecord::kMagic, sizeof record.magic) != 0 ||
      record.checksum != checksum_of(record)) {
    throw DamageError(path + ": is not a closing record: its bytes are others" + remedy);
  }
  if (record.version != ClosingRecord::kVersion) {
    throw DamageError(path + ": has format version " + std::to_string(record.version) +
                      "; this program reads version " + std::to_string(ClosingRecord::kVersion));
  }
  return record;
}

// Replaces the file as a whole: a failure leaves the record of before.
inline void write(Files& files, const std::string& path, ClosingRecord record) {
  record.checksum = checksum_of(record);
  auto file = files.open(unfinished(path), Open::emptied);
  write_all(*file, 0, bytes_of(record));
  file->sync();
  files.rename(unfinished(path), path);
  files.sync_folder(folder_of(path));
}

}  // namespace closing_record
}  // namespace headrace::index
