// Staging buffer of a connection: fetched bytes whose destination is not known yet, contiguous.
#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <span>

namespace headrace {

class Staging {
 public:
  static constexpr std::size_t kBytes = 128 << 10;

  std::size_t size() const { return end_ - begin_; }
  std::span<const std::byte> bytes() const { return {memory_.get() + begin_, size()}; }
  // Consumes the first bytes.
  void use(std::size_t bytes) { begin_ += bytes; }
  // Moves the first bytes, at most `most`, to `into`; returns how many.
  std::size_t take(std::byte* into, std::size_t most) {
    auto taken = std::min(most, size());
    if (taken > 0) std::memcpy(into, memory_.get() + begin_, taken);
    begin_ += taken;
    return taken;
  }
  // Room for up to `most` more bytes; `fill` adds those that came.
  iovec room(std::size_t most) {
    if (!memory_) memory_ = std::make_unique_for_overwrite<std::byte[]>(kBytes);
    if (begin_ > 0) {
      std::memmove(memory_.get(), memory_.get() + begin_, size());
      end_ -= begin_;
      begin_ = 0;
    }
    return {memory_.get() + end_, std::min(most, kBytes - end_)};
  }
  void fill(std::size_t bytes) { end_ += bytes; }

 private:
  std::unique_ptr<std::byte[]> memory_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
};

}  // namespace headrace
