// The rings against a plain queue of bytes, under random sizes; and impossible positions.
#include "transport/shm/ring.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <random>
#include <thread>
#include <vector>

#include "check.hpp"
#include "transport/connection.hpp"

using namespace headrace;
using namespace headrace::shm;

namespace {

constexpr std::size_t kRingBytes = 8 << 10;

Fd memory_of(std::size_t bytes) {
  Fd memory(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  CHECK(memory && ::ftruncate(memory.get(), static_cast<off_t>(bytes)) == 0);
  CHECK(::fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK) == 0);
  return memory;
}

void behaves_like_a_queue() {
  auto memory = memory_of(4096 + 2 * kRingBytes);
  RingMemory mine(memory);
  RingMemory its(memory);
  Writer writer(mine, 0);
  Reader reader(its, 0);
  std::mt19937 random(7);
  std::deque<std::byte> model;
  std::vector<std::byte> bytes(3 * kRingBytes);
  unsigned next = 0;
  for (int i = 0; i < 20'000; ++i) {
    auto wanted = random() % (random() % 2 == 0 ? 40 : kRingBytes + 100);
    if (random() % 2 == 0) {
      auto size = std::min<std::size_t>(wanted, writer.room(wanted));
      CHECK(size == std::min<std::size_t>(wanted, kRingBytes - model.size()));
      for (std::size_t k = 0; k < size; ++k) {
        bytes[k] = static_cast<std::byte>(next++ * 31);
        model.push_back(bytes[k]);
      }
      writer.write(bytes.data(), size);
    } else {
      reader.refresh();
      auto came = reader.span();
      CHECK(came.size() == model.size());
      auto size = std::min<std::size_t>(wanted, came.size());
      for (std::size_t k = 0; k < size; ++k) {
        CHECK(came[k] == model.front());
        model.pop_front();
      }
      reader.use(size);
    }
  }
}

void carries_bytes_between_threads() {
  auto memory = memory_of(4096 + 2 * kRingBytes);
  constexpr std::uint32_t kWords = 2'000'000;
  std::thread sending([&] {
    RingMemory mine(memory);
    Writer writer(mine, 1);
    for (std::uint32_t i = 0; i < kWords; ++i) {
      while (writer.room(4) < 4) std::this_thread::yield();
      writer.write(reinterpret_cast<const std::byte*>(&i), 4);
    }
  });
  RingMemory mine(memory);
  Reader reader(mine, 1);
  for (std::uint32_t i = 0; i < kWords;) {
    reader.refresh();
    auto came = reader.span();
    if (came.size() < 4) std::this_thread::yield();
    for (std::size_t k = 0; k + 4 <= came.size(); k += 4, ++i) {
      std::uint32_t word;
      std::copy_n(came.data() + k, 4, reinterpret_cast<std::byte*>(&word));
      CHECK(word == i);
    }
    reader.use(came.size() / 4 * 4);
  }
  sending.join();
}

// No value in the shared positions makes us read or write past the ring.
void notices_impossible_positions() {
  auto memory = memory_of(4096 + 2 * kRingBytes);
  RingMemory mine(memory);
  for (std::uint64_t wrong : {kRingBytes + 1, std::size_t{1} << 40, std::size_t{1} << 63}) {
    mine.state(0).tail = wrong;
    mine.state(0).head = wrong;
    Reader reader(mine, 0);
    thrown<ProtocolError>([&] { reader.refresh(); });
    Writer writer(mine, 0);
    thrown<ProtocolError>([&] { writer.room(kRingBytes + 1); });
  }
  for (std::size_t size : {std::size_t{0}, std::size_t{4096}, kRingBytes, 2 * kRingBytes}) {
    auto odd = memory_of(size);
    thrown<CommunicationError>([&] { RingMemory never(odd); });
  }
}

void tells_when_to_wake() {
  auto memory = memory_of(4096 + 2 * kRingBytes);
  RingMemory mine(memory);
  Writer writer(mine, 0);
  Reader reader(mine, 0);
  std::vector<std::byte> bytes(kRingBytes);
  reader.announce_sleep(true);
  CHECK(!reader.changed());
  writer.write(bytes.data(), 10);
  CHECK(writer.wakes_reader() && !writer.wakes_reader());
  CHECK(reader.changed() && !reader.changed());
  writer.announce_sleep(writer.held_back());  // it does not wait for room
  reader.use(10);
  CHECK(!reader.wakes_writer());
  CHECK(writer.room(kRingBytes) == kRingBytes);
  writer.write(bytes.data(), kRingBytes);
  CHECK(writer.room(1) == 0);
  writer.announce_sleep(writer.held_back());
  CHECK(!writer.changed());
  reader.refresh();
  reader.use(kRingBytes);
  CHECK(reader.freed_enough() && reader.wakes_writer());
  CHECK(writer.changed());
}

}  // namespace

int main() {
  behaves_like_a_queue();
  carries_bytes_between_threads();
  notices_impossible_positions();
  tells_when_to_wake();
}
