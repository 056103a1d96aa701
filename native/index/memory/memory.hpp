// Memory of nodes and leaves: blocks of whole cache lines, cut from chunks of 256 kB.
//
// Leaves grow by small steps, so blocks of many sizes come and go; a free block is joined with its
// free neighbours at once, which general allocators do only at the price of a header in each block
// (for aligned lines: of a whole line). Chunks come in slabs, of the size that a build says or else
// of a quarter of what there is: a small map takes little, and a large one asks for huge pages, for
// lookups in no order touch a page each. As a huge page is resident as a whole, slabs are
// few and follow each other without gaps: an allocator leaves one of almost a chunk before each
// slab whose own header does not fit behind the slab before, where one line is left free for it.
// Blocks above 64 kB are the allocator's own, and so are the first few of a map: a small one takes
// no chunk.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace headrace::index {

constexpr std::size_t kLineBytes = 64;
struct alignas(kLineBytes) Line {
  std::byte bytes[kLineBytes];
};

namespace detail {

constexpr std::size_t kChunkBytes = std::size_t{256} << 10;
constexpr std::size_t kMostChunksOfSlab = 128;
constexpr std::size_t kMostChunksOfBuild = 1024;  // of one slab
constexpr std::uint32_t kChunkLines = kChunkBytes / kLineBytes;
struct alignas(kChunkBytes) Chunk {
  Line lines[kChunkLines];
};
// The last line of a slab is the allocator's; for simplicity, no chunk has its last line in use.
constexpr std::uint32_t kUsableLines = kChunkLines - 1;

// Lets the kernel use huge pages for those that are inside of the range as a whole.
inline void advise_huge_pages([[maybe_unused]] void* begin, [[maybe_unused]] std::size_t bytes) {
#if defined(MADV_HUGEPAGE)
  constexpr std::uintptr_t kHugeBytes = std::uintptr_t{2} << 20;
  const auto at = reinterpret_cast<std::uintptr_t>(begin);
  const auto first = (at + kHugeBytes - 1) / kHugeBytes * kHugeBytes;
  const auto end = (at + bytes) / kHugeBytes * kHugeBytes;
  // Without effect where the kernel has none: an error is none here.
  if (first < end)
    static_cast<void>(madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE));
#endif
}

// What containers do with allocators, by the traits of these: the allocator of a copy, that of a
// container after an assignment, and whether one that is moved brings its memory along.
template <class Allocator>
Allocator allocator_of_copy(const Allocator& own) {
  return std::allocator_traits<Allocator>::select_on_container_copy_construction(own);
}
template <class Allocator>
Allocator allocator_assigned(const Allocator& own, const Allocator& other) {
  using Traits = std::allocator_traits<Allocator>;
  return Traits::propagate_on_container_copy_assignment::value ? other : own;
}
template <class Allocator>
constexpr bool kMovesMemory =
    std::allocator_traits<Allocator>::propagate_on_container_move_assignment::value ||
    std::allocator_traits<Allocator>::is_always_equal::value;
template <class Allocator>
bool moves_memory(const Allocator& own, const Allocator& other) {
  return kMovesMemory<Allocator> || own == other;
}

// Slabs of any allocator are arrays of chunks. Those of `std::allocator` come from where it takes
// its memory, which can be asked for one line less.
template <class Allocator>
Chunk* allocate_slab(const Allocator& given, std::size_t count) {
  if constexpr (std::is_same_v<Allocator, std::allocator<typename Allocator::value_type>>) {
    const auto bytes = count * kChunkBytes - kLineBytes;
    auto* slab = ::operator new(bytes, std::align_val_t{kChunkBytes});
    advise_huge_pages(slab, bytes);
    return static_cast<Chunk*>(slab);
  } else {
    using Traits = typename std::allocator_traits<Allocator>::template rebind_traits<Chunk>;
    typename Traits::allocator_type allocator(given);
    return std::to_address(Traits::allocate(allocator, count));
  }
}
template <class Allocator>
void release_slab(const Allocator& given, Chunk* slab, std::size_t count) noexcept {
  if constexpr (std::is_same_v<Allocator, std::allocator<typename Allocator::value_type>>) {
    ::operator delete(slab, std::align_val_t{kChunkBytes});
  } else {
    using Traits = typename std::allocator_traits<Allocator>::template rebind_traits<Chunk>;
    typename Traits::allocator_type allocator(given);
    Traits::deallocate(allocator, slab, count);
  }
}

// First lines of a chunk. A bit of `begins` (`ends`) marks the first (last) line of a free block.
struct ChunkHeader {
  Chunk* previous_slab;  // of the first chunk of a slab
  std::size_t slab_chunks;
  std::uint32_t top;  // lines from here on were never used, or are free again
  std::uint32_t highest_top;
  std::uint64_t begins[kChunkLines / 64];
  std::uint64_t ends[kChunkLines / 64];
};
constexpr std::uint32_t kHeaderLines = (sizeof(ChunkHeader) + kLineBytes - 1) / kLineBytes;

// A free block: links in its first line, its size also in the last word of its last line.
struct FreeBlock {
  FreeBlock* next;
  FreeBlock* previous;
  std::uint64_t lines;
};

inline bool test(const std::uint64_t* bits, std::uint32_t i) {
  return bits[i / 64] >> (i % 64) & 1;
}
inline void flip(std::uint64_t* bits, std::uint32_t i) {
  bits[i / 64] ^= std::uint64_t{1} << (i % 64);
}

// Free blocks by size: exactly below 64 lines, above in eight classes for each power of two.
class FreeLists {
 public:
  void put(FreeBlock* block) {
    const auto index = size_class(block->lines);
    block->previous = nullptr;
    block->next = heads_[index];
    if (block->next != nullptr) block->next->previous = block;
    heads_[index] = block;
    filled_[index / 64] |= std::uint64_t{1} << (index % 64);
  }

  void remove(FreeBlock* block) {
    const auto index = size_class(block->lines);
    if (block->next != nullptr) block->next->previous = block->previous;
    if (block->previous != nullptr) {
      block->previous->next = block->next;
    } else {
      heads_[index] = block->next;
      if (block->next == nullptr) filled_[index / 64] &= ~(std::uint64_t{1} << (index % 64));
    }
  }

  // A block of at least `lines` lines and at most `most`, removed from the lists, or null.
  FreeBlock* take(std::uint64_t lines, std::uint64_t most = kChunkLines) {
    auto index = size_class(lines);
    // Blocks of a class above 64 may be too small for a request of the same class.
    if (lines > 64 && lines % (std::bit_floor(lines) / 8) != 0) ++index;
    for (auto word = index / 64; word < filled_.size(); ++word) {
      const auto from = word == index / 64 ? index % 64 : 0;
      const auto bits = filled_[word] >> from << from;
      if (bits == 0) continue;
      auto* block = heads_[word * 64 + static_cast<std::size_t>(std::countr_zero(bits))];
      if (block->lines > most) return nullptr;
      remove(block);
      return block;
    }
    return nullptr;
  }

  void clear() { *this = FreeLists(); }

 private:
  static std::size_t size_class(std::uint64_t lines) {
    if (lines < 64) return lines;
    const auto octave = static_cast<std::size_t>(std::bit_width(lines)) - 1;  // 6 and more
    return 64 + (octave - 6) * 8 + (lines >> (octave - 3) & 7);
  }
  std::array<FreeBlock*, 192> heads_{};
  std::array<std::uint64_t, 3> filled_{};
};

}  // namespace detail

// One writer at a time. Throws what the allocator throws, and is unchanged then.
template <class Allocator>
class Arena {
  using Traits = std::allocator_traits<Allocator>;
  using Lines = typename Traits::template rebind_alloc<Line>;

 public:
  explicit Arena(const Allocator& allocator) : allocator_(allocator) {}
  Arena(Arena&& other) noexcept : allocator_(other.allocator_) { swap(other); }
  Arena& operator=(Arena&&) = delete;
  // Large blocks are to be released by their user; the chunks and all in them go here.
  ~Arena() { release_chunks(); }

  // About so many bytes of blocks are allocated next: no more slabs for them than needed.
  void expect(std::size_t bytes) { expected_chunks_ = bytes / detail::kChunkBytes + 1; }

  Line* allocate(std::size_t lines) {
    if (large(lines)) {
      Lines allocator(allocator_);
      auto* block = std::allocator_traits<Lines>::allocate(allocator, lines);
      large_bytes_ += lines * kLineBytes;
      return std::to_address(block);
    }
    if (auto* block = free_.take(lines)) return cut(block, static_cast<std::uint32_t>(lines));
    if (auto* block = allocate_first(lines)) return block;
    if (newest_ == nullptr || header(newest_)->top + lines > detail::kUsableLines) add_chunk();
    auto* head = header(newest_);
    auto* block = newest_->lines + head->top;
    head->top += static_cast<std::uint32_t>(lines);
    head->highest_top = std::max(head->highest_top, head->top);
    return block;
  }

  // The same of a size that may be larger by a fifth, or smaller down to `least`: a free block of
  // such size is taken as it is, without a rest too small for any use. The blocks of leaves that
  // have grown would else be too small for others that grow.
  Line* allocate_about(std::size_t& lines, std::size_t least) {
    if (large(lines + lines / 5)) return allocate(lines);
    auto* block = free_.take(lines, lines + lines / 5);
    if (block == nullptr) block = free_.take(least, lines);
    if (block == nullptr) return allocate(lines);
    lines = block->lines;
    return cut(block, static_cast<std::uint32_t>(lines));
  }

  void release(Line* block, std::size_t lines) noexcept {
    if (large(lines)) {
      Lines allocator(allocator_);
      std::allocator_traits<Lines>::deallocate(allocator, block, lines);
      large_bytes_ -= lines * kLineBytes;
      return;
    }
    if (first_lines_ != 0 && release_first(block, lines)) return;
    auto* chunk = chunk_of(block);
    auto* head = header(chunk);
    auto first = static_cast<std::uint32_t>(block - chunk->lines);
    auto end = first + static_cast<std::uint32_t>(lines);
    if (end < head->top && detail::test(head->begins, end)) {
      end += static_cast<std::uint32_t>(unlink(chunk, end)->lines);
    }
    if (detail::test(head->ends, first - 1)) {
      std::uint64_t before;
      std::memcpy(&before, (chunk->lines + first)->bytes - sizeof before, sizeof before);
      first -= static_cast<std::uint32_t>(before);
      unlink(chunk, first);
    }
    if (end == head->top && chunk == newest_) {
      head->top = first;
    } else {
      link(chunk, first, end);
    }
  }

  // Bytes of blocks that are or were in use, and of chunks' headers: memory that was touched.
  std::size_t bytes() const {
    const auto newest = newest_ == nullptr ? 0 : header(newest_)->highest_top * kLineBytes;
    return large_bytes_ + first_lines_ * kLineBytes + full_chunks_ * detail::kChunkBytes + newest;
  }

  // Forgets every block but large ones, and gives chunks back.
  void release_chunks() noexcept {
    for (auto& first : first_) {
      if (first.block != nullptr) release_first(first.block, first.lines);
    }
    while (slab_ != nullptr) {
      auto* slab = slab_;
      const auto count = header(slab)->slab_chunks;
      slab_ = header(slab)->previous_slab;
      detail::release_slab(allocator_, slab, count);
    }
    free_.clear();
    newest_ = nullptr;
    chunks_left_ = full_chunks_ = 0;
    fresh_slab_ = false;
  }

  // Allocated one by one, outside of chunks.
  static bool large(std::size_t lines) { return lines > kLargest; }

  const Allocator& allocator() const { return allocator_; }

  // Needs equal allocators, or such as go along with their memory.
  void swap(Arena& other) noexcept {
    if constexpr (std::is_swappable_v<Allocator>) std::swap(allocator_, other.allocator_);
    std::swap(slab_, other.slab_);
    std::swap(newest_, other.newest_);
    std::swap(chunks_left_, other.chunks_left_);
    std::swap(full_chunks_, other.full_chunks_);
    std::swap(expected_chunks_, other.expected_chunks_);
    std::swap(large_bytes_, other.large_bytes_);
    std::swap(free_, other.free_);
    std::swap(fresh_slab_, other.fresh_slab_);
    std::swap(first_, other.first_);
    std::swap(first_lines_, other.first_lines_);
  }

 private:
  static constexpr std::size_t kLargest = detail::kChunkLines / 4;  // lines

  // Blocks of a map that has no chunk yet.
  static constexpr std::size_t kFirstBlocks = 16;
  static constexpr std::size_t kMostFirstLines = 256;
  struct FirstBlock {
    Line* block = nullptr;
    std::size_t lines = 0;
  };

  // Null: a chunk is to be used.
  Line* allocate_first(std::size_t lines) {
    if (slab_ != nullptr || expected_chunks_ > 1 || first_lines_ + lines > kMostFirstLines) {
      return nullptr;
    }
    for (auto& first : first_) {
      if (first.block != nullptr) continue;
      Lines allocator(allocator_);
      first = {std::to_address(std::allocator_traits<Lines>::allocate(allocator, lines)), lines};
      first_lines_ += lines;
      return first.block;
    }
    return nullptr;
  }
  // False: it is none of the first blocks.
  bool release_first(Line* block, std::size_t lines) noexcept {
    for (auto& first : first_) {
      if (first.block != block) continue;
      Lines allocator(allocator_);
      std::allocator_traits<Lines>::deallocate(allocator, block, lines);
      first_lines_ -= lines;
      first = {};
      return true;
    }
    return false;
  }

  static detail::ChunkHeader* header(detail::Chunk* chunk) {
    return reinterpret_cast<detail::ChunkHeader*>(chunk);
  }
  static detail::Chunk* chunk_of(Line* block) {
    const auto address = reinterpret_cast<std::uintptr_t>(block);
    return reinterpret_cast<detail::Chunk*>(address & ~(detail::kChunkBytes - 1));
  }

  void add_chunk() {
    if (chunks_left_ == 0) add_slab();
    auto* chunk = fresh_slab_ ? slab_ : newest_ + 1;
    if (newest_ != nullptr) {
      ++full_chunks_;
      auto* head = header(newest_);
      const auto rest = head->top;
      head->top = detail::kUsableLines;
      if (rest < detail::kUsableLines) link(newest_, rest, detail::kUsableLines);
    }
    if (!fresh_slab_) new (chunk) detail::ChunkHeader{};
    fresh_slab_ = false;
    header(chunk)->top = header(chunk)->highest_top = detail::kHeaderLines;
    newest_ = chunk;
    --chunks_left_;
  }
  void add_slab() {
    const auto all = full_chunks_ + (newest_ != nullptr);
    const auto grown = std::clamp<std::size_t>(all / 4, 1, detail::kMostChunksOfSlab);
    const auto expected = std::exchange(expected_chunks_, 0);  // no more, if that fails
    auto count = std::max(grown, std::min(expected, detail::kMostChunksOfBuild));
    detail::Chunk* slab = nullptr;
    try {
      slab = detail::allocate_slab(allocator_, count);
    } catch (const std::bad_alloc&) {
      if (count == 1) throw;
      count = 1;
      slab = detail::allocate_slab(allocator_, count);
    }
    expected_chunks_ = expected - std::min(expected, count);
    auto* head = new (slab) detail::ChunkHeader{};
    head->previous_slab = std::exchange(slab_, slab);
    head->slab_chunks = chunks_left_ = count;
    fresh_slab_ = true;
  }

  Line* cut(detail::FreeBlock* block, std::uint32_t lines) {
    auto* start = reinterpret_cast<Line*>(block);
    auto* chunk = chunk_of(start);
    const auto first = static_cast<std::uint32_t>(start - chunk->lines);
    const auto end = first + static_cast<std::uint32_t>(block->lines);
    mark(chunk, first, end);
    if (first + lines < end) link(chunk, first + lines, end);
    return start;
  }

  static void mark(detail::Chunk* chunk, std::uint32_t first, std::uint32_t end) {
    detail::flip(header(chunk)->begins, first);
    detail::flip(header(chunk)->ends, end - 1);
  }

  void link(detail::Chunk* chunk, std::uint32_t first, std::uint32_t end) {
    const std::uint64_t lines = end - first;
    auto* block = new (chunk->lines + first) detail::FreeBlock{nullptr, nullptr, lines};
    std::memcpy(chunk->lines[end - 1].bytes + kLineBytes - sizeof lines, &lines, sizeof lines);
    mark(chunk, first, end);
    free_.put(block);
  }

  detail::FreeBlock* unlink(detail::Chunk* chunk, std::uint32_t first) {
    auto* block = reinterpret_cast<detail::FreeBlock*>(chunk->lines + first);
    free_.remove(block);
    mark(chunk, first, first + static_cast<std::uint32_t>(block->lines));
    return block;
  }

  [[no_unique_address]] Allocator allocator_;
  detail::Chunk* slab_ = nullptr;    // the newest
  detail::Chunk* newest_ = nullptr;  // the chunk that new blocks are cut from
  std::size_t chunks_left_ = 0;      // of the slab, not yet in use
  std::size_t full_chunks_ = 0;      // all in use but the newest
  std::size_t expected_chunks_ = 0;  // of blocks to come
  std::size_t large_bytes_ = 0;
  detail::FreeLists free_;
  std::array<FirstBlock, kFirstBlocks> first_{};
  std::size_t first_lines_ = 0;
  bool fresh_slab_ = false;  // its first chunk is not yet in use
};

}  // namespace headrace::index
