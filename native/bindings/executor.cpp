// Python binding of native/executor: arguments converted, the GIL released, no logic.
#include "executor/executor.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "transport/shm/region.hpp"
#include "transport/tls/connection.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using namespace headrace;

template <class T>
using Column = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <class T>
std::span<const T> span_of(const Column<T>& column) {
  return {column.data(), column.shape(0)};
}

std::vector<Segment> segments_of(const nb::sequence& rows) {
  std::vector<Segment> segments;
  for (nb::handle row : rows) {
    std::tuple<std::uintptr_t, std::uint64_t, std::uint32_t, std::uint32_t> found;
    if (!nb::try_cast(row, found)) {
      auto text =
          "a segment is (address, elements, blocks, chunks), integers of at least 0; found " +
          std::string(nb::repr(row).c_str());
      throw nb::type_error(text.c_str());
    }
    auto [address, elements, blocks, chunks] = found;
    segments.push_back({address, elements, blocks, chunks});
  }
  return segments;
}

// Takes ownership of the descriptors of (socket, peer, channel, memory, key) rows; memory: -1 for
// none.
using LinkRow = std::tuple<int, int, int, int, nb::bytes>;

std::vector<Link> links_of(const std::vector<LinkRow>& rows) {
  std::vector<Link> links;
  for (const auto& [fd, peer, channel, memory, key] : rows) {
    links.push_back({Fd(fd), peer, channel, Fd(memory), {key.c_str(), key.size()}});
  }
  return links;
}

// Python owns the box, native code the program: releasing the last reference to a program on the
// executor's own thread must not need the GIL.
struct ProgramBox {
  std::shared_ptr<const Program> program;
};

struct CallBox {
  Executor::Call call;
};

using Table = nb::ndarray<nb::numpy, std::int64_t, nb::ndim<2>, nb::c_contig>;

// A table of `values`, row by row; takes ownership of them.
Table table_of(std::unique_ptr<std::int64_t[]> values, std::size_t rows, std::size_t columns) {
  nb::capsule owner(values.get(),
                    [](void* held) noexcept { delete[] static_cast<std::int64_t*>(held); });
  return Table(values.release(), {rows, columns}, owner);
}

nb::tuple trace(Executor& self, const CallBox& box) {
  constexpr std::size_t kColumns = 3;
  Trace found;
  {
    nb::gil_scoped_release release;
    found = self.trace(box.call);
  }
  const auto steps = found.times.size();
  auto values = std::make_unique<std::int64_t[]>(steps * kColumns);
  auto* at = values.get();
  for (std::size_t i = 0; i < steps; ++i) {
    *at++ = found.times[i].began_ns;
    *at++ = found.times[i].passed_ns;
    *at++ = static_cast<std::int64_t>(found.bytes[i]);
  }
  return nb::make_tuple(found.called_ns, found.ended_ns,
                        table_of(std::move(values), steps, kColumns));
}

Table statistics(Executor& self) {
  constexpr std::size_t kColumns = 13;
  std::vector<ConnectionStatistics> found;
  {
    nb::gil_scoped_release release;
    found = self.statistics();
  }
  auto values = std::make_unique<std::int64_t[]>(found.size() * kColumns);
  auto* at = values.get();
  for (const auto& one : found) {
    const auto& tcp = one.tcp;
    for (std::uint64_t value :
         {static_cast<std::uint64_t>(one.peer), static_cast<std::uint64_t>(one.channel),
          one.sent_bytes, one.sends, one.received_bytes, tcp.acked_bytes, tcp.busy_us,
          tcp.peer_limited_us, tcp.buffer_limited_us, tcp.delivery_rate, std::uint64_t{tcp.rtt_us},
          std::uint64_t{tcp.min_rtt_us}, std::uint64_t{tcp.retransmits}}) {
      *at++ = static_cast<std::int64_t>(value);
    }
  }
  return table_of(std::move(values), found.size(), kColumns);
}

// Runs Python's signal handlers during a native wait.
void check_signals() {
  nb::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

}  // namespace

void bind_executor(nb::module_& module) {
  nb::exception<CommunicationError>(module, "CommunicationError", PyExc_RuntimeError);

  nb::enum_<DataType> types(module, "DataType", "Element type of a collective.");
  for (int i = 0; i < kDataTypes; ++i) types.value(kDataTypeTable[i].name, DataType(i));

  nb::enum_<Operator> operators(module, "Operator", "How a collective combines elements.");
  for (int i = 0; i < kOperators; ++i) operators.value(kOperatorTable[i], Operator(i));

  nb::enum_<Kind>(module, "Kind")
      .value("allreduce", Kind::kAllreduce)
      .value("reduce", Kind::kReduce)
      .value("broadcast", Kind::kBroadcast)
      .value("allgather", Kind::kAllgather)
      .value("gather", Kind::kGather)
      .value("reduce_scatter", Kind::kReduceScatter)
      .value("scatter", Kind::kScatter)
      .value("all_to_all", Kind::kAllToAll)
      .value("all_to_all_v", Kind::kAllToAllV)
      .value("custom", Kind::kCustom);

  nb::enum_<Priority>(module, "Priority", "Background bytes move when no others can.")
      .value("urgent", Priority::kUrgent)
      .value("normal", Priority::kNormal)
      .value("background", Priority::kBackground);
  module.def("data_channels", &data_channels, "channels"_a,
             "Return how many connections two ranks have beside control and messages, for so many "
             "of each priority.");
  module.def("has_tls", &tls::available, "Return whether this build has TLS.");

  module.def(
      "shared_buffer",
      [](std::size_t nbytes) {
        auto* begin = shm::allocate(nbytes);
        nb::capsule owner(
            begin, [](void* memory) noexcept { shm::release(static_cast<std::byte*>(memory)); });
        return nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>, nb::c_contig>(begin, {nbytes},
                                                                               owner);
      },
      "nbytes"_a, "Allocate memory that the other ranks of this host can map.");

  module.def(
      "supports", [](DataType type, Operator op) { return reduce_kernel(type, op) != nullptr; },
      "type"_a, "operator"_a, "Return whether the operator is defined for the data type.");

  nb::class_<ProgramBox>(module, "Program", "One rank's part of a program.")
      .def(
          "__init__",
          [](ProgramBox* self, int rank, int ranks, std::uint32_t slots,
             std::uint32_t scratch_slots, std::uint32_t result_slot, std::uint32_t result_slots,
             Column<std::uint8_t> lane_direction, Column<std::int32_t> lane_peer,
             Column<std::int32_t> lane_channel, Column<std::int32_t> step_lane,
             Column<std::uint8_t> step_op, Column<std::int32_t> step_slot,
             Column<std::int32_t> step_source_slot, Column<std::int32_t> step_count,
             Column<std::int32_t> dependency_step, Column<std::int32_t> dependency_on, Kind kind,
             std::uint32_t mark) {
            ProgramColumns columns{span_of(lane_direction),   span_of(lane_peer),
                                   span_of(lane_channel),     span_of(step_lane),
                                   span_of(step_op),          span_of(step_slot),
                                   span_of(step_source_slot), span_of(step_count),
                                   span_of(dependency_step),  span_of(dependency_on)};
            new (self) ProgramBox{std::make_shared<const Program>(
                rank, ranks, slots, scratch_slots, result_slot, result_slots, columns, kind, mark)};
          },
          nb::kw_only(), "rank"_a, "ranks"_a, "slots"_a, "scratch_slots"_a, "result_slot"_a,
          "result_slots"_a, "lane_direction"_a, "lane_peer"_a, "lane_channel"_a, "step_lane"_a,
          "step_op"_a, "step_slot"_a, "step_source_slot"_a, "step_count"_a, "dependency_step"_a,
          "dependency_on"_a, "kind"_a, "mark"_a)
      .def_prop_ro("channels", [](const ProgramBox& self) { return self.program->channels(); });

  nb::class_<CallBox>(module, "Call", "A collective bound to its buffers, for repeated runs.")
      .def(
          "__init__",
          [](CallBox* self, const ProgramBox& box, const nb::sequence& segments, DataType type,
             Operator op, bool average, std::uint32_t epoch, Priority priority, double deadline_s) {
            new (self) CallBox{{box.program, segments_of(segments), type, op, average, epoch,
                                priority, deadline_s}};
          },
          "program"_a, "segments"_a, "type"_a, "operator"_a, "average"_a, "epoch"_a, "priority"_a,
          "deadline_s"_a)
      .def(
          "at",
          [](const CallBox& self, std::uintptr_t address, std::uint32_t epoch, Priority priority,
             double deadline_s) {
            auto call = self.call;
            if (call.segments.size() != 1) {
              throw std::invalid_argument("a call of " + std::to_string(call.segments.size()) +
                                          " segments cannot be moved to one address");
            }
            call.segments[0].address = address;
            call.epoch = epoch;
            call.priority = priority;
            call.deadline_s = deadline_s;
            return CallBox{std::move(call)};
          },
          "address"_a, "epoch"_a, "priority"_a, "deadline_s"_a,
          "Return this call with its only segment at another address.");

  nb::class_<Completions>(module, "Completions", "Finished tasks of one or more executors.")
      .def(nb::init<>())
      .def(
          "take",
          [](Completions& self, double timeout_s) {
            std::vector<Completion> finished;
            {
              nb::gil_scoped_release release;
              finished = self.take(std::chrono::duration<double>(timeout_s));
            }
            std::vector<std::pair<std::uint64_t, std::string>> rows;
            rows.reserve(finished.size());
            for (auto& one : finished) rows.emplace_back(one.handle, std::move(one.error));
            return rows;
          },
          "timeout_s"_a,
          "Wait for the first completion, then return all: (handle, error text or '').")
      .def("wake", &Completions::wake, "Make a waiting `take` return at once.");

  nb::class_<Executor>(module, "Executor", "Runs programs between the ranks of one group.")
      .def(
          "__init__",
          [](Executor* self, int rank, int ranks, int channels, int threads,
             std::shared_ptr<Completions> completions, std::int64_t fail_at_call) {
            Executor::Options options{rank,
                                      ranks,
                                      channels,
                                      threads,
                                      std::move(completions),
                                      check_signals,
                                      {.calls_left = fail_at_call}};
            new (self) Executor(std::move(options));
          },
          nb::kw_only(), "rank"_a, "ranks"_a, "channels"_a, "threads"_a, "completions"_a,
          "fail_at_call"_a)
      .def(
          "connect",
          [](Executor& self, const std::vector<LinkRow>& rows, double deadline_s) {
            auto links = links_of(rows);
            nb::gil_scoped_release release;
            self.connect(std::move(links), deadline_s);
          },
          "links"_a, "deadline_s"_a,
          "Take ownership of all links: (socket, peer, channel, memory or -1, key for TLS or b'').")
      .def(
          "submit",
          [](Executor& self, const CallBox& box, bool notify) {
            return self.submit(box.call, notify);
          },
          "call"_a, "notify"_a, nb::call_guard<nb::gil_scoped_release>())
      .def(
          "run", [](Executor& self, const CallBox& box) { self.run(box.call); }, "call"_a,
          nb::call_guard<nb::gil_scoped_release>(), "Run to completion on this thread.")
      .def("trace", &trace, "call"_a,
           "Run as `run` does and return (called_ns, ended_ns, steps): a row of began_ns, "
           "passed_ns, bytes per step; times are CLOCK_MONOTONIC's.")
      .def("send", &Executor::send, "address"_a, "nbytes"_a, "peer"_a, "tag"_a, "deadline_s"_a,
           "notify"_a, "element"_a = 0, "priority"_a = Priority::kNormal,
           nb::call_guard<nb::gil_scoped_release>())
      .def("receive", &Executor::receive, "address"_a, "nbytes"_a, "peer"_a, "tag"_a,
           "deadline_s"_a, "notify"_a, "element"_a = 0, nb::call_guard<nb::gil_scoped_release>())
      .def(
          "wait",
          [](Executor& self, std::uint64_t handle) {
            std::array<std::uint8_t, 2> types{};
            auto source = std::int64_t{self.wait(handle, &types)};
            if (types[0] == 0) return source;
            return source | std::int64_t{types[0]} << 32 | std::int64_t{types[1]} << 40;
          },
          "handle"_a, nb::call_guard<nb::gil_scoped_release>(),
          "Wait for a task and return the source of a receive, else -1. If the sender's element "
          "type differs from the receive's: the sender's in the bits from 32 on, the receive's "
          "from 40 on.")
      .def("poll", &Executor::poll, "handle"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("cancel", &Executor::cancel, "handle"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("counters",
           [](Executor& self) {
             Counters counters;
             {
               nb::gil_scoped_release release;
               counters = self.counters();
             }
             nb::list sent;
             nb::list received;
             for (const auto& peer : counters.peers) {
               sent.append(peer.sent_bytes);
               received.append(peer.received_bytes);
             }
             nb::dict values;
             values["collectives"] = counters.collectives;
             values["messages"] = counters.messages;
             values["unexpected_bytes"] = counters.unexpected_bytes;
             values["sent_bytes"] = sent;
             values["received_bytes"] = received;
             return values;
           })
      .def("abort", &Executor::abort, "reason"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("report", &Executor::report, nb::call_guard<nb::gil_scoped_release>(),
           "Describe the tasks under way, lane by lane; after a failure, those at its time.")
      .def("submitted", &Executor::submitted, "Number of collectives submitted so far.")
      .def("finished", &Executor::finished, "Number of collectives finished or failed so far.")
      .def("statistics", &statistics,
           "Statistics of open connections, a row each: peer, channel, sent_bytes, sends, "
           "received_bytes, acked_bytes, busy_us, peer_limited_us, buffer_limited_us, "
           "delivery_rate, rtt_us, min_rtt_us, retransmits.")
      .def("set_pacing", &Executor::set_pacing, "peer"_a, "bytes_per_s"_a,
           nb::call_guard<nb::gil_scoped_release>())
      .def("abandon", &Executor::abandon)
      .def("close", &Executor::close, nb::call_guard<nb::gil_scoped_release>());
}
