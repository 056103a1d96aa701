// Python binding of native/codec: sizes are checked, the GIL released, no logic. Arrays are NumPy's
// or torch's tensors, of the exact type and contiguous: nothing is converted.
#include "codec/codec.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <stdexcept>
#include <string>

namespace nb = nanobind;
using namespace nb::literals;

namespace {

namespace codec = headrace::codec;

template <class T>
using Vector = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Matrix = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Byte = std::uint8_t;

void check_size(const char* name, std::size_t found, std::size_t needed) {
  if (found == needed) return;
  throw std::invalid_argument(std::string(name) + " has " + std::to_string(found) +
                              " elements, needs " + std::to_string(needed));
}

void check_bits(int bits, int least) {
  if (bits >= least && bits <= 8) return;
  throw std::invalid_argument("bits is " + std::to_string(bits) + ", needs " +
                              std::to_string(least) + " to 8");
}

void check_bucket(std::size_t bucket) {
  if (bucket > 0 && bucket % 8 == 0) return;
  throw std::invalid_argument("bucket is " + std::to_string(bucket) + ", needs a multiple of 8");
}

std::size_t buckets(std::size_t count, std::size_t bucket) {
  return count / bucket + (count % bucket != 0 ? 1 : 0);
}

void check_codes(std::size_t count, int bits, std::size_t bucket, std::size_t codes,
                 const Matrix<const float>& ranges) {
  check_bits(bits, 2);
  check_bucket(bucket);
  check_size("codes", codes, codec::packed_bytes(count, bits));
  check_size("ranges", ranges.shape(0), buckets(count, bucket));
  check_size("a row of ranges", ranges.shape(1), 2);
}

void pack_signs(Vector<const float> vector, Vector<Byte> out) {
  check_size("out", out.shape(0), codec::packed_bytes(vector.shape(0), 1));
  nb::gil_scoped_release release;
  codec::pack_signs(vector.data(), vector.shape(0), out.data());
}

void unpack_signs(Vector<const Byte> bits, float scale, Vector<float> out) {
  check_size("bits", bits.shape(0), codec::packed_bytes(out.shape(0), 1));
  nb::gil_scoped_release release;
  codec::unpack_signs(bits.data(), scale, out.data(), out.shape(0));
}

// Of a part of the columns, too.
void majority(nb::ndarray<const Byte, nb::ndim<2>, nb::device::cpu> bits, Vector<Byte> out) {
  check_size("out", out.shape(0), bits.shape(1));
  if (bits.shape(1) > 1 && bits.stride(1) != 1) {
    throw std::invalid_argument("bits has rows that are not contiguous");
  }
  nb::gil_scoped_release release;
  codec::majority(bits.data(), bits.shape(0), static_cast<std::size_t>(bits.stride(0)),
                  bits.shape(1), out.data());
}

void pack_codes(Vector<const Byte> codes, int bits, Vector<Byte> out) {
  check_bits(bits, 1);
  check_size("out", out.shape(0), codec::packed_bytes(codes.shape(0), bits));
  nb::gil_scoped_release release;
  codec::pack_codes(codes.data(), codes.shape(0), bits, out.data());
}

void unpack_codes(Vector<const Byte> packed, int bits, Vector<Byte> out) {
  check_bits(bits, 1);
  check_size("packed", packed.shape(0), codec::packed_bytes(out.shape(0), bits));
  nb::gil_scoped_release release;
  codec::unpack_codes(packed.data(), out.shape(0), bits, out.data());
}

void quantize(Vector<const float> vector, int bits, std::size_t bucket, Vector<Byte> codes,
              Matrix<float> ranges) {
  check_codes(vector.shape(0), bits, bucket, codes.shape(0), Matrix<const float>(ranges));
  nb::gil_scoped_release release;
  codec::quantize(vector.data(), vector.shape(0), bits, bucket, codes.data(), ranges.data());
}

void dequantize(Vector<const Byte> codes, Matrix<const float> ranges, int bits, std::size_t bucket,
                Vector<float> out, bool add) {
  check_codes(out.shape(0), bits, bucket, codes.shape(0), ranges);
  nb::gil_scoped_release release;
  codec::dequantize(codes.data(), ranges.data(), bits, bucket, out.data(), out.shape(0), add);
}

void encode_float8(Vector<const float> vector, std::size_t bucket, Vector<Byte> codes,
                   Vector<float> scales) {
  check_bucket(bucket);
  check_size("codes", codes.shape(0), vector.shape(0));
  check_size("scales", scales.shape(0), buckets(vector.shape(0), bucket));
  nb::gil_scoped_release release;
  codec::encode_float8(vector.data(), vector.shape(0), bucket, codes.data(), scales.data());
}

void decode_float8(Vector<const Byte> codes, Vector<const float> scales, std::size_t bucket,
                   Vector<float> out, bool add) {
  check_bucket(bucket);
  check_size("codes", codes.shape(0), out.shape(0));
  check_size("scales", scales.shape(0), buckets(out.shape(0), bucket));
  nb::gil_scoped_release release;
  codec::decode_float8(codes.data(), scales.data(), bucket, out.data(), out.shape(0), add);
}

void round_with_residual(Vector<const float> vector, bool brain, Vector<std::uint16_t> rounded,
                         Vector<float> residual) {
  check_size("rounded", rounded.shape(0), vector.shape(0));
  check_size("residual", residual.shape(0), vector.shape(0));
  nb::gil_scoped_release release;
  codec::round_with_residual(vector.data(), vector.shape(0), brain, rounded.data(),
                             residual.data());
}

void check_levels(std::size_t count, int bits, std::size_t bucket, std::size_t codes,
                  std::size_t norms) {
  check_bits(bits, 2);
  check_bucket(bucket);
  check_size("codes", codes, codec::packed_bytes(count, bits));
  check_size("norms", norms, buckets(count, bucket));
}

void encode_levels(Vector<const float> vector, int bits, std::size_t bucket, bool euclidean,
                   std::uint64_t key, Vector<Byte> codes, Vector<float> norms) {
  check_levels(vector.shape(0), bits, bucket, codes.shape(0), norms.shape(0));
  nb::gil_scoped_release release;
  codec::encode_levels(vector.data(), vector.shape(0), bits, bucket, euclidean, key, codes.data(),
                       norms.data());
}

void decode_levels(Vector<const Byte> codes, Vector<const float> norms, int bits,
                   std::size_t bucket, Vector<float> out, bool add) {
  check_levels(out.shape(0), bits, bucket, codes.shape(0), norms.shape(0));
  nb::gil_scoped_release release;
  codec::decode_levels(codes.data(), norms.data(), bits, bucket, out.data(), out.shape(0), add);
}

void select_topk(Vector<const float> vector, std::size_t k, Vector<std::int32_t> indices,
                 Vector<float> values) {
  auto count = vector.shape(0);
  if (count >> 31 != 0) throw std::invalid_argument("vector has 2^31 elements or more");
  if (k > count) {
    throw std::invalid_argument("k is " + std::to_string(k) + ", needs at most " +
                                std::to_string(count));
  }
  check_size("indices", indices.shape(0), k);
  check_size("values", values.shape(0), k);
  nb::gil_scoped_release release;
  codec::select_topk(vector.data(), count, k, indices.data(), values.data());
}

}  // namespace

void bind_codec(nb::module_& module) {
  module.def("pack_signs", pack_signs, nb::arg("vector").noconvert(), nb::arg("out").noconvert());
  module.def("unpack_signs", unpack_signs, nb::arg("bits").noconvert(), "scale"_a,
             nb::arg("out").noconvert());
  module.def("majority", majority, nb::arg("bits").noconvert(), nb::arg("out").noconvert());
  module.def("pack_codes", pack_codes, nb::arg("codes").noconvert(), "bits"_a,
             nb::arg("out").noconvert());
  module.def("unpack_codes", unpack_codes, nb::arg("packed").noconvert(), "bits"_a,
             nb::arg("out").noconvert());
  module.def("quantize", quantize, nb::arg("vector").noconvert(), "bits"_a, "bucket"_a,
             nb::arg("codes").noconvert(), nb::arg("ranges").noconvert());
  module.def("dequantize", dequantize, nb::arg("codes").noconvert(), nb::arg("ranges").noconvert(),
             "bits"_a, "bucket"_a, nb::arg("out").noconvert(), "add"_a = false);
  module.def("encode_float8", encode_float8, nb::arg("vector").noconvert(), "bucket"_a,
             nb::arg("codes").noconvert(), nb::arg("scales").noconvert());
  module.def("decode_float8", decode_float8, nb::arg("codes").noconvert(),
             nb::arg("scales").noconvert(), "bucket"_a, nb::arg("out").noconvert(),
             "add"_a = false);
  module.def("round_with_residual", round_with_residual, nb::arg("vector").noconvert(), "brain"_a,
             nb::arg("rounded").noconvert(), nb::arg("residual").noconvert());
  module.def("encode_levels", encode_levels, nb::arg("vector").noconvert(), "bits"_a, "bucket"_a,
             "euclidean"_a, "key"_a, nb::arg("codes").noconvert(), nb::arg("norms").noconvert());
  module.def("decode_levels", decode_levels, nb::arg("codes").noconvert(),
             nb::arg("norms").noconvert(), "bits"_a, "bucket"_a, nb::arg("out").noconvert(),
             "add"_a = false);
  module.def("select_topk", select_topk, nb::arg("vector").noconvert(), "k"_a,
             nb::arg("indices").noconvert(), nb::arg("values").noconvert());
}
