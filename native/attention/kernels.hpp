// The kernel tables, one per instruction set; `attention.cpp` picks one at run time.
#pragma once

#include <cstddef>
#include <vector>

#include "attention/attention.hpp"

namespace headrace::attention {

// A call of `attend`, and the part of it that one thread computes at a time: the tokens
// [begin, end) of one request.
struct Part {
  const Shape* shape;
  const Queries* queries;
  const Membership* membership;
  const Segment* segments;
  std::size_t segment_count;
  std::size_t tokens;  // of all segments
  std::size_t request;
  std::size_t begin;
  std::size_t end;
};

// Sums over a part's tokens. A representative's probabilities are exp(score - maximum) / total.
struct Sums {
  float* maximum;  // [scores, queries]
  float* total;    // [scores, queries]
  float* values;   // [heads, queries, dim]: sums of values, not divided by the total
  float* scratch;  // `scratch_floats`
};

// Tokens whose probabilities are kept at a time: long runs of a head's rows are read fastest, and
// tiles of all rows of probabilities should stay in the second-level cache. Whole groups.
inline std::size_t tile_tokens(const Shape& shape) {
  constexpr std::size_t kLeast = 256, kMost = 1024, kFloats = 64 << 10;
  auto tokens = kFloats / (shape.scores * shape.queries);
  return tokens >= kMost ? kMost : tokens >= 512 ? 512 : kLeast;
}
// Rows that are read once for so many queries.
inline constexpr std::size_t kBatch = 4;

inline std::size_t scratch_floats(const Shape& shape) {
  auto rows = shape.scores * shape.queries;
  auto tile = tile_tokens(shape);
  return rows * (shape.dim + tile + 1) + kBatch * (shape.dim > tile ? shape.dim : tile);
}

struct AttentionTable {
  const char* name;  // of the instruction set
  void (*attend)(const Part&, const Sums&);
  // Rows of one head.
  void (*store)(Format from, const void* source, std::ptrdiff_t token_stride, Format to, void* data,
                void* scales, std::size_t tokens, std::size_t dim);
  // A row in a plain format.
  void (*write)(const float* row, std::size_t dim, Format to, void* out);
};

namespace portable {
const AttentionTable& attention_kernels();
}
namespace avx2 {
const AttentionTable& attention_kernels();
}
namespace avx512 {
const AttentionTable& attention_kernels();
}
namespace avx512_vnni {
const AttentionTable& attention_kernels();
}

// The tables supported by this processor, the fastest last.
std::vector<const AttentionTable*> attention_tables();

void attend(const AttentionTable& kernels, const Shape& shape, const Queries& queries,
            const Membership& membership, std::span<const Segment> segments, std::size_t threads,
            void* out);

}  // namespace headrace::attention
