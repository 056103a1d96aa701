// Python binding of native/index: objects are translated, the GIL released, no logic; types and
// sizes are checked by native/index (maps/types.hpp). Arrays are NumPy's, of the exact type, in one
// row and contiguous: nothing is converted. Single keys and values are Python's numbers.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <array>
#include <bit>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "index/maps/dynamic_map.hpp"
#include "index/maps/replay.hpp"
#include "index/maps/row_map.hpp"
#include "index/maps/slices.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

namespace index = headrace::index;
using Code = std::uint64_t;

using Input = nb::ndarray<nb::ro, nb::device::cpu>;
using Output = nb::ndarray<nb::device::cpu>;
template <class T>
using Vector = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// -- types ----------------------------------------------------------------------------------------

// Whether an array's elements are of a type.
bool is_of(nb::dlpack::dtype type, const index::NumberType& row) {
  constexpr std::array kCodes{nb::dlpack::dtype_code::UInt, nb::dlpack::dtype_code::UInt,
                              nb::dlpack::dtype_code::Int, nb::dlpack::dtype_code::Float};
  return row.bytes > 0 && type.lanes == 1 && type.bits == 8 * row.bytes &&
         type.code == static_cast<std::uint8_t>(kCodes[static_cast<std::size_t>(row.kind)]);
}

std::string name_of(nb::dlpack::dtype type) {
  for (const auto& row : index::kValueTypes) {
    if (is_of(type, row)) return row.name;
  }
  constexpr const char* kKinds[] = {"int", "uint", "float", "handle", "bfloat", "complex", "bool"};
  const auto kind = type.code < std::size(kKinds) ? kKinds[type.code] : "unknown";
  return kind + std::to_string(type.bits);
}

template <class Array>
index::ArrayView view_of(const Array& array) {
  const auto dimensions = array.ndim();
  return {const_cast<void*>(static_cast<const void*>(array.data())), name_of(array.dtype()),
          dimensions == 0 ? 1 : array.shape(0), dimensions,
          dimensions != 1 || array.shape(0) < 2 || array.stride(0) == 1};
}

template <class Array>
std::optional<index::ArrayView> view_of(const std::optional<Array>& array) {
  return array ? std::optional(view_of(*array)) : std::nullopt;
}

nb::dict ranges_of(const auto& types) {
  nb::dict ranges;
  for (const auto& type : types) {
    if (type.bytes > 0) ranges[type.name] = nb::make_tuple(type.least, type.most);
  }
  return ranges;
}

nb::dict limits_of(const auto& rows) {
  nb::dict limits;
  for (const auto& row : rows) limits[row.field] = nb::make_tuple(row.least, row.most);
  return limits;
}

nb::dict tables() {
  nb::list leaves;
  for (const auto* name : index::kLeafNames) leaves.append(name);
  nb::dict tables;
  tables["LEAVES"] = nb::tuple(leaves);
  tables["KEY_TYPES"] = ranges_of(index::kKeyTypes);
  tables["VALUE_TYPES"] = ranges_of(index::kValueTypes);
  tables["INTEGER_LIMITS"] = limits_of(index::kIntegerLimits);
  tables["NUMBER_LIMITS"] = limits_of(index::kNumberLimits);
  return tables;
}

// -- single keys and values -----------------------------------------------------------------------

[[noreturn]] void refuse_number(const char* what, nb::handle object, const char* accepted) {
  throw nb::type_error(
      (std::string(what) + " is " + nb::repr(object).c_str() + ", needs " + accepted).c_str());
}

// The bits of a Python integer, or NumPy's.
std::uint64_t integer_bits(const char* what, nb::handle object, const index::NumberType& type) {
  nb::object number = nb::steal(PyNumber_Index(object.ptr()));
  if (!number.is_valid()) {
    PyErr_Clear();
    refuse_number(what, object, type.accepted);
  }
  if (type.kind == index::NumberKind::integer) {
    const long long value = PyLong_AsLongLong(number.ptr());
    if (!(value == -1 && PyErr_Occurred()) && value >= type.least &&
        value <= static_cast<long long>(type.most)) {
      return static_cast<std::uint64_t>(value);
    }
  } else {
    const unsigned long long value = PyLong_AsUnsignedLongLong(number.ptr());
    if (!PyErr_Occurred() && value <= type.most) return value;
  }
  PyErr_Clear();
  throw std::out_of_range(std::string(what) + " is " + nb::repr(object).c_str() + ", needs " +
                          type.accepted);
}

double double_of(const char* what, nb::handle object) {
  const double value = PyFloat_AsDouble(object.ptr());
  if (value == -1.0 && PyErr_Occurred()) {
    PyErr_Clear();
    refuse_number(what, object, "a number");
  }
  if (PyLong_Check(object.ptr())) {
    nb::object rounded = nb::steal(PyLong_FromDouble(value));
    if (!rounded.is_valid() || !rounded.equal(object)) {
      PyErr_Clear();
      refuse_number(what, object, "an integer that a float64 holds exactly");
    }
  }
  return value;
}

std::uint64_t bits_of(const char* what, nb::handle object, const index::NumberType& type) {
  switch (type.kind) {
    case index::NumberKind::none:
      return 0;
    case index::NumberKind::real:
      return type.bytes == 4
                 ? std::bit_cast<std::uint32_t>(static_cast<float>(double_of(what, object)))
                 : std::bit_cast<std::uint64_t>(double_of(what, object));
    default:
      return integer_bits(what, object, type);
  }
}

nb::object number_of(std::uint64_t bits, const index::NumberType& type) {
  const auto low = static_cast<std::uint32_t>(bits);
  switch (type.kind) {
    case index::NumberKind::natural:
      return nb::int_(type.bytes == 4 ? low : bits);
    case index::NumberKind::integer:
      return nb::int_(type.bytes == 4 ? std::bit_cast<std::int32_t>(low)
                                      : std::bit_cast<std::int64_t>(bits));
    case index::NumberKind::real:
      return nb::float_(type.bytes == 4 ? static_cast<double>(std::bit_cast<float>(low))
                                        : std::bit_cast<double>(bits));
    case index::NumberKind::none:
      break;
  }
  return nb::none();
}

Code code_of(nb::handle key, index::KeyType type) {
  const auto bits = bits_of("key", key, row_of(type));
  switch (type) {
    case index::KeyType::uint64:
      return bits;
    case index::KeyType::int64:
      return index::encode(std::bit_cast<std::int64_t>(bits));
    case index::KeyType::float64:
      return index::encode(std::bit_cast<double>(bits));
  }
  return 0;
}

nb::object key_of(Code code, index::KeyType type) {
  index::decode_keys(&code, 1, type);
  return number_of(code, row_of(type));
}

// -- arrays that are returned ---------------------------------------------------------------------

template <class T>
using Returned = nb::ndarray<nb::numpy, T, nb::ndim<1>, nb::c_contig>;

template <class T, class Make>
Returned<T> array_of(std::size_t count, Make make) {
  auto values = std::make_unique<T[]>(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = make(i);
  nb::capsule owner(values.get(), [](void* held) noexcept { delete[] static_cast<T*>(held); });
  return Returned<T>(values.release(), {count}, owner);
}

nb::dict dict_of(const index::Statistics& found) {
  nb::dict leaves;
  nb::dict keys;
  for (std::size_t i = 0; i < index::kLeafTypes; ++i) {
    leaves[index::kLeafNames[i]] = found.leaves[i];
    keys[index::kLeafNames[i]] = found.keys[i];
  }
  nb::dict values;
  values["size"] = found.size;
  values["bytes"] = found.bytes;
  values["inner_nodes"] = found.inner_nodes;
  values["comparison_nodes"] = found.comparison_nodes;
  values["slots"] = found.slots;
  values["leaves"] = leaves;
  values["keys"] = keys;
  values["depth"] = found.depth;
  values["mean_depth"] = found.mean_depth;
  values["changes"] = found.changes;
  values["moved_keys"] = found.moved_keys;
  values["largest_change_keys"] = found.largest_change_keys;
  return values;
}

// -- the map --------------------------------------------------------------------------------------

class IndexMap {
 public:
  IndexMap(const std::string& keys, const std::string& values,
           const index::Configuration& configuration)
      : key_type_(index::key_type_named(keys)),
        value_type_(index::value_type_named(values)),
        map_(index::make_dynamic_map(row_of(value_type_).bytes, configuration)) {}

  IndexMap copy() const {
    nb::gil_scoped_release release;
    return {key_type_, value_type_, map_->copy()};
  }

  void build(Input keys, std::optional<Input> values, int threads) {
    const auto column = column_of(keys);
    const auto* data = values_of(values, column.count);
    nb::gil_scoped_release release;
    map_->build(column, data, threads);
  }

  std::size_t find(Input keys, std::optional<Output> values, Vector<bool> found,
                   nb::object missing) {
    const auto column = column_of(keys);
    auto* data = values_of(values, column.count);
    index::check_count("found", found.shape(0), column.count);
    const auto fill = missing.is_none() ? 0 : bits_of("value", missing, row_of(value_type_));
    nb::gil_scoped_release release;
    return map_->find(column, data, found.data(), &fill);
  }

  std::size_t contains(Input keys, Vector<bool> found) {
    const auto column = column_of(keys);
    index::check_count("found", found.shape(0), column.count);
    nb::gil_scoped_release release;
    return map_->contains(column, found.data());
  }

  std::size_t insert_or_assign(Input keys, std::optional<Input> values) {
    const auto column = column_of(keys);
    const auto* data = values_of(values, column.count);
    nb::gil_scoped_release release;
    return map_->insert_or_assign(column, data);
  }

  std::size_t find_or_insert(Input keys, Input fresh, Output values, Vector<bool> is_new) {
    const auto column = column_of(keys);
    const auto* numbers = values_of(std::optional(fresh), fresh.ndim() == 1 ? fresh.shape(0) : 0);
    auto* data = values_of(std::optional(values), column.count);
    index::check_count("is_new", is_new.shape(0), column.count);
    nb::gil_scoped_release release;
    return map_->find_or_insert(column, numbers, fresh.shape(0), data, is_new.data());
  }

  std::size_t update(Input keys, std::optional<Input> values) {
    const auto column = column_of(keys);
    const auto* data = values_of(values, column.count);
    nb::gil_scoped_release release;
    return map_->update(column, data);
  }

  std::size_t erase(Input keys) {
    const auto column = column_of(keys);
    nb::gil_scoped_release release;
    return map_->erase(column);
  }

  nb::object find_one(nb::handle key, nb::object missing) {
    const auto code = code_of(key, key_type_);
    std::uint64_t bits = 0;
    bool found = false;
    const std::uint64_t fill = 0;
    {
      nb::gil_scoped_release release;
      map_->find({&code, 1, index::KeyType::uint64}, &bits, &found, &fill);
    }
    return found ? number_of(bits, row_of(value_type_)) : missing;
  }

  bool contains_one(nb::handle key) {
    const auto code = code_of(key, key_type_);
    bool found = false;
    nb::gil_scoped_release release;
    map_->contains({&code, 1, index::KeyType::uint64}, &found);
    return found;
  }

  bool insert_one(nb::handle key, nb::handle value) {
    const auto code = code_of(key, key_type_);
    const auto bits = bits_of("value", value, row_of(value_type_));
    nb::gil_scoped_release release;
    return map_->insert_or_assign({&code, 1, index::KeyType::uint64}, &bits) == 1;
  }

  bool erase_one(nb::handle key) {
    const auto code = code_of(key, key_type_);
    nb::gil_scoped_release release;
    return map_->erase({&code, 1, index::KeyType::uint64}) == 1;
  }

  // Keys from `first` (or after it), and below `end`.
  std::size_t scan(nb::object first, nb::object end, bool after, Output keys,
                   std::optional<Output> values) {
    const auto column = column_of(keys);
    const auto most = column.count;
    auto* data = values_of(values, most);
    auto* codes = static_cast<Code*>(keys.data());
    const auto range = range_of(first, end, after);
    if (!range) return 0;
    nb::gil_scoped_release release;
    const auto count = map_->scan(*range, most, codes, data);
    index::decode_keys(codes, count, key_type_);
    return count;
  }

  std::size_t lower_bound(Input keys, Output bounds, std::optional<Output> values,
                          Vector<bool> found) {
    const auto column = column_of(keys);
    index::check_array("bounds", view_of(bounds), row_of(key_type_));
    index::check_count("bounds", bounds.shape(0), column.count);
    index::check_count("found", found.shape(0), column.count);
    auto* data = values_of(values, column.count);
    auto* codes = static_cast<Code*>(bounds.data());
    nb::gil_scoped_release release;
    const auto there = map_->lower_bound(column, codes, data, found.data());
    index::decode_keys(codes, column.count, key_type_);
    return there;
  }

  nb::object min() { return bound(&index::DynamicMap::min); }
  nb::object max() { return bound(&index::DynamicMap::max); }

  std::optional<Code> convert(Code cursor, std::size_t most_keys) {
    bool done = false;
    nb::gil_scoped_release release;
    map_->convert(cursor, most_keys, done);
    return done ? std::nullopt : std::optional(cursor);
  }

  nb::dict statistics() {
    index::Statistics found;
    {
      nb::gil_scoped_release release;
      found = map_->statistics();
    }
    return dict_of(found);
  }

  nb::tuple activity(std::uint64_t since) {
    index::Activity found;
    {
      nb::gil_scoped_release release;
      found = map_->activity();
    }
    nb::list counts;
    for (const auto& one : found.counts()) {
      counts.append(nb::make_tuple(one.operations, one.effective, one.timed, one.timed_ns));
    }
    const auto kept = std::min<std::uint64_t>(found.sampled(), index::Activity::kSample);
    const auto first = std::max(since, found.sampled() - kept);
    const auto count = found.sampled() - std::min(first, found.sampled());
    return nb::make_tuple(
        counts, found.sampled(),
        array_of<std::uint8_t>(
            count, [&](auto i) { return std::uint8_t(found.sampled(first + i).operation); }),
        array_of<Code>(count, [&](auto i) { return found.sampled(first + i).code; }));
  }

  std::optional<nb::tuple> end_recording(std::uint64_t number) {
    std::optional<index::Recording> ended;
    {
      nb::gil_scoped_release release;
      ended = map_->end_recording(number);
    }
    if (!ended) return std::nullopt;
    const auto& rows = ended->operations();
    return nb::make_tuple(ended->halvings(),
                          array_of<std::uint8_t>(
                              rows.size(), [&](auto i) { return std::uint8_t(rows[i].operation); }),
                          array_of<Code>(rows.size(), [&](auto i) { return rows[i].code; }),
                          array_of<bool>(rows.size(), [&](auto i) { return rows[i].present; }));
  }

  index::DynamicMap& map() { return *map_; }

 private:
  IndexMap(index::KeyType keys, index::ValueType values, std::unique_ptr<index::DynamicMap> map)
      : key_type_(keys), value_type_(values), map_(std::move(map)) {}

  template <class Array>
  index::KeyColumn column_of(const Array& keys) const {
    return index::checked_keys(view_of(keys), key_type_);
  }

  template <class Array>
  void* values_of(const std::optional<Array>& values, std::size_t count) const {
    const auto view = view_of(values);
    return index::checked_values(view ? &*view : nullptr, value_type_, count);
  }

  std::optional<index::CodeRange> range_of(nb::handle first, nb::handle end, bool after) const {
    index::CodeRange range;
    if (!first.is_none()) range.first = code_of(first, key_type_);
    if (!end.is_none()) {
      const auto code = code_of(end, key_type_);
      if (code == 0) return std::nullopt;
      range.last = code - 1;
    }
    if (after && range.first++ == std::numeric_limits<Code>::max()) return std::nullopt;
    return range.first <= range.last ? std::optional(range) : std::nullopt;
  }

  nb::object bound(std::optional<Code> (index::DynamicMap::*which)() const) {
    std::optional<Code> code;
    {
      nb::gil_scoped_release release;
      code = (*map_.*which)();
    }
    return code ? key_of(*code, key_type_) : nb::none();
  }

  index::KeyType key_type_;
  index::ValueType value_type_;
  std::unique_ptr<index::DynamicMap> map_;
};

// -- the map of rows ------------------------------------------------------------------------------

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

void bind_rows(nb::module_& module) {
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

// -- recordings and replays -----------------------------------------------------------------------

void selects(Vector<const Code> codes, unsigned halvings, Vector<bool> out) {
  index::check_count("out", out.shape(0), codes.shape(0));
  nb::gil_scoped_release release;
  for (std::size_t i = 0; i < codes.shape(0); ++i) {
    out.data()[i] = index::Recording::selects(codes.data()[i], halvings);
  }
}

nb::dict replay(std::size_t value_bytes, const index::Configuration& configuration,
                Vector<const Code> loaded, Vector<const std::uint8_t> operations,
                Vector<const Code> codes, std::size_t batch, double most_seconds, int threads) {
  const index::TraceView trace{{loaded.data(), loaded.shape(0)},
                               {operations.data(), operations.shape(0)},
                               {codes.data(), codes.shape(0)}};
  const index::ReplayOptions options{batch, most_seconds, threads};
  index::Replayed found;
  {
    nb::gil_scoped_release release;
    found = index::replay_dynamic(value_bytes, configuration, trace, options);
  }
  nb::dict values;
  values["load_seconds"] = found.load_seconds;
  values["seconds"] = found.seconds;
  values["operations"] = found.operations;
  values["found"] = found.found;
  values["inserted"] = found.inserted;
  values["erased"] = found.erased;
  values["scanned"] = found.scanned;
  values["checked"] = found.checked;
  values["wrong"] = found.wrong;
  values["statistics"] = dict_of(found.statistics);
  return values;
}

void bind_configuration(nb::module_& module) {
  using index::Configuration;
  const Configuration plain;
  nb::class_<Configuration>(module, "IndexConfiguration", "Parameters of an index's tree.")
      .def(
          "__init__",
          [](Configuration* self, const std::string& leaf, std::uint32_t fragment_keys,
             std::uint32_t fragments, std::uint32_t initial_fragments, bool fingerprints,
             std::uint32_t leaf_keys, double fill, double max_search, double max_shifts,
             double insert_fraction) {
            const auto type = static_cast<index::Leaf>(index::position_of(
                "leaf", leaf, index::kLeafTypes, [](auto i) { return index::kLeafNames[i]; }));
            Configuration configuration{type,         fragment_keys,  fragments, initial_fragments,
                                        fingerprints, leaf_keys,      fill,      max_search,
                                        max_shifts,   insert_fraction};
            configuration.validate();
            new (self) Configuration(configuration);
          },
          nb::kw_only(), "leaf"_a = index::kLeafNames[static_cast<std::size_t>(plain.leaf)],
          "fragment_keys"_a = plain.fragment_keys, "fragments"_a = plain.fragments,
          "initial_fragments"_a = plain.initial_fragments, "fingerprints"_a = plain.fingerprints,
          "leaf_keys"_a = plain.leaf_keys, "fill"_a = plain.fill, "max_search"_a = plain.max_search,
          "max_shifts"_a = plain.max_shifts, "insert_fraction"_a = plain.insert_fraction)
      .def_prop_ro("leaf",
                   [](const Configuration& self) {
                     return index::kLeafNames[static_cast<std::size_t>(self.leaf)];
                   })
      .def_ro("fragment_keys", &Configuration::fragment_keys)
      .def_ro("fragments", &Configuration::fragments)
      .def_ro("initial_fragments", &Configuration::initial_fragments)
      .def_ro("fingerprints", &Configuration::fingerprints)
      .def_ro("leaf_keys", &Configuration::leaf_keys)
      .def_ro("fill", &Configuration::fill)
      .def_ro("max_search", &Configuration::max_search)
      .def_ro("max_shifts", &Configuration::max_shifts)
      .def_ro("insert_fraction", &Configuration::insert_fraction);
}

}  // namespace

void bind_index(nb::module_& module) {
  bind_configuration(module);
  bind_rows(module);
  using Released = nb::call_guard<nb::gil_scoped_release>;
  nb::class_<IndexMap>(module, "IndexMap",
                       "An ordered map. Threads may share it: each call holds its lock.")
      .def(nb::init<const std::string&, const std::string&, const index::Configuration&>(),
           "keys"_a, "values"_a, "configuration"_a,
           "An empty map of keys (uint64, int64, float64) and values (none, or numbers of 32 or 64 "
           "bits).")
      .def("copy", &IndexMap::copy)
      .def("build", &IndexMap::build, nb::arg("keys").noconvert(),
           nb::arg("values").noconvert().none(), "threads"_a,
           "Replace all keys and values; of equal keys the last is kept.")
      .def("find", &IndexMap::find, nb::arg("keys").noconvert(),
           nb::arg("values").noconvert().none(), nb::arg("found").noconvert(),
           "missing"_a = nb::none(), "Write values and `found`; return the number of keys found.")
      .def("contains", &IndexMap::contains, nb::arg("keys").noconvert(),
           nb::arg("found").noconvert())
      .def("insert_or_assign", &IndexMap::insert_or_assign, nb::arg("keys").noconvert(),
           nb::arg("values").noconvert().none(), "Return the number of new keys.")
      .def("find_or_insert", &IndexMap::find_or_insert, nb::arg("keys").noconvert(),
           nb::arg("fresh").noconvert(), nb::arg("values").noconvert(),
           nb::arg("is_new").noconvert(),
           "Write values and `is_new`; new keys take the first elements of `fresh`, in order. "
           "Return "
           "the number of new keys.")
      .def("update", &IndexMap::update, nb::arg("keys").noconvert(),
           nb::arg("values").noconvert().none(), "Return the number of keys that exist.")
      .def("erase", &IndexMap::erase, nb::arg("keys").noconvert(),
           "Return the number of keys erased.")
      .def("find_one", &IndexMap::find_one, "key"_a, "missing"_a = nb::none(),
           "Return the value, or `missing`.")
      .def("contains_one", &IndexMap::contains_one, "key"_a)
      .def("insert_one", &IndexMap::insert_one, "key"_a, "value"_a = nb::none(),
           "Insert or assign; return whether the key is new.")
      .def("erase_one", &IndexMap::erase_one, "key"_a, "Return whether the key was there.")
      .def("scan", &IndexMap::scan, "first"_a.none(), "end"_a.none(), "after"_a,
           nb::arg("keys").noconvert(), nb::arg("values").noconvert().none(),
           "Write keys from `first` (with `after`: above it) to below `end`, ascending, and return "
           "their number: as many as fit into the arrays.")
      .def("lower_bound", &IndexMap::lower_bound, nb::arg("keys").noconvert(),
           nb::arg("bounds").noconvert(), nb::arg("values").noconvert().none(),
           nb::arg("found").noconvert(),
           "Write the least key not below each key, where there is one, and its value.")
      .def("min", &IndexMap::min, "Return the least key, or None.")
      .def("max", &IndexMap::max, "Return the largest key, or None.")
      .def(
          "size", [](IndexMap& self) { return self.map().size(); }, Released())
      .def(
          "clear", [](IndexMap& self) { self.map().clear(); }, Released())
      .def(
          "shrink_to_fit", [](IndexMap& self) { self.map().shrink_to_fit(); }, Released())
      .def(
          "configuration", [](IndexMap& self) { return self.map().configuration(); }, Released())
      .def(
          "configure",
          [](IndexMap& self, const index::Configuration& configuration) {
            self.map().configure(configuration);
          },
          "configuration"_a, Released(), "Set the configuration of leaves made from now on.")
      .def("convert", &IndexMap::convert, "cursor"_a, "most_keys"_a,
           "Convert leaves from the code `cursor` on, of about `most_keys` keys; return the next "
           "cursor, or None at the end.")
      .def("statistics", &IndexMap::statistics)
      .def(
          "verify", [](IndexMap& self) { self.map().verify(); }, Released())
      .def("activity", &IndexMap::activity, "since"_a = 0,
           "Return for each operation (operations, effective, timed, timed_ns), `effective` of the "
           "timed ones; the number of operations sampled so far; and operations and codes of the "
           "sample from number `since` on.")
      .def(
          "begin_recording",
          [](IndexMap& self, unsigned halvings, std::size_t most, bool yields) {
            return self.map().begin_recording(halvings, most, yields);
          },
          "halvings"_a, "most"_a, "yields"_a, Released(),
          "Record operations on one key in 2^halvings, at most so many. Return the recording's "
          "number, or 0 if one is under way that does not yield its place.")
      .def("end_recording", &IndexMap::end_recording, "number"_a,
           "Return (halvings, operations, codes, present), or None if that one is not under way.");
  nb::class_<index::SlicedConversion>(module, "IndexConversion",
                                      "Conversion of a map's leaves, in slices.")
      .def(
          "__init__",
          [](index::SlicedConversion* self, double slice_s, double share) {
            new (self) index::SlicedConversion({slice_s, share});
          },
          "slice_s"_a = index::SliceLimits().slice_s, "share"_a = index::SliceLimits().share)
      .def(
          "run",
          [](index::SlicedConversion& self, IndexMap& map, double seconds) {
            return self.run(map.map(), seconds);
          },
          "map"_a, "seconds"_a, Released(),
          "Convert for about so many seconds; return whether leaves are left.")
      .def_prop_ro("slices", &index::SlicedConversion::slices)
      .def_prop_ro("longest_s", &index::SlicedConversion::longest_s,
                   "Longest time that a slice held the map's lock, in seconds.");
  nb::class_<index::SlicedSelection>(module, "IndexSelection",
                                     "Reading of the keys that a recording selects, in slices.")
      .def(
          "__init__",
          [](index::SlicedSelection* self, unsigned halvings, double share) {
            new (self) index::SlicedSelection(halvings, share);
          },
          "halvings"_a, "share"_a)
      .def(
          "run",
          [](index::SlicedSelection& self, IndexMap& map, double seconds) {
            return self.run(map.map(), seconds);
          },
          "map"_a, "seconds"_a, Released(),
          "Read for about so many seconds; return whether keys are left.")
      .def("codes", [](const index::SlicedSelection& self) {
        return array_of<Code>(self.codes().size(), [&](auto i) { return self.codes()[i]; });
      });
  module.def("index_tables", &tables,
             "Return the types of leaves, keys and values, and the limits of a configuration, by "
             "name: what headrace/index/tables.py has.");
  module.def("recording_selects", &selects, nb::arg("codes").noconvert(), "halvings"_a,
             nb::arg("out").noconvert(),
             "Write for each code whether a recording of so many halvings selects it.");
  module.def("replay_index", &replay, "value_bytes"_a, "configuration"_a,
             nb::arg("loaded").noconvert(), nb::arg("operations").noconvert(),
             nb::arg("codes").noconvert(), "batch"_a = 1,
             "most_seconds"_a = std::numeric_limits<double>::infinity(), "threads"_a = 1,
             "Load a map and run a trace on it, one operation after another, or by windows.");
}
