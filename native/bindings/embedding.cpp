// Python binding of native/embedding: arrays are translated, the GIL released, no logic.
#include "embedding/dispatch.hpp"
#include "embedding/lookahead.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <stdexcept>
#include <utility>
#include <vector>

namespace nb = nanobind;
using namespace nb::literals;

namespace {

namespace embedding = headrace::embedding;
using embedding::Decision;
using embedding::DispatchedRows;
using embedding::Lookahead;
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
      .def("pop", &Lookahead::pop, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("ready", &Lookahead::ready)
      .def_prop_ro("resident", &Lookahead::resident);
}
