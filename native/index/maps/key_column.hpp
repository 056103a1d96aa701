// Columns of keys whose type is known at run time, read and written as ordered codes.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "index/maps/code.hpp"
#include "index/maps/types.hpp"

namespace headrace::index {

// Codes that are encoded at once, on the stack.
constexpr std::size_t kCodeBlock = 1024;

struct KeyColumn {
  const void* data = nullptr;
  std::size_t count = 0;
  KeyType type = KeyType::uint64;
};

namespace detail {

template <class Key, class Use>
void encode_blocks(const KeyColumn& keys, Use& use) {
  std::array<std::uint64_t, kCodeBlock> codes;
  const auto* at = static_cast<const Key*>(keys.data);
  for (std::size_t first = 0; first < keys.count; first += kCodeBlock) {
    const auto count = std::min(kCodeBlock, keys.count - first);
    for (std::size_t i = 0; i < count; ++i) codes[i] = encode(at[first + i]);
    use(static_cast<const std::uint64_t*>(codes.data()), first, count);
  }
}

template <class Key>
void decode_in_place(std::uint64_t* codes, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i)
    codes[i] = std::bit_cast<std::uint64_t>(decode<Key>(codes[i]));
}

}  // namespace detail

// Throws std::domain_error, naming the first key that is NaN. To be called before `for_codes`.
inline void check_keys(const KeyColumn& keys) {
  if (keys.type != KeyType::float64) return;
  const auto* at = static_cast<const double*>(keys.data);
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < keys.count; ++i) wrong += at[i] != at[i];
  if (wrong == 0) return;
  const auto* first = std::find_if(at, at + keys.count, [](double key) { return key != key; });
  throw std::domain_error("key " + std::to_string(first - at) + " is NaN (" +
                          std::to_string(wrong) + " of " + std::to_string(keys.count) +
                          " are), needs numbers");
}

// The keys of an array that another language hands over. Throws std::invalid_argument.
inline KeyColumn checked_keys(const ArrayView& keys, KeyType type) {
  check_array("keys", keys, row_of(type));
  return {keys.data, keys.count, type};
}

// The code of the first key of a column that has one.
inline std::uint64_t first_code(const KeyColumn& keys) {
  switch (keys.type) {
    case KeyType::int64:
      return encode(*static_cast<const std::int64_t*>(keys.data));
    case KeyType::float64:
      return encode(*static_cast<const double*>(keys.data));
    case KeyType::uint64:
      break;
  }
  return *static_cast<const std::uint64_t*>(keys.data);
}

// Calls use(codes, first, count) for one block of codes after another, `first` being the position
// of its first key in the column.
template <class Use>
void for_codes(const KeyColumn& keys, Use use) {
  switch (keys.type) {
    case KeyType::uint64:
      if (keys.count > 0) {
        use(static_cast<const std::uint64_t*>(keys.data), std::size_t{0}, keys.count);
      }
      return;
    case KeyType::int64:
      return detail::encode_blocks<std::int64_t>(keys, use);
    case KeyType::float64:
      return detail::encode_blocks<double>(keys, use);
  }
}

// The codes of a column, which checked_keys and check_keys have accepted; of codes no copy.
class Codes {
 public:
  explicit Codes(const KeyColumn& keys) {
    if (keys.type == KeyType::uint64) {
      data_ = static_cast<const std::uint64_t*>(keys.data);
      return;
    }
    encoded_.resize(keys.count);
    for_codes(keys, [&](const std::uint64_t* block, std::size_t first, std::size_t count) {
      std::copy_n(block, count, encoded_.data() + first);
    });
    data_ = encoded_.data();
  }
  Codes(const Codes&) = delete;
  Codes& operator=(const Codes&) = delete;

  const std::uint64_t* data() const { return data_; }

 private:
  std::vector<std::uint64_t> encoded_;
  const std::uint64_t* data_ = nullptr;
};

// Replaces codes by the bits of their keys.
inline void decode_keys(std::uint64_t* codes, std::size_t count, KeyType type) {
  if (type == KeyType::int64) detail::decode_in_place<std::int64_t>(codes, count);
  if (type == KeyType::float64) detail::decode_in_place<double>(codes, count);
}

}  // namespace headrace::index
