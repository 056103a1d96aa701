// Writes a snapshot in one pass over ascending rows whose number is known.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>

#include "index/durable/snapshot_format.hpp"
#include "process.hpp"

namespace headrace::index {

// The snapshot appears under its name as a whole: it is written under another name, synced and
// renamed, and the folder is synced.
class SnapshotWriter {
 public:
  struct Contents {
    RowFormat format;
    std::uint64_t count = 0;
    std::uint64_t generation = 0;
    std::uint64_t sequence = 0;
    std::uint32_t block_bytes = 65'536;
  };

  // Throws std::invalid_argument if `block_bytes` is not a multiple of 64 from 64 to 2^30;
  // std::system_error, as all members, if the system refuses an operation.
  SnapshotWriter(Files& files, std::string path, const Contents& contents)
      : files_(files),
        path_(std::move(path)),
        contents_((snapshot::check_block_bytes(contents.block_bytes), contents)),
        layout_(contents.count, contents.format.width, contents.block_bytes),
        file_(files.open(unfinished(path_), Open::emptied)),
        codes_(*file_, layout_.codes_at, contents.block_bytes),
        values_(*file_, layout_.values_at, contents.block_bytes) {
    first_codes_.reserve(layout_.code_blocks);
  }
  SnapshotWriter(const SnapshotWriter&) = delete;
  SnapshotWriter& operator=(const SnapshotWriter&) = delete;
  // Removes what was written unless finish() has returned; in a child, it is the parent's.
  ~SnapshotWriter() {
    if (!file_ || mark_.forked()) return;
    file_.reset();
    try {
      if (!may_be_visible_) files_.remove(unfinished(path_));
    } catch (const std::system_error&) {
      // The next opening of the folder removes it.
    }
  }

  // Appends `count` rows; values lie behind each other. Throws std::invalid_argument if a code is
  // not above the one before it.
  void append(const std::uint64_t* codes, const std::byte* values, std::size_t count) {
    auto rows = contents_.block_bytes / sizeof(std::uint64_t);
    for (std::size_t i = 0; i < count; ++i) {
      if (last_ && codes[i] <= *last_) {
        throw std::invalid_argument("codes: row " + std::to_string(written_ + i) +
                                    " is not above the one before it");
      }
      last_ = codes[i];
      if ((written_ + i) % rows == 0) first_codes_.push_back(codes[i]);
    }
    codes_.append(std::as_bytes(std::span(codes, count)));
    values_.append({values, count * contents_.format.width});
    written_ += count;
  }
  void append(std::uint64_t code, const std::byte* value) { append(&code, value, 1); }

  // Throws std::logic_error if the number of rows is not the one that was announced.
  void finish() {
    if (written_ != contents_.count) {
      throw std::logic_error("snapshot: " + std::to_string(written_) + " rows were appended, " +
                             std::to_string(contents_.count) + " announced");
    }
    codes_.finish();
    values_.finish();
    write_index_and_header();
    file_->sync();
    may_be_visible_ = true;
    files_.rename(unfinished(path_), path_);
    files_.sync_folder(folder_of(path_));
    file_.reset();
  }

  // False as long as a failure has certainly left no file under the snapshot's name.
  bool may_be_visible() const { return may_be_visible_; }

 private:
  // One column of the file, written by blocks.
  class Column {
   public:
    Column(File& file, std::uint64_t at, std::uint32_t block_bytes) : file_(file), at_(at) {
      block_.resize(block_bytes);
    }

    void append(std::span<const std::byte> bytes) {
      while (!bytes.empty()) {
        auto moved = std::min(bytes.size(), block_.size() - filled_);
        std::memcpy(block_.data() + filled_, bytes.data(), moved);
        filled_ += moved;
        bytes = bytes.subspan(moved);
        if (filled_ == block_.size()) write_block();
      }
    }
    void finish() {
      if (filled_ == 0) return;
      std::fill(block_.begin() + static_cast<std::ptrdiff_t>(filled_), block_.end(), std::byte{});
      write_block();
    }
    const std::vector<std::uint32_t>& checksums() const { return checksums_; }

   private:
    void write_block() {
      write_all(file_, at_, block_);
      checksums_.push_back(crc32c(block_));
      at_ += block_.size();
      filled_ = 0;
    }

    File& file_;
    std::uint64_t at_;
    std::vector<std::byte> block_;
    std::size_t filled_ = 0;
    std::vector<std::uint32_t> checksums_;
  };

  void write_index_and_header() {
    std::vector<std::byte> index;
    auto add = [&index](const auto& numbers) {
      auto bytes = std::as_bytes(std::span(numbers));
      index.insert(index.end(), bytes.begin(), bytes.end());
    };
    add(first_codes_);
    add(codes_.checksums());
    add(values_.checksums());
    write_all(*file_, layout_.index_at, index);
    snapshot::Header header;
    std::memcpy(header.magic, snapshot::kMagic, sizeof header.magic);
    header.keys = contents_.format.keys;
    header.width = contents_.format.width;
    header.block_bytes = contents_.block_bytes;
    header.count = contents_.count;
    header.generation = contents_.generation;
    header.sequence = contents_.sequence;
    header.file_bytes = layout_.file_bytes;
    header.index_checksum = crc32c(index);
    header.checksum = snapshot::header_checksum(header);
    std::vector<std::byte> page(snapshot::kHeaderBytes);
    std::memcpy(page.data(), &header, sizeof header);
    write_all(*file_, 0, page);
  }

  Files& files_;
  ForkMark mark_;
  std::string path_;
  Contents contents_;
  snapshot::Layout layout_;
  std::unique_ptr<File> file_;
  Column codes_, values_;
  std::vector<std::uint64_t> first_codes_;
  std::optional<std::uint64_t> last_;
  std::uint64_t written_ = 0;
  bool may_be_visible_ = false;
};

}  // namespace headrace::index
