// Memory for a model's weights, in large pages where the system has them: each forward reads all of
// it, and looking up so many small pages costs time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

namespace slipstream {

constexpr size_t kLine = 64;  // bytes of a cache line

template <class T>
struct LineAllocator {
  using value_type = T;
  LineAllocator() = default;
  template <class U>
  LineAllocator(const LineAllocator<U>&) {}
  T* allocate(size_t count) {
    return static_cast<T*>(::operator new(count * sizeof(T), std::align_val_t{kLine}));
  }
  void deallocate(T* p, size_t) { ::operator delete(p, std::align_val_t{kLine}); }
  friend bool operator==(LineAllocator, LineAllocator) { return true; }
  friend bool operator!=(LineAllocator, LineAllocator) { return false; }
};

// Values that begin a cache line: lanes of them lie in no more lines than they must.
template <class T>
using Lines = std::vector<T, LineAllocator<T>>;

class Arena {
 public:
  // So many bytes, aligned for vectors; they are there as long as the arena. Throws std::bad_alloc.
  uint8_t* take(size_t size);

  // All that was taken.
  size_t size() const { return size_; }

 private:
  struct Free {
    void operator()(void* p) const;
  };
  std::vector<std::unique_ptr<uint8_t[], Free>> chunks_;
  uint8_t* next_ = nullptr;
  size_t left_ = 0, size_ = 0;
};

}  // namespace slipstream
