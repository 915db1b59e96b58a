#include "arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <new>

namespace slipstream {
namespace {

#if defined(__SANITIZE_ADDRESS__)
// Each matrix by itself, so that reads behind its end are found.
constexpr size_t kPage = kLine, kChunk = kLine;
#else
// What is not used of a chunk is not there: memory is found for a page when it is written to.
constexpr size_t kPage = 2 << 20, kChunk = 64 << 20;
#endif

size_t rounded(size_t size, size_t unit) { return (size + unit - 1) / unit * unit; }

}  // namespace

void Arena::Free::operator()(void* p) const { std::free(p); }

uint8_t* Arena::take(size_t size) {
  size = rounded(size, kLine);
  if (size > left_) {
    const size_t bytes = rounded(std::max(size, kChunk), kPage);
    chunks_.emplace_back(static_cast<uint8_t*>(std::aligned_alloc(kPage, bytes)));
    if (chunks_.back() == nullptr) throw std::bad_alloc();
    next_ = chunks_.back().get(), left_ = bytes;
#if defined(MADV_HUGEPAGE)
    madvise(next_, bytes, MADV_HUGEPAGE);
#endif
  }
  uint8_t* const own = next_;
  next_ += size, left_ -= size, size_ += size;
  return own;
}

}  // namespace slipstream
