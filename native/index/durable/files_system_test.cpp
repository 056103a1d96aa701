// Files of the operating system whose calls to sync fail as a test says: it has functions of its
// own in place of fsync and fdatasync.
#include "index/durable/files_system.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include "check.hpp"
#include "index/durable/files.hpp"

namespace {

int next_error = 0;  // of the next call that syncs; 0: the system's
int syncs_of_all = 0;

int answer(long call, int descriptor) {
  if (next_error == 0) return static_cast<int>(::syscall(call, descriptor));
  errno = std::exchange(next_error, 0);
  return -1;
}

}  // namespace

extern "C" int fsync(int descriptor) { return answer(SYS_fsync, descriptor); }
extern "C" int fdatasync(int descriptor) { return answer(SYS_fdatasync, descriptor); }
extern "C" void sync() noexcept { ++syncs_of_all; }

using namespace headrace;
using namespace headrace::index;

namespace {

// A folder that a virtual machine shares with its host could not have a durable map.
void test_folders_that_are_not_synced(const std::string& folder) {
  next_error = EINVAL;
  system_files().sync_folder(folder);
  CHECK(next_error == 0);
  next_error = EIO;
  CHECK(!thrown<std::system_error>([&] { system_files().sync_folder(folder); }).empty());
}

// A signal within a sync, as a file system in user space lets through, ended a map's commits.
void test_interrupted_syncs(const std::string& folder) {
  const auto file = system_files().open(join_path(folder, "file"), Open::emptied);
  next_error = EINTR;
  file->sync();
  next_error = EINTR;
  system_files().sync_folder(folder);
  CHECK(next_error == 0);
  next_error = EIO;
  CHECK(!thrown<std::system_error>([&] { file->sync(); }).empty());
}

// A saved index was an error in a folder that several users drop files in.
void test_folders_that_may_be_written_and_not_read(const std::string& folder) {
  constexpr uid_t kOther = 65534;  // root may read any
  const auto self = ::geteuid();
  const auto inner = join_path(folder, "dropped");
  CHECK(::mkdir(inner.c_str(), 0300) == 0);
  if (self == 0) {
    CHECK(::chmod(folder.c_str(), 0711) == 0 && ::chown(inner.c_str(), kOther, kOther) == 0);
    CHECK(::seteuid(kOther) == 0);
  }
  system_files().sync_folder(inner);
  CHECK(syncs_of_all == 1);
  CHECK(::seteuid(self) == 0);
}

// Files were not for the group of their user where the user's other files are.
void test_permissions_are_those_of_new_files(const std::string& folder) {
  const auto mode_of = [](const std::string& path) {
    struct stat status{};
    CHECK(::stat(path.c_str(), &status) == 0);
    return status.st_mode & 0777;
  };
  const auto mask = ::umask(0002);
  const auto inner = join_path(folder, "group");
  system_files().make_folder(inner);
  CHECK(mode_of(inner) == 0775);
  const auto file = system_files().open(join_path(inner, "file"), Open::emptied);
  CHECK(mode_of(join_path(inner, "file")) == 0664);
  ::umask(mask);
}

}  // namespace

int main() {
  char name[] = "/tmp/headrace-files-XXXXXX";
  CHECK(::mkdtemp(name));
  const std::string folder = name;
  test_folders_that_are_not_synced(folder);
  test_interrupted_syncs(folder);
  test_folders_that_may_be_written_and_not_read(folder);
  test_permissions_are_those_of_new_files(folder);
  std::filesystem::remove_all(folder);
}
