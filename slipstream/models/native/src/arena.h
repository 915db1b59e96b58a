// Memory for a model's weights, in large pages where the system has them: each forward reads all of
// it, and looking up so many small pages costs time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace slipstream {

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
