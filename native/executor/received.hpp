// A connection of tests whose incoming bytes are fixed beforehand.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "transport/connection.hpp"

namespace headrace::testing {

// A connection that has received fixed bytes, and sends none.
class Received : public Connection {
 public:
  std::vector<std::byte> incoming;

  std::size_t send(const iovec*, int, std::uint32_t) override { return 0; }
  std::size_t receive(std::byte* into, std::size_t bytes, const Hints&) override {
    auto moved = std::min(bytes, incoming.size() - at_);
    std::memcpy(into, incoming.data() + at_, moved);
    at_ += moved;
    return moved;
  }
  std::span<const std::byte> peek(std::size_t, std::size_t) override {
    return std::span<const std::byte>(incoming).subspan(at_);
  }
  bool use(std::size_t bytes) override {
    at_ += bytes;
    return true;
  }
  bool holds_bytes() const override { return at_ < incoming.size(); }
  int fd() const override { return -1; }
  void ready(bool, bool, bool) override {}
  void announce_sleep(bool) override {}
  bool changed() override { return false; }
  bool shares_memory() const override { return false; }
  std::optional<Clock::time_point> closed_at() const override { return std::nullopt; }
  void close() override {}
  void abandon() override {}
  const Traffic& traffic() const override { return traffic_; }

 private:
  std::size_t at_ = 0;
  Traffic traffic_;
};

}  // namespace headrace::testing
