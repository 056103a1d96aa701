// Python binding of native/synthesis: columns in and out, the GIL released, no logic.
#include "synthesis/engine.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include "columns.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using namespace headrace::bindings;
using namespace headrace::synthesis;

// Returns true for a pending KeyboardInterrupt, which is left to the caller; throws other
// exceptions. Signals are those of the main thread. Exceptions that another thread raises in this
// one (PyThreadState_SetAsyncExc) are delivered when Python code runs: `look` is an empty Python
// function.
bool interrupted(const nb::callable& look) {
  nb::gil_scoped_acquire gil;
  try {
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    look();
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_KeyboardInterrupt)) throw;
    return true;
  }
  return false;
}

}  // namespace

void bind_synthesis(nb::module_& module) {
  nb::exception<SearchError>(module, "SearchError", PyExc_ValueError);

  nb::class_<Network>(module, "Network", "Ranks, links and shared capacities to search on.")
      .def(
          "__init__",
          [](Network* self, int ranks, Integers src, Integers dst, Numbers alpha, Numbers beta,
             Column<std::int64_t> shared_first, Integers shared_link, Numbers shared_beta,
             Integers group) {
            new (self) Network{ranks,
                               vector_of(src),
                               vector_of(dst),
                               vector_of(alpha),
                               vector_of(beta),
                               rows_of(shared_first, shared_link),
                               vector_of(shared_beta),
                               vector_of(group)};
            check(*self);
          },
          nb::kw_only(), "ranks"_a, "src"_a, "dst"_a, "alpha"_a, "beta"_a, "shared_first"_a,
          "shared_link"_a, "shared_beta"_a, "group"_a);

  nb::class_<Outcome>(module, "Outcome", "Result of a search.")
      .def_prop_ro(
          "link", [](const Outcome& self) { return array_of(self.messages.link); },
          nb::rv_policy::move)
      .def_prop_ro(
          "first", [](const Outcome& self) { return array_of(self.messages.chunks.first); },
          nb::rv_policy::move)
      .def_prop_ro(
          "chunk", [](const Outcome& self) { return array_of(self.messages.chunks.item); },
          nb::rv_policy::move)
      .def_prop_ro(
          "start_us", [](const Outcome& self) { return array_of(self.times.start); },
          nb::rv_policy::move)
      .def_prop_ro("total_us", [](const Outcome& self) { return self.times.total_us; })
      .def_ro("restarts", &Outcome::restarts)
      .def_ro("struck", &Outcome::struck)
      .def_ro("interrupted", &Outcome::interrupted)
      .def_ro("history", &Outcome::history);

  module.def(
      "search",
      [](const Network& network, Integers origin, Column<std::uint8_t> target, double chunk_mb,
         Column<std::int64_t> routes_first, Integers routes_link, Integers symmetry,
         std::uint64_t seed, std::int64_t restarts, double batch_share, double limit_s,
         double target_us, bool backwards, Integers prelude_link,
         Column<std::int64_t> prelude_first, Integers prelude_chunk, const nb::callable& look) {
        Deliveries deliveries{vector_of(origin),
                              vector_of(target),
                              chunk_mb,
                              rows_of(routes_first, routes_link),
                              vector_of(symmetry),
                              {vector_of(prelude_link), rows_of(prelude_first, prelude_chunk)}};
        Settings settings{seed, restarts, batch_share, limit_s, target_us, backwards};
        nb::gil_scoped_release release;
        return search(network, deliveries, settings, [&] { return interrupted(look); });
      },
      "network"_a, nb::kw_only(), "origin"_a, "target"_a, "chunk_mb"_a, "routes_first"_a,
      "routes_link"_a, "symmetry"_a, "seed"_a, "restarts"_a, "batch_share"_a, "limit_s"_a,
      "target_us"_a, "backwards"_a, "prelude_link"_a, "prelude_first"_a, "prelude_chunk"_a,
      "look"_a,
      "Randomised time-expanded matching; the best of `restarts` constructions. A "
      "KeyboardInterrupt ends it with the best so far, which may have no messages.");

  module.def(
      "replay",
      [](const Network& network, int chunks, double chunk_mb, Integers link,
         Column<std::int64_t> first, Integers chunk) {
        Messages messages{vector_of(link), rows_of(first, chunk)};
        Times times;
        {
          nb::gil_scoped_release release;
          times = replay(network, Resources(network), chunks, chunk_mb, messages);
        }
        return std::pair{array_of(std::move(times.start)), times.total_us};
      },
      "network"_a, nb::kw_only(), "chunks"_a, "chunk_mb"_a, "link"_a, "first"_a, "chunk"_a,
      "Start times of ordered messages under the full cost model, and the time of the last "
      "arrival.");
}
