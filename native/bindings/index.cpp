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
#include <mutex>
#include <string>
#include <vector>

#include "index/maps/dynamic_map.hpp"
#include "index/maps/slices.hpp"
#include "index_numbers.hpp"

namespace nb = nanobind;
using namespace nb::literals;

// Instantiated by index_maps.cpp.
extern template class headrace::index::detail::DynamicMapOf<headrace::index::Nothing>;
extern template class headrace::index::detail::DynamicMapOf<std::uint32_t>;
extern template class headrace::index::detail::DynamicMapOf<std::uint64_t>;

namespace {

namespace index = headrace::index;
using namespace headrace::bindings;

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

// -- the map --------------------------------------------------------------------------------------

class IndexMap {
 public:
  IndexMap(const std::string& keys, const std::string& values,
           const index::Configuration& configuration, nb::object to_number, nb::object from_number)
      : value_type_(index::value_type_named(values)),
        map_(index::make_dynamic_map(row_of(value_type_).bytes, configuration)),
        numbers_(to_number.is_none() ? KeyNumbers(index::key_type_named(keys))
                                     : KeyNumbers(index::key_type_named(keys), std::move(to_number),
                                                  std::move(from_number))) {}

  IndexMap copy() const {
    auto copied = [&] {
      nb::gil_scoped_release release;
      return map_->copy();
    }();
    return {numbers_, value_type_, std::move(copied)};
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

  // One key. What is no single key, but an array, perhaps, is answered by NotImplemented.

  nb::object find_one(nb::handle key, nb::object missing) {
    const auto code = numbers_.single(key);
    if (!code) return no_single_key();
    std::uint64_t bits = 0;
    return alone([&] { return map_->find_one(*code, &bits); }) ? value_of(bits) : missing;
  }

  nb::object contains_one(nb::handle key) {
    const auto code = numbers_.single(key);
    if (!code) return no_single_key();
    std::uint64_t unused = 0;
    return nb::bool_(alone([&] { return map_->find_one(*code, &unused); }));
  }

  nb::object insert_one(nb::handle key, nb::handle value) {
    const auto code = numbers_.single(key);
    if (!code) return no_single_key();
    const auto bits = bits_of("value", value, row_of(value_type_));
    return nb::bool_(alone([&] { return map_->insert_one(*code, &bits); }));
  }

  nb::object erase_one(nb::handle key) {
    const auto code = numbers_.single(key);
    if (!code) return no_single_key();
    std::uint64_t unused = 0;
    return nb::bool_(alone([&] { return map_->take_one(*code, &unused); }));
  }

  nb::object take_one(nb::handle key, nb::object missing) {
    const auto code = numbers_.single(key);
    if (!code) return no_single_key();
    std::uint64_t bits = 0;
    return alone([&] { return map_->take_one(*code, &bits); }) ? value_of(bits) : missing;
  }

  nb::object find_or_insert_one(nb::handle key, nb::handle fresh) {
    const auto code = numbers_.single(key);
    if (!code) return no_single_key();
    const auto bits = bits_of("value", fresh, row_of(value_type_));
    std::uint64_t stored = 0;
    alone([&] { return map_->find_or_insert_one(*code, &bits, &stored); });
    return value_of(stored);
  }

  // The key, or None.
  nb::object neighbour_of_one(nb::handle key, bool up, bool own) {
    const auto entry = neighbour(key, {up, own});
    if (!entry) return no_single_key();
    return entry->found ? numbers_.key(entry->code) : nb::none();
  }

  // (key, value, found); None and None where there is none.
  nb::object bound_of_one(nb::handle key, bool up, bool own) {
    const auto entry = neighbour(key, {up, own});
    if (!entry) return no_single_key();
    if (!entry->found) return nb::make_tuple(nb::none(), nb::none(), false);
    return nb::make_tuple(numbers_.key(entry->code), value_of(entry->bits), true);
  }

  nb::object take_at(std::size_t position) {
    Entry entry;
    entry.found = alone([&] { return map_->take_at(position, entry.code, &entry.bits); });
    if (!entry.found) return nb::none();
    return nb::make_tuple(numbers_.key(entry.code), value_of(entry.bits));
  }

  // Keys from `first` (or after it), and below `end`.
  std::size_t scan(nb::object first, nb::object end, bool after, Output keys,
                   std::optional<Output> values, bool down) {
    const auto column = column_of(keys);
    const auto most = column.count;
    auto* data = values_of(values, most);
    auto* codes = static_cast<Code*>(keys.data());
    const auto range = range_of(first, end, after);
    if (!range) return 0;
    nb::gil_scoped_release release;
    const auto count =
        down ? map_->scan_down(*range, most, codes, data) : map_->scan(*range, most, codes, data);
    index::decode_keys(codes, count, numbers_.type());
    return count;
  }

  std::size_t erase_range(nb::object first, nb::object end) {
    const auto range = range_of(first, end, false);
    if (!range) return 0;
    nb::gil_scoped_release release;
    return map_->erase_range(*range);
  }

  std::size_t neighbours(Input keys, bool up, bool own, Output bounds, std::optional<Output> values,
                         Vector<bool> found) {
    const auto column = column_of(keys);
    index::check_array("bounds", view_of(bounds), row_of(numbers_.type()));
    index::check_count("bounds", bounds.shape(0), column.count);
    index::check_count("found", found.shape(0), column.count);
    auto* data = values_of(values, column.count);
    auto* codes = static_cast<Code*>(bounds.data());
    nb::gil_scoped_release release;
    const auto there = map_->neighbours(column, {up, own}, codes, data, found.data());
    index::decode_keys(codes, column.count, numbers_.type());
    return there;
  }

  void rank(Input keys, Vector<std::int64_t> ranks) {
    const auto column = column_of(keys);
    index::check_count("ranks", ranks.shape(0), column.count);
    nb::gil_scoped_release release;
    map_->rank(column, ranks.data());
  }

  nb::object rank_of_one(nb::handle key) {
    const auto code = numbers_.single(key);
    if (!code) return no_single_key();
    std::int64_t rank = 0;
    {
      nb::gil_scoped_release release;
      map_->rank({&*code, 1, index::KeyType::uint64}, &rank);
    }
    return nb::int_(rank);
  }

  void select(Vector<const std::int64_t> positions, Output keys, std::optional<Output> values) {
    const auto column = column_of(keys);
    index::check_count("keys", column.count, positions.shape(0));
    auto* data = values_of(values, column.count);
    auto* codes = static_cast<Code*>(keys.data());
    nb::gil_scoped_release release;
    map_->select(positions.data(), column.count, codes, data);
    index::decode_keys(codes, column.count, numbers_.type());
  }

  nb::object select_one(std::int64_t position) {
    Code code = 0;
    std::uint64_t bits = 0;
    {
      nb::gil_scoped_release release;
      map_->select(&position, 1, &code, &bits);
    }
    return nb::make_tuple(numbers_.key(code), value_of(bits));
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
  const KeyNumbers& numbers() const { return numbers_; }
  nb::object value_of(std::uint64_t bits) const { return number_of(bits, row_of(value_type_)); }

 private:
  struct Entry {
    Code code = 0;
    std::uint64_t bits = 0;
    bool found = false;
  };

  IndexMap(const KeyNumbers& numbers, index::ValueType values,
           std::unique_ptr<index::DynamicMap> map)
      : value_type_(values), map_(std::move(map)), numbers_(numbers) {}

  // Runs an operation on one key under the map's lock. Giving up the interpreter's lock would take
  // longer than most, so that is done only where another thread is within a call; the map's lock
  // is not held while the interpreter's is waited for.
  template <class Run>
  bool alone(const Run& run) {
    if (const std::unique_lock lock(map_->lock(), std::try_to_lock); lock.owns_lock()) return run();
    nb::gil_scoped_release release;
    const std::lock_guard lock(map_->lock());
    return run();
  }

  // Nothing: it is no single key.
  std::optional<Entry> neighbour(nb::handle key, index::Neighbour which) {
    const auto code = numbers_.single(key);
    if (!code) return std::nullopt;
    Entry entry;
    entry.found =
        alone([&] { return map_->neighbour_of_one(*code, which, entry.code, &entry.bits); });
    return entry;
  }

  template <class Array>
  index::KeyColumn column_of(const Array& keys) const {
    return index::checked_keys(view_of(keys), numbers_.type());
  }

  template <class Array>
  void* values_of(const std::optional<Array>& values, std::size_t count) const {
    const auto view = view_of(values);
    return index::checked_values(view ? &*view : nullptr, value_type_, count);
  }

  std::optional<index::CodeRange> range_of(nb::handle first, nb::handle end, bool after) const {
    index::CodeRange range;
    if (!first.is_none()) range.first = numbers_.code(first);
    if (!end.is_none()) {
      const auto code = numbers_.code(end);
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
    return code ? numbers_.key(*code) : nb::none();
  }

  index::ValueType value_type_;
  std::unique_ptr<index::DynamicMap> map_;
  KeyNumbers numbers_;
};

// Moves give (key, value), or None where the cursor is at no entry.
class IndexCursor {
 public:
  explicit IndexCursor(IndexMap& map) : map_(map), cursor_(map.map().cursor()) {}

  nb::object seek(nb::handle key) {
    const Code from = key.is_none() ? 0 : map_.numbers().code(key);
    return moved([&](auto& code, auto* bits) { return cursor_->seek(from, code, bits); });
  }
  nb::object next() {
    return moved([&](auto& code, auto* bits) { return cursor_->next(code, bits); });
  }
  nb::object previous() {
    return moved([&](auto& code, auto* bits) { return cursor_->previous(code, bits); });
  }

 private:
  template <class Move>
  nb::object moved(const Move& move) {
    Code code = 0;
    std::uint64_t bits = 0;
    bool any = false;
    {
      nb::gil_scoped_release release;
      any = move(code, &bits);
    }
    if (!any) return nb::none();
    return nb::make_tuple(map_.numbers().key(code), map_.value_of(bits));
  }

  IndexMap& map_;
  std::unique_ptr<index::DynamicCursor> cursor_;
};

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
  using Released = nb::call_guard<nb::gil_scoped_release>;
  nb::class_<IndexMap>(module, "IndexMap",
                       "An ordered map. Threads may share it: each call holds its lock.")
      .def(nb::init<const std::string&, const std::string&, const index::Configuration&, nb::object,
                    nb::object>(),
           "keys"_a, "values"_a, "configuration"_a, "to_number"_a = nb::none(),
           "from_number"_a = nb::none(),
           "An empty map of keys (uint64, int64, float64) and values (none, or numbers of 32 or 64 "
           "bits). Single keys that are no numbers are brought to numbers and back by functions.")
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
      // Names of arguments would make calls slower.
      .def("find_one", &IndexMap::find_one, "Return the value of a key, or the second argument.")
      .def("contains_one", &IndexMap::contains_one)
      .def("insert_one", &IndexMap::insert_one, nb::arg(), nb::arg().none(),
           "Insert or assign a key and a value; return whether the key is new.")
      .def("erase_one", &IndexMap::erase_one, "Return whether the key was there.")
      .def("take_one", &IndexMap::take_one,
           "Erase a key; return the value that it had, or the second argument.")
      .def("find_or_insert_one", &IndexMap::find_or_insert_one,
           "Return the value of a key, which is inserted with the second argument if it is absent.")
      .def("neighbour_of_one", &IndexMap::neighbour_of_one,
           "Return the nearest key, or None: above a key (second argument) or below, or the key "
           "itself (third argument).")
      .def("bound_of_one", &IndexMap::bound_of_one, "The same, as (key, value, found).")
      .def("take_at", &IndexMap::take_at, "Erase the entry of a position; return it, or None.")
      .def("rank_of_one", &IndexMap::rank_of_one)
      .def("select_one", &IndexMap::select_one, "Return the entry of a position.")
      .def("scan", &IndexMap::scan, "first"_a.none(), "end"_a.none(), "after"_a,
           nb::arg("keys").noconvert(), nb::arg("values").noconvert().none(), "down"_a = false,
           "Write keys from `first` (with `after`: above it) to below `end`, ascending, or `down` "
           "from the end, and return their number: as many as fit into the arrays.")
      .def("erase_range", &IndexMap::erase_range, "first"_a.none(), "end"_a.none(),
           "Return the number of keys erased.")
      .def("neighbours", &IndexMap::neighbours, nb::arg("keys").noconvert(), "up"_a, "own"_a,
           nb::arg("bounds").noconvert(), nb::arg("values").noconvert().none(),
           nb::arg("found").noconvert(),
           "Write for each key the nearest one above it (`up`) or below, or (`own`) itself, where "
           "there is one, and its value.")
      .def("rank", &IndexMap::rank, nb::arg("keys").noconvert(), nb::arg("ranks").noconvert(),
           "Write for each key how many of the map's are below it.")
      .def("select", &IndexMap::select, nb::arg("positions").noconvert(),
           nb::arg("keys").noconvert(), nb::arg("values").noconvert().none(),
           "Write the key and the value of each position.")
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
  nb::class_<IndexCursor>(module, "IndexCursor",
                          "An entry of a map and the way to its neighbours. Each move returns "
                          "(key, value), or None at no entry.")
      .def(nb::init<IndexMap&>(), "map"_a, nb::keep_alive<1, 2>())
      .def("seek", &IndexCursor::seek, "key"_a.none(),
           "Go to the least key that is not below `key`; None: to the first one.")
      .def("next", &IndexCursor::next)
      .def("previous", &IndexCursor::previous, "At no entry: go to the last one.");
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
}
