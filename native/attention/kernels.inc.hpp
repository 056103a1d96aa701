// The kernels themselves, compiled once per instruction set (see CMakeLists.txt): each inclusion
// defines HEADRACE_ISA as the namespace it fills. Everything has internal linkage, and no inline
// function of a library is called: of copies for several instruction sets the linker would keep any
// one.
//
// Tokens are taken a tile at a time. Keys of a head are read once for all queries that they are
// scored with, values once for all probabilities that weight them; what stays in the cache between
// is a tile of scores, and the sums.
#include "attention/kernels.hpp"
#include "attention/lanes.inc.hpp"
#include "attention/rows.inc.hpp"

namespace headrace::attention::HEADRACE_ISA {
namespace {

inline constexpr float kInfinity = __builtin_inff();

inline std::size_t least(std::size_t a, std::size_t b) { return a < b ? a : b; }

// Bytes that are fetched ahead of those that are read: arithmetic hides misses from the processor's
// own prefetching, which ends at every page, too. On a Xeon (Cascade Lake) full attention reads
// bfloat16 at 0.94 of the rate of a sum with it, at 0.85 without.
inline constexpr std::size_t kAhead = 2048;

inline void fetch(const char* row, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; i += 64) __builtin_prefetch(row + kAhead + i);
}

// Products of `kQueries` rows of queries with `kTokens` rows of keys, at once as many as a vector
// has lanes: sums stay in registers until all are added up, and no addition waits for another. Rows
// from `count` on are the last one.
template <std::size_t kQueries, std::size_t kTokens, class KeyRows, class Number>
inline void multiply(const KeyRows& keys, std::size_t first, std::size_t count,
                     const Number* queries, float* scores, std::size_t stride) {
  using Numbers = Vectors<Number>::Numbers;
  using Sums = Vectors<Number>::Sums;
  std::size_t rows[kTokens];
  for (std::size_t t = 0; t < kTokens; ++t) {
    rows[t] = first + (t < count ? t : count - 1);
    fetch(keys.address(rows[t]), keys.bytes());
  }
  Sums products[kQueries][kTokens]{};
  std::size_t step = 0;
  do {  // at least once: the compiler keeps products in registers
#pragma GCC unroll 8
    for (std::size_t d = step; d < step + KeyRows::kStep; d += sizeof(Numbers) / sizeof(Number)) {
      Numbers key[kTokens];
#pragma GCC unroll 16
      for (std::size_t t = 0; t < kTokens; ++t) key[t] = keys.at(rows[t], d);
#pragma GCC unroll 4
      for (std::size_t q = 0; q < kQueries; ++q) {
        auto query = read<Numbers>(queries + q * keys.dim + d);
#pragma GCC unroll 16
        for (std::size_t t = 0; t < kTokens; ++t) {
          products[q][t] = add_products(products[q][t], key[t], query);
        }
      }
    }
    step += KeyRows::kStep;
  } while (step < keys.dim);
  Sums sums[kLanes]{};  // of three queries a quarter is no row's
#pragma GCC unroll 4
  for (std::size_t q = 0; q < kQueries; ++q) {
#pragma GCC unroll 16
    for (std::size_t t = 0; t < kTokens; ++t) sums[q * kTokens + t] = products[q][t];
  }
  float lanes[kLanes];
  write(lanes, __builtin_convertvector(sums_of(sums), Floats));
  for (std::size_t q = 0; q < kQueries; ++q) {
    std::memcpy(scores + q * stride + first, lanes + q * kTokens, sizeof(float) * kTokens);
  }
}

// `scores` has rows of `stride`, of which up to kLanes - 1 numbers beyond `tokens` are overwritten.
template <std::size_t kQueries, class KeyRows, class Number>
inline void products(const KeyRows& keys, std::size_t tokens, const Number* queries, float* scores,
                     std::size_t stride) {
  constexpr std::size_t kTokens = kLanes / (kQueries > 2 ? 4 : kQueries);
  std::size_t first = 0;
  for (; first + kTokens <= tokens; first += kTokens) {
    multiply<kQueries, kTokens>(keys, first, kTokens, queries, scores, stride);
  }
  if (first < tokens) {
    multiply<kQueries, kTokens>(keys, first, tokens - first, queries, scores, stride);
  }
}

// Rows of queries as whole numbers of 16 bits, with a unit for each row: their products with codes
// are exact, sums of up to kMostDimensions fit into 32 bits, and take a third of the instructions
// of products of floats. A query's error, at most 2^-16 of its largest number, is 2^-8 of that of a
// key of 8 bits.
struct QueryCodes {
  std::int16_t codes[kBatch * kMostDimensions];
  float units[kBatch];
};
inline constexpr float kMostCode = 32767;
static_assert(kMostDimensions * kMostCode * 127 < 0x1p31f);

// Returns false for a row that has no such codes: of infinity or NaN.
inline bool encode(const float* query, std::size_t dim, QueryCodes& out, std::size_t q) {
  auto unit = largest_of(query, dim) / kMostCode;
  typedef std::int16_t Numbers __attribute__((vector_size(2 * kLanes)));
  write_codes<Numbers>(query, dim, unit, out.codes + q * dim);
  out.units[q] = unit;
  return unit - unit == 0;
}

// Units and numbers of code 0 are the same for all tokens of a group: they go to the queries.
template <std::size_t kQueries>
void score_groups(Head keys, std::size_t tokens, const float* queries, std::size_t dim,
                  float* scratch, float* scores, std::size_t stride) {
  QueryCodes encoded;
  for (std::size_t first = 0; first < tokens; first += kGroup) {
    auto* units = keys.scales + first / kGroup * (4 * dim);
    Floats offsets[kQueries]{};
    for (std::size_t d = 0; d < dim; d += kLanes) {
      auto unit = widen_bfloat16(units + 2 * d);
      auto zero = widen_bfloat16(units + 2 * (dim + d));
      for (std::size_t q = 0; q < kQueries; ++q) {
        auto query = read<Floats>(queries + q * dim + d);
        offsets[q] += query * zero;
        write(scratch + q * dim + d, query * unit);
      }
    }
    auto count = least(kGroup, tokens - first);
    auto* codes = reinterpret_cast<const std::uint8_t*>(keys.data) + first * (dim / 2);
    bool finite = true;
    for (std::size_t q = 0; q < kQueries; ++q) finite &= encode(scratch + q * dim, dim, encoded, q);
    if (finite) {
      products<kQueries>(Int4Codes{{codes, dim}}, count, encoded.codes, scores + first, stride);
    } else {
      products<kQueries>(Int4Rows{codes, dim}, count, scratch, scores + first, stride);
    }
    for (std::size_t q = 0; q < kQueries; ++q) {
      auto unit = finite ? encoded.units[q] : 1;
      auto offset = sum_of(offsets[q]);
      for (std::size_t t = first; t < first + count; ++t) {
        scores[q * stride + t] = scores[q * stride + t] * unit + offset;
      }
    }
  }
}

// Keys of 8 bits. Returns false if it did nothing, as it does for other queries and dimensions.
template <std::size_t kQueries>
bool score_codes(Head keys, std::size_t tokens, const float* queries, std::size_t dim,
                 float* scores, std::size_t stride) {
  if (dim % Int8Codes::kStep != 0) return false;
  QueryCodes encoded;
  for (std::size_t q = 0; q < kQueries; ++q) {
    if (!encode(queries + q * dim, dim, encoded, q)) return false;
  }
  auto* codes = reinterpret_cast<const std::int8_t*>(keys.data);
  products<kQueries>(Int8Codes{{codes, dim}}, tokens, encoded.codes, scores, stride);
  for (std::size_t q = 0; q < kQueries; ++q) {
    for (std::size_t t = 0; t < tokens; ++t) scores[q * stride + t] *= encoded.units[q];
  }
  return true;
}

// Scores of up to kBatch rows of queries.
template <std::size_t kQueries>
void score(Format format, Head keys, std::size_t tokens, const float* queries, std::size_t dim,
           float* scratch, float* scores, std::size_t stride) {
  if (format == Format::kInt4Groups) {
    return score_groups<kQueries>(keys, tokens, queries, dim, scratch, scores, stride);
  }
  if (has_pairs(format, dim)) {
    for (std::size_t d = 0; d < kQueries * dim; d += 2 * kLanes) {
      auto even = read<Floats>(queries + d);
      auto odd = read<Floats>(queries + d + kLanes);
      split_pairs(even, odd);
      write(scratch + d, even);
      write(scratch + d + kLanes, odd);
    }
    queries = scratch;
  }
  if (format != Format::kInt8 ||
      !score_codes<kQueries>(keys, tokens, queries, dim, scores, stride)) {
    with_paired_rows(format, keys.data, dim,
                     [&](auto rows) { products<kQueries>(rows, tokens, queries, scores, stride); });
  }
  if (format != Format::kInt8) return;
  for (std::size_t q = 0; q < kQueries; ++q) {
    for (std::size_t t = 0; t < tokens; ++t) scores[q * stride + t] *= row_unit(keys.scales, t);
  }
}

// Scores to exponentials of their differences to the maximum so far. Returns the factor for sums
// of earlier tiles. Without any token allowed the maximum stays at -inf and exponentials are 0,
// but for those of NaN.
inline float exponentials(float* scores, std::size_t tokens, float& maximum, float& total) {
  for (auto t = tokens; t % kLanes != 0; ++t) scores[t] = -kInfinity;
  auto largest = all(maximum);
  for (std::size_t t = 0; t < tokens; t += kLanes) {
    auto part = read<Floats>(scores + t);
    largest = part > largest ? part : largest;
  }
  auto next = maximum_of(largest);
  auto base = all(next == -kInfinity ? 0.0f : next);
  Floats sum{};
  for (std::size_t t = 0; t < tokens; t += kLanes) {
    auto part = exponential(read<Floats>(scores + t) - base);
    write(scores + t, part);
    sum += part;
  }
  auto factor = maximum == -kInfinity ? 1.0f : exponential(all(maximum) - base)[0];
  maximum = next;
  total = total * factor + sum_of(sum);
  return factor;
}

// One row of probabilities of a tile, and the sums of values that they weight.
struct Weighted {
  const float* weights;
  float* sums;
  float factor;  // for the sums of earlier tiles
};

template <std::size_t kPairs, std::size_t kVectors, class ValueRows>
inline void add_rows(const ValueRows& values, std::size_t first, std::size_t last, std::size_t d,
                     const Weighted* pairs) {
  // the place of d in a step is known while compiling
  constexpr std::size_t kWidth = kVectors * kLanes;
  if (d % (kWidth < ValueRows::kStep ? kWidth : ValueRows::kStep) != 0) __builtin_unreachable();
  Floats sums[kPairs][kVectors];
  for (std::size_t p = 0; p < kPairs; ++p) {
    for (std::size_t v = 0; v < kVectors; ++v) {
      sums[p][v] = read<Floats>(pairs[p].sums + d + v * kLanes);
    }
    if constexpr (ValueRows::kPaired) {
      for (std::size_t v = 0; v < kVectors; v += 2) split_pairs(sums[p][v], sums[p][v + 1]);
    }
  }
  for (auto t = first; t < last; ++t) {
    if (d == 0) fetch(values.address(t), values.bytes());
    Floats value[kVectors];
    for (std::size_t v = 0; v < kVectors; ++v) value[v] = values.at(t, d + v * kLanes);
    for (std::size_t p = 0; p < kPairs; ++p) {
      auto weight = all(pairs[p].weights[t]);
      for (std::size_t v = 0; v < kVectors; ++v) sums[p][v] += weight * value[v];
    }
  }
  for (std::size_t p = 0; p < kPairs; ++p) {
    if constexpr (ValueRows::kPaired) {
      for (std::size_t v = 0; v < kVectors; v += 2) join_pairs(sums[p][v], sums[p][v + 1]);
    }
    for (std::size_t v = 0; v < kVectors; ++v) write(pairs[p].sums + d + v * kLanes, sums[p][v]);
  }
}

// As many vectors at a time as half of the registers hold.
template <std::size_t kPairs, std::size_t kVectors, class ValueRows>
inline void add_from(const ValueRows& values, std::size_t first, std::size_t last, std::size_t d,
                     const Weighted* pairs) {
  for (; d + kVectors * kLanes <= values.dim; d += kVectors * kLanes) {
    add_rows<kPairs, kVectors>(values, first, last, d, pairs);
  }
  constexpr std::size_t kLeast = ValueRows::kPaired ? 2 : 1;
  if constexpr (kVectors > kLeast) add_from<kPairs, kVectors / 2>(values, first, last, d, pairs);
}

// Weights times the units of rows; returns the sum of weights times the numbers of code 0.
inline float scale_weights(Format format, const char* scales, std::size_t tokens,
                           const float* weights, float* scaled) {
  if (format == Format::kInt8) {
    for (std::size_t t = 0; t < tokens; ++t) scaled[t] = weights[t] * row_unit(scales, t);
    return 0;
  }
  Floats offsets{};
  std::size_t t = 0;
  for (; t + kLanes <= tokens; t += kLanes) {
    auto ranges = read<Words>(scales + 4 * t);  // the unit is the lower half
    auto weight = read<Floats>(weights + t);
    offsets += weight * reinterpret_cast<Floats>(ranges & 0xffff0000);
    write(scaled + t, weight * reinterpret_cast<Floats>(ranges << 16));
  }
  auto offset = sum_of(offsets);
  for (; t < tokens; ++t) {
    auto range = row_range(scales, t);
    scaled[t] = weights[t] * range.unit;
    offset += weights[t] * range.zero;
  }
  return offset;
}

template <std::size_t kPairs>
void add_values(Format format, Head values, std::size_t tokens, std::size_t dim, float* scratch,
                std::size_t stride, Weighted* pairs) {
  for (std::size_t p = 0; p < kPairs; ++p) {
    float offset = 0;
    if (format == Format::kInt8 || format == Format::kInt4) {
      auto* scaled = scratch + p * stride;
      offset = scale_weights(format, values.scales, tokens, pairs[p].weights, scaled);
      pairs[p].weights = scaled;
    }
    for (std::size_t d = 0; d < dim; d += kLanes) {
      write(pairs[p].sums + d, read<Floats>(pairs[p].sums + d) * pairs[p].factor + offset);
    }
  }
  constexpr std::size_t kMost = kRegisters / 2 / kPairs;
  constexpr std::size_t kVectors = kMost >= 8 ? 8 : kMost >= 4 ? 4 : kMost >= 2 ? 2 : 1;
  // Of 32 rows the second half of the dimensions is read from the nearest cache.
  const auto run = kVectors * kLanes < dim ? 32 : tokens;
  with_paired_rows(format, values.data, dim, [&](auto rows) {
    for (std::size_t t = 0; t < tokens; t += run) {
      add_from<kPairs, kVectors>(rows, t, least(tokens, t + run), 0, pairs);
    }
  });
}

template <template <std::size_t> class Function, class... Arguments>
inline void with_count(std::size_t count, Arguments... arguments) {
  switch (count) {
    case 1:
      return Function<1>::call(arguments...);
    case 2:
      return Function<2>::call(arguments...);
    case 3:
      return Function<3>::call(arguments...);
    default:
      return Function<4>::call(arguments...);
  }
}
template <std::size_t kCount>
struct Score {
  static void call(Format format, Head keys, std::size_t tokens, const float* queries,
                   std::size_t dim, float* scratch, float* scores, std::size_t stride) {
    score<kCount>(format, keys, tokens, queries, dim, scratch, scores, stride);
  }
};
template <std::size_t kCount>
struct AddValues {
  static void call(Format format, Head values, std::size_t tokens, std::size_t dim, float* scratch,
                   std::size_t stride, Weighted* pairs) {
    add_values<kCount>(format, values, tokens, dim, scratch, stride, pairs);
  }
};

// The state of one part.
class Tiles {
 public:
  Tiles(const Part& part, const Sums& sums)
      : part_(part),
        shape_(*part.shape),
        sums_(sums),
        rows_(shape_.scores * shape_.queries),
        stride_(tile_tokens(shape_)) {
    queries_ = sums.scratch;
    scores_ = queries_ + rows_ * shape_.dim;
    factors_ = scores_ + rows_ * stride_;
    spare_ = factors_ + rows_;
    key_ = part.membership->key + part.request * shape_.scores;
    score_ = part.membership->score + part.request * shape_.heads;
    for (std::size_t row = 0; row < rows_; ++row) {
      sums.maximum[row] = -kInfinity;
      sums.total[row] = 0;
    }
    for (std::size_t i = 0; i < shape_.heads * shape_.queries * shape_.dim; ++i) sums.values[i] = 0;
    read_queries();
  }

  void run() {
    std::size_t first = 0;  // token of the segment
    for (std::size_t i = 0; i < part_.segment_count; ++i) {
      const auto& segment = part_.segments[i];
      auto last = first + static_cast<std::size_t>(segment.tokens);
      auto begin = first > part_.begin ? first : part_.begin;
      auto end = least(last, part_.end);
      for (auto t = begin; t < end; t += stride_) {
        tile(segment, t - first, t, least(stride_, end - t));
      }
      first = last;
    }
    copy_shared();
  }

 private:
  void read_queries() {
    auto* query = part_.membership->query + part_.request * shape_.scores;
    auto bytes = row_bytes(part_.queries->format, shape_.dim);
    auto* out = queries_;
    for (std::size_t s = 0; s < shape_.scores; ++s) {
      auto head = part_.request * shape_.query_heads + static_cast<std::size_t>(query[s]);
      auto* from = static_cast<const char*>(part_.queries->data) + head * shape_.queries * bytes;
      for (std::size_t i = 0; i < shape_.queries; ++i, out += shape_.dim) {
        read_row(part_.queries->format, from + i * bytes, shape_.dim, out);
        for (std::size_t d = 0; d < shape_.dim; ++d) out[d] *= part_.queries->scale;
      }
    }
  }

  void tile(const Segment& segment, std::size_t row, std::size_t token, std::size_t tokens) {
    score_tile(segment, row, tokens);
    for (std::size_t i = 0; i < rows_; ++i) {
      auto* scores = scores_ + i * stride_;
      mask(scores, i % shape_.queries, token, tokens);
      factors_[i] = exponentials(scores, tokens, sums_.maximum[i], sums_.total[i]);
    }
    add_tile_values(segment, row, tokens);
  }

  void score_tile(const Segment& segment, std::size_t row, std::size_t tokens) {
    for (std::size_t s = 0; s < shape_.scores;) {
      auto next = s + 1;
      while (next < shape_.scores && key_[next] == key_[s]) ++next;
      auto head = part_.request * shape_.key_heads + static_cast<std::size_t>(key_[s]);
      auto keys = head_of(segment.keys, head, row, shape_.dim);
      for (auto i = s * shape_.queries; i < next * shape_.queries; i += kBatch) {
        with_count<Score>(least(kBatch, next * shape_.queries - i), segment.keys.format, keys,
                          tokens, queries_ + i * shape_.dim, shape_.dim, spare_,
                          scores_ + i * stride_, stride_);
      }
      s = next;
    }
  }

  void mask(float* scores, std::size_t query, std::size_t token, std::size_t tokens) const {
    if (auto* allowed = part_.queries->allowed) {
      allowed += (part_.request * shape_.queries + query) * part_.tokens + token;
      for (std::size_t t = 0; t < tokens; ++t) scores[t] = allowed[t] ? scores[t] : -kInfinity;
    } else {
      auto seen = part_.tokens - shape_.queries + query + 1;
      for (auto t = seen > token ? seen - token : 0; t < tokens; ++t) scores[t] = -kInfinity;
    }
  }

  // Heads that share values and the representative with an earlier head have the same output.
  bool is_shared(std::size_t head) const { return first_alike(head) != head; }
  std::size_t first_alike(std::size_t head) const {
    auto group = shape_.heads / shape_.value_heads;
    for (auto h = head / group * group; h < head; ++h) {
      if (score_[h] == score_[head]) return h;
    }
    return head;
  }

  void add_tile_values(const Segment& segment, std::size_t row, std::size_t tokens) {
    auto group = shape_.heads / shape_.value_heads;
    for (std::size_t v = 0; v < shape_.value_heads; ++v) {
      auto values =
          head_of(segment.values, part_.request * shape_.value_heads + v, row, shape_.dim);
      Weighted pairs[kBatch];
      std::size_t count = 0;
      auto add = [&] {
        with_count<AddValues>(count, segment.values.format, values, tokens, shape_.dim, spare_,
                              stride_, pairs);
        count = 0;
      };
      for (auto h = v * group; h < (v + 1) * group; ++h) {
        if (is_shared(h)) continue;
        for (std::size_t i = 0; i < shape_.queries; ++i) {
          auto score = static_cast<std::size_t>(score_[h]) * shape_.queries + i;
          auto* sums = sums_.values + (h * shape_.queries + i) * shape_.dim;
          pairs[count] = {scores_ + score * stride_, sums, factors_[score]};
          if (++count == kBatch) add();
        }
      }
      if (count > 0) add();
    }
  }

  void copy_shared() const {
    auto size = shape_.queries * shape_.dim;
    for (std::size_t h = 0; h < shape_.heads; ++h) {
      auto alike = first_alike(h);
      if (alike == h) continue;
      std::memcpy(sums_.values + h * size, sums_.values + alike * size, sizeof(float) * size);
    }
  }

  const Part& part_;
  const Shape& shape_;
  Sums sums_;
  std::size_t rows_;
  std::size_t stride_;  // tokens of a tile
  float* queries_;
  float* scores_;
  float* factors_;
  float* spare_;  // kBatch rows of dim or of a tile
  const std::int32_t* key_;
  const std::int32_t* score_;
};

void attend_part(const Part& part, const Sums& sums) { Tiles(part, sums).run(); }

#define HEADRACE_NAME_OF(name) #name
#define HEADRACE_NAME(name) HEADRACE_NAME_OF(name)

}  // namespace

const AttentionTable& attention_kernels() {
  static const AttentionTable table = {HEADRACE_NAME(HEADRACE_ISA), attend_part, store_rows,
                                       write_row};
  return table;
}

}  // namespace headrace::attention::HEADRACE_ISA
