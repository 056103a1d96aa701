// Maps that are kept in a folder: headrace's durable map and LMDB. Insertions are committed in
// groups of kGroup, with or without a sync of the file each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "index/bench/workload.hpp"

#if __has_include("index/durable/durable.hpp") && !defined(HEADRACE_BENCH_NO_DURABLE)
#include "index/durable/durable.hpp"
#include "index/maps/code_map.hpp"
#define HEADRACE_BENCH_DURABLE
#endif
#if defined(HEADRACE_BENCH_LMDB)
#include <lmdb.h>
#endif

namespace headrace::index::bench {

constexpr std::size_t kGroup = 1000;

#if defined(HEADRACE_BENCH_DURABLE)
template <class ValueType>
class DurableOurs {
 public:
  using Value = ValueType;

  DurableOurs(const std::string& folder, bool sync) : folder_(folder), sync_(sync) { reopen(); }

  void reopen() {
    map_.reset();
    map_ = std::make_unique<Map>(folder_);
  }
  void close() { map_.reset(); }
  void build(std::span<const std::uint64_t> ascending) {
    std::vector<Value> values(ascending.size());
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = value_of<Value>(ascending[i]);
    map_->build(ascending.data(), values.data(), ascending.size());
  }
  bool find(std::uint64_t code, Value& out) const { return map_->get(code, out); }
  bool insert(std::uint64_t code, Value value) {
    batch_.put(code, value);
    if (batch_.size() == kGroup) commit();
    return true;
  }
  bool erase(std::uint64_t code) {
    batch_.erase(code);
    if (batch_.size() == kGroup) commit();
    return true;
  }
  std::size_t scan(std::uint64_t from, std::size_t most, std::uint64_t* codes,
                   Value* values) const {
    return map_->scan(from, most, codes, values);
  }
  std::size_t size() const { return map_->size(); }
  // Waits until lookups no longer read the mapped snapshot.
  void wait() { map_->tree(); }

 private:
  using Map = DurableMap<Value, CodeMap<Value>>;

  void commit() {
    map_->commit(batch_, sync_ ? Sync::yes : Sync::no);
    batch_.clear();
  }

  std::string folder_;
  bool sync_;
  std::unique_ptr<Map> map_;
  typename Map::Batch batch_;
};
#endif

#if defined(HEADRACE_BENCH_LMDB)
// LMDB with integer keys; its environment syncs at every commit, or never.
template <class ValueType>
class Lmdb {
 public:
  using Value = ValueType;

  Lmdb(const std::string& folder, bool sync) : folder_(folder), sync_(sync) { reopen(); }
  ~Lmdb() { close(); }
  Lmdb(const Lmdb&) = delete;
  Lmdb& operator=(const Lmdb&) = delete;

  void reopen() {
    close();
    check(mdb_env_create(&environment_));
    check(mdb_env_set_mapsize(environment_, kMapBytes));
    check(mdb_env_open(environment_, folder_.c_str(), sync_ ? 0 : MDB_NOSYNC, 0644));
    begin();
    check(mdb_dbi_open(writing_, nullptr, MDB_INTEGERKEY | MDB_CREATE, &table_));
    commit();
  }
  void close() {
    if (environment_ == nullptr) return;
    if (reading_ != nullptr) mdb_txn_abort(reading_);
    if (writing_ != nullptr) mdb_txn_abort(writing_);
    mdb_env_close(environment_);
    environment_ = nullptr;
    reading_ = writing_ = nullptr;
  }
  void build(std::span<const std::uint64_t> ascending) {
    begin();
    for (auto code : ascending) put(code, value_of<Value>(code), MDB_APPEND);
    commit();
  }
  bool find(std::uint64_t code, Value& out) {
    if (reading_ == nullptr) check(mdb_txn_begin(environment_, nullptr, MDB_RDONLY, &reading_));
    MDB_val key{sizeof code, &code};
    MDB_val value{};
    if (mdb_get(reading_, table_, &key, &value) != MDB_SUCCESS) return false;
    out = *static_cast<const Value*>(value.mv_data);
    return true;
  }
  bool insert(std::uint64_t code, Value value) {
    begin();
    put(code, value, 0);
    if (++pending_ == kGroup) commit();
    return true;
  }
  bool erase(std::uint64_t code) {
    begin();
    MDB_val key{sizeof code, &code};
    auto found = mdb_del(writing_, table_, &key, nullptr) == MDB_SUCCESS;
    if (++pending_ == kGroup) commit();
    return found;
  }
  std::size_t scan(std::uint64_t, std::size_t, std::uint64_t*, Value*) const {
    throw std::logic_error("scans of LMDB are not measured");
  }
  std::size_t size() const {
    MDB_stat found{};
    MDB_txn* reading = nullptr;
    check(mdb_txn_begin(environment_, nullptr, MDB_RDONLY, &reading));
    mdb_stat(reading, table_, &found);
    mdb_txn_abort(reading);
    return found.ms_entries;
  }
  void wait() {}

 private:
  static constexpr std::size_t kMapBytes = std::size_t{16} << 30;

  static void check(int code) {
    if (code != MDB_SUCCESS) throw std::runtime_error(std::string("lmdb: ") + mdb_strerror(code));
  }
  void begin() {
    if (reading_ != nullptr) mdb_txn_abort(reading_);
    reading_ = nullptr;
    if (writing_ == nullptr) check(mdb_txn_begin(environment_, nullptr, 0, &writing_));
  }
  void put(std::uint64_t code, Value stored, unsigned flags) {
    MDB_val key{sizeof code, &code};
    MDB_val value{sizeof stored, &stored};
    check(mdb_put(writing_, table_, &key, &value, flags));
  }
  void commit() {
    check(mdb_txn_commit(writing_));
    writing_ = nullptr;
    pending_ = 0;
  }

  std::string folder_;
  bool sync_;
  MDB_env* environment_ = nullptr;
  MDB_txn* writing_ = nullptr;
  MDB_txn* reading_ = nullptr;
  MDB_dbi table_ = 0;
  std::size_t pending_ = 0;
};
#endif

}  // namespace headrace::index::bench
