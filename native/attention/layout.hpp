// Places of rows in a block. Functions are static: of copies that were compiled for several
// instruction sets the linker would keep any one.
#pragma once

#include <cstddef>

#include "attention/attention.hpp"

namespace headrace::attention {

// Bytes of the numbers or codes of a row.
static inline std::size_t row_bytes(Format format, std::size_t dim) {
  switch (format) {
    case Format::kFloat32:
      return 4 * dim;
    case Format::kBFloat16:
      return 2 * dim;
    case Format::kInt8:
      return dim;
    default:
      return dim / 2;
  }
}

// Addresses of the rows of one head, from a row on.
struct Head {
  const char* data;
  const char* scales;
};
static inline Head head_of(const Rows& rows, std::size_t head, std::size_t row, std::size_t dim) {
  auto capacity = static_cast<std::size_t>(rows.capacity);
  auto at = static_cast<std::size_t>(rows.first) + row;
  auto* scales = static_cast<const char*>(rows.scales);
  if (rows.format == Format::kInt4Groups) {
    scales += (head * (capacity / kGroup) + at / kGroup) * (4 * dim);
  } else if (rows.format == Format::kInt8 || rows.format == Format::kInt4) {
    scales += (head * capacity + at) * 4;
  }
  return {
      static_cast<const char*>(rows.data) + (head * capacity + at) * row_bytes(rows.format, dim),
      scales};
}

}  // namespace headrace::attention
