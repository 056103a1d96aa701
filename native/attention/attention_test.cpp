// Every kernel table that this processor supports, against loops in double over numbers that are
// decoded by the description of their format.
#include "attention/attention.hpp"

#include <atomic>
#include <cmath>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "attention/kernels.hpp"
#include "attention/testing.hpp"
#include "attention/workers.hpp"
#include "check.hpp"
#include "process_testing.hpp"
#include "random.hpp"

using namespace headrace;
using namespace headrace::attention;
using namespace headrace::attention::testing;
using headrace::testing::in_child;
using headrace::testing::RefusedThreads;

// A child of a fork has threads of its own, which ThreadSanitizer ends programs for unless told.
extern "C" const char* __tsan_default_options();
extern "C" const char* __tsan_default_options() { return "die_after_fork=0"; }

namespace {

constexpr std::size_t kDims[] = {16, 32, 64, 80, 96, 128, 256, 512};

// Of outputs, which are averages of normal numbers. Over keys of codes queries have 16 bits.
constexpr double kTolerance = 2e-5;
constexpr double kCodedTolerance = 2e-4;

bool has_codes(const Call& call) {
  for (const auto& segment : call.segments()) {
    if (!is_plain(segment.keys.format)) return true;
  }
  return false;
}

void compare(const char* what, const Plain& out, const Doubles& expected, bool coded) {
  auto rounding = out.format() == Format::kFloat32 ? 1e-6 : 0x1p-8;
  auto tolerance = coded ? kCodedTolerance : kTolerance;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    auto found = static_cast<double>(out[i]);
    bool same = std::isfinite(expected[i])
                    ? std::abs(found - expected[i]) <= tolerance + rounding * std::abs(expected[i])
                    : found == expected[i] || (std::isnan(found) && std::isnan(expected[i]));
    if (!same) {
      std::fprintf(stderr, "%s, output %zu of %zu: %g, needs %g\n", what, i, expected.size(), found,
                   expected[i]);
    }
    CHECK(same);
  }
}

void check_call(const Call& call) {
  auto expected = reference(call);
  for (const auto* table : attention_tables()) {
    for (std::size_t threads : {1, 2, 3}) {
      auto out = call.run(*table, threads);
      compare(table->name, out, expected, has_codes(call));
      if (threads == 3) CHECK(out == call.run(*table, threads));
    }
  }
}

// Every pair of formats at every dimension, with other numbers of heads, tokens and segments, with
// and without a mask. Some have several tiles, so that several threads have parts.
void test_formats() {
  Random random(1, 0);
  for (auto dim : kDims) {
    for (auto keys : kFormats) {
      for (auto values : kFormats) {
        if (keys == Format::kInt4 || values == Format::kInt4Groups) continue;
        if (!has_dim(keys, dim) || !has_dim(values, dim)) continue;
        Formats formats{random.below(2) == 0 ? Format::kFloat32 : Format::kBFloat16, keys, values};
        auto call = random_call(random, dim, formats, dim == 64 ? 700 : 130);
        if (random.below(2) == 0) mask_randomly(call, random);
        check_call(call);
      }
    }
  }
}

// Enough tokens for a part of each of three threads.
void test_many_tokens() {
  Random random(2, 0);
  for (auto keys : {Format::kFloat32, Format::kInt4Groups}) {
    auto call = random_heads(random, 32);
    call.shape.batch = 1;
    call.shape.queries = 2;
    auto numbers = random_numbers(random, call.shape, 2048);
    add_segments(call, {Format::kFloat32, keys, Format::kInt8}, numbers, random, 2000, 2048);
    check_call(call);
  }
}

// Heads that share probabilities and values have the same output; with as many representatives as
// heads, the output is that of full attention, whatever the order of representatives.
void test_memberships() {
  Random random(3, 0);
  for (int round = 0; round < 10; ++round) {
    auto call = random_heads(random, 32);
    auto& shape = call.shape;
    shape.key_heads = shape.value_heads;
    shape.query_heads = shape.scores = shape.heads;
    auto group = shape.heads / shape.value_heads;
    auto numbers = random_numbers(random, shape, 320);
    call.query.clear();
    call.key.clear();
    call.score.clear();
    for (std::size_t b = 0; b < shape.batch; ++b) {
      for (std::size_t h = 0; h < shape.heads; ++h) {
        call.query.push_back(static_cast<std::int32_t>(h));
        call.key.push_back(static_cast<std::int32_t>(h / group));
        call.score.push_back(static_cast<std::int32_t>(h));
      }
    }
    add_segments(call, {Format::kFloat32, Format::kBFloat16, Format::kFloat32}, numbers, random,
                 300, 320);
    check_call(call);
    // The first two heads of a group share the first one's probabilities.
    if (group < 2) continue;
    call.score[1] = 0;
    auto out = call.run(1);
    for (std::size_t i = 0; i < shape.queries; ++i) {
      for (std::size_t d = 0; d < shape.dim; ++d) {
        auto first = (i * shape.heads) * shape.dim + d;
        CHECK(out[first] == out[first + shape.dim]);
      }
    }
    check_call(call);
  }
}

// The same tokens in one segment and in several have the same output, but for rounding.
void test_segments() {
  Random random(4, 0);
  Formats formats{Format::kFloat32, Format::kInt8, Format::kInt4};
  auto whole = random_heads(random, 64);
  auto numbers = random_numbers(random, whole.shape, 640);
  whole.queries = Plain(formats.queries, numbers.queries);
  auto split = whole;
  add_segment(whole, formats, numbers, random, 640, 0, 600);
  for (std::size_t from = 0; from < 600; from += 100) {
    add_segment(split, formats, numbers, random, 640, from, 100);
  }
  auto expected = reference(whole);
  CHECK(reference(split) == expected);
  compare("segments", split.run(2), expected, has_codes(split));
  compare("segments", whole.run(2), expected, has_codes(whole));
}

// Masks: a query that may see no token gives zeros; rows of NaN that no query may see, and those
// beyond the tokens, do not matter to scores.
void test_masks() {
  Random random(5, 0);
  auto call = random_heads(random, 48);
  call.shape.queries = 3;
  auto numbers = random_numbers(random, call.shape, 320);
  for (std::size_t head = 0; head < call.shape.batch * call.shape.key_heads; ++head) {
    for (std::size_t d = 0; d < call.shape.dim; ++d) {
      numbers.keys[(head * 320 + 7) * call.shape.dim + d] = d % 2 == 0 ? kNan : kInfinity;
    }
  }
  add_segments(call, {Format::kFloat32, Format::kFloat32, Format::kFloat32}, numbers, random, 320,
               320);
  call.allowed.assign(call.shape.batch * 3 * 320, 1);
  for (std::size_t i = 0; i < call.shape.batch * 3; ++i) {
    for (std::size_t t = 0; t < 320; ++t) call.allowed[i * 320 + t] = i % 3 != 1 && t != 7;
  }
  check_call(call);
  for (std::size_t threads : {1, 2}) {
    auto out = call.run(threads);
    auto row = call.shape.heads * call.shape.dim;
    for (std::size_t i = 0; i < 3 * row; ++i) CHECK((out[i] == 0) == (i / row == 1));
  }
}

// NaN and infinities have the effect that they have in softmax computed plainly.
void test_specials() {
  Random random(6, 0);
  for (int round = 0; round < 40; ++round) {
    auto dim = std::size_t{16} << random.below(3);
    auto call = random_heads(random, dim);
    auto tokens = std::size_t{64} << random.below(4);
    auto numbers = random_numbers(random, call.shape, tokens);
    auto spoil = [&](Floats& rows) {
      auto special = random.one_of({kNan, kInfinity, -kInfinity});
      rows[static_cast<std::size_t>(random.below(static_cast<int>(rows.size())))] = special;
    };
    if (round % 4 != 1) spoil(numbers.keys);
    if (round % 4 != 2) spoil(numbers.values);
    if (round % 8 == 3) spoil(numbers.queries);
    Formats formats{random.below(2) == 0 ? Format::kFloat32 : Format::kBFloat16,
                    dim == 16 ? Format::kFloat32 : kFormats[random.below(3)],
                    kFormats[random.below(dim == 16 ? 3 : 4)]};
    add_segments(call, formats, numbers, random, tokens, tokens);
    if (random.below(2) == 0) mask_randomly(call, random);
    check_call(call);
  }
}

// Scores far apart: exponentials of small ones are 0, and nothing overflows.
void test_range() {
  Random random(7, 0);
  for (auto scale : {1e-3F, 50.0F, 1e4F}) {
    auto call =
        random_call(random, 32, {Format::kFloat32, Format::kFloat32, Format::kFloat32}, 600);
    call.scale = scale;
    auto expected = reference(call);
    // Errors of scores grow with the scores: with those of 1e6 the largest alone has a weight.
    auto tolerance = scale > 1 ? 4e-6 * 30 * static_cast<double>(scale) : kTolerance;
    for (const auto* table : attention_tables()) {
      auto out = call.run(*table, 2);
      for (std::size_t i = 0; i < expected.size(); ++i) {
        CHECK(std::abs(static_cast<double>(out[i]) - expected[i]) <= tolerance);
      }
    }
  }
}

// Rows of one kind: normal numbers, zeros of either sign, a constant, huge, tiny, ramps with a
// large mean, integers.
Floats rows_of(int kind, Random& random, std::size_t count) {
  auto rows = normals(random, count);
  auto constant = 100 * rows[0];
  for (auto& value : rows) {
    if (kind == 1) value = std::copysign(0.0F, value);
    if (kind == 2) value = constant;
    if (kind == 3) value *= 1e37F;
    if (kind == 4) value *= 1e-30F;
    if (kind == 5) value = 1000 + value;
    if (kind == 6) value = std::round(4 * value);
  }
  return rows;
}

void check_stored(const AttentionTable& table, Format format, std::size_t dim, const Plain& rows) {
  constexpr std::size_t kTokens = 2 * kGroup;
  Block block(format, 1, kTokens, 0, kTokens, dim);
  auto place = block.rows();
  table.store(rows.format(), rows.data(), static_cast<std::ptrdiff_t>(dim), format,
              const_cast<void*>(place.data), const_cast<void*>(place.scales), kTokens, dim);
  for (std::size_t t = 0; t < kTokens; ++t) {
    for (std::size_t d = 0; d < dim; ++d) {
      auto i = t * dim + d;
      auto stored = block.at(0, t, d);
      auto number = static_cast<double>(rows[i]);
      if (format == Format::kFloat32) CHECK(stored == number || std::isnan(number));
      if (format == Format::kBFloat16) {
        auto narrow = static_cast<double>(from_bfloat16(to_bfloat16(rows[i])));
        CHECK(stored == narrow || std::isnan(number));
      }
      if (is_plain(format) || !std::isfinite(stored)) continue;
      // Units of 4 bits are rounded to bfloat16: the largest number is up to 15 such errors away.
      auto half = block.half_unit(0, t, d);
      auto most = format == Format::kInt8 ? half : half + 30 * half * 0x1p-8;
      CHECK(std::abs(stored - number) <= most * 1.0001 + 0x1p-21 * std::abs(number) + 1e-37);
    }
  }
}

// Units of codes are no larger than the range of a row, or of a dimension's group, needs.
void check_units(Format format, std::size_t dim, const Floats& rows) {
  constexpr std::size_t kTokens = 2 * kGroup;
  Block block(format, 1, kTokens, 0, kTokens, dim);
  block.fill(Plain(Format::kFloat32, rows), kTokens, 0);
  for (std::size_t t = 0; t < kTokens; ++t) {
    for (std::size_t d = 0; d < dim; ++d) {
      Floats range;
      if (format == Format::kInt4Groups) {
        for (std::size_t i = 0; i < kGroup; ++i) {
          range.push_back(rows[(t / kGroup * kGroup + i) * dim + d]);
        }
      } else {
        range.assign(&rows[t * dim], &rows[t * dim] + dim);
      }
      auto [low, high] = std::minmax_element(range.begin(), range.end());
      auto largest = static_cast<double>(std::max(std::abs(*low), std::abs(*high)));
      auto least = format == Format::kInt8
                       ? largest / 127
                       : (static_cast<double>(*high) - static_cast<double>(*low)) / 15;
      auto rounding = format == Format::kInt8 ? 0x1p-22 * least : 0x1p-7 * (least + largest / 15);
      CHECK(2 * block.half_unit(0, t, d) <= least + rounding + 1e-37);
    }
  }
}

void test_stored_rows() {
  Random random(8, 0);
  for (auto format : kFormats) {
    for (std::size_t dim : {std::size_t{32}, std::size_t{96}}) {
      for (int kind = 0; kind < 7; ++kind) {
        auto rows = rows_of(kind, random, 2 * kGroup * dim);
        for (const auto* table : attention_tables()) {
          check_stored(*table, format, dim, Plain(Format::kFloat32, rows));
          check_stored(*table, format, dim, Plain(Format::kBFloat16, rows));
        }
        if (!is_plain(format)) check_units(format, dim, rows);
      }
    }
  }
}

// A number that is NaN or infinite makes the numbers that share its unit NaN, and no other.
void test_stored_specials() {
  Random random(9, 0);
  constexpr std::size_t kDim = 32;
  constexpr std::size_t kTokens = 2 * kGroup;
  for (auto format : kFormats) {
    for (auto special : {kNan, kInfinity, -kInfinity}) {
      auto rows = normals(random, kTokens * kDim);
      rows[70 * kDim + 5] = special;
      for (const auto* table : attention_tables()) {
        Block block(format, 1, kTokens, 0, kTokens, kDim);
        auto place = block.rows();
        table->store(Format::kFloat32, rows.data(), kDim, format, const_cast<void*>(place.data),
                     const_cast<void*>(place.scales), kTokens, kDim);
        for (std::size_t t = 0; t < kTokens; ++t) {
          for (std::size_t d = 0; d < kDim; ++d) {
            bool row = !is_plain(format) && (format == Format::kInt4Groups ? t >= kGroup : t == 70);
            bool column = is_plain(format) || format == Format::kInt4Groups ? d == 5 : true;
            bool here = t == 70 && d == 5;
            auto stored = block.at(0, t, d);
            bool spoilt = here || (row && column);
            CHECK(std::isfinite(stored) == !spoilt);
            if (here && is_plain(format)) {
              CHECK(std::isnan(special) ? std::isnan(stored)
                                        : stored == static_cast<double>(special));
            } else if (spoilt) {
              CHECK(std::isnan(stored));
            }
          }
        }
      }
    }
  }
}

// Rows of a tensor [batch, tokens, heads, dim] go to their places, and nothing else is written.
void test_places() {
  Random random(10, 0);
  constexpr std::size_t kBatch = 2, kHeads = 3, kDim = 32;
  for (auto format : kFormats) {
    std::size_t first = format == Format::kInt4Groups ? kGroup : 3;
    std::size_t tokens = format == Format::kInt4Groups ? kGroup : 5;
    std::size_t capacity = format == Format::kInt4Groups ? 3 * kGroup : 10;
    auto numbers = normals(random, kBatch * tokens * kHeads * kDim);
    Block block(format, kBatch * kHeads, tokens, first, capacity, kDim);
    Source source{Format::kFloat32, numbers.data(),
                  static_cast<std::ptrdiff_t>(tokens * kHeads * kDim), kDim, kHeads * kDim};
    auto rows = block.rows();
    store(source, rows, kBatch, kHeads, tokens, kDim);
    for (std::size_t b = 0; b < kBatch; ++b) {
      for (std::size_t h = 0; h < kHeads; ++h) {
        auto head = b * kHeads + h;
        for (std::size_t t = 0; t < tokens; ++t) {
          for (std::size_t d = 0; d < kDim; ++d) {
            auto number = numbers[((b * tokens + t) * kHeads + h) * kDim + d];
            CHECK(std::abs(static_cast<double>(number) - block.at(head, t, d)) <= 0.5);
          }
        }
        // Rows before and behind are as they were: 0xff.
        auto bits = reinterpret_cast<const unsigned char*>(rows.data);
        auto row = bytes_of_row(format, kDim);
        for (std::size_t t = 0; t < capacity; ++t) {
          if (t >= first && t < first + tokens) continue;
          for (std::size_t i = 0; i < row; ++i)
            CHECK(bits[(head * capacity + t) * row + i] == 0xff);
        }
      }
    }
  }
}

std::string refusal(const Call& call, std::vector<Segment> segments, std::size_t threads = 1) {
  std::vector<char> out(4 * call.outputs());
  return thrown<std::invalid_argument>([&] {
    attend(call.shape, call.call_queries(), call.membership(), segments, threads, out.data());
  });
}

// What is refused, and by which words.
void test_refused() {
  Random random(11, 0);
  auto call = random_heads(random, 32);
  call.shape.queries = 2;
  call.shape.heads = call.shape.value_heads = 2;
  call.score.assign(call.shape.batch * 2, 0);
  Formats plain{Format::kFloat32, Format::kFloat32, Format::kFloat32};
  auto numbers = random_numbers(random, call.shape, 64);
  call.queries = Plain(Format::kFloat32, numbers.queries);
  add_segment(call, plain, numbers, random, 64, 0, 64);
  auto segments = call.segments();
  CHECK(call.run(1) == call.run(1));

  auto with = [&](auto change) {
    auto changed = segments;
    change(changed[0]);
    return refusal(call, changed);
  };
  CHECK(with([](Segment& segment) { segment.tokens = -1; }) == "a segment has -1 tokens");
  CHECK(with([](Segment& segment) { segment.tokens = 1; }) ==
        "there are 1 tokens, fewer than queries (2)");
  CHECK(with([](Segment& segment) {
          segment.keys.capacity = 10;
        }).starts_with("keys have a capacity of 10 "));
  CHECK(with([](Segment& segment) {
          segment.values.first = -1;
        }).starts_with("values have a capacity of "));
  CHECK(with([](Segment& segment) { segment.keys.format = Format{7}; }) ==
        "keys have format 7, needs 0 to 4");
  CHECK(with([](Segment& segment) { segment.values.format = Format{-1}; }) ==
        "values have format -1, needs 0 to 4");
  CHECK(with([](Segment& segment) { segment.keys.data = nullptr; }) == "keys have no data");
  CHECK(with([](Segment& segment) { segment.values.format = Format::kInt8; }) ==
        "values have codes without scales");
  auto scaled = [](Rows& rows, Format format) {
    rows = {format, &rows, &rows, 2 * kGroup, 0};  // refused before they are read
  };
  CHECK(with([&](Segment& segment) { scaled(segment.keys, Format::kInt4); }) ==
        "keys of 4 bits need units by group");
  CHECK(with([&](Segment& segment) { scaled(segment.values, Format::kInt4Groups); }) ==
        "values have no units by group");
  for (auto [field, value] : {std::pair{&Rows::first, 1}, std::pair{&Rows::capacity, 65}}) {
    CHECK(with([&](Segment& segment) {
            scaled(segment.keys, Format::kInt4Groups);
            segment.keys.*field = value;
          }) == "keys begin or end within a group of 64 tokens");
  }
  auto shifted = segments;
  shifted.insert(shifted.begin(), segments[0]);
  shifted[0].tokens = 3;
  scaled(shifted[1].keys, Format::kInt4Groups);
  CHECK(refusal(call, shifted) == "a group of keys begins at token 3");
  CHECK(refusal(call, {}) == "there are 0 tokens, fewer than queries (2)");
  CHECK(refusal(call, segments, 0) == "threads are 0, needs 1 or more");

  auto changed_call = [&](auto change) {
    auto changed = call;
    change(changed);
    return refusal(changed, segments);
  };
  for (auto dim : {std::size_t{0}, std::size_t{24}, std::size_t{528}}) {
    CHECK(changed_call([&](Call& changed) { changed.shape.dim = dim; }) ==
          "dim is " + std::to_string(dim) + ", needs a multiple of 16 up to 512");
  }
  CHECK(changed_call([](Call& changed) { changed.shape.value_heads = 0; }) ==
        "heads are 2, needs a multiple of the values' 0");
  CHECK(changed_call([](Call& changed) {
          changed.query[0] = -1;
        }).starts_with("query has -1, needs 0 to "));
  CHECK(changed_call([](Call& changed) {
          changed.key[0] = 9;
        }).starts_with("key has 9, needs 0 to "));
  CHECK(changed_call([](Call& changed) {
          changed.score.back() = 9;
        }).starts_with("score has 9, needs 0 to "));

  Floats numbers_in(64 * 80);
  Floats memory(64 * 80);
  auto store_refusal = [&](Format from, Rows rows, std::size_t tokens, std::size_t dim) {
    Source source{from, numbers_in.data(), 0, 0, static_cast<std::ptrdiff_t>(dim)};
    return thrown<std::invalid_argument>([&] { store(source, rows, 1, 1, tokens, dim); });
  };
  auto* data = memory.data();
  CHECK(store_refusal(Format::kFloat32, {Format::kInt4, data, data, 1, 0}, 1, 80) ==
        "dim is 80, needs a multiple of 32 up to 512");
  CHECK(store_refusal(Format::kInt8, {Format::kInt8, data, data, 1, 0}, 1, 32) ==
        "rows to store have codes");
  CHECK(store_refusal(Format::kFloat32, {Format::kInt4Groups, data, data, 64, 0}, 63, 32) ==
        "tokens are 63, needs whole groups of 64");
}

// No request, and no token to store.
void test_empty() {
  Random random(12, 0);
  auto call = random_call(random, 32, {Format::kFloat32, Format::kFloat32, Format::kFloat32}, 100);
  call.shape.batch = 0;
  call.run(2);
  Source source{Format::kFloat32, nullptr, 0, 0, 0};
  store(source, {Format::kInt8, nullptr, nullptr, 0, 0}, 1, 1, 0, 32);
}

Call shared_call() {
  Random random(13, 0);
  auto call = random_heads(random, 64);
  call.shape.batch = 1;
  call.shape.queries = 1;
  auto numbers = random_numbers(random, call.shape, 2048);
  add_segments(call, {Format::kFloat32, Format::kInt8, Format::kBFloat16}, numbers, random, 2048,
               2048);
  return call;
}

// Parts are each computed once, whatever the number of threads.
void test_parts() {
  for (std::size_t count : {0, 1, 2, 3, 100}) {
    for (std::size_t threads : {0, 1, 2, 3, 8}) {
      std::vector<std::atomic<int>> calls(count);
      run_parts(count, threads, [&](std::size_t part) { ++calls[part]; });
      for (auto& times : calls) CHECK(times == 1);
    }
  }
}

// A call ended in "Resource temporarily unavailable", which threads that run could have computed.
void test_refused_threads() {
  constexpr std::size_t kMore = 64;  // threads than any call had so far
  const RefusedThreads refused;
  std::vector<std::atomic<int>> calls(kMore);
  run_parts(kMore, kMore, [&](std::size_t part) { ++calls[part]; });
  for (auto& times : calls) CHECK(times == 1);
}

void test_callers_at_once() {
  auto call = shared_call();
  auto expected = call.run(3);
  std::vector<std::thread> callers;
  for (int i = 0; i < 3; ++i) {
    callers.emplace_back([&] {
      for (int round = 0; round < 8; ++round) CHECK(call.run(3) == expected);
    });
  }
  for (auto& caller : callers) caller.join();
}

// A child of a fork has none of its parent's threads, which may be at work just then.
void test_forks() {
  auto call = shared_call();
  auto expected = call.run(3);
  in_child([&] { CHECK(call.run(3) == expected); });
  std::atomic<bool> ended = false;
  std::thread caller([&] {
    while (!ended) CHECK(call.run(3) == expected);
  });
  for (int fork = 0; fork < 8; ++fork) {
    in_child([&] {
      CHECK(call.run(3) == expected);
      in_child([&] { CHECK(call.run(2) == call.run(2)); });
    });
    CHECK(call.run(3) == expected);
  }
  ended = true;
  caller.join();
}

}  // namespace

int main() {
  test_formats();
  test_many_tokens();
  test_memberships();
  test_segments();
  test_masks();
  test_specials();
  test_range();
  test_stored_rows();
  test_stored_specials();
  test_places();
  test_refused();
  test_empty();
  test_parts();
  test_refused_threads();
  test_callers_at_once();
  test_forks();
}
