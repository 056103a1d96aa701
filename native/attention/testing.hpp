// For tests of attention: blocks of rows whose formats are written and read here by their
// description alone, random calls, and what they must give by loops in double.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <deque>
#include <limits>
#include <vector>

#include "attention/attention.hpp"
#include "attention/kernels.hpp"
#include "check.hpp"
#include "random.hpp"

namespace headrace::attention::testing {

using Floats = std::vector<float>;
using Doubles = std::vector<double>;

constexpr Format kFormats[] = {Format::kFloat32, Format::kBFloat16, Format::kInt8, Format::kInt4,
                               Format::kInt4Groups};
constexpr float kInfinity = std::numeric_limits<float>::infinity();
const float kNan = std::nanf("");

inline bool is_plain(Format format) {
  return format == Format::kFloat32 || format == Format::kBFloat16;
}
inline bool has_dim(Format format, std::size_t dim) {
  return dim % (format == Format::kInt4 || format == Format::kInt4Groups ? 32 : 16) == 0;
}

inline std::size_t bytes_of_row(Format format, std::size_t dim) {
  if (format == Format::kFloat32) return 4 * dim;
  if (format == Format::kBFloat16) return 2 * dim;
  return format == Format::kInt8 ? dim : dim / 2;
}

inline std::uint16_t to_bfloat16(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if (std::isnan(value)) return static_cast<std::uint16_t>(bits >> 16 | 0x40);
  auto low = bits & 0xffff;
  auto high = bits >> 16;
  bool up = low > 0x8000 || (low == 0x8000 && (high & 1) != 0);
  return static_cast<std::uint16_t>(high + (up ? 1 : 0));
}
inline float from_bfloat16(std::uint16_t half) {
  auto bits = static_cast<std::uint32_t>(half) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

template <class T>
T element(const void* from, std::size_t index) {
  T value;
  std::memcpy(&value, static_cast<const char*>(from) + index * sizeof(T), sizeof value);
  return value;
}

// Numbers of either plain format, in memory of exactly their size.
class Plain {
 public:
  Plain(Format format, std::size_t count)
      : format_(format), memory_(count * (format == Format::kFloat32 ? 4 : 2)) {}
  Plain(Format format, const Floats& values) : Plain(format, values.size()) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      auto half = to_bfloat16(values[i]);
      if (format == Format::kFloat32) {
        std::memcpy(memory_.data() + 4 * i, &values[i], 4);
      } else {
        std::memcpy(memory_.data() + 2 * i, &half, 2);
      }
    }
  }
  Format format() const { return format_; }
  char* data() { return memory_.data(); }
  const char* data() const { return memory_.data(); }
  float operator[](std::size_t i) const {
    return format_ == Format::kFloat32 ? element<float>(data(), i)
                                       : from_bfloat16(element<std::uint16_t>(data(), i));
  }
  bool operator==(const Plain&) const = default;

 private:
  Format format_;
  std::vector<char> memory_;
};

// Rows of some heads, of which those before `first` and after `tokens` are filled with 0xff: NaN.
class Block {
 public:
  Block(Format format, std::size_t heads, std::size_t tokens, std::size_t first,
        std::size_t capacity, std::size_t dim)
      : format_(format),
        heads_(heads),
        tokens_(tokens),
        first_(first),
        capacity_(capacity),
        dim_(dim) {
    data_.assign(heads * capacity * bytes_of_row(format, dim), '\xff');
    if (format == Format::kInt4Groups) {
      scales_.assign(heads * capacity / kGroup * dim * 4, '\xff');
    } else if (!is_plain(format)) {
      scales_.assign(heads * capacity * 4, '\xff');
    }
  }

  Rows rows() const {
    return {format_, data_.data(), scales_.empty() ? nullptr : scales_.data(),
            static_cast<std::int64_t>(capacity_), static_cast<std::int64_t>(first_)};
  }
  std::size_t tokens() const { return tokens_; }

  // Rows of the tokens [from, from + tokens) of values, [heads, total, dim].
  void fill(const Plain& values, std::size_t total, std::size_t from) {
    auto bytes = values.format() == Format::kFloat32 ? std::size_t{4} : std::size_t{2};
    Source source{values.format(), values.data() + from * dim_ * bytes,
                  static_cast<std::ptrdiff_t>(heads_ * total * dim_),
                  static_cast<std::ptrdiff_t>(total * dim_), static_cast<std::ptrdiff_t>(dim_)};
    // Whole groups, of which the last may be read in part.
    auto stored =
        format_ == Format::kInt4Groups ? (tokens_ + kGroup - 1) / kGroup * kGroup : tokens_;
    store(source, rows(), 1, heads_, stored, dim_);
  }

  // The number that is stored, by the description of its format.
  double at(std::size_t head, std::size_t token, std::size_t d) const {
    auto row = head * capacity_ + first_ + token;
    if (format_ == Format::kFloat32) {
      return static_cast<double>(element<float>(data_.data(), row * dim_ + d));
    }
    if (format_ == Format::kBFloat16) return half(data_, row * dim_ + d);
    if (format_ == Format::kInt8) {
      auto unit = static_cast<double>(element<float>(scales_.data(), row));
      return unit * element<std::int8_t>(data_.data(), row * dim_ + d);
    }
    auto byte = element<std::uint8_t>(data_.data(), row * dim_ / 2 + d / 32 * 16 + d % 16);
    auto code = d / 16 % 2 == 0 ? byte & 15 : byte >> 4;
    if (format_ == Format::kInt4) return half(scales_, 2 * row) * code + half(scales_, 2 * row + 1);
    auto unit = row / kGroup * 2 * dim_ + d;
    return half(scales_, unit) * code + half(scales_, unit + dim_);
  }
  // Half the difference of neighbouring codes.
  double half_unit(std::size_t head, std::size_t token, std::size_t d) const {
    auto row = head * capacity_ + first_ + token;
    if (is_plain(format_)) return 0;
    if (format_ == Format::kInt8) {
      return static_cast<double>(element<float>(scales_.data(), row)) / 2;
    }
    return half(scales_, format_ == Format::kInt4 ? 2 * row : row / kGroup * 2 * dim_ + d) / 2;
  }

 private:
  static double half(const std::vector<char>& from, std::size_t index) {
    return static_cast<double>(from_bfloat16(element<std::uint16_t>(from.data(), index)));
  }

  Format format_;
  std::size_t heads_;
  std::size_t tokens_;
  std::size_t first_;
  std::size_t capacity_;
  std::size_t dim_;
  std::vector<char> data_;
  std::vector<char> scales_;
};

inline float normal(Random& random) {
  // The sum of twelve uniform numbers.
  float sum = -6;
  for (int i = 0; i < 12; ++i) sum += random.unit();
  return sum;
}
inline Floats normals(Random& random, std::size_t count) {
  Floats values(count);
  for (auto& value : values) value = normal(random);
  return values;
}

// A call of `attend`, with the blocks that it reads.
struct Call {
  Shape shape{};
  std::vector<std::int32_t> query;
  std::vector<std::int32_t> key;
  std::vector<std::int32_t> score;
  Plain queries{Format::kFloat32, 0};
  float scale = 1;
  std::vector<std::uint8_t> allowed;  // empty: causal
  std::deque<Block> keys;
  std::deque<Block> values;

  std::size_t tokens() const {
    std::size_t sum = 0;
    for (const auto& block : keys) sum += block.tokens();
    return sum;
  }
  std::vector<Segment> segments() const {
    std::vector<Segment> result;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      auto count = static_cast<std::int64_t>(keys[i].tokens());
      result.push_back({count, keys[i].rows(), values[i].rows()});
    }
    return result;
  }
  Membership membership() const { return {query.data(), key.data(), score.data()}; }
  Queries call_queries() const {
    return {queries.format(), queries.data(), scale, allowed.empty() ? nullptr : allowed.data()};
  }
  std::size_t outputs() const { return shape.batch * shape.queries * shape.heads * shape.dim; }

  Plain run(const AttentionTable& table, std::size_t threads) const {
    Plain out(queries.format(), outputs());
    attend(table, shape, call_queries(), membership(), segments(), threads, out.data());
    return out;
  }
  Plain run(std::size_t threads) const {
    Plain out(queries.format(), outputs());
    attend(shape, call_queries(), membership(), segments(), threads, out.data());
    return out;
  }
};

inline Doubles numbers_of(const std::deque<Block>& blocks, std::size_t heads, std::size_t dim) {
  Doubles numbers;
  for (std::size_t head = 0; head < heads; ++head) {
    for (const auto& block : blocks) {
      for (std::size_t t = 0; t < block.tokens(); ++t) {
        for (std::size_t d = 0; d < dim; ++d) numbers.push_back(block.at(head, t, d));
      }
    }
  }
  return numbers;
}

// What a call must give, [batch, queries, heads, dim].
inline Doubles reference(const Call& call) {
  const auto& shape = call.shape;
  auto tokens = call.tokens();
  auto keys = numbers_of(call.keys, shape.batch * shape.key_heads, shape.dim);
  auto values = numbers_of(call.values, shape.batch * shape.value_heads, shape.dim);
  Doubles out;
  Doubles weights(shape.scores * tokens);
  for (std::size_t b = 0; b < shape.batch; ++b) {
    for (std::size_t i = 0; i < shape.queries; ++i) {
      for (std::size_t s = 0; s < shape.scores; ++s) {
        auto query =
            b * shape.query_heads + static_cast<std::size_t>(call.query[b * shape.scores + s]);
        auto key = b * shape.key_heads + static_cast<std::size_t>(call.key[b * shape.scores + s]);
        auto* row = &weights[s * tokens];
        double maximum = -std::numeric_limits<double>::infinity();
        for (std::size_t t = 0; t < tokens; ++t) {
          double product = 0;
          for (std::size_t d = 0; d < shape.dim; ++d) {
            auto number = call.queries[(query * shape.queries + i) * shape.dim + d];
            product += static_cast<double>(number) * keys[(key * tokens + t) * shape.dim + d];
          }
          bool seen = call.allowed.empty()
                          ? t <= tokens - shape.queries + i
                          : call.allowed[(b * shape.queries + i) * tokens + t] != 0;
          row[t] = seen ? product * static_cast<double>(call.scale)
                        : -std::numeric_limits<double>::infinity();
          maximum = std::max(maximum, row[t]);  // NaN: as it was
        }
        double total = 0;
        for (std::size_t t = 0; t < tokens; ++t) {
          row[t] = std::isinf(maximum) && row[t] == maximum && maximum < 0
                       ? 0
                       : std::exp(row[t] - maximum);
          total += row[t];
        }
        for (std::size_t t = 0; t < tokens && total != 0; ++t) row[t] /= total;
      }
      for (std::size_t h = 0; h < shape.heads; ++h) {
        auto value = b * shape.value_heads + h / (shape.heads / shape.value_heads);
        auto* row = &weights[static_cast<std::size_t>(call.score[b * shape.heads + h]) * tokens];
        Doubles sums(shape.dim);
        for (std::size_t t = 0; t < tokens; ++t) {
          for (std::size_t d = 0; d < shape.dim; ++d) {
            sums[d] += row[t] * values[(value * tokens + t) * shape.dim + d];
          }
        }
        out.insert(out.end(), sums.begin(), sums.end());
      }
    }
  }
  return out;
}

// Numbers of a random call, for tests that change them before they are stored.
struct Numbers {
  Floats queries;  // [batch, query_heads, queries, dim]
  Floats keys;     // [batch, key_heads, stored, dim]
  Floats values;   // [batch, value_heads, stored, dim]
};

struct Formats {
  Format queries;
  Format keys;
  Format values;
};

// Adds a segment of the tokens [from, from + count), which begins within its blocks; `stored`
// tokens have numbers.
inline void add_segment(Call& call, const Formats& formats, const Numbers& numbers, Random& random,
                        std::size_t stored, std::size_t from, std::size_t count) {
  const auto& shape = call.shape;
  auto add = [&](std::deque<Block>& blocks, Format format, std::size_t heads, const Floats& rows) {
    auto first = static_cast<std::size_t>(random.below(5));
    auto capacity = first + count + static_cast<std::size_t>(random.below(5));
    if (format == Format::kInt4Groups) {
      first = first % 3 * kGroup;
      capacity = (first + count + kGroup - 1 + capacity % 2 * kGroup) / kGroup * kGroup;
    }
    auto& block =
        blocks.emplace_back(format, shape.batch * heads, count, first, capacity, shape.dim);
    block.fill(Plain(formats.queries, rows), stored, from);
  };
  add(call.keys, formats.keys, shape.key_heads, numbers.keys);
  add(call.values, formats.values, shape.value_heads, numbers.values);
}

// Heads of random sizes and memberships; tokens are set by `segments`.
inline Call random_heads(Random& random, std::size_t dim) {
  auto one_to = [&](int most) { return static_cast<std::size_t>(1 + random.below(most)); };
  Call call;
  auto& shape = call.shape;
  shape.batch = one_to(3);
  shape.queries = one_to(7);
  shape.value_heads = one_to(3);
  shape.heads = shape.value_heads * one_to(5);
  shape.query_heads = one_to(6);
  shape.key_heads = one_to(3);
  shape.scores = one_to(6);
  shape.dim = dim;
  call.scale = 1 / std::sqrt(static_cast<float>(dim));
  auto indices = [&](std::size_t count, std::size_t limit) {
    std::vector<std::int32_t> result(count);
    for (auto& index : result) index = random.below(static_cast<int>(limit));
    return result;
  };
  call.query = indices(shape.batch * shape.scores, shape.query_heads);
  call.key = indices(shape.batch * shape.scores, shape.key_heads);
  for (std::size_t b = 0; b < shape.batch; ++b) {
    auto begin = call.key.begin() + static_cast<std::ptrdiff_t>(b * shape.scores);
    std::sort(begin, begin + static_cast<std::ptrdiff_t>(shape.scores));
  }
  call.score = indices(shape.batch * shape.heads, shape.scores);
  return call;
}

inline Numbers random_numbers(Random& random, const Shape& shape, std::size_t stored) {
  return {normals(random, shape.batch * shape.query_heads * shape.queries * shape.dim),
          normals(random, shape.batch * shape.key_heads * stored * shape.dim),
          normals(random, shape.batch * shape.value_heads * stored * shape.dim)};
}

// Up to four segments, the last one of keys by group with an open tail of the queries' type, or
// with a group that is read in part.
inline void add_segments(Call& call, const Formats& formats, const Numbers& numbers, Random& random,
                         std::size_t tokens, std::size_t stored) {
  call.queries = Plain(formats.queries, numbers.queries);
  bool by_group = formats.keys == Format::kInt4Groups;
  std::size_t from = 0;
  for (int split = 0; split < 3 && from < tokens; ++split) {
    auto count = static_cast<std::size_t>(random.below(static_cast<int>(tokens - from)));
    if (by_group) count = count / kGroup * kGroup;
    add_segment(call, formats, numbers, random, stored, from, count);
    from += count;
  }
  auto last = formats;
  if (by_group && random.below(3) > 0) {
    auto count = (tokens - from) / kGroup * kGroup;
    add_segment(call, formats, numbers, random, stored, from, count);
    from += count;
    last.keys = formats.queries;
  }
  add_segment(call, last, numbers, random, stored, from, tokens - from);
}

inline Call random_call(Random& random, std::size_t dim, const Formats& formats,
                        std::size_t most_tokens) {
  auto call = random_heads(random, dim);
  auto tokens =
      call.shape.queries + static_cast<std::size_t>(random.below(static_cast<int>(most_tokens)));
  auto stored = (tokens + kGroup - 1) / kGroup * kGroup;
  auto numbers = random_numbers(random, call.shape, stored);
  add_segments(call, formats, numbers, random, tokens, stored);
  return call;
}

// Each query may see half of the tokens; now and then none.
inline void mask_randomly(Call& call, Random& random) {
  auto tokens = call.tokens();
  call.allowed.resize(call.shape.batch * call.shape.queries * tokens);
  for (std::size_t i = 0; i < call.allowed.size(); i += tokens) {
    bool any = random.below(5) > 0;
    for (std::size_t t = 0; t < tokens; ++t) call.allowed[i + t] = any && random.below(2) == 0;
  }
}

}  // namespace headrace::attention::testing
