// Snapshots: checksums, round trips of every width, lookups, and files that are cut or altered at
// any byte.
#include "index/durable/snapshot.hpp"

#include <map>
#include <random>
#include <string>
#include <vector>

#include "check.hpp"
#include "index/durable/files_faulty.hpp"
#include "index/durable/files_simulated.hpp"
#include "index/durable/snapshot_writer.hpp"

using namespace headrace;
using namespace headrace::index;

namespace {

std::mt19937_64 engine(18);  // NOLINT: the same sequence in every run

std::vector<std::byte> random_bytes(std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (auto& byte : bytes) byte = static_cast<std::byte>(engine());
  return bytes;
}

struct Rows {
  std::vector<std::uint64_t> codes;
  std::vector<std::byte> values;
};

// Ascending codes with both ends of their range.
Rows random_rows(std::size_t count, std::uint32_t width) {
  std::map<std::uint64_t, int> codes;
  if (count > 0) codes[0];
  if (count > 1) codes[~std::uint64_t{0}];
  while (codes.size() < count) codes[engine()];
  Rows rows;
  for (const auto& [code, unused] : codes) rows.codes.push_back(code);
  rows.values = random_bytes(count * width);
  return rows;
}

void write(Files& files, const Rows& rows, std::uint32_t width, std::uint32_t block_bytes = 64) {
  SnapshotWriter writer(files, "f/snapshot-3", {{width}, rows.codes.size(), 3, 17, block_bytes});
  writer.append(rows.codes.data(), rows.values.data(), rows.codes.size());
  writer.finish();
}

void test_checksums() {
  const std::string text = "123456789";
  auto bytes = std::as_bytes(std::span(text));
  CHECK(crc32c(bytes) == 0xe306'9283);  // the check value in catalogues of checksums
  CHECK(crc32c(bytes.subspan(4), crc32c(bytes.first(4))) == 0xe306'9283);
  CHECK(crc32c({}) == 0);
  auto long_bytes = random_bytes(20'000);
  for (std::size_t count = 0; count < long_bytes.size(); count += 1 + count / 20) {
    const auto* from = long_bytes.data() + count % 8;
    auto tables = ~checksum::by_tables(~0U, from, count - count % 8);
    CHECK(crc32c({from, count - count % 8}) == tables);
  }
}

void test_round_trips() {
  for (std::uint32_t width : {0U, 1U, 4U, 8U, 72U, 300U}) {
    for (std::size_t count : {0, 1, 2, 7, 8, 9, 16, 17, 100}) {
      SimulatedFiles files;
      auto rows = random_rows(count, width);
      write(files, rows, width);
      Snapshot snapshot(files, "f/snapshot-3", {width});
      CHECK(snapshot.size() == count && snapshot.generation() == 3 && snapshot.sequence() == 17);
      for (std::size_t row = 0; row < count; ++row) {
        auto code = rows.codes[row];
        CHECK(snapshot.code(row) == code && snapshot.lower_bound(code) == row);
        CHECK(snapshot.find(code) == snapshot.values() + row * width);
        CHECK(width == 0 ||
              std::memcmp(snapshot.value(row), rows.values.data() + row * width, width) == 0);
        if (row > 0 && rows.codes[row - 1] + 1 < code) {
          CHECK(snapshot.lower_bound(code - 1) == row && !snapshot.find(code - 1));
        }
      }
      snapshot.verify();
      CHECK(files.list("f").size() == 1);
    }
  }
}

void test_writer_refuses() {
  SimulatedFiles files;
  const std::uint64_t codes[] = {5, 5};
  auto text = thrown<std::invalid_argument>([&] {
    SnapshotWriter writer(files, "f/s", {{0}, 2, 1, 1});
    writer.append(codes, nullptr, 2);
  });
  CHECK(text == "codes: row 1 is not above the one before it");
  thrown<std::logic_error>([&] {
    SnapshotWriter writer(files, "f/s", {{0}, 2, 1, 1});
    writer.append(codes, nullptr, 1);
    writer.finish();
  });
  thrown<std::invalid_argument>([&] { SnapshotWriter(files, "f/s", {{0}, 2, 1, 1, 100}); });
  CHECK(files.list("f").empty());
}

void test_other_formats_are_refused() {
  SimulatedFiles files;
  write(files, random_rows(3, 4), 4);
  auto text = thrown<std::invalid_argument>([&] { Snapshot(files, "f/snapshot-3", {8}); });
  CHECK(text ==
        "f/snapshot-3: holds keys that are unsigned integers and values of 4 bytes; the map has "
        "keys that are unsigned integers and values of 8 bytes");
  thrown<std::invalid_argument>(
      [&] { Snapshot(files, "f/snapshot-3", {4, KeyKind::signed_integer}); });
}

void test_cut_anywhere() {
  SimulatedFiles files;
  write(files, random_rows(40, 4), 4);
  auto whole = files.bytes("f/snapshot-3");
  for (std::size_t bytes = 0; bytes <= whole.size() + 1; ++bytes) {
    if (bytes == whole.size()) continue;
    files.bytes("f/snapshot-3") = whole;
    files.bytes("f/snapshot-3").resize(bytes);
    auto text = thrown<DamageError>([&] { Snapshot(files, "f/snapshot-3", {4}); });
    CHECK(text.starts_with("f/snapshot-3: "));
  }
}

// A row is what was written, or reading it throws.
void check_rows(const Snapshot& snapshot, const Rows& rows, std::uint32_t width) {
  for (std::size_t row = 0; row < rows.codes.size(); ++row) {
    try {
      const auto* value = snapshot.find(rows.codes[row]);
      CHECK(value && std::memcmp(value, rows.values.data() + row * width, width) == 0);
    } catch (const DamageError& error) {
      CHECK(std::string(error.what()).starts_with("f/snapshot-3: block "));
    }
  }
}

void test_altered_anywhere() {
  constexpr std::uint32_t kWidth = 4;
  SimulatedFiles files;
  auto rows = random_rows(40, kWidth);
  write(files, rows, kWidth);
  auto& bytes = files.bytes("f/snapshot-3");
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    auto flipped = static_cast<std::byte>(1U << engine() % 8);
    bytes[at] ^= flipped;
    auto block = (at - snapshot::kHeaderBytes) / 64;
    try {
      Snapshot snapshot(files, "f/snapshot-3", {kWidth});
      check_rows(snapshot, rows, kWidth);
      auto text = thrown<DamageError>([&] { snapshot.verify(); });
      CHECK(at >= snapshot::kHeaderBytes);
      CHECK(text.starts_with("f/snapshot-3: block " + std::to_string(block) + " of 8 "));
    } catch (const DamageError& error) {
      CHECK(at < snapshot::kHeaderBytes || block >= 8);
      CHECK(std::string(error.what()).starts_with("f/snapshot-3: "));
    }
    bytes[at] ^= flipped;
  }
  Snapshot(files, "f/snapshot-3", {kWidth}).verify();
}

void test_full_disk() {
  auto rows = random_rows(40, 4);
  for (std::uint64_t capacity = 0; capacity < 4600; capacity += 50) {
    SimulatedFiles files;
    files.capacity = capacity;
    auto text = thrown<std::system_error>([&] { write(files, rows, 4); });
    CHECK(text.find("No space left") != std::string::npos);
    CHECK(files.list("f").empty());
  }
}

void test_short_writes() {
  SimulatedFiles files;
  FileFaults faults;
  faults.most_bytes = 7;
  FaultyFiles faulty(files, faults);
  auto rows = random_rows(40, 4);
  write(faulty, rows, 4);
  Snapshot(files, "f/snapshot-3", {4}).verify();
}

}  // namespace

int main() {
  test_checksums();
  test_round_trips();
  test_writer_refuses();
  test_other_formats_are_refused();
  test_cut_anywhere();
  test_altered_anywhere();
  test_full_disk();
  test_short_writes();
}
