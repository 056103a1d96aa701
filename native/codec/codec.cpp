#include "codec/codec.hpp"

#include "codec/kernels.hpp"
#include "simd/instruction_sets.hpp"

namespace headrace::codec {
namespace {

const CodecTable& best_kernels() {
  static const CodecTable& best = *codec_tables().back();
  return best;
}

}  // namespace

std::vector<const CodecTable*> codec_tables() {
  std::vector<const CodecTable*> tables = {&portable::codec_kernels()};
#ifdef HEADRACE_X86_KERNELS
  if (has_avx2()) tables.push_back(&avx2::codec_kernels());
  if (has_avx512()) tables.push_back(&avx512::codec_kernels());
#endif
  return tables;
}

void pack_signs(const float* vector, std::size_t count, std::uint8_t* out) {
  best_kernels().pack_signs(vector, count, out);
}

void unpack_signs(const std::uint8_t* bits, float scale, float* out, std::size_t count) {
  best_kernels().unpack_signs(bits, scale, out, count);
}

void majority(const std::uint8_t* bits, std::size_t ranks, std::size_t stride, std::size_t bytes,
              std::uint8_t* out) {
  best_kernels().majority(bits, ranks, stride, bytes, out);
}

void pack_codes(const std::uint8_t* codes, std::size_t count, int bits, std::uint8_t* out) {
  best_kernels().pack_codes(codes, count, bits, out);
}

void unpack_codes(const std::uint8_t* packed, std::size_t count, int bits, std::uint8_t* out) {
  best_kernels().unpack_codes(packed, count, bits, out);
}

void quantize(const float* vector, std::size_t count, int bits, std::size_t bucket,
              std::uint8_t* codes, float* ranges) {
  best_kernels().quantize(vector, count, bits, bucket, codes, ranges);
}

void dequantize(const std::uint8_t* codes, const float* ranges, int bits, std::size_t bucket,
                float* out, std::size_t count, bool add) {
  best_kernels().dequantize(codes, ranges, bits, bucket, out, count, add);
}

void encode_float8(const float* vector, std::size_t count, std::size_t bucket, std::uint8_t* codes,
                   float* scales) {
  best_kernels().encode_float8(vector, count, bucket, codes, scales);
}

void decode_float8(const std::uint8_t* codes, const float* scales, std::size_t bucket, float* out,
                   std::size_t count, bool add) {
  best_kernels().decode_float8(codes, scales, bucket, out, count, add);
}

void round_with_residual(const float* vector, std::size_t count, bool brain, std::uint16_t* rounded,
                         float* residual) {
  best_kernels().round_with_residual(vector, count, brain, rounded, residual);
}

void encode_levels(const float* vector, std::size_t count, int bits, std::size_t bucket,
                   bool euclidean, std::uint64_t key, std::uint8_t* codes, float* norms) {
  best_kernels().encode_levels(vector, count, bits, bucket, euclidean, key, codes, norms);
}

void decode_levels(const std::uint8_t* codes, const float* norms, int bits, std::size_t bucket,
                   float* out, std::size_t count, bool add) {
  best_kernels().decode_levels(codes, norms, bits, bucket, out, count, add);
}

void select_topk(const float* vector, std::size_t count, std::size_t chosen, std::int32_t* indices,
                 float* values) {
  best_kernels().select_topk(vector, count, chosen, indices, values);
}

}  // namespace headrace::codec
