#include "embedding/initial_values.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>

namespace headrace::embedding {

namespace {

// Coefficients by rising powers.
template <std::size_t N>
double polynomial(const double (&coefficients)[N], double x) {
  double sum = coefficients[N - 1];
  for (auto i = N - 1; i-- > 0;) sum = sum * x + coefficients[i];
  return sum;
}

// By the series of the inverse hyperbolic tangent, from 1/sqrt(2) to sqrt(2).
double logarithm(double x) {
  int exponent = 0;
  auto mantissa = std::frexp(x, &exponent);
  if (mantissa < std::numbers::sqrt2 / 2) {
    mantissa *= 2;
    --exponent;
  }
  const auto s = (mantissa - 1) / (mantissa + 1);
  const auto square = s * s;
  double sum = 0;
  for (int k = 21; k >= 1; k -= 2) sum = sum * square + 1.0 / k;
  return exponent * std::numbers::ln2 + 2 * s * sum;
}

// Wichura, "Algorithm AS 241: the percentage points of the normal distribution", 1988: PPND16.
constexpr double kCentralOver[] = {3.3871328727963666080e0, 1.3314166789178437745e2,
                                   1.9715909503065514427e3, 1.3731693765509461125e4,
                                   4.5921953931549871457e4, 6.7265770927008700853e4,
                                   3.3430575583588128105e4, 2.5090809287301226727e3};
constexpr double kCentralUnder[] = {1.0,
                                    4.2313330701600911252e1,
                                    6.8718700749205790830e2,
                                    5.3941960214247511077e3,
                                    2.1213794301586595867e4,
                                    3.9307895800092710610e4,
                                    2.8729085735721942674e4,
                                    5.2264952788528545610e3};
constexpr double kMiddleOver[] = {1.42343711074968357734e0,  4.63033784615654529590e0,
                                  5.76949722146069140550e0,  3.64784832476320460504e0,
                                  1.27045825245236838258e0,  2.41780725177450611770e-1,
                                  2.27238449892691845833e-2, 7.74545014278341407640e-4};
constexpr double kMiddleUnder[] = {1.0,
                                   2.05319162663775882187e0,
                                   1.67638483018380384940e0,
                                   6.89767334985100004550e-1,
                                   1.48103976427480074590e-1,
                                   1.51986665636164571966e-2,
                                   5.47593808499534494600e-4,
                                   1.05075007164441684324e-9};
constexpr double kFarOver[] = {6.65790464350110377720e0,  5.46378491116411436990e0,
                               1.78482653991729133580e0,  2.96560571828504891230e-1,
                               2.65321895265761230930e-2, 1.24266094738807843860e-3,
                               2.71155556874348757815e-5, 2.01033439929228813265e-7};
constexpr double kFarUnder[] = {1.0,
                                5.99832206555887937690e-1,
                                1.36929880922735805310e-1,
                                1.48753612908506148525e-2,
                                7.86869131145613259100e-4,
                                1.84631831751005468180e-5,
                                1.42151175831644588870e-7,
                                2.04426310338993978564e-15};

}  // namespace

double normal_quantile(double u) {
  const auto centered = u - 0.5;
  if (std::abs(centered) <= 0.425) {
    const auto x = 0.180625 - centered * centered;
    return centered * polynomial(kCentralOver, x) / polynomial(kCentralUnder, x);
  }
  const auto tail = std::sqrt(-logarithm(std::min(u, 1 - u)));
  const auto size = tail <= 5
                        ? polynomial(kMiddleOver, tail - 1.6) / polynomial(kMiddleUnder, tail - 1.6)
                        : polynomial(kFarOver, tail - 5) / polynomial(kFarUnder, tail - 5);
  return centered < 0 ? -size : size;
}

template <class Number>
void InitialValues::write(std::uint64_t id, std::byte* numbers, std::size_t count) const {
  auto state = mix(key_ + kGoldenGamma * (id + 1));
  for (std::size_t i = 0; i < count; ++i) {
    auto value = 1.0;
    if (distribution_ != Distribution::constant) {
      state += kGoldenGamma;
      // 52 bits and a half: never 0 or 1.
      const auto u = (static_cast<double>(mix(state) >> 12) + 0.5) * 0x1p-52;
      value = distribution_ == Distribution::uniform ? 2 * u - 1 : normal_quantile(u);
    }
    const auto number = static_cast<Number>(value * scale_);
    std::memcpy(numbers + i * sizeof(Number), &number, sizeof(Number));
  }
}

template void InitialValues::write<float>(std::uint64_t, std::byte*, std::size_t) const;
template void InitialValues::write<double>(std::uint64_t, std::byte*, std::size_t) const;

}  // namespace headrace::embedding
