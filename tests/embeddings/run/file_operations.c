// Ends a process by SIGKILL at its n-th operation on the files below a folder (LD_PRELOAD).
//
// Operations are what changes files or makes changes durable. A write counts twice: the process
// ends before it, or when half of it is written.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[PATH_MAX];
static size_t folder_length;
static long countdown;
static long operations;

// Begin to count; with a countdown of 0 alone.
void count_operations(const char *path, long end_at) {
  snprintf(folder, sizeof folder, "%s/", path);
  operations = 0;
  countdown = end_at;
  folder_length = strlen(folder);
}

long counted_operations(void) { return operations; }

static void end(void) {
  kill(getpid(), SIGKILL);
  for (;;) pause();
}

// Counts an operation on a path; true if it is the last one.
static int is_last(const char *path) {
  if (folder_length == 0 || strncmp(path, folder, folder_length) != 0) return 0;
  __sync_fetch_and_add(&operations, 1);
  return __sync_sub_and_fetch(&countdown, 1) == 0;
}

static void path_of(int descriptor, char *path, size_t size) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  ssize_t length = readlink(link, path, size - 1);
  path[length < 0 ? 0 : length] = 0;
}

static void count_path(const char *path) {
  if (is_last(path)) end();
}

static void count_at(int place, const char *path) {
  char full[2 * PATH_MAX] = "";
  if (path[0] != '/' && place != AT_FDCWD) {
    path_of(place, full, PATH_MAX);
    strcat(full, "/");
  }
  strncat(full, path, PATH_MAX - 1);
  count_path(full);
}

static int descriptor_is_last(int descriptor) {
  if (folder_length == 0) return 0;
  char path[PATH_MAX];
  path_of(descriptor, path, sizeof path);
  return is_last(path);
}

static void count_descriptor(int descriptor) {
  if (descriptor_is_last(descriptor)) end();
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t write(int descriptor, const void *bytes, size_t count) {
  count_descriptor(descriptor);
  if (descriptor_is_last(descriptor)) {
    NEXT(write)(descriptor, bytes, count / 2);
    end();
  }
  return NEXT(write)(descriptor, bytes, count);
}

#define POSITIONED_WRITE(name, offset_type)                                                  \
  ssize_t name(int descriptor, const void *bytes, size_t count, offset_type offset) {        \
    count_descriptor(descriptor);                                                            \
    if (descriptor_is_last(descriptor)) {                                                    \
      NEXT(name)(descriptor, bytes, count / 2, offset);                                      \
      end();                                                                                 \
    }                                                                                        \
    return NEXT(name)(descriptor, bytes, count, offset);                                     \
  }
POSITIONED_WRITE(pwrite, off_t)
POSITIONED_WRITE(pwrite64, off64_t)

#define ON_DESCRIPTOR(name, parameters, arguments) \
  int name parameters {                            \
    count_descriptor(descriptor);                  \
    return NEXT(name) arguments;                   \
  }
ON_DESCRIPTOR(fsync, (int descriptor), (descriptor))
ON_DESCRIPTOR(fdatasync, (int descriptor), (descriptor))
ON_DESCRIPTOR(ftruncate, (int descriptor, off_t size), (descriptor, size))
ON_DESCRIPTOR(ftruncate64, (int descriptor, off64_t size), (descriptor, size))

#define ON_PATH(name, parameters, arguments) \
  int name parameters {                      \
    count_path(path);                        \
    return NEXT(name) arguments;             \
  }
ON_PATH(unlink, (const char *path), (path))
ON_PATH(rmdir, (const char *path), (path))
ON_PATH(mkdir, (const char *path, mode_t mode), (path, mode))
ON_PATH(rename, (const char *path, const char *to), (path, to))
ON_PATH(link, (const char *path, const char *to), (path, to))

#define AT_PLACE(name, parameters, arguments) \
  int name parameters {                       \
    count_at(place, path);                    \
    return NEXT(name) arguments;              \
  }
AT_PLACE(unlinkat, (int place, const char *path, int flags), (place, path, flags))
AT_PLACE(mkdirat, (int place, const char *path, mode_t mode), (place, path, mode))
AT_PLACE(renameat, (int place, const char *path, int new_place, const char *to),
         (place, path, new_place, to))
AT_PLACE(linkat, (int place, const char *path, int new_place, const char *to, int flags),
         (place, path, new_place, to, flags))

#define OPEN(name)                                \
  int name(const char *path, int flags, ...) {    \
    va_list arguments;                            \
    va_start(arguments, flags);                   \
    mode_t mode = va_arg(arguments, mode_t);      \
    va_end(arguments);                            \
    if (flags & (O_CREAT | O_TRUNC)) count_path(path); \
    return NEXT(name)(path, flags, mode);         \
  }
OPEN(open)
OPEN(open64)
