// Files of clicks: lines of separated fields, parsed into columns of numbers in one pass.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

namespace headrace::embedding {

// Of an empty field that is an id: hashes have 32 bits.
inline constexpr std::int64_t kMissingId = std::int64_t{1} << 32;

enum class FieldKind : std::uint8_t {
  skipped,
  // 0 or 1.
  label,
  // A number of up to 18 digits, with a sign or without; 0 where it is empty.
  integer,
  // Year, month, day and hour, of two digits each.
  hour,
  // An id: up to 8 hexadecimal digits.
  hash,
  // An id: an integer of up to 9 digits; a negative one -n has the id kMissingId + n.
  code,
};

struct Field {
  FieldKind kind;
  // Of an id: 0, or the rows of its table. Ids are taken into 1 to rows - 1, empty fields to 0.
  std::uint64_t rows = 0;
};

struct ClickLines {
  // Whole lines of the text, and where they end in it.
  std::size_t lines = 0;
  std::size_t text_end = 0;
  // Lines that are examples.
  std::size_t accepted = 0;
  // [fields that are not skipped][lines], of which the first `accepted` ones of each are numbers.
  std::unique_ptr<std::int64_t[]> numbers;
  std::size_t columns = 0;

  // Of every other line: its number, the first wrong field (-1: there are more or fewer fields),
  // and where it begins and ends in the text.
  std::vector<std::int64_t> rejected_lines;
  std::vector<std::int64_t> rejected_fields;
  std::vector<std::int64_t> rejected_begins;
  std::vector<std::int64_t> rejected_ends;
};

// Parse whole lines, which end with \n or \r\n.
// Throws std::invalid_argument where there are no fields, or a table has one row.
ClickLines parse_click_lines(std::string_view text, const std::vector<Field>& fields,
                             char separator);

}  // namespace headrace::embedding
