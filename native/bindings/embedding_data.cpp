// Python binding of the parts of native/embedding that read examples: no logic.
#include "embedding/click_lines.hpp"
#include "embedding/text_ids.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <vector>

namespace nb = nanobind;
using namespace nb::literals;

namespace {

namespace embedding = headrace::embedding;
using embedding::ClickLines;
using embedding::Field;
using embedding::FieldKind;

using Bytes = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Offsets = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ids = nb::ndarray<std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

ClickLines parse(const nb::bytes& text, const std::vector<FieldKind>& kinds,
                 const std::vector<std::uint64_t>& rows, char separator) {
  if (kinds.size() != rows.size()) throw std::invalid_argument("rows need one number a field");
  std::vector<Field> fields;
  for (std::size_t field = 0; field < kinds.size(); ++field) {
    fields.push_back({kinds[field], rows[field]});
  }
  nb::gil_scoped_release release;
  return embedding::parse_click_lines({text.c_str(), text.size()}, fields, separator);
}

void text_ids(const Bytes& bytes, const Offsets& offsets, const Ids& ids) {
  const std::size_t count = offsets.shape(0);
  if (count != ids.shape(0) + 1) throw std::invalid_argument("offsets need one more than ids");
  for (std::size_t text = 0; text < count; ++text) {
    const auto begin = text == 0 ? 0 : offsets.data()[text - 1];
    if (offsets.data()[text] < begin ||
        offsets.data()[text] > static_cast<std::int64_t>(bytes.shape(0))) {
      throw std::invalid_argument("offsets need to rise, and to end within the bytes");
    }
  }
  nb::gil_scoped_release release;
  embedding::text_ids(reinterpret_cast<const char*>(bytes.data()), {offsets.data(), count},
                      ids.data());
}

auto column(std::vector<std::int64_t> ClickLines::* member) {
  return [member](nb::handle self) {
    auto& values = nb::cast<ClickLines&>(self).*member;
    return nb::ndarray<nb::numpy, const std::int64_t, nb::ndim<1>>(values.data(), {values.size()},
                                                                   self);
  };
}

}  // namespace

void bind_embedding_data(nb::module_& module) {
  nb::enum_<FieldKind>(module, "FieldKind", "Kinds of fields of a line.")
      .value("SKIPPED", FieldKind::skipped)
      .value("LABEL", FieldKind::label)
      .value("INTEGER", FieldKind::integer)
      .value("HOUR", FieldKind::hour)
      .value("HASH", FieldKind::hash)
      .value("CODE", FieldKind::code);

  nb::class_<ClickLines>(module, "ClickLines",
                         "Numbers of some lines' fields; columns are read-only arrays.")
      .def_ro("lines", &ClickLines::lines)
      .def_ro("text_end", &ClickLines::text_end)
      .def_prop_ro("numbers",
                   [](nb::handle self) {
                     auto& parsed = nb::cast<ClickLines&>(self);
                     return nb::ndarray<nb::numpy, std::int64_t, nb::ndim<2>>(
                         parsed.numbers.get(), {parsed.columns, parsed.accepted}, self,
                         {static_cast<std::int64_t>(parsed.lines), 1});
                   })
      .def_prop_ro("rejected_lines", column(&ClickLines::rejected_lines))
      .def_prop_ro("rejected_fields", column(&ClickLines::rejected_fields))
      .def_prop_ro("rejected_begins", column(&ClickLines::rejected_begins))
      .def_prop_ro("rejected_ends", column(&ClickLines::rejected_ends));

  module.attr("MISSING_ID") = embedding::kMissingId;
  module.def("parse_click_lines", &parse, "text"_a, "kinds"_a, "rows"_a, "separator"_a);
  module.def("text_ids", &text_ids, "bytes"_a.noconvert(), "offsets"_a.noconvert(),
             "ids"_a.noconvert());
}
