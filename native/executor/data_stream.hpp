// A data channel to one peer: send and receive lanes of collectives, in submission order.
#pragma once

#include <deque>
#include <memory>

#include "executor/stream.hpp"
#include "executor/task.hpp"

namespace headrace {

class DataStream final : public Stream {
 public:
  using Stream::Stream;

  void add_send(std::shared_ptr<Collective> collective, std::uint32_t lane);
  void add_receive(std::shared_ptr<Collective> collective, std::uint32_t lane);

  bool progress(const Unlock& unlock) override;
  // Throws ProtocolError if the next frame belongs to a collective that began here (all below
  // `started` did) and receives nothing from this peer.
  void check_unexpected(std::uint32_t started);
  bool busy() const override { return !sends_.empty() || (!receives_.empty() && !held_back()); }
  void drop() override;

 private:
  struct LaneRef {
    std::shared_ptr<Collective> collective;
    std::uint32_t lane;
  };

  bool send_some(const Unlock& unlock);
  struct Batch;
  void gather(Batch& batch) const;
  void commit(std::size_t sent);
  bool receive_some(const Unlock& unlock);
  // Whether received data waits for other lanes here: the peer may have left since.
  bool held_back() const;
  bool receive_piece(std::size_t& budget, const Unlock& unlock);
  std::size_t receive_and_reduce(const Collective& collective, std::uint32_t index,
                                 std::uint64_t most);
  void check(const LaneRef& expected) const;
  static bool trim(std::deque<LaneRef>& lanes);

  std::deque<LaneRef> sends_;
  std::deque<LaneRef> receives_;
  std::size_t header_sent_ = 0;  // of the current send step
  bool in_payload_ = false;      // the header of the current receive step was read
  Header incoming_{};
};

}  // namespace headrace
