// Attention over a cache of keys and values in which query heads share probabilities
// (clustered-head attention), and in which keys and values have 8 or 4 bits. Scores are computed
// for representatives alone; each head weights its own values by its representative's
// probabilities.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace headrace::attention {

// How rows of `dim` numbers are stored.
//   kInt8        codes -127..127; a float for each row is their unit
//   kInt4        codes 0..15, two a byte: byte i of each 16 has those of dimensions i and i + 16 of
//                32; two bfloat16 for each row: the unit, and the number of code 0
//   kInt4Groups  codes as in kInt4; unit and number of code 0 are those of a dimension in kGroup
//                rows: two vectors of `dim` bfloat16 for each group
enum class Format : std::int64_t { kFloat32, kBFloat16, kInt8, kInt4, kInt4Groups };

inline constexpr std::size_t kGroup = 64;
// Dimensions are handled so many at a time; of codes of 4 bits twice as many.
inline constexpr std::size_t kDimensions = 16;

// Rows of some tokens: [batch, heads, capacity, dim], of which `first` up are read.
struct Rows {
  Format format;
  const void* data;
  const void*
      scales;  // float: [batch, heads, capacity]; of bfloat16: [.., capacity or groups, 2, ..]
  std::int64_t capacity;
  std::int64_t first;  // of kInt4Groups a multiple of kGroup
};

// Keys and values of consecutive tokens. An array of integers of 64 bits has the same layout.
struct Segment {
  std::int64_t tokens;
  Rows keys;
  Rows values;
};
inline constexpr std::size_t kSegmentFields = sizeof(Segment) / sizeof(std::int64_t);

struct Shape {
  std::size_t batch;
  std::size_t queries;      // tokens; the last ones of the segments'
  std::size_t query_heads;  // in the tensor of queries
  std::size_t heads;        // of the output; heads / value_heads neighbours share values
  std::size_t value_heads;
  std::size_t key_heads;
  std::size_t scores;  // representatives
  std::size_t dim;
};

// Which heads a request's representatives are.
struct Membership {
  const std::int32_t* query;  // [batch, scores]: head in the tensor of queries
  const std::int32_t* key;    // [batch, scores]: head in the keys of the segments, ascending
  const std::int32_t* score;  // [batch, heads]: index of the representative
};

struct Queries {
  Format format;                // kFloat32 or kBFloat16; the output has the same
  const void* data;             // [batch, query_heads, queries, dim]
  float scale;                  // of scores
  const std::uint8_t* allowed;  // [batch, queries, tokens] of 0 and 1; null: causal
};

// Writes [batch, queries, heads, dim]: zeros for a query that may see no token. Results depend on
// the number of threads by rounding, and on nothing else.
void attend(const Shape& shape, const Queries& queries, const Membership& membership,
            std::span<const Segment> segments, std::size_t threads, void* out);

// Rows of `count` tokens, a float or bfloat16 for each dimension; those of the batch and of a head
// lie `batch_stride` and `head_stride` elements apart.
struct Source {
  Format format;
  const void* data;
  std::ptrdiff_t batch_stride;
  std::ptrdiff_t head_stride;
  std::ptrdiff_t token_stride;
};

// Stores rows of tokens from `rows.first` on. Of kInt4Groups, whole groups.
void store(const Source& source, const Rows& rows, std::size_t batch, std::size_t heads,
           std::size_t tokens, std::size_t dim);

}  // namespace headrace::attention
