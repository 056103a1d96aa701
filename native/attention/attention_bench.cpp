// Of attention by one thread, in CPU time: GB of keys and values per second and how many times as
// fast as full attention over the same tokens, in paired rounds; and milliseconds of clustering.
// Arguments: rounds of a figure; the instruction set (without it, each that this processor
// supports).
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "attention/attention.hpp"
#include "attention/clusters.hpp"
#include "attention/kernels.hpp"
#include "random.hpp"

using namespace headrace;
using namespace headrace::attention;

namespace {

constexpr std::size_t kHeads = 32;
constexpr std::size_t kDim = 128;
constexpr std::size_t kClusters = 12;
std::size_t rounds = 9;

double cpu_seconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// The median time of each action; in every round each runs once.
std::vector<double> medians(const std::vector<std::function<void()>>& actions) {
  std::vector<std::vector<double>> times(actions.size());
  for (const auto& action : actions) action();
  for (std::size_t round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < actions.size(); ++i) {
      auto begun = cpu_seconds();
      actions[i]();
      times[i].push_back(cpu_seconds() - begun);
    }
  }
  std::vector<double> result;
  for (auto& of_action : times) {
    std::sort(of_action.begin(), of_action.end());
    result.push_back(of_action[of_action.size() / 2]);
  }
  return result;
}

// Rows of normal numbers: those of one head, repeated.
struct Cache {
  Format format;
  std::vector<char> data;
  std::vector<char> scales;
  std::size_t tokens;
  Cache(Format stored, std::size_t heads, std::size_t token_count)
      : format(stored), tokens(token_count) {
    auto bytes = [&](std::size_t row) { return heads * tokens * row; };
    data.resize(bytes(format == Format::kFloat32    ? 4 * kDim
                      : format == Format::kBFloat16 ? 2 * kDim
                      : format == Format::kInt8     ? kDim
                                                    : kDim / 2));
    scales.resize(format == Format::kInt4Groups ? bytes(4 * kDim) / kGroup : bytes(4));
    Random random(1, 0);
    std::vector<float> numbers(tokens * kDim);
    for (auto& number : numbers) number = random.unit() + random.unit() + random.unit() - 1.5F;
    Source source{Format::kFloat32, numbers.data(), 0, 0, kDim};
    store(source, rows(), 1, heads, tokens, kDim);
  }
  Rows rows() const {
    return {format, data.data(), scales.data(), static_cast<std::int64_t>(tokens), 0};
  }
  double bytes() const {
    bool coded = format != Format::kFloat32 && format != Format::kBFloat16;
    return static_cast<double>(data.size() + (coded ? scales.size() : 0));
  }
};

// One step of decoding of `batch` requests; with fewer scores than heads, the others follow at
// random.
class Step {
 public:
  Step(const AttentionTable& table, Format type, std::size_t batch, std::size_t value_heads,
       std::size_t scores, Format keys, Format values, std::size_t tokens)
      : table_(table),
        type_(type),
        shape_{batch, 1, kHeads, kHeads, value_heads, std::min(scores, value_heads), scores, kDim},
        keys_(keys, batch * shape_.key_heads, tokens),
        values_(values, batch * value_heads, tokens),
        queries_(batch * kHeads * kDim * sizeof(float)),
        out_(queries_.size()) {
    Random random(2, 0);
    for (std::size_t i = 0; i < batch * scores; ++i) {
      query_.push_back(static_cast<std::int32_t>(i % scores));
      key_.push_back(static_cast<std::int32_t>(i % scores * shape_.key_heads / scores));
    }
    for (std::size_t i = 0; i < batch * kHeads; ++i) {
      auto head = i % kHeads;
      score_.push_back(head < scores ? static_cast<std::int32_t>(head)
                                     : random.below(static_cast<int>(scores)));
    }
  }
  void run() {
    Segment segment{static_cast<std::int64_t>(keys_.tokens), keys_.rows(), values_.rows()};
    attend(table_, shape_, {type_, queries_.data(), 0.1F, nullptr},
           {query_.data(), key_.data(), score_.data()}, {&segment, 1}, 1, out_.data());
  }
  double bytes() const { return keys_.bytes() + values_.bytes(); }
  // Adds all words of the keys and values.
  void sum() { total_ = total_ + sum_of(keys_.data) + sum_of(values_.data); }

 private:
  static std::int64_t sum_of(const std::vector<char>& from) {
    auto* words = reinterpret_cast<const std::int64_t*>(from.data());
    std::int64_t sum = 0;
    for (std::size_t i = 0; i < from.size() / 8; ++i) sum += words[i];
    return sum;
  }

  const AttentionTable& table_;
  Format type_;
  Shape shape_;
  Cache keys_;
  Cache values_;
  std::vector<char> queries_;
  std::vector<char> out_;
  std::vector<std::int32_t> query_;
  std::vector<std::int32_t> key_;
  std::vector<std::int32_t> score_;
  volatile std::int64_t total_ = 0;
};

void decode(const AttentionTable& table, Format type, std::size_t value_heads, std::size_t batch,
            std::size_t tokens) {
  struct Row {
    const char* name;
    Format keys;
    Format values;
    std::size_t scores;
  };
  std::vector<Row> rows = {{"full", type, type, kHeads},
                           {"8-bit", Format::kInt8, Format::kInt8, kHeads},
                           {"4-bit keys", Format::kInt4Groups, Format::kInt8, kHeads},
                           {"4-bit", Format::kInt4Groups, Format::kInt4, kHeads}};
  if (value_heads == kHeads) {
    rows.push_back({"clusters", type, type, kClusters});
    rows.push_back({"clusters, 8-bit", Format::kInt8, Format::kInt8, kClusters});
  }
  std::vector<Step> steps;
  steps.reserve(rows.size());
  std::vector<std::function<void()>> actions;
  for (const auto& row : rows) {
    auto& step = steps.emplace_back(table, type, batch, value_heads, row.scores, row.keys,
                                    row.values, tokens);
    actions.push_back([&step] { step.run(); });
  }
  // Over memory of its own, so that no other row finds its bytes in a cache.
  Step read(table, type, batch, value_heads, kHeads, type, type, tokens);
  actions.push_back([&read] { read.sum(); });
  auto times = medians(actions);
  auto read_rate = read.bytes() / times.back() / 1e9;
  std::printf("%-8s %s, %zu KV heads, batch %zu, %zu tokens: sum %.1f GB/s", table.name,
              type == Format::kFloat32 ? "float32" : "bfloat16", value_heads, batch, tokens,
              read_rate);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    auto speed = steps[i].bytes() / times[i] / 1e9;
    std::printf("; %s %.1f GB/s (%.2f)", rows[i].name, speed, times[0] / times[i]);
  }
  std::printf("\n");
  std::fflush(stdout);
}

// Probabilities of five tokens, of 32 heads in each of 32 layers.
void clustering() {
  constexpr std::size_t kLayers = 32, kTokens = 5, kFeatures = kTokens * kTokens;
  Random random(3, 0);
  std::vector<float> points;
  for (std::size_t head = 0; head < kLayers * kHeads; ++head) {
    for (std::size_t query = 0; query < kTokens; ++query) {
      float row[kTokens] = {};
      float sum = 0;
      for (std::size_t key = 0; key <= query; ++key) sum += row[key] = std::exp(4 * random.unit());
      for (auto weight : row) points.push_back(weight / sum);
    }
  }
  std::vector<std::int32_t> representative(kLayers * kHeads);
  auto times = medians({[&] {
    for (std::size_t layer = 0; layer < kLayers; ++layer) {
      cluster({points.data() + layer * kHeads * kFeatures, 1, kHeads, kFeatures}, kClusters,
              representative.data() + layer * kHeads);
    }
  }});
  std::printf("clustering of %zu layers: %.2f ms\n", kLayers, 1e3 * times[0]);
}

}  // namespace

int main(int count, char** arguments) {
  if (count > 1) rounds = static_cast<std::size_t>(std::max(1, std::atoi(arguments[1])));
  clustering();
  for (const auto* table : attention_tables()) {
    if (count > 2 && std::string(arguments[2]) != table->name) continue;
    for (auto type : {Format::kFloat32, Format::kBFloat16}) {
      for (auto [batch, tokens] : {std::pair{1, 512}, {1, 2048}, {4, 2048}, {1, 8192}}) {
        for (auto value_heads : {kHeads, kHeads / 4}) {
          decode(*table, type, value_heads, static_cast<std::size_t>(batch),
                 static_cast<std::size_t>(tokens));
        }
      }
    }
  }
}
