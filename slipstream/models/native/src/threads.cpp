#include "threads.h"

namespace slipstream {
namespace {

// Few: where another process keeps a core busy, two threads share one, and only yielding lets the
// other one arrive.
constexpr int kSpins = 200;
constexpr int kYields = 200;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Spins, then yields, until `is_over`; false if it still is not.
template <class F>
bool wait_briefly(F is_over) {
  for (int i = 0; i < kSpins; ++i) {
    if (is_over()) return true;
    pause();
  }
  for (int i = 0; i < kYields; ++i) {
    if (is_over()) return true;
    std::this_thread::yield();
  }
  return is_over();
}

}  // namespace

Team::Team(int size) : size_(size), begun_(size), taken_(kShares * size) {
  for (int thread = 1; thread < size; ++thread) {
    threads_.emplace_back([this, thread] { serve(thread); });
  }
}

Team::~Team() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ended_ = true;
    started_.fetch_add(1, std::memory_order_release);
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Team::run(const std::function<void(int)>& work) {
  if (size_ == 1) return work(0);
  std::lock_guard<std::mutex> turn(turn_);
  work_ = &work;
  started_.fetch_add(1, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0) {
    std::lock_guard<std::mutex> lock(mutex_);
    wake_.notify_all();
  }
  work(0);
  barrier();
}

void Team::barrier() {
  if (size_ == 1) return;
  const uint32_t now = passed_.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) == size_ - 1) {
    arrived_.store(0, std::memory_order_relaxed);
    passed_.store(now + 1, std::memory_order_release);
    return;
  }
  // A thread that is late is running or about to: there is nothing to sleep for.
  while (!wait_briefly([&] { return passed_.load(std::memory_order_acquire) != now; })) {
  }
}

void Team::serve(int thread) {
  uint32_t seen = 0;
  while (true) {
    const auto is_new = [&] { return started_.load(std::memory_order_seq_cst) != seen; };
    if (!wait_briefly(is_new)) {
      std::unique_lock<std::mutex> lock(mutex_);
      sleepers_.fetch_add(1, std::memory_order_seq_cst);
      wake_.wait(lock, is_new);
      sleepers_.fetch_sub(1, std::memory_order_seq_cst);
    }
    seen = started_.load(std::memory_order_seq_cst);
    if (ended_) return;
    (*work_)(thread);
    barrier();
  }
}

}  // namespace slipstream
