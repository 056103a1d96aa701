// Python binding of native/embedding: arrays are translated, the GIL released, no logic.
#include "embedding/dispatch.hpp"
#include "embedding/lookahead.hpp"
#include "embedding/pulse.hpp"
#include "embedding/row_store.hpp"
#include "embedding/shards.hpp"
#include "embedding/store_log.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace nb = nanobind;
using namespace nb::literals;

namespace {

namespace embedding = headrace::embedding;
using embedding::Decision;
using embedding::DispatchedRows;
using embedding::Lookahead;
using embedding::RowStore;
using embedding::RowTable;
using embedding::ShardedRows;
using embedding::StoreLog;
using embedding::Synchronisation;

using Ids = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ends = nb::ndarray<const std::int64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

void push(Lookahead& lookahead, const std::vector<Ids>& ids, const Ends& ends) {
  if (ends.shape(0) != ids.size()) {
    throw std::invalid_argument("ends have " + std::to_string(ends.shape(0)) +
                                " rows, need one for each of " + std::to_string(ids.size()) +
                                " tables");
  }
  std::vector<embedding::TableIds> tables;
  for (std::size_t t = 0; t < ids.size(); ++t) {
    tables.push_back(
        {{ids[t].data(), ids[t].shape(0)}, {ends.data() + t * ends.shape(1), ends.shape(1)}});
  }
  nb::gil_scoped_release release;
  lookahead.push(tables);
}

// A getter of a column, whose memory is the object's.
template <class C, class T>
auto column(std::vector<T> C::* member) {
  return [member](nb::handle self) {
    auto& values = nb::cast<C&>(self).*member;
    return nb::ndarray<nb::numpy, const T, nb::ndim<1>>(values.data(), {values.size()}, self);
  };
}

// Memory of [rows, width] numbers, of the type that the store has.
using Values = nb::ndarray<nb::numpy, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using ReadValues = nb::ndarray<nb::numpy, nb::ro, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Places = nb::ndarray<const std::uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using MutableIds = nb::ndarray<std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

embedding::RowIds row_ids(const Ids& ids, const Ids& ends) {
  return {{ids.data(), ids.shape(0)}, {ends.data(), ends.shape(0)}};
}

template <class Byte, class Array>
std::span<Byte> bytes_of(const RowStore& store, const Array& values) {
  const auto bits = store.options().float64 ? 64 : 32;
  if (values.dtype() != nb::dlpack::dtype{static_cast<std::uint8_t>(nb::dlpack::dtype_code::Float),
                                          static_cast<std::uint8_t>(bits), 1}) {
    throw std::invalid_argument("values need the type float" + std::to_string(bits));
  }
  return {static_cast<Byte*>(values.data()), values.nbytes()};
}

embedding::Distribution distribution_of(const std::string& name) {
  if (name == "uniform") return embedding::Distribution::uniform;
  if (name == "normal") return embedding::Distribution::normal;
  if (name == "constant") return embedding::Distribution::constant;
  throw std::invalid_argument("distribution is " + name + ", needs uniform, normal or constant");
}

std::vector<embedding::LoggedTable> logged_tables(const std::vector<std::string>& folders,
                                                  const std::vector<std::uint64_t>& groups) {
  std::vector<embedding::LoggedTable> tables;
  for (const auto& folder : folders) {
    auto& table = tables.emplace_back(embedding::LoggedTable{.folder = folder});
    if (!groups.empty()) table.groups = groups.at(tables.size() - 1);
  }
  return tables;
}

void bind_rows(nb::module_& module) {
  nb::class_<RowTable>(module, "RowTable", "A table of embedding rows, and their initial values.")
      .def(
          "__init__",
          [](RowTable* self, std::string name, std::uint64_t number, std::uint64_t rows,
             const std::string& distribution, double scale) {
            new (self)
                RowTable{std::move(name), number, rows, distribution_of(distribution), scale};
          },
          nb::kw_only(), "name"_a, "number"_a, "rows"_a, "distribution"_a, "scale"_a);

  nb::class_<embedding::MemoryBudget>(module, "RowMemory",
                                      "Memory that the rows of several stores share.")
      .def(nb::init<std::size_t>(), "most_bytes"_a)
      .def_prop_ro("bytes", &embedding::MemoryBudget::used);

  const auto shared = nb::call_guard<nb::gil_scoped_release>();
  nb::class_<RowStore>(module, "RowStore", "A server's rows of one group of embedding tables.")
      .def(
          "__init__",
          [](RowStore* self, std::vector<RowTable> tables, std::size_t dim, std::size_t state,
             double state_initial, bool float64, std::uint64_t seed, std::size_t shard,
             std::size_t shards, std::shared_ptr<embedding::MemoryBudget> memory) {
            new (self) RowStore({std::move(tables), dim, state, state_initial, float64, seed, shard,
                                 shards, std::move(memory)});
          },
          "tables"_a, nb::kw_only(), "dim"_a, "state"_a = 0, "state_initial"_a = 0.0,
          "float64"_a = false, "seed"_a = 0, "shard"_a = 0, "shards"_a = 1, "memory"_a)
      .def(
          "fetch",
          [](RowStore& self, const Ids& ids, const Ids& ends, const Values& values) {
            self.fetch(row_ids(ids, ends), bytes_of<std::byte>(self, values));
          },
          "ids"_a.noconvert(), "ends"_a.noconvert(), "values"_a.noconvert(), shared)
      .def(
          "write",
          [](RowStore& self, const Ids& ids, const Ids& ends, const ReadValues& values) {
            self.write(row_ids(ids, ends), bytes_of<const std::byte>(self, values));
          },
          "ids"_a.noconvert(), "ends"_a.noconvert(), "values"_a.noconvert(), shared)
      .def(
          "read",
          [](const RowStore& self, const Ids& ids, const Ids& ends, const Values& values) {
            self.read(row_ids(ids, ends), bytes_of<std::byte>(self, values));
          },
          "ids"_a.noconvert(), "ends"_a.noconvert(), "values"_a.noconvert(), shared)
      .def(
          "scan",
          [](const RowStore& self, std::size_t table, std::int64_t after, const MutableIds& ids,
             const Values& values) {
            return self.scan(table, after, {ids.data(), ids.shape(0)},
                             bytes_of<std::byte>(self, values));
          },
          "table"_a, "after"_a, "ids"_a.noconvert(), "values"_a.noconvert(), shared)
      .def("rows", &RowStore::rows, "table"_a, shared)
      .def("table_bytes", &RowStore::bytes, "table"_a, shared);

  nb::class_<StoreLog>(module, "StoreLog", "Durable logs of the tables of a store of rows.")
      .def(
          "__init__",
          [](StoreLog* self, RowStore& store, const std::vector<std::string>& folders,
             const std::vector<std::uint64_t>& groups, std::uint64_t first_commit) {
            const auto tables = logged_tables(folders, groups);
            const nb::gil_scoped_release release;
            new (self) StoreLog(store, tables, {}, first_commit);
          },
          "store"_a, "folders"_a, nb::kw_only(), "groups"_a = std::vector<std::uint64_t>(),
          "first_commit"_a = 0, nb::keep_alive<1, 2>())
      .def(
          "adopt",
          [](StoreLog& self, const std::vector<std::string>& folders,
             const std::vector<std::uint64_t>& groups,
             std::uint64_t commit) { self.adopt(logged_tables(folders, groups), commit); },
          "folders"_a, nb::kw_only(), "groups"_a, "commit"_a, shared)
      .def(
          "put",
          [](StoreLog& self, std::uint64_t commit, const Ids& ids, const Ids& ends,
             const ReadValues& values) {
            self.put(commit, row_ids(ids, ends),
                     {static_cast<const std::byte*>(values.data()), values.nbytes()});
          },
          "commit"_a, "ids"_a.noconvert(), "ends"_a.noconvert(), "values"_a.noconvert(), shared)
      .def("commit", &StoreLog::commit, "commit"_a, shared)
      .def("checkpoint_if_due", &StoreLog::checkpoint_if_due, "commit"_a, shared)
      .def("close", &StoreLog::close, shared);

  nb::class_<embedding::Pulse>(module, "Pulse", "Signs of life on a socket, from a thread.")
      .def(nb::init<int, double>(), "socket"_a, "interval_s"_a)
      .def("close", &embedding::Pulse::close, shared);

  nb::class_<ShardedRows>(module, "ShardedRows",
                          "Rows of a group of tables by server; columns are read-only arrays.")
      .def_prop_ro("ends", column(&ShardedRows::ends))
      .def_prop_ro("first", column(&ShardedRows::first))
      .def_prop_ro("ids", column(&ShardedRows::ids))
      .def_prop_ro("places", column(&ShardedRows::places));
  module.def(
      "split_rows",
      [](const Ids& ids, const Ids& ends, std::size_t shards) {
        const auto rows = row_ids(ids, ends);
        return embedding::split_rows(embedding::ShardRule(shards), rows.ids, rows.ends);
      },
      "ids"_a.noconvert(), "ends"_a.noconvert(), "shards"_a, shared);
  module.def(
      "gather_rows",
      [](const Places& places, const ReadValues& rows, const Values& out) {
        embedding::gather_rows({places.data(), places.shape(0)},
                               {static_cast<const std::byte*>(rows.data()), rows.nbytes()},
                               {static_cast<std::byte*>(out.data()), out.nbytes()});
      },
      "places"_a.noconvert(), "rows"_a.noconvert(), "out"_a.noconvert(), shared);
  module.def(
      "scatter_rows",
      [](const Places& places, const ReadValues& rows, const Values& out) {
        embedding::scatter_rows({places.data(), places.shape(0)},
                                {static_cast<const std::byte*>(rows.data()), rows.nbytes()},
                                {static_cast<std::byte*>(out.data()), out.nbytes()});
      },
      "places"_a.noconvert(), "rows"_a.noconvert(), "out"_a.noconvert(), shared);
}

}  // namespace

void bind_embedding(nb::module_& module) {
  nb::enum_<Synchronisation>(module, "CacheSynchronisation", "Designs of caches of embedding rows.")
      .value("TARGETED", Synchronisation::kTargeted)
      .value("LRPP", Synchronisation::kLrpp)
      .value("REPLICATED", Synchronisation::kReplicated)
      .value("DISTINCT", Synchronisation::kDistinct);

  nb::class_<Decision>(
      module, "LookaheadDecision",
      "Fetches, uses and evictions of the rows of one batch; columns are read-only arrays.")
      .def_ro("batch", &Decision::batch)
      .def_ro("after", &Decision::after)
      .def_ro("commit", &Decision::commit)
      .def_ro("evicted_for_room", &Decision::evicted_for_room)
      .def_prop_ro("first", column(&Decision::first))
      .def_prop_ro("ids", column(&Decision::ids))
      .def_prop_ro("slots", column(&Decision::slots))
      .def_prop_ro("users", column(&Decision::users))
      .def_prop_ro("next_users", column(&Decision::next_users))
      .def_prop_ro("owner", column(&Decision::owner))
      .def_prop_ro("next", column(&Decision::next))
      .def_prop_ro("last", column(&Decision::last))
      .def_prop_ro("fetched", column(&Decision::fetched))
      .def_prop_ro("shared", column(&Decision::shared))
      .def_prop_ro("critical", column(&Decision::critical))
      .def_prop_ro("evicted_first", column(&Decision::evicted_first))
      .def_prop_ro("evicted_ids", column(&Decision::evicted_ids))
      .def_prop_ro("evicted_slots", column(&Decision::evicted_slots))
      .def_prop_ro("evicted_owner", column(&Decision::evicted_owner))
      .def_prop_ro("dirty_first", column(&Decision::dirty_first))
      .def_prop_ro("dirty_ids", column(&Decision::dirty_ids))
      .def_prop_ro("dirty_slots", column(&Decision::dirty_slots))
      .def_prop_ro("dirty_owner", column(&Decision::dirty_owner))
      .def_prop_ro("id_slots", column(&Decision::id_slots))
      .def_prop_ro("id_rows", column(&Decision::id_rows))
      .def("dispatch", &embedding::dispatch, nb::call_guard<nb::gil_scoped_release>());

  nb::class_<DispatchedRows>(module, "DispatchedRows",
                             "One trainer's part of a decision; columns are read-only arrays.")
      .def_prop_ro("used_ends", column(&DispatchedRows::used_ends))
      .def_prop_ro("slots", column(&DispatchedRows::slots))
      .def_prop_ro("users", column(&DispatchedRows::users))
      .def_prop_ro("next_users", column(&DispatchedRows::next_users))
      .def_prop_ro("owners", column(&DispatchedRows::owners))
      .def_prop_ro("critical", column(&DispatchedRows::critical))
      .def_prop_ro("fetched_ends", column(&DispatchedRows::fetched_ends))
      .def_prop_ro("fetched_ids", column(&DispatchedRows::fetched_ids))
      .def_prop_ro("fetched_slots", column(&DispatchedRows::fetched_slots))
      .def_prop_ro("evicted_ends", column(&DispatchedRows::evicted_ends))
      .def_prop_ro("evicted_ids", column(&DispatchedRows::evicted_ids))
      .def_prop_ro("evicted_slots", column(&DispatchedRows::evicted_slots))
      .def_prop_ro("dirty_ends", column(&DispatchedRows::dirty_ends))
      .def_prop_ro("dirty_ids", column(&DispatchedRows::dirty_ids))
      .def_prop_ro("dirty_slots", column(&DispatchedRows::dirty_slots))
      .def_prop_ro("rows_of_ids", column(&DispatchedRows::rows_of_ids))
      .def_prop_ro("id_ends", column(&DispatchedRows::id_ends));

  nb::class_<Lookahead>(module, "Lookahead",
                        "Decides what caches of embedding rows fetch, keep and evict.")
      .def(
          "__init__",
          [](Lookahead* self, std::vector<std::uint64_t> rows, std::size_t trainers,
             std::size_t lookahead, std::size_t prefetch, std::size_t slots,
             Synchronisation synchronisation, embedding::Batch first_batch,
             std::size_t commit_every) {
            new (self) Lookahead({std::move(rows), trainers, lookahead, prefetch, slots,
                                  synchronisation, first_batch, commit_every});
          },
          "rows"_a, nb::kw_only(), "trainers"_a, "lookahead"_a, "prefetch"_a, "slots"_a,
          "synchronisation"_a = Synchronisation::kTargeted, "first_batch"_a = 0,
          "commit_every"_a = 0)
      .def("push", &push, "ids"_a.noconvert(), "ends"_a.noconvert())
      .def("finish", &Lookahead::finish)
      .def("change", &Lookahead::change, "lookahead"_a, "prefetch"_a)
      .def("pop", &Lookahead::pop, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("ready", &Lookahead::ready)
      .def_prop_ro("distinct", &Lookahead::distinct)
      .def_prop_ro("resident", &Lookahead::resident)
      .def_prop_ro("newest_fetched", &Lookahead::newest_fetched)
      .def_prop_ro("arrived", &Lookahead::arrived);

  bind_rows(module);
}
