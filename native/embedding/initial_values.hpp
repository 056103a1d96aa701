// Values of embedding rows before their first update. They follow from the job's seed, the table,
// the row's id and the number's index alone, and are the same on every processor and platform: no
// function of the C library that may round differently is used.
#pragma once

#include <cstddef>
#include <cstdint>

#include "embedding/hash.hpp"

namespace headrace::embedding {

// Numbers from -scale to scale, of a normal distribution of deviation `scale`, or `scale`.
enum class Distribution : std::uint8_t { uniform, normal, constant };

class InitialValues {
 public:
  // `table`: its number among the job's tables.
  InitialValues(std::uint64_t seed, std::uint64_t table, Distribution distribution, double scale)
      : key_(mix(seed) + kGoldenGamma * table), distribution_(distribution), scale_(scale) {}

  // Writes `count` numbers, float or double, to memory of any alignment.
  template <class Number>
  void write(std::uint64_t id, std::byte* numbers, std::size_t count) const;

 private:
  std::uint64_t key_;
  Distribution distribution_;
  double scale_;
};

// The normal distribution's quantile of 0 < u < 1, to 1e-15 of its size.
double normal_quantile(double u);

}  // namespace headrace::embedding
