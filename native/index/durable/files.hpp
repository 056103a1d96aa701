// The file operations that snapshots and change logs need: a small interface, so that tests run the
// same code on files that fail (files_faulty.hpp) or lose power (files_simulated.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::index {

// A file whose bytes are not those that were written to it: cut, altered, or of another kind. The
// text names the file and the block or offset.
class DamageError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The bytes of a file, for reading, as long as the object or a copy of it lives. They must not be
// written or cut in that time; a removed file's stay.
struct Mapping {
  std::shared_ptr<const void> owner;
  std::span<const std::byte> bytes;
};

// Tells a file from another one that took its name, and from itself before it was changed.
struct FileStamp {
  std::uint64_t device = 0, inode = 0;
  std::uint64_t bytes = 0;
  std::int64_t modified_ns = 0;

  bool operator==(const FileStamp&) const = default;
  // Whether it is of the same file, changed or not.
  bool is_of(const FileStamp& other) const {
    return device == other.device && inode == other.inode;
  }
};

// An open file. Every operation throws std::system_error, naming the path, if the system refuses
// it.
class File {
 public:
  virtual ~File() = default;
  // Writes at `offset`, and returns how many of the bytes were written: one at least.
  virtual std::size_t write(std::uint64_t offset, std::span<const std::byte> bytes) = 0;
  virtual void truncate(std::uint64_t bytes) = 0;
  // Returns once bytes and length are on the device.
  virtual void sync() = 0;
};

enum class Open { existing, emptied };  // `emptied` creates a file that is not there

class Files {
 public:
  virtual ~Files() = default;
  virtual std::unique_ptr<File> open(const std::string& path, Open how) = 0;
  virtual Mapping map(const std::string& path) = 0;
  // A copy of a file's bytes, which may be written or cut meanwhile and after.
  virtual Mapping read(const std::string& path) = 0;
  virtual FileStamp stamp(const std::string& path) = 0;
  // Names in a folder, in no order.
  virtual std::vector<std::string> list(const std::string& folder) = 0;
  // Creates one folder unless it exists.
  virtual void make_folder(const std::string& path) = 0;
  // Replaces `to` if that exists.
  virtual void rename(const std::string& from, const std::string& to) = 0;
  virtual void remove(const std::string& path) = 0;
  // Returns once the names in the folder are on the device.
  virtual void sync_folder(const std::string& path) = 0;
  // Holds the lock of this path, against all processes, as long as the object or a copy of it
  // lives. Throws std::runtime_error if it is held.
  virtual std::shared_ptr<const void> lock(const std::string& path) = 0;
};

inline void write_all(File& file, std::uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    auto written = file.write(offset, bytes);
    offset += written;
    bytes = bytes.subspan(written);
  }
}

inline std::string join_path(const std::string& folder, const std::string& name) {
  return folder + "/" + name;
}

// The folder of a path; "." if it names none.
inline std::string folder_of(const std::string& path) {
  auto slash = path.find_last_of('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

inline std::string without_slash(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path;
}

// Name of a file under which it is written before it is renamed to its own.
inline std::string unfinished(const std::string& path) { return path + ".part"; }

inline bool is_unfinished(const std::string& name) { return name.ends_with(".part"); }

// The file's own name, for errors: those that come after it has its name, too, are to be found.
inline std::string finished(std::string path) {
  if (is_unfinished(path)) path.resize(path.size() - std::string_view(".part").size());
  return path;
}

}  // namespace headrace::index
