// An allocator for large arrays that are read in no order: they lie in pages of 2 MB where the
// kernel has such, so that few accesses miss the processor's cache of translations.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <new>

namespace headrace {

inline constexpr std::size_t kHugePage = std::size_t{2} << 20;

template <class T>
struct HugePages {
  using value_type = T;

  HugePages() = default;
  template <class U>
  HugePages(const HugePages<U>&) {}

  T* allocate(std::size_t count) {
    const auto bytes = count * sizeof(T);
    if (bytes < kHugePage) {
      return static_cast<T*>(::operator new(bytes, std::align_val_t{alignof(T)}));
    }
    const auto rounded = (bytes + kHugePage - 1) / kHugePage * kHugePage;
    auto* memory = std::aligned_alloc(kHugePage, rounded);
    if (memory == nullptr) throw std::bad_alloc();
    madvise(memory, rounded, MADV_HUGEPAGE);  // advice: a kernel may have none
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, std::size_t count) {
    if (count * sizeof(T) < kHugePage) {
      ::operator delete(memory, std::align_val_t{alignof(T)});
    } else {
      std::free(memory);
    }
  }
  template <class U>
  bool operator==(const HugePages<U>&) const {
    return true;
  }
};

}  // namespace headrace
