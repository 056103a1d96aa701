// Python binding of native/attention: shapes and types are checked, the GIL released, no logic.
// Tensors are torch's, of the exact type and contiguous; segments hold the addresses of blocks that
// the caller keeps alive.
#include "attention/attention.hpp"
#include "attention/clusters.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <optional>
#include <stdexcept>
#include <string>

namespace nb = nanobind;
using namespace nb::literals;

namespace {

namespace attention = headrace::attention;

using Tensor = nb::ndarray<nb::ndim<4>, nb::device::cpu>;
using Indices = nb::ndarray<const std::int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Segments = nb::ndarray<const std::int64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Rows = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Allowed = nb::ndarray<const bool, nb::ndim<3>, nb::c_contig, nb::device::cpu>;

attention::Format format_of(const char* name, const Tensor& tensor) {
  if (tensor.dtype() == nb::dtype<float>()) return attention::Format::kFloat32;
  auto type = tensor.dtype();
  if (type.code == static_cast<std::uint8_t>(nb::dlpack::dtype_code::Bfloat) && type.bits == 16) {
    return attention::Format::kBFloat16;
  }
  throw std::invalid_argument(std::string(name) + " needs float32 or bfloat16");
}

void check(const char* name, std::size_t found, std::size_t needed) {
  if (found == needed) return;
  throw std::invalid_argument(std::string(name) + " is " + std::to_string(found) + ", needs " +
                              std::to_string(needed));
}

void check_contiguous(const char* name, const Tensor& tensor) {
  std::int64_t stride = 1;
  for (std::size_t i = 4; i-- > 0;) {
    if (tensor.shape(i) > 1 && tensor.stride(i) != stride) {
      throw std::invalid_argument(std::string(name) + " is not contiguous");
    }
    stride *= static_cast<std::int64_t>(tensor.shape(i));
  }
}

attention::Rows rows_of(const std::int64_t* fields) {
  static_assert(sizeof(attention::Rows) == 5 * sizeof(std::int64_t));
  attention::Rows rows;
  std::memcpy(&rows, fields, sizeof rows);
  return rows;
}

void attend(Tensor queries, Indices query, Indices key, Indices score, Segments segments,
            std::size_t key_heads, std::size_t value_heads, float scale,
            std::optional<Allowed> allowed, std::size_t threads, Tensor out) {
  attention::Shape shape{queries.shape(0), queries.shape(2), queries.shape(1), out.shape(2),
                         value_heads,      key_heads,        query.shape(1),   queries.shape(3)};
  check_contiguous("queries", queries);
  check_contiguous("out", out);
  auto format = format_of("queries", queries);
  if (format_of("out", out) != format) throw std::invalid_argument("out is of another type");
  check("out's batch", out.shape(0), shape.batch);
  check("out's queries", out.shape(1), shape.queries);
  check("out's dimension", out.shape(3), shape.dim);
  check("query's batch", query.shape(0), shape.batch);
  check("key's batch", key.shape(0), shape.batch);
  check("key's representatives", key.shape(1), shape.scores);
  check("score's batch", score.shape(0), shape.batch);
  check("score's heads", score.shape(1), shape.heads);
  check("fields of a segment", segments.shape(1), attention::kSegmentFields);
  std::size_t tokens = 0;
  for (std::size_t i = 0; i < segments.shape(0); ++i) {
    tokens += static_cast<std::size_t>(segments(i, 0));
  }
  if (allowed) {
    check("allowed's batch", allowed->shape(0), shape.batch);
    check("allowed's queries", allowed->shape(1), shape.queries);
    check("allowed's tokens", allowed->shape(2), tokens);
  }
  attention::Queries call{
      format, queries.data(), scale,
      allowed ? reinterpret_cast<const std::uint8_t*>(allowed->data()) : nullptr};
  nb::gil_scoped_release release;
  attention::attend(
      shape, call, {query.data(), key.data(), score.data()},
      {reinterpret_cast<const attention::Segment*>(segments.data()), segments.shape(0)}, threads,
      out.data());
}

void store(Tensor source, Rows rows) {
  check("fields of rows", rows.shape(0), 5);
  if (source.shape(3) > 1 && source.stride(3) != 1) {
    throw std::invalid_argument("source has rows that are not contiguous");
  }
  attention::Source from{format_of("source", source), source.data(), source.stride(0),
                         source.stride(1), source.stride(2)};
  nb::gil_scoped_release release;
  attention::store(from, rows_of(rows.data()), source.shape(0), source.shape(1), source.shape(2),
                   source.shape(3));
}

void clusters(nb::ndarray<const float, nb::ndim<3>, nb::c_contig, nb::device::cpu> points,
              std::size_t clusters,
              nb::ndarray<std::int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu> out) {
  check("out's batch", out.shape(0), points.shape(0));
  check("out's heads", out.shape(1), points.shape(1));
  attention::HeadPoints from{points.data(), points.shape(0), points.shape(1), points.shape(2)};
  nb::gil_scoped_release release;
  attention::cluster(from, clusters, out.data());
}

}  // namespace

void bind_attention(nb::module_& module) {
  nb::enum_<attention::Format>(module, "AttentionFormat", nb::is_arithmetic(),
                               "Format of rows of keys or values in a block of a cache.")
      .value("FLOAT32", attention::Format::kFloat32)
      .value("BFLOAT16", attention::Format::kBFloat16)
      .value("INT8", attention::Format::kInt8, "8 bits; a float32 unit for each row")
      .value("INT4", attention::Format::kInt4,
             "4 bits; unit and number of code 0 for each row, in bfloat16")
      .value("INT4_GROUPS", attention::Format::kInt4Groups,
             "4 bits; unit and number of code 0 for each dimension of ATTENTION_GROUP rows");
  module.attr("ATTENTION_GROUP") = attention::kGroup;
  module.def("attention_attend", &attend, "queries"_a, "query"_a, "key"_a, "score"_a, "segments"_a,
             "key_heads"_a, "value_heads"_a, "scale"_a, "allowed"_a.none(), "threads"_a, "out"_a,
             "Write softmax(scale q k) v to out, [batch, queries, heads, dim].\n\n"
             "queries is [batch, query heads, queries, dim]. query and key, [batch, "
             "representatives], are heads of queries and of keys; score, [batch, heads], is the "
             "representative whose probabilities weight a head's values. Each row of segments is "
             "a number of tokens, then keys and values as rows of a block. allowed, [batch, "
             "queries, tokens], is causal where it is None.\n\n"
             "Raises ValueError naming the argument, what it is, and what is needed.");
  module.def("attention_store", &store, "source"_a, "rows"_a,
             "Store [batch, heads, tokens, dim] as rows of a block.\n\n"
             "rows is an AttentionFormat, the addresses of the data and of the scales or 0, "
             "capacity, and the first token.");
  module.def("attention_clusters", &clusters, "points"_a, "clusters"_a, "out"_a,
             "Write the head that represents each head to out, [batch, heads].\n\n"
             "points is [batch, heads, features]; a request's heads are clustered by k-means, and "
             "each cluster's medoid represents it. Raises ValueError for numbers that are not "
             "finite.");
}
