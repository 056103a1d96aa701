// Python binding of the index's recordings and replays of traces.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <limits>
#include <vector>

#include "index/maps/replay.hpp"
#include "index/observe/recording.hpp"
#include "index_numbers.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

namespace index = headrace::index;
using namespace headrace::bindings;

void selects(Vector<const Code> codes, unsigned halvings, Vector<bool> out) {
  index::check_count("out", out.shape(0), codes.shape(0));
  nb::gil_scoped_release release;
  for (std::size_t i = 0; i < codes.shape(0); ++i) {
    out.data()[i] = index::Recording::selects(codes.data()[i], halvings);
  }
}

nb::dict dict_of_replay(const index::Replayed& replayed) {
  nb::dict values;
  values["load_seconds"] = replayed.load_seconds;
  values["seconds"] = replayed.seconds;
  values["operations"] = replayed.operations;
  values["found"] = replayed.found;
  values["inserted"] = replayed.inserted;
  values["erased"] = replayed.erased;
  values["scanned"] = replayed.scanned;
  values["checked"] = replayed.checked;
  values["wrong"] = replayed.wrong;
  values["statistics"] = dict_of(replayed.statistics);
  return values;
}

std::vector<nb::dict> replay(std::size_t value_bytes,
                             const std::vector<index::Configuration>& configurations,
                             Vector<const Code> loaded, Vector<const std::uint8_t> operations,
                             Vector<const Code> codes, std::size_t batch, double most_seconds,
                             int threads) {
  const index::TraceView trace{{loaded.data(), loaded.shape(0)},
                               {operations.data(), operations.shape(0)},
                               {codes.data(), codes.shape(0)}};
  const index::ReplayOptions options{batch, most_seconds, threads};
  std::vector<index::Replayed> results;
  {
    nb::gil_scoped_release release;
    results = index::replay_dynamic(value_bytes, configurations, trace, options);
  }
  std::vector<nb::dict> dicts;
  for (const auto& replayed : results) dicts.push_back(dict_of_replay(replayed));
  return dicts;
}

}  // namespace

void bind_index_replay(nb::module_& module) {
  module.def("recording_selects", &selects, nb::arg("codes").noconvert(), "halvings"_a,
             nb::arg("out").noconvert(),
             "Write for each code whether a recording of so many halvings selects it.");
  module.def(
      "replay_index", &replay, "value_bytes"_a, "configurations"_a, nb::arg("loaded").noconvert(),
      nb::arg("operations").noconvert(), nb::arg("codes").noconvert(), "batch"_a = 1,
      "most_seconds"_a = std::numeric_limits<double>::infinity(), "threads"_a = 1,
      "Load maps and run a trace on them by turns, one operation after another, or by windows.");
}
