// One team of threads for all forwards of a process. A forward is one function that every thread
// runs; barriers separate its steps. Waiting spins for a while, yields for a while, then sleeps.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "arena.h"

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

  // Does `work(items, end)` for `count` items, up to `most` at a time; only within `run`. A thread
  // begins with its own part, `end` being where that ends, and goes on with what others have not
  // begun: cores are not equally fast, or other processes need them. There are fewer than kShares
  // calls from one barrier to the next.
  template <class F>
  void share(int thread, int64_t count, int64_t most, const F& work) {
    if (size_ == 1) return work(Span{0, count}, count);  // callers do not take turns
    const uint32_t number = ++begun_[thread].shares;
    for (int i = 0; i < size_; ++i) {
      const int owner = (thread + i) % size_;
      const Span own = part(count, owner, size_);
      while (true) {
        const Span some = take(number, owner, own, most);
        if (some.first == some.last) break;
        work(some, own.last);
      }
    }
  }

  // Does a thread's share of `count` items, up to `most` at a time, then waits for the other
  // threads; only within `run`.
  template <class F>
  void each(int thread, int64_t count, int64_t most, const F& work) {
    share(thread, count, most, [&](Span some, int64_t) { in_turn(some, work); });
    barrier();
  }

  // The same for items that take little time: few are not worth being shared one by one.
  template <class F>
  void each(int thread, int64_t count, const F& work) {
    const int64_t most = count / (kFewItems * size_);
    if (most > 0) return each(thread, count, most, work);
    in_turn(part(count, thread, size_), work);
    barrier();
  }

 private:
  static constexpr int kShares = 16, kFewItems = 16;
  struct alignas(kLine) Begun {
    uint32_t shares = 0;
  };
  struct alignas(kLine) Taken {
    std::atomic<uint64_t> items{0};  // the number of the share, then how many of its items
  };

  void serve(int thread);

  template <class F>
  static void in_turn(Span items, const F& work) {
    for (int64_t i = items.first; i < items.last; ++i) work(i);
  }

  // The next items of a thread's own part that none has begun, or an empty span.
  Span take(uint32_t number, int owner, Span own, int64_t most) {
    std::atomic<uint64_t>& items = taken_[number % kShares * size_ + owner].items;
    uint64_t seen = items.load(std::memory_order_relaxed), next;
    Span some;
    do {
      some.first = own.first + (seen >> 32 == number ? static_cast<uint32_t>(seen) : 0);
      some.last = std::min(own.last, some.first + most);
      if (some.first >= own.last) return {own.last, own.last};
      next = static_cast<uint64_t>(number) << 32 | static_cast<uint64_t>(some.last - own.first);
    } while (!items.compare_exchange_weak(seen, next, std::memory_order_relaxed));
    return some;
  }

  const int size_;
  std::vector<Begun> begun_;
  std::vector<Taken> taken_;
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
