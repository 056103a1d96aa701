// NumPy columns in and out of the bindings.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "rows.hpp"

namespace headrace::bindings {

namespace nb = nanobind;

template <class T>
using Column = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Integers = Column<std::int32_t>;
using Numbers = Column<double>;

template <class T>
std::vector<T> vector_of(const Column<T>& column) {
  return {column.data(), column.data() + column.shape(0)};
}

inline Rows rows_of(const Column<std::int64_t>& first, const Integers& item) {
  return {vector_of(first), vector_of(item)};
}

template <class T>
nb::ndarray<nb::numpy, T, nb::ndim<1>> array_of(std::vector<T> values) {
  auto* kept = new std::vector<T>(std::move(values));
  nb::capsule owner(kept, [](void* held) noexcept { delete static_cast<std::vector<T>*>(held); });
  return {kept->data(), {kept->size()}, owner};
}

}  // namespace headrace::bindings
