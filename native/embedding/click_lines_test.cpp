// Lines of clicks: numbers of all kinds of fields, and lines that are no examples.
#include "embedding/click_lines.hpp"

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "check.hpp"
#include "embedding/text_ids.hpp"
#include "random.hpp"

using namespace headrace;
using namespace headrace::embedding;

namespace {

using Numbers = std::vector<std::int64_t>;

const std::vector<Field> kAll = {{FieldKind::label}, {FieldKind::skipped}, {FieldKind::integer},
                                 {FieldKind::hour},  {FieldKind::hash},    {FieldKind::code}};

Numbers numbers(const ClickLines& parsed, std::size_t line) {
  Numbers row;
  for (std::size_t column = 0; column < parsed.columns; ++column) {
    row.push_back(parsed.numbers[column * parsed.lines + line]);
  }
  return row;
}

void test_fields() {
  const auto parsed = parse_click_lines(
      "1,any,-12,14102123,fF,7\n"
      "0,,,14102100,,\r\n"
      "1,x,999999999999999999,14102100,ffffffff,-1\n"
      "1,no end",
      kAll, ',');
  CHECK(parsed.lines == 3 && parsed.accepted == 3 && parsed.columns == 5);
  CHECK((numbers(parsed, 0) == Numbers{1, -12, 14102123, 255, 7}));
  CHECK((numbers(parsed, 1) == Numbers{0, 0, 14102100, kMissingId, kMissingId}));
  CHECK(
      (numbers(parsed, 2) == Numbers{1, 999999999999999999, 14102100, 0xffffffff, kMissingId + 1}));
  CHECK(parsed.text_end == 24 + 16 + 44);
}

void test_tables() {
  const auto large = std::uint64_t{1} << 33;
  const auto parsed = parse_click_lines("5,5,-1,ffffffff\n,,,\n",
                                        {{FieldKind::hash, 2},
                                         {FieldKind::hash, 4},
                                         {FieldKind::code, 1000},
                                         {FieldKind::hash, large}},
                                        ',');
  CHECK((numbers(parsed, 0) == Numbers{1, 3, 1 + (kMissingId + 1) % 999, 1 + 0xffffffffLL}));
  CHECK((numbers(parsed, 1) == Numbers{0, 0, 0, 0}));
}

// The first wrong field of a line that has all fields right but some.
std::int64_t wrong_field(const std::string& line) {
  const std::string right = "1,,1,14102100,1,1\n";
  const auto parsed = parse_click_lines(right + line + "\n" + right, kAll, ',');
  CHECK(parsed.lines == 3 && parsed.accepted == 2);
  CHECK(parsed.rejected_lines == Numbers{1});
  CHECK(parsed.rejected_begins == Numbers{18});
  CHECK(parsed.rejected_ends == Numbers{18 + static_cast<std::int64_t>(line.size())});
  CHECK((numbers(parsed, 1) == Numbers{1, 1, 14102100, 1, 1}));
  return parsed.rejected_fields[0];
}

void test_rejected_lines() {
  for (const auto* line : {"", "1", "1,,1,14102100,1", "1,,1,14102100,1,1,", "x,,1,14102100,1"}) {
    CHECK(wrong_field(line) == -1);
  }
  for (const auto* label : {"", "2", "-1", "1x", "x", "\r"}) {
    CHECK(wrong_field(std::string(label) + ",,1,14102100,1,1") == 0);
  }
  for (const auto* integer : {"-", "--1", "1-", "1111111111111111111", "a", "1 ", "\r", "1.0"}) {
    CHECK(wrong_field("1,," + std::string(integer) + ",x,1,1") == 2);
  }
  for (const auto* hour : {"", "1410210", "141021000", "14102124", "14002100", "14132100",
                           "14103200", "14100000", "1410210x"}) {
    CHECK(wrong_field("1,,1," + std::string(hour) + ",1,1") == 3);
  }
  for (const auto* hash : {"g", "123456789", "-1", "0x1", " 1"}) {
    CHECK(wrong_field("1,,1,14102100," + std::string(hash) + ",1") == 4);
  }
  for (const auto* code : {"a", "1234567890", "-1234567890", "-", "+1", "1\r\r"}) {
    CHECK(wrong_field("1,,1,14102100,1," + std::string(code)) == 5);
  }
}

void test_no_lines() {
  for (const auto* text : {"", "1,,1,14102100,1,1"}) {
    const auto parsed = parse_click_lines(text, kAll, ',');
    CHECK(parsed.lines == 0 && parsed.text_end == 0 && parsed.accepted == 0);
  }
  CHECK(thrown<std::invalid_argument>([] { parse_click_lines("", {}, ','); }) ==
        "a line has no fields, needs one or more");
  CHECK(thrown<std::invalid_argument>([] { parse_click_lines("", {{FieldKind::hash, 1}}, ','); }) ==
        "a table has 1 row, needs 2 or more");
}

// Any bytes: every line is accepted or rejected, within the text.
void test_garbage() {
  Random random(1, 0);
  const std::string bytes = "0123456789abf,,,,,,,-\r\n\n\tx\xff";
  for (int round = 0; round < 3000; ++round) {
    std::string text;
    for (int count = random.below(200); count > 0; --count) {
      text += bytes[static_cast<std::size_t>(random.below(static_cast<int>(bytes.size())))];
    }
    const std::vector<Field> fields(1 + static_cast<std::size_t>(random.below(4)),
                                    Field{static_cast<FieldKind>(random.below(6))});
    // In memory of its own, so that a sanitizer sees reads behind it.
    const std::vector<char> copy(text.begin(), text.end());
    const auto parsed = parse_click_lines({copy.data(), copy.size()}, fields, ',');
    CHECK(parsed.accepted + parsed.rejected_lines.size() == parsed.lines);
    for (std::size_t line = 0; line < parsed.rejected_lines.size(); ++line) {
      CHECK(parsed.rejected_ends[line] < static_cast<std::int64_t>(parsed.text_end));
      CHECK(text[static_cast<std::size_t>(parsed.rejected_ends[line])] == '\n');
    }
  }
}

void test_text_ids() {
  // Of another implementation; with other ids, trained rows would not be found again.
  CHECK(text_id("") == 0x7a950af4d4daf44d);
  CHECK(text_id("a") == 0x1605edfa40a107c);
  CHECK(text_id("site_\xc3\xa9") == 0x4d4c24d90eef906d);
  const std::string bytes = "abca";
  const Numbers offsets = {0, 1, 1, 3, 4};
  Numbers ids(4);
  text_ids(bytes.data(), offsets, ids.data());
  CHECK((ids == Numbers{text_id("a"), text_id(""), text_id("bc"), text_id("a")}));
  CHECK(text_id(std::string_view("\0", 1)) != text_id(""));
}

}  // namespace

int main() {
  test_fields();
  test_tables();
  test_rejected_lines();
  test_no_lines();
  test_garbage();
  test_text_ids();
}
