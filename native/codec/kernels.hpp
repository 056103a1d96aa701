// The kernel tables, one per instruction set; `codec.cpp` picks one at run time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace headrace::codec {

// As the functions of codec.hpp.
struct CodecTable {
  const char* name;  // of the instruction set
  void (*pack_signs)(const float*, std::size_t, std::uint8_t*);
  void (*unpack_signs)(const std::uint8_t*, float, float*, std::size_t);
  void (*majority)(const std::uint8_t*, std::size_t, std::size_t, std::size_t, std::uint8_t*);
  void (*pack_codes)(const std::uint8_t*, std::size_t, int, std::uint8_t*);
  void (*unpack_codes)(const std::uint8_t*, std::size_t, int, std::uint8_t*);
  void (*quantize)(const float*, std::size_t, int, std::size_t, std::uint8_t*, float*);
  void (*dequantize)(const std::uint8_t*, const float*, int, std::size_t, float*, std::size_t,
                     bool);
  void (*select_topk)(const float*, std::size_t, std::size_t, std::int32_t*, float*);
  void (*encode_float8)(const float*, std::size_t, std::size_t, std::uint8_t*, float*);
  void (*decode_float8)(const std::uint8_t*, const float*, std::size_t, float*, std::size_t, bool);
  void (*round_with_residual)(const float*, std::size_t, bool, std::uint16_t*, float*);
  void (*encode_levels)(const float*, std::size_t, int, std::size_t, bool, std::uint64_t,
                        std::uint8_t*, float*);
  void (*decode_levels)(const std::uint8_t*, const float*, int, std::size_t, float*, std::size_t,
                        bool);
};

namespace portable {
const CodecTable& codec_kernels();
}
namespace avx2 {
const CodecTable& codec_kernels();
}
namespace avx512 {
const CodecTable& codec_kernels();
}

// The tables supported by this processor, the fastest last.
std::vector<const CodecTable*> codec_tables();

}  // namespace headrace::codec
