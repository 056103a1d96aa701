// Python binding of the index's durable maps: rows in a folder, to write and to read, or to read
// alone.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <mutex>
#include <string>
#include <type_traits>

#include "index/durable/durable.hpp"
#include "index/durable/folder_view.hpp"
#include "index/maps/code_range.hpp"
#include "index_numbers.hpp"
#include "process.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

namespace index = headrace::index;
using namespace headrace::bindings;
using Value = std::uint64_t;
using Map = index::DurableMap<Value>;
using View = index::FolderView<Value>;
using Values = Vector<const Value>;

index::KeyKind kind_of(index::KeyType type) {
  switch (type) {
    case index::KeyType::int64:
      return index::KeyKind::signed_integer;
    case index::KeyType::float64:
      return index::KeyKind::floating;
    case index::KeyType::uint64:
      break;
  }
  return index::KeyKind::unsigned_integer;
}

// Changes that are committed as one group, in their order.
class Batch {
 public:
  explicit Batch(const std::string& keys) : type_(index::key_type_named(keys)) {}

  void put(Input keys, Values values) {
    const auto column = checked(keys);
    index::check_count("values", values.shape(0), column.count);
    nb::gil_scoped_release release;
    index::for_codes(column, [&](const Code* codes, std::size_t first, std::size_t count) {
      for (std::size_t i = 0; i < count; ++i) changes_.put(codes[i], values.data()[first + i]);
    });
  }

  void erase(Input keys) {
    const auto column = checked(keys);
    nb::gil_scoped_release release;
    index::for_codes(column, [&](const Code* codes, std::size_t, std::size_t count) {
      for (std::size_t i = 0; i < count; ++i) changes_.erase(codes[i]);
    });
  }

  std::size_t size() const { return changes_.size(); }
  void clear() { changes_.clear(); }
  Map::Batch& changes() { return changes_; }

 private:
  index::KeyColumn checked(const Input& keys) const {
    const auto column = index::checked_keys(view_of(keys), type_);
    index::check_keys(column);
    return column;
  }

  index::KeyType type_;
  Map::Batch changes_;
};

// Reads of rows, `Rows` having the members of a CodeMap. Threads may share it: each call holds its
// lock.
template <class Rows, class Lock>
class LockedReads {
 public:
  explicit LockedReads(const std::string& keys) : type_(index::key_type_named(keys)) {}
  virtual ~LockedReads() = default;

  std::size_t find(Input keys, Vector<Value> values, Vector<bool> found) const {
    const auto column = index::checked_keys(view_of(keys), type_);
    index::check_keys(column);
    index::check_count("values", values.shape(0), column.count);
    index::check_count("found", found.shape(0), column.count);
    nb::gil_scoped_release release;
    const std::lock_guard lock(usable());
    std::size_t hits = 0;
    index::for_codes(column, [&](const Code* codes, std::size_t first, std::size_t count) {
      hits += rows().get(codes, count, values.data() + first, found.data() + first);
    });
    for (std::size_t i = 0; i < column.count; ++i) {
      if (!found.data()[i]) values.data()[i] = 0;
    }
    return hits;
  }

  // Codes from `first` to `last`, both included.
  std::size_t scan(Code first, Code last, Output keys, Vector<Value> values) const {
    const auto most = index::checked_keys(view_of(keys), type_).count;
    index::check_count("values", values.shape(0), most);
    auto* codes = static_cast<Code*>(keys.data());
    nb::gil_scoped_release release;
    const std::lock_guard lock(usable());
    if (first > last) return 0;
    const auto scan = [&](auto from, auto count, auto done) {
      return rows().scan(from, count, codes + done, values.data() + done);
    };
    const auto count = index::scan_range({first, last}, most, codes, scan);
    index::decode_keys(codes, count, type_);
    return count;
  }

  Code code(nb::handle key) const { return KeyNumbers(type_).code(key); }
  std::size_t size() const {
    nb::gil_scoped_release release;
    const std::lock_guard lock(usable());
    return rows().size();
  }
  index::KeyType type() const { return type_; }

 protected:
  virtual const Rows& rows() const = 0;
  // Throws ForkError where the lock must not be taken.
  virtual Lock& usable() const { return mutex_; }
  mutable Lock mutex_;

 private:
  index::KeyType type_;
};

class DurableRows final : public LockedReads<Map, std::mutex> {
 public:
  DurableRows(const std::string& folder, const std::string& keys, bool accept_loss,
              std::uint64_t checkpoint_log_bytes)
      : LockedReads(keys), folder_(folder) {
    Map::Options options;
    options.keys = kind_of(type());
    options.accept_unsynced_loss = options.accept_closed_loss = accept_loss;
    options.checkpoint_log_bytes = checkpoint_log_bytes;
    nb::gil_scoped_release release;
    map_ = std::make_unique<Map>(folder, options);
  }
  ~DurableRows() override {
    nb::gil_scoped_release release;
    map_.reset();
  }

  void commit(Batch& batch, bool sync) {
    locked([&] { map_->commit(batch.changes(), sync ? index::Sync::yes : index::Sync::no); });
  }
  void build(Input keys, Values values) {
    const auto column = index::checked_keys(view_of(keys), type());
    index::check_keys(column);
    index::check_count("values", values.shape(0), column.count);
    const index::Codes codes(column);
    locked([&] { map_->build(codes.data(), values.data(), column.count); });
  }
  void sync() {
    locked([&] { map_->sync(); });
  }
  // Other calls go on while a snapshot is written.
  void checkpoint() {
    await_checkpoint();
    locked([&] { map_->checkpoint(); });
    await_checkpoint();
    locked([&] { map_->wait_for_checkpoint(); });
  }
  void close() {
    if (mark_.forked()) return;
    locked([&] { map_->close(); });
  }
  std::uint64_t groups() {
    return locked([&] { return map_->folder().sequence(); });
  }
  std::uint64_t log_bytes() {
    return locked([&] { return map_->folder().log_bytes(); });
  }

 protected:
  const Map& rows() const override { return *map_; }
  std::mutex& usable() const override {
    mark_.check(folder_);
    return mutex_;
  }

 private:
  void await_checkpoint() {
    const auto running = locked([&] { return map_->folder().running(); });
    nb::gil_scoped_release release;
    if (running.valid()) running.wait();
  }

  template <class Run>
  std::invoke_result_t<const Run&> locked(const Run& run) {
    nb::gil_scoped_release release;
    const std::lock_guard lock(usable());
    return run();
  }

  std::string folder_;
  headrace::ForkMark mark_;
  std::unique_ptr<Map> map_;
};

// A lock that is free in a child, whatever other threads of its parent did: what they did under it
// is as if it had not begun.
class ForgottenLock final : public headrace::ForkListener {
 public:
  void lock() { lock_.lock(); }
  void unlock() { lock_.unlock(); }
  void after_fork_in_child() noexcept override { new (&lock_) std::mutex; }

 private:
  std::mutex lock_;
};

// A child of a fork has a copy that works: no thread is within the tree at a fork, and files are
// read outside that lock, as that makes and ends fork listeners.
class DurableReader final : public LockedReads<index::CodeMap<Value>, headrace::ForkSafeLock<>> {
 public:
  DurableReader(const std::string& folder, const std::string& keys) : LockedReads(keys) {
    nb::gil_scoped_release release;
    view_ = std::make_unique<View>(folder, kind_of(type()));
  }
  bool refresh() {
    nb::gil_scoped_release release;
    const std::lock_guard refreshing(refreshing_);
    auto news = view_->read();
    const std::lock_guard lock(mutex_);
    view_->apply(news);
    return static_cast<bool>(news);
  }
  std::uint64_t groups() {
    nb::gil_scoped_release release;
    const std::lock_guard lock(mutex_);
    return view_->sequence();
  }

 protected:
  const index::CodeMap<Value>& rows() const override { return view_->tree(); }

 private:
  ForgottenLock refreshing_;
  std::unique_ptr<View> view_;
};

template <class Class>
void bind_reads(Class& bound) {
  using Rows = typename Class::Type;
  bound
      .def("find", &Rows::find, nb::arg("keys").noconvert(), nb::arg("values").noconvert(),
           nb::arg("found").noconvert(), "Write values and `found`; return the number found.")
      .def("scan", &Rows::scan, "first"_a, "last"_a, nb::arg("keys").noconvert(),
           nb::arg("values").noconvert(),
           "Write keys of codes from `first` to `last`, ascending, as many as fit; return their "
           "number.")
      .def("code", &Rows::code, "key"_a, "Return the code of a key.")
      .def("size", &Rows::size)
      .def("groups", &Rows::groups, "Return the number of groups committed ever.");
}

}  // namespace

void bind_index_durable(nb::module_& module) {
  nb::class_<Batch>(module, "DurableBatch", "Changes that are committed as one group.")
      .def(nb::init<const std::string&>(), "keys"_a)
      .def("put", &Batch::put, nb::arg("keys").noconvert(), nb::arg("values").noconvert())
      .def("erase", &Batch::erase, nb::arg("keys").noconvert())
      .def("size", &Batch::size)
      .def("clear", &Batch::clear);
  nb::class_<DurableRows> rows(module, "DurableRows", "Rows in a folder. Threads may share it.");
  rows.def(nb::init<const std::string&, const std::string&, bool, std::uint64_t>(), "folder"_a,
           "keys"_a, "accept_loss"_a, "checkpoint_log_bytes"_a)
      .def("commit", &DurableRows::commit, "batch"_a, "sync"_a)
      .def("build", &DurableRows::build, nb::arg("keys").noconvert(), nb::arg("values").noconvert(),
           "Replace all rows.")
      .def("sync", &DurableRows::sync)
      .def("checkpoint", &DurableRows::checkpoint, "Write a snapshot, and wait for it.")
      .def("close", &DurableRows::close)
      .def("log_bytes", &DurableRows::log_bytes);
  bind_reads(rows);
  nb::class_<DurableReader> reader(module, "DurableReader",
                                   "Rows in a folder that another process may change.");
  reader.def(nb::init<const std::string&, const std::string&>(), "folder"_a, "keys"_a)
      .def("refresh", &DurableReader::refresh,
           "Read what was committed since; return whether rows may have changed.");
  bind_reads(reader);
}
