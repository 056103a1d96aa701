#include "attention/attention.hpp"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "attention/kernels.hpp"
#include "attention/layout.hpp"
#include "attention/workers.hpp"
#include "simd/instruction_sets.hpp"

namespace headrace::attention {
namespace {

const AttentionTable& best_kernels() {
  static const AttentionTable& best = *attention_tables().back();
  return best;
}

// Fewer tokens than these are not worth a thread of their own.
constexpr std::size_t kLeastTokens = 512;

[[noreturn]] void refuse(const std::string& message) { throw std::invalid_argument(message); }

void check_dim(std::size_t dim, Format format) {
  auto unit = kDimensions * (format == Format::kInt4 || format == Format::kInt4Groups ? 2 : 1);
  if (dim == 0 || dim > 512 || dim % unit != 0) {
    refuse("dim is " + std::to_string(dim) + ", needs a multiple of " + std::to_string(unit) +
           " up to 512");
  }
}

bool is_plain(Format format) { return format == Format::kFloat32 || format == Format::kBFloat16; }

void check_rows(const char* name, const Rows& rows, std::size_t tokens, std::size_t dim) {
  if (rows.format < Format::kFloat32 || rows.format > Format::kInt4Groups) {
    refuse(std::string(name) + " have format " +
           std::to_string(static_cast<std::int64_t>(rows.format)) + ", needs 0 to 4");
  }
  check_dim(dim, rows.format);
  auto capacity = static_cast<std::size_t>(rows.capacity);
  auto first = static_cast<std::size_t>(rows.first);
  if (rows.first < 0 || rows.capacity < 0 || first + tokens > capacity) {
    refuse(std::string(name) + " have a capacity of " + std::to_string(rows.capacity) +
           " tokens, needs " + std::to_string(first + tokens));
  }
  if (rows.format == Format::kInt4Groups && (first % kGroup != 0 || capacity % kGroup != 0)) {
    refuse(std::string(name) + " begin or end within a group of " + std::to_string(kGroup) +
           " tokens");
  }
  if (tokens > 0 && rows.data == nullptr) refuse(std::string(name) + " have no data");
  if (tokens > 0 && !is_plain(rows.format) && rows.scales == nullptr) {
    refuse(std::string(name) + " have codes without scales");
  }
}

std::size_t count_tokens(const Shape& shape, std::span<const Segment> segments) {
  std::size_t tokens = 0;
  for (const auto& segment : segments) {
    if (segment.tokens < 0) refuse("a segment has " + std::to_string(segment.tokens) + " tokens");
    auto count = static_cast<std::size_t>(segment.tokens);
    check_rows("keys", segment.keys, count, shape.dim);
    check_rows("values", segment.values, count, shape.dim);
    if (segment.keys.format == Format::kInt4) refuse("keys of 4 bits need units by group");
    if (segment.values.format == Format::kInt4Groups) refuse("values have no units by group");
    if (segment.keys.format == Format::kInt4Groups && tokens % kGroup != 0) {
      refuse("a group of keys begins at token " + std::to_string(tokens));
    }
    tokens += count;
  }
  return tokens;
}

void check_indices(const char* name, const std::int32_t* indices, std::size_t count,
                   std::size_t limit) {
  for (std::size_t i = 0; i < count; ++i) {
    if (indices[i] < 0 || static_cast<std::size_t>(indices[i]) >= limit) {
      refuse(std::string(name) + " has " + std::to_string(indices[i]) + ", needs 0 to " +
             std::to_string(static_cast<std::int64_t>(limit) - 1));
    }
  }
}

void check(const Shape& shape, const Membership& membership, std::size_t tokens) {
  if (shape.value_heads == 0 || shape.heads % shape.value_heads != 0) {
    refuse("heads are " + std::to_string(shape.heads) + ", needs a multiple of the values' " +
           std::to_string(shape.value_heads));
  }
  if (tokens < shape.queries) {
    refuse("there are " + std::to_string(tokens) + " tokens, fewer than queries (" +
           std::to_string(shape.queries) + ")");
  }
  check_indices("query", membership.query, shape.batch * shape.scores, shape.query_heads);
  check_indices("key", membership.key, shape.batch * shape.scores, shape.key_heads);
  check_indices("score", membership.score, shape.batch * shape.heads, shape.scores);
}

// Sums of the parts of one request, the first part's changed to those of all.
void merge(const Shape& shape, const std::int32_t* score, std::span<const Sums> parts) {
  const auto& first = parts.front();
  for (std::size_t row = 0; row < shape.scores * shape.queries; ++row) {
    auto maximum = first.maximum[row];
    for (const auto& part : parts) maximum = std::max(maximum, part.maximum[row]);
    float total = 0;
    for (const auto& part : parts) {
      // The maximum's place holds the factor from here on.
      auto factor = part.maximum[row] == maximum ? 1.0f : std::exp(part.maximum[row] - maximum);
      total += part.total[row] * factor;
      part.maximum[row] = factor;
    }
    first.total[row] = total;
  }
  for (std::size_t head = 0; head < shape.heads; ++head) {
    for (std::size_t i = 0; i < shape.queries; ++i) {
      auto row = static_cast<std::size_t>(score[head]) * shape.queries + i;
      auto at = (head * shape.queries + i) * shape.dim;
      for (std::size_t d = 0; d < shape.dim; ++d) {
        float sum = 0;
        for (const auto& part : parts) sum += part.values[at + d] * part.maximum[row];
        first.values[at + d] = sum;
      }
    }
  }
}

// Writes the request's output, [queries, heads, dim]. Its sums are divided by their totals.
void write_output(const AttentionTable& kernels, const Shape& shape, Format format,
                  const std::int32_t* score, const Sums& sums, char* out) {
  for (std::size_t i = 0; i < shape.queries; ++i) {
    for (std::size_t head = 0; head < shape.heads; ++head) {
      auto total = sums.total[static_cast<std::size_t>(score[head]) * shape.queries + i];
      auto scale = total == 0 ? 0.0f : 1 / total;
      auto* values = sums.values + (head * shape.queries + i) * shape.dim;
      for (std::size_t d = 0; d < shape.dim; ++d) values[d] *= scale;
      kernels.write(values, shape.dim, format, out);
      out += row_bytes(format, shape.dim);
    }
  }
}

}  // namespace

std::vector<const AttentionTable*> attention_tables() {
  std::vector<const AttentionTable*> tables = {&portable::attention_kernels()};
#ifdef HEADRACE_X86_KERNELS
  if (has_avx2() && has_fma()) tables.push_back(&avx2::attention_kernels());
  if (has_avx512() && has_fma()) tables.push_back(&avx512::attention_kernels());
  if (has_avx512_vnni() && has_fma()) tables.push_back(&avx512_vnni::attention_kernels());
#endif
  return tables;
}

void attend(const AttentionTable& kernels, const Shape& shape, const Queries& queries,
            const Membership& membership, std::span<const Segment> segments, std::size_t threads,
            void* out) {
  auto tokens = count_tokens(shape, segments);
  check(shape, membership, tokens);
  if (threads == 0) refuse("threads are 0, needs 1 or more");
  if (shape.batch == 0 || shape.queries == 0) return;
  // As many parts that all threads have equally many, where requests alone are not.
  auto parts = std::min(threads / std::gcd(threads, shape.batch),
                        std::max<std::size_t>(1, tokens / kLeastTokens));
  // Whole groups of keys.
  auto size = (tokens + parts - 1) / parts;
  size = (size + kGroup - 1) / kGroup * kGroup;
  parts = (tokens + size - 1) / size;
  auto rows = shape.scores * shape.queries;
  auto values = shape.heads * shape.queries * shape.dim;
  auto sum_floats = 2 * rows + values;
  auto sums = std::make_unique_for_overwrite<float[]>(shape.batch * parts * sum_floats);
  auto sums_of = [&](std::size_t unit) {
    auto* at = sums.get() + unit * sum_floats;
    return Sums{at, at + rows, at + 2 * rows, nullptr};
  };
  run_parts(shape.batch * parts, threads, [&](std::size_t unit) {
    thread_local std::vector<float> scratch;
    if (scratch.size() < scratch_floats(shape)) scratch.resize(scratch_floats(shape));
    auto request = unit / parts;
    auto begin = unit % parts * size;
    Part part{&shape,          &queries,        &membership,
              segments.data(), segments.size(), tokens,
              request,         begin,           std::min(tokens, begin + size)};
    auto unit_sums = sums_of(unit);
    unit_sums.scratch = scratch.data();
    kernels.attend(part, unit_sums);
  });
  auto output_bytes = shape.queries * shape.heads * row_bytes(queries.format, shape.dim);
  for (std::size_t request = 0; request < shape.batch; ++request) {
    std::vector<Sums> of_request;
    for (std::size_t i = 0; i < parts; ++i) of_request.push_back(sums_of(request * parts + i));
    auto* score = membership.score + request * shape.heads;
    if (parts > 1) merge(shape, score, of_request);
    write_output(kernels, shape, queries.format, score, of_request.front(),
                 static_cast<char*>(out) + request * output_bytes);
  }
}

void attend(const Shape& shape, const Queries& queries, const Membership& membership,
            std::span<const Segment> segments, std::size_t threads, void* out) {
  attend(best_kernels(), shape, queries, membership, segments, threads, out);
}

void store(const Source& source, const Rows& rows, std::size_t batch, std::size_t heads,
           std::size_t tokens, std::size_t dim) {
  check_rows("rows", rows, tokens, dim);
  if (!is_plain(source.format)) refuse("rows to store have codes");
  if (rows.format == Format::kInt4Groups && tokens % kGroup != 0) {
    refuse("tokens are " + std::to_string(tokens) + ", needs whole groups of " +
           std::to_string(kGroup));
  }
  if (tokens == 0) return;
  auto element = static_cast<std::ptrdiff_t>(row_bytes(source.format, 1));
  for (std::size_t b = 0; b < batch; ++b) {
    for (std::size_t h = 0; h < heads; ++h) {
      auto at = static_cast<std::ptrdiff_t>(b) * source.batch_stride +
                static_cast<std::ptrdiff_t>(h) * source.head_stride;
      auto to = head_of(rows, b * heads + h, 0, dim);
      best_kernels().store(source.format, static_cast<const char*>(source.data) + at * element,
                           source.token_stride, rows.format, const_cast<char*>(to.data),
                           const_cast<char*>(to.scales), tokens, dim);
    }
  }
}

}  // namespace headrace::attention
