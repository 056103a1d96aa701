// The types of keys and values of maps whose types are known at run time, and the checks of arrays
// of them: what is handed over from another language is checked here, before anything changes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>

namespace headrace::index {

enum class KeyType : std::uint8_t { uint64, int64, float64 };
enum class ValueType : std::uint8_t { none, uint32, int32, float32, uint64, int64, float64 };
enum class NumberKind : std::uint8_t { none, natural, integer, real };

struct NumberType {
  const char* name;
  std::size_t bytes;
  NumberKind kind;
  // All integers from `least` to `most` are held exactly; of real types these are 2^digits.
  std::int64_t least;
  std::uint64_t most;
  const char* accepted;  // single numbers, in words
};

namespace detail {

template <class Integer>
constexpr NumberType integer_type(const char* name, const char* accepted) {
  using Limits = std::numeric_limits<Integer>;
  return {name,
          sizeof(Integer),
          Limits::is_signed ? NumberKind::integer : NumberKind::natural,
          static_cast<std::int64_t>(Limits::min()),
          static_cast<std::uint64_t>(Limits::max()),
          accepted};
}

template <class Real>
constexpr NumberType real_type(const char* name) {
  constexpr auto kExact = std::int64_t{1} << std::numeric_limits<Real>::digits;
  return {name, sizeof(Real), NumberKind::real, -kExact, kExact, "a number"};
}

constexpr auto kUint64 = integer_type<std::uint64_t>("uint64", "an integer of 0 to 2^64-1");
constexpr auto kInt64 = integer_type<std::int64_t>("int64", "an integer of -2^63 to 2^63-1");
constexpr auto kFloat64 = real_type<double>("float64");

}  // namespace detail

// In the order of the enumerations.
constexpr std::array<NumberType, 3> kKeyTypes{detail::kUint64, detail::kInt64, detail::kFloat64};
constexpr std::array<NumberType, 7> kValueTypes{
    NumberType{"none", 0, NumberKind::none, 0, 0, "no value"},
    detail::integer_type<std::uint32_t>("uint32", "an integer of 0 to 2^32-1"),
    detail::integer_type<std::int32_t>("int32", "an integer of -2^31 to 2^31-1"),
    detail::real_type<float>("float32"),
    detail::kUint64,
    detail::kInt64,
    detail::kFloat64,
};

constexpr const NumberType& row_of(KeyType type) {
  return kKeyTypes[static_cast<std::size_t>(type)];
}
constexpr const NumberType& row_of(ValueType type) {
  return kValueTypes[static_cast<std::size_t>(type)];
}

// The position of a name among `count` of them, `name_of(i)` being one. Throws
// std::invalid_argument with all names, which begins with `what`.
template <class NameOf>
std::size_t position_of(const char* what, const std::string& name, std::size_t count,
                        const NameOf& name_of) {
  std::string names;
  for (std::size_t i = 0; i < count; ++i) {
    if (name == name_of(i)) return i;
    names += (i == 0 ? "" : ", ") + std::string(name_of(i));
  }
  throw std::invalid_argument(std::string(what) + " is '" + name + "', needs one of " + names);
}

inline KeyType key_type_named(const std::string& name) {
  return static_cast<KeyType>(
      position_of("keys", name, kKeyTypes.size(), [](auto i) { return kKeyTypes[i].name; }));
}

inline ValueType value_type_named(const std::string& name) {
  return static_cast<ValueType>(
      position_of("values", name, kValueTypes.size(), [](auto i) { return kValueTypes[i].name; }));
}

// An array as another language hands it over.
struct ArrayView {
  void* data = nullptr;  // of outputs it is written to
  std::string type;      // name of its elements' type
  std::size_t count = 0;
  std::size_t dimensions = 1;
  bool contiguous = true;
};

inline void check_count(const char* name, std::size_t count, std::size_t needed) {
  if (count == needed) return;
  throw std::invalid_argument(std::string(name) + " are " + std::to_string(count) + ", needs " +
                              std::to_string(needed) + ", one for each key");
}

// Throws std::invalid_argument, which begins with `name`, unless the array is one contiguous row of
// the type.
inline void check_array(const char* name, const ArrayView& array, const NumberType& needed) {
  if (array.type != needed.name) {
    throw std::invalid_argument(std::string(name) + " have type " + array.type + ", needs " +
                                needed.name);
  }
  if (array.dimensions != 1) {
    throw std::invalid_argument(std::string(name) + " have " + std::to_string(array.dimensions) +
                                " dimensions, needs one");
  }
  if (!array.contiguous) throw std::invalid_argument(std::string(name) + " are not contiguous");
}

// The data of an array of values, one for each of `count` keys; null for keys alone, which have no
// array (`values` is null).
inline void* checked_values(const ArrayView* values, ValueType type, std::size_t count) {
  if (type == ValueType::none) {
    if (values != nullptr) {
      throw std::invalid_argument("values are given, but this index has keys alone");
    }
    return nullptr;
  }
  if (values == nullptr) {
    throw std::invalid_argument(std::string("values are missing, needs an array of ") +
                                row_of(type).name);
  }
  check_array("values", *values, row_of(type));
  check_count("values", values->count, count);
  return values->data;
}

}  // namespace headrace::index
