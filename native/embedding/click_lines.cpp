#include "embedding/click_lines.hpp"

#include <algorithm>
#include <array>
#include <stdexcept>

namespace headrace::embedding {

namespace {

constexpr std::uint8_t kNoDigit = 255;

constexpr std::array<std::uint8_t, 256> kDigits = [] {
  std::array<std::uint8_t, 256> digits{};
  digits.fill(kNoDigit);
  for (int digit = 0; digit < 10; ++digit) digits[static_cast<std::size_t>('0' + digit)] = digit;
  for (int digit = 10; digit < 16; ++digit) {
    digits[static_cast<std::size_t>('a' + digit - 10)] = digit;
    digits[static_cast<std::size_t>('A' + digit - 10)] = digit;
  }
  return digits;
}();

constexpr int kIntegerDigits = 18;
constexpr int kCodeDigits = 9;
constexpr int kHashDigits = 8;

unsigned digit(char byte) { return kDigits[static_cast<unsigned char>(byte)]; }

// A place in a text that ends with \n: no field is read beyond it.
struct Cursor {
  const char* place;
  char separator;

  bool field_ends() const {
    return *place == separator || *place == '\n' || (*place == '\r' && place[1] == '\n');
  }

  // The digits of a field, whose number is at most `most`: -1 where there are more.
  template <unsigned Base>
  std::int64_t digits(int most) {
    std::int64_t number = 0;
    const auto* begin = place;
    for (auto next = digit(*place); next < Base; next = digit(*++place)) {
      number = static_cast<std::int64_t>(static_cast<std::uint64_t>(number) * Base + next);
    }
    count = place - begin;
    return count <= most ? number : -1;
  }

  std::ptrdiff_t count = 0;
};

std::int64_t id_in_table(std::int64_t id, std::uint64_t rows) {
  if (rows == 0) return id;
  const auto hashed = static_cast<std::uint64_t>(id);
  // Division of 32 bits is much faster.
  if (rows - 1 <= UINT32_MAX && hashed <= UINT32_MAX) {
    return 1 + static_cast<std::uint32_t>(hashed) % static_cast<std::uint32_t>(rows - 1);
  }
  return static_cast<std::int64_t>(1 + hashed % (rows - 1));
}

// Number of a field that is not empty; the cursor is behind it where `right` stays true.
std::int64_t parse_number(Cursor& cursor, const Field& field, bool& right) {
  switch (field.kind) {
    case FieldKind::label: {
      const auto label = cursor.digits<10>(kIntegerDigits);
      right = label == 0 || label == 1;
      return label;
    }
    case FieldKind::hash: {
      const auto hash = cursor.digits<16>(kHashDigits);
      right = hash >= 0;
      return right ? id_in_table(hash, field.rows) : 0;
    }
    case FieldKind::hour: {
      const auto time = cursor.digits<10>(8);
      const auto day = time / 100 % 100;
      const auto month = time / 10000 % 100;
      right = cursor.count == 8 && time % 100 < 24 && day >= 1 && day <= 31 && month >= 1 &&
              month <= 12;
      return time;
    }
    default: {
      const bool negative = *cursor.place == '-';
      cursor.place += negative;
      const bool is_code = field.kind == FieldKind::code;
      const auto size = cursor.digits<10>(is_code ? kCodeDigits : kIntegerDigits);
      right = size >= 0 && cursor.count > 0;
      if (!right || !is_code) return negative ? -size : size;
      return id_in_table(negative && size > 0 ? kMissingId + size : size, field.rows);
    }
  }
}

std::int64_t parse_field(Cursor& cursor, const Field& field, bool& right) {
  if (cursor.field_ends()) {
    right = field.kind != FieldKind::label && field.kind != FieldKind::hour;
    const bool is_id = field.kind == FieldKind::hash || field.kind == FieldKind::code;
    return is_id && field.rows == 0 ? kMissingId : 0;
  }
  return parse_number(cursor, field, right);
}

}  // namespace

ClickLines parse_click_lines(std::string_view text, const std::vector<Field>& fields,
                             char separator) {
  if (fields.empty()) throw std::invalid_argument("a line has no fields, needs one or more");
  for (const auto& field : fields) {
    if (field.rows == 1) throw std::invalid_argument("a table has 1 row, needs 2 or more");
  }
  ClickLines parsed;
  parsed.text_end = text.rfind('\n') + 1;  // npos + 1 is 0
  text = text.substr(0, parsed.text_end);
  parsed.lines = static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
  for (const auto& field : fields) parsed.columns += field.kind != FieldKind::skipped;
  parsed.numbers = std::make_unique_for_overwrite<std::int64_t[]>(parsed.columns * parsed.lines);

  const auto* begin = text.data();
  Cursor cursor{begin, separator};
  for (std::size_t line = 0; line < parsed.lines; ++line) {
    const auto* line_begin = cursor.place;
    std::int64_t wrong = -1;
    auto* number = parsed.numbers.get() + parsed.accepted;
    std::size_t separators = 0;
    for (std::size_t index = 0; index < fields.size(); ++index) {
      bool right = true;
      if (fields[index].kind != FieldKind::skipped) {
        *number = parse_field(cursor, fields[index], right);
        number += parsed.lines;
      }
      if (!right || !cursor.field_ends()) {
        if (wrong < 0 && fields[index].kind != FieldKind::skipped) {
          wrong = static_cast<std::int64_t>(index);
        }
        while (*cursor.place != separator && *cursor.place != '\n') ++cursor.place;
      }
      if (*cursor.place != separator) break;
      ++separators;
      ++cursor.place;
    }
    const bool regular = separators == fields.size() - 1;
    while (*cursor.place != '\n') ++cursor.place;
    if (regular && wrong < 0) {
      ++parsed.accepted;
    } else {
      parsed.rejected_lines.push_back(static_cast<std::int64_t>(line));
      parsed.rejected_fields.push_back(regular ? wrong : -1);
      parsed.rejected_begins.push_back(line_begin - begin);
      parsed.rejected_ends.push_back(cursor.place - begin);
    }
    ++cursor.place;
  }
  return parsed;
}

}  // namespace headrace::embedding
