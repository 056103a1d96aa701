// A snapshot for reading, mapped into memory. Opening it reads the header and the index only; a
// block's checksum is compared when the block is first read, so lookups begin at once and never
// return altered bytes.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <limits>
#include <memory>
#include <utility>

#include "index/durable/snapshot_format.hpp"

namespace headrace::index {

// All members may be called from several threads at once. Those that read rows throw DamageError,
// naming file and block, if a block they need is not what was written.
class Snapshot {
 public:
  // Throws DamageError if header, length or index are not what was written, std::invalid_argument
  // if the file holds rows of another format, std::system_error if it cannot be read.
  Snapshot(Files& files, std::string path, const RowFormat& needed)
      : path_(std::move(path)), mapping_(files.map(path_)), header_(checked_header()) {
    check_format(path_, {header_.width, header_.keys}, needed);
    layout_ = checked_layout();
    const auto* index = mapping_.bytes.data() + layout_.index_at;
    first_codes_.resize(layout_.code_blocks);
    copy(first_codes_, index);
    checksums_.resize(layout_.code_blocks + layout_.value_blocks);
    copy(checksums_, index + layout_.code_blocks * sizeof(std::uint64_t));
    verified_ = std::make_unique<std::atomic<bool>[]>(checksums_.size());
  }

  const std::string& path() const { return path_; }
  std::uint64_t size() const { return header_.count; }
  std::uint64_t generation() const { return header_.generation; }
  std::uint64_t sequence() const { return header_.sequence; }
  std::uint64_t file_bytes() const { return header_.file_bytes; }
  std::uint64_t blocks() const { return checksums_.size(); }

  // The columns. Rows that were not read by a member below may be damaged.
  const std::uint64_t* codes() const {
    return reinterpret_cast<const std::uint64_t*>(mapping_.bytes.data() + layout_.codes_at);
  }
  const std::byte* values() const { return mapping_.bytes.data() + layout_.values_at; }

  std::uint64_t code(std::uint64_t row) const {
    verify_bytes(0, row * sizeof(std::uint64_t), sizeof(std::uint64_t));
    return codes()[row];
  }
  const std::byte* value(std::uint64_t row) const {
    verify_bytes(layout_.code_blocks, row * header_.width, header_.width);
    return values() + row * header_.width;
  }

  // The first row whose code is at least `code`; size() if there is none.
  std::uint64_t lower_bound(std::uint64_t code) const {
    auto block = static_cast<std::uint64_t>(
        std::upper_bound(first_codes_.begin(), first_codes_.end(), code) - first_codes_.begin());
    if (block == 0) return 0;
    verify_block(--block);
    auto rows = header_.block_bytes / sizeof(std::uint64_t);
    auto from = block * rows;
    auto to = std::min(from + rows, header_.count);
    return static_cast<std::uint64_t>(std::lower_bound(codes() + from, codes() + to, code) -
                                      codes());
  }

  // The value of a code; null if it is not there.
  const std::byte* find(std::uint64_t code) const {
    auto row = lower_bound(code);
    return row < header_.count && this->code(row) == code ? value(row) : nullptr;
  }

  // Compares the checksums of all blocks that hold these rows.
  void verify(std::uint64_t from, std::uint64_t to) const {
    verify_bytes(0, from * sizeof(std::uint64_t), (to - from) * sizeof(std::uint64_t));
    verify_bytes(layout_.code_blocks, from * header_.width, (to - from) * header_.width);
  }

  // The same for all rows, and the order of the codes.
  void verify() const {
    for (std::uint64_t block = 0; block < blocks(); ++block) verify_block(block);
    const auto* from = codes();
    const auto* unordered = std::adjacent_find(from, from + header_.count, std::greater_equal<>());
    if (unordered == from + header_.count) return;
    throw DamageError(path_ + ": row " + std::to_string(unordered - from + 1) +
                      " is not in ascending order");
  }

 private:
  snapshot::Header checked_header() const {
    auto bytes = mapping_.bytes;
    if (bytes.size() < snapshot::kHeaderBytes) {
      throw DamageError(path_ + ": is cut to " + std::to_string(bytes.size()) +
                        " bytes, within the header of a snapshot");
    }
    snapshot::Header header;
    std::memcpy(&header, bytes.data(), sizeof header);
    if (std::memcmp(header.magic, snapshot::kMagic, sizeof header.magic) != 0) {
      throw DamageError(path_ + ": is not a snapshot: its first bytes are others");
    }
    auto rest = bytes.subspan(sizeof header, snapshot::kHeaderBytes - sizeof header);
    auto zero = [](std::byte byte) { return byte == std::byte{}; };
    if (header.checksum != snapshot::header_checksum(header) ||
        !std::all_of(rest.begin(), rest.end(), zero)) {
      throw DamageError(path_ + ": the header is damaged: checksum " +
                        hexadecimal(snapshot::header_checksum(header)) + ", recorded is " +
                        hexadecimal(header.checksum));
    }
    if (header.version != snapshot::kVersion) {
      throw DamageError(path_ + ": has format version " + std::to_string(header.version) +
                        "; this program reads version " + std::to_string(snapshot::kVersion));
    }
    return header;
  }

  snapshot::Layout checked_layout() const {
    snapshot::check_block_bytes(header_.block_bytes);
    snapshot::Layout layout(header_.count, header_.width, header_.block_bytes);
    if (mapping_.bytes.size() != header_.file_bytes || header_.file_bytes != layout.file_bytes) {
      throw DamageError(path_ + ": has " + std::to_string(mapping_.bytes.size()) +
                        " bytes; recorded are " + std::to_string(header_.file_bytes));
    }
    auto index = mapping_.bytes.subspan(layout.index_at, layout.index_bytes);
    if (crc32c(index) != header_.index_checksum) {
      throw DamageError(path_ + ": the index of blocks is damaged: checksum " +
                        hexadecimal(crc32c(index)) + ", recorded is " +
                        hexadecimal(header_.index_checksum));
    }
    return layout;
  }

  template <class T>
  static void copy(std::vector<T>& into, const std::byte* from) {
    if (!into.empty()) std::memcpy(into.data(), from, into.size() * sizeof(T));
  }

  void verify_bytes(std::uint64_t first_block, std::uint64_t from, std::uint64_t bytes) const {
    if (bytes == 0) return;
    auto last = (from + bytes - 1) / header_.block_bytes;
    for (auto block = from / header_.block_bytes; block <= last; ++block) {
      verify_block(first_block + block);
    }
  }

  void verify_block(std::uint64_t block) const {
    // Threads that come here at once compare the same bytes.
    if (verified_[block].load(std::memory_order_relaxed)) return;
    auto at = layout_.codes_at + block * header_.block_bytes;
    auto found = crc32c(mapping_.bytes.subspan(at, header_.block_bytes));
    if (found != checksums_[block]) {
      throw DamageError(path_ + ": block " + std::to_string(block) + " of " +
                        std::to_string(blocks()) + " (bytes " + std::to_string(at) + " to " +
                        std::to_string(at + header_.block_bytes - 1) + ") is damaged: checksum " +
                        hexadecimal(found) + ", recorded is " + hexadecimal(checksums_[block]));
    }
    verified_[block].store(true, std::memory_order_relaxed);
  }

  std::string path_;
  Mapping mapping_;
  snapshot::Header header_;
  snapshot::Layout layout_{0, 0, 1};
  std::vector<std::uint64_t> first_codes_;
  std::vector<std::uint32_t> checksums_;  // of the code blocks, then of the value blocks
  std::unique_ptr<std::atomic<bool>[]> verified_;
};

}  // namespace headrace::index
