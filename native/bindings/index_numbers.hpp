// Keys and values of an index between Python and native code: arrays, single numbers, statistics.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "index/configuration.hpp"
#include "index/maps/key_column.hpp"
#include "index/maps/types.hpp"

namespace headrace::bindings {

namespace nb = nanobind;
namespace index = headrace::index;
using Code = std::uint64_t;

using Input = nb::ndarray<nb::ro, nb::device::cpu>;
using Output = nb::ndarray<nb::device::cpu>;
template <class T>
using Vector = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// -- types ----------------------------------------------------------------------------------------

// Whether an array's elements are of a type.
inline bool is_of(nb::dlpack::dtype type, const index::NumberType& row) {
  constexpr std::array kCodes{nb::dlpack::dtype_code::UInt, nb::dlpack::dtype_code::UInt,
                              nb::dlpack::dtype_code::Int, nb::dlpack::dtype_code::Float};
  return row.bytes > 0 && type.lanes == 1 && type.bits == 8 * row.bytes &&
         type.code == static_cast<std::uint8_t>(kCodes[static_cast<std::size_t>(row.kind)]);
}

inline std::string name_of(nb::dlpack::dtype type) {
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

// -- single keys and values -----------------------------------------------------------------------

// Doubles from here on are rounded to no float: half a unit of its last place above the largest.
inline constexpr double kFloatsEnd = 0x1.ffffffp127;

[[noreturn]] inline void refuse_number(const char* what, nb::handle object, const char* accepted) {
  throw nb::type_error(
      (std::string(what) + " is " + nb::repr(object).c_str() + ", needs " + accepted).c_str());
}

// The bits of a Python integer, or NumPy's.
inline std::uint64_t integer_bits(const char* what, nb::handle object,
                                  const index::NumberType& type) {
  nb::object number = PyLong_CheckExact(object.ptr()) ? nb::steal(Py_NewRef(object.ptr()))
                                                      : nb::steal(PyNumber_Index(object.ptr()));
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

// Arrays have an index, too, of one element: those of NumPy are sequences, those of torch have a
// length.
inline bool is_array(nb::handle object) {
  if (PySequence_Check(object.ptr())) return true;
  if (PyType_GetSlot(Py_TYPE(object.ptr()), Py_mp_length) == nullptr) return false;
  if (PyObject_Size(object.ptr()) >= 0) return true;
  PyErr_Clear();  // of no dimensions
  return false;
}

// Python's integers, and NumPy's, which are none of Python's.
inline bool is_integer(nb::handle object) {
  return PyIndex_Check(object.ptr()) && !is_array(object);
}

inline double double_of(const char* what, nb::handle object) {
  const double value = PyFloat_AsDouble(object.ptr());
  if (value == -1.0 && PyErr_Occurred()) {
    PyErr_Clear();
    refuse_number(what, object, "a number");
  }
  if (is_integer(object)) {
    nb::object integer = nb::steal(PyNumber_Index(object.ptr()));
    nb::object rounded = nb::steal(PyLong_FromDouble(value));
    if (!integer.is_valid() || !rounded.is_valid() || !rounded.equal(integer)) {
      PyErr_Clear();
      refuse_number(what, object, "an integer that a float64 holds exactly");
    }
  }
  return value;
}

inline float float_of(const char* what, nb::handle object) {
  const double value = double_of(what, object);
  if (std::isfinite(value) && std::abs(value) >= kFloatsEnd) {
    refuse_number(what, object, "a number that a float32 holds");
  }
  const auto rounded = static_cast<float>(value);
  if (is_integer(object) && rounded != value) {
    refuse_number(what, object, "an integer that a float32 holds exactly");
  }
  return rounded;
}

inline std::uint64_t bits_of(const char* what, nb::handle object, const index::NumberType& type) {
  switch (type.kind) {
    case index::NumberKind::none:
      if (!object.is_none()) {
        throw nb::type_error(
            "values are given, but this index has keys alone: make it with values, or with "
            "value_dtype");
      }
      return 0;
    case index::NumberKind::real:
      return type.bytes == 4 ? std::bit_cast<std::uint32_t>(float_of(what, object))
                             : std::bit_cast<std::uint64_t>(double_of(what, object));
    default:
      return integer_bits(what, object, type);
  }
}

inline nb::object number_of(std::uint64_t bits, const index::NumberType& type) {
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

// The code of a number's bits.
inline Code code_of_bits(std::uint64_t bits, index::KeyType type) {
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

// Answers calls for one key of an object that is none.
inline nb::object no_single_key() { return nb::steal(Py_NewRef(Py_NotImplemented)); }

// Single keys of one index. Keys that are no numbers, such as times, are brought to numbers and
// back by Python.
class KeyNumbers {
 public:
  explicit KeyNumbers(index::KeyType type) : type_(type) {}
  // `to_number(key)` returns an integer, or NotImplemented for what is no single key;
  // `from_number(integer)` a key.
  KeyNumbers(index::KeyType type, nb::object to_number, nb::object from_number)
      : type_(type), to_number_(std::move(to_number)), from_number_(std::move(from_number)) {}

  index::KeyType type() const { return type_; }

  // Nothing: the object is no single key, but an array, perhaps. Throws for a number that is none
  // of the type's.
  std::optional<Code> single(nb::handle key) const {
    if (to_number_.is_valid()) {
      const nb::object number = to_number_(key);
      if (number.is(nb::handle(Py_NotImplemented))) return std::nullopt;
      return code_of_bits(bits_of("key", number, row_of(type_)), type_);
    }
    if (is_number(key.ptr())) {
      return code_of_bits(bits_of("key", key, row_of(type_)), type_);
    }
    return std::nullopt;
  }

  Code code(nb::handle key) const {
    if (const auto code = single(key)) return *code;
    if (to_number_.is_valid()) refuse_number("key", key, "a time");
    return code_of_bits(bits_of("key", key, row_of(type_)), type_);
  }

  nb::object key(Code code) const {
    index::decode_keys(&code, 1, type_);
    auto number = number_of(code, row_of(type_));
    return from_number_.is_valid() ? from_number_(number) : number;
  }

 private:
  // NumPy's float64 is Python's float, its smaller floats have their names alone.
  static bool is_number(PyObject* object) {
    if (PyLong_Check(object) || PyFloat_Check(object)) return true;
    if (PyIndex_Check(object)) return !is_array(object);
    const nb::handle type = nb::handle(object).type();
    const auto name = nb::cast<std::string>(type.attr("__name__"));
    return (name == "float32" || name == "float16") &&
           nb::cast<std::string>(type.attr("__module__")) == "numpy";
  }

  index::KeyType type_;
  nb::object to_number_;
  nb::object from_number_;
};

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

inline nb::dict dict_of(const index::Statistics& found) {
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

}  // namespace headrace::bindings
