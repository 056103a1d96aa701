// Python binding of the index's map of rows.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include "index/maps/row_map.hpp"
#include "index_numbers.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

namespace index = headrace::index;
using namespace headrace::bindings;

using Rows = Vector<std::int64_t>;

index::KeyColumn column_of(const index::RowMap& map, const auto& keys) {
  return index::checked_keys(view_of(keys), map.key_type());
}

void build_rows(index::RowMap& map, Input keys, Vector<const std::int64_t> rows, int threads) {
  const auto column = column_of(map, keys);
  index::check_count("rows", rows.shape(0), column.count);
  nb::gil_scoped_release release;
  map.build(column, rows.data(), threads);
}

std::size_t find_rows(const index::RowMap& map, Input keys, Rows rows) {
  const auto column = column_of(map, keys);
  index::check_count("rows", rows.shape(0), column.count);
  nb::gil_scoped_release release;
  return map.find(column, rows.data());
}

std::size_t find_or_insert_rows(index::RowMap& map, Input keys, Rows rows, Vector<bool> is_new) {
  const auto column = column_of(map, keys);
  index::check_count("rows", rows.shape(0), column.count);
  index::check_count("is_new", is_new.shape(0), column.count);
  nb::gil_scoped_release release;
  return map.find_or_insert(column, rows.data(), is_new.data());
}

std::size_t erase_rows(index::RowMap& map, Input keys, Rows rows) {
  const auto column = column_of(map, keys);
  index::check_count("rows", rows.shape(0), column.count);
  nb::gil_scoped_release release;
  return map.erase(column, rows.data());
}

void release_rows(index::RowMap& map, Vector<const std::int64_t> rows) {
  nb::gil_scoped_release release;
  map.release(rows.data(), rows.shape(0));
}

std::size_t scan_rows(const index::RowMap& map, Output keys, Rows rows) {
  const auto column = column_of(map, keys);
  index::check_count("rows", rows.shape(0), column.count);
  auto* codes = static_cast<Code*>(keys.data());
  nb::gil_scoped_release release;
  const auto count = map.scan(0, column.count, codes, rows.data());
  index::decode_keys(codes, count, map.key_type());
  return count;
}

}  // namespace

void bind_index_rows(nb::module_& module) {
  using index::RowMap;
  using Released = nb::call_guard<nb::gil_scoped_release>;
  nb::class_<RowMap>(module, "IndexRows",
                     "Keys and their rows in a table, in shards. Threads may share it.")
      .def(
          "__init__",
          [](RowMap* self, const std::string& keys, std::size_t shards,
             const index::Configuration& configuration) {
            new (self) RowMap(index::key_type_named(keys), shards, configuration);
          },
          "keys"_a, "shards"_a, "configuration"_a)
      .def("build", &build_rows, nb::arg("keys").noconvert(), nb::arg("rows").noconvert(),
           "threads"_a, "Load keys and their rows into an empty map.")
      .def("find", &find_rows, nb::arg("keys").noconvert(), nb::arg("rows").noconvert(),
           "Write rows, -1 for keys that have none; return the number of keys found.")
      .def("find_or_insert", &find_or_insert_rows, nb::arg("keys").noconvert(),
           nb::arg("rows").noconvert(), nb::arg("is_new").noconvert(),
           "Write rows and `is_new`; return the number of new keys.")
      .def("erase", &erase_rows, nb::arg("keys").noconvert(), nb::arg("rows").noconvert(),
           "Write the rows that keys had, which are retired, or -1; return the number of keys "
           "erased.")
      .def("release", &release_rows, nb::arg("rows").noconvert(), "Make retired rows free.")
      .def("scan", &scan_rows, nb::arg("keys").noconvert(), nb::arg("rows").noconvert(),
           "Write keys, ascending, and their rows: as many as fit; return their number.")
      .def("size", &RowMap::size, Released())
      .def("shards", &RowMap::shards)
      .def("bytes", &RowMap::bytes, Released())
      .def("rows", &RowMap::rows, Released(),
           "Return one more than the largest row that is in use or retired.")
      .def("free_rows", &RowMap::free_rows, Released())
      .def("retired_rows", &RowMap::retired_rows, Released())
      .def("verify", &RowMap::verify, Released());
}
