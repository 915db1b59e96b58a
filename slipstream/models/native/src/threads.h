// One team of threads for all forwards of a process. A forward is one function that every thread
// runs; barriers separate its steps. Waiting spins for a while, yields for a while, then sleeps.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace slipstream {

// The part of `count` items that a thread does: [first, last).
struct Span {
  int64_t first, last;
};
inline Span part(int64_t count, int thread, int size) {
  return {count * thread / size, count * (thread + 1) / size};
}

class Team {
 public:
  // `size` counts the caller.
  explicit Team(int size);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int size() const { return size_; }

  // Calls `work(thread)` on every thread, 0 being the caller; returns when all are done. Callers
  // on several threads take turns.
  void run(const std::function<void(int)>& work);

  // Waits for all threads; only within `run`.
  void barrier();

  // Does a thread's part of `count` items, then waits for the other threads; only within `run`.
  template <class F>
  void each(int thread, int64_t count, const F& work) {
    const Span own = part(count, thread, size_);
    for (int64_t i = own.first; i < own.last; ++i) work(i);
    barrier();
  }

 private:
  void serve(int thread);

  const int size_;
  std::mutex turn_;
  std::vector<std::thread> threads_;
  const std::function<void(int)>* work_ = nullptr;
  std::atomic<uint32_t> started_{0};
  std::atomic<int> arrived_{0};
  std::atomic<uint32_t> passed_{0};
  std::atomic<int> sleepers_{0};
  std::mutex mutex_;
  std::condition_variable wake_;
  bool ended_ = false;
};

}  // namespace slipstream
