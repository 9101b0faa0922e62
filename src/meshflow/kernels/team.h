// Shared code of the handlers: the computing threads, their scratch memory, and the reader of descriptors.

#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <new>
#include <stdexcept>
#include <vector>

namespace meshflow {

// Requests huge pages for fresh memory: touching it page by page takes a tenth of a convolution.
inline void huge_pages(void* data, size_t size) {
  constexpr uintptr_t page = 2 << 20;
  uintptr_t first = (reinterpret_cast<uintptr_t>(data) + page - 1) / page * page;
  uintptr_t last = (reinterpret_cast<uintptr_t>(data) + size) / page * page;
  if (last > first) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
}

// Memory of one thread that grows until it is released.
class Scratch {
 public:
  char* get(size_t bytes) {
    if (bytes > size_) {
      std::free(memory_);
      size_ = (bytes + 4095) / 4096 * 4096;
      memory_ = static_cast<char*>(std::aligned_alloc(4096, size_));
      if (memory_ == nullptr) {
        size_ = 0;
        throw std::bad_alloc();
      }
      huge_pages(memory_, size_);
    }
    return memory_;
  }
  void release() {
    std::free(memory_);
    memory_ = nullptr;
    size_ = 0;
  }
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  ~Scratch() { std::free(memory_); }

 private:
  char* memory_ = nullptr;
  size_t size_ = 0;
};

// Place of the calling thread in the parallel region that it computes; one thread outside of regions.
struct Place {
  int thread = 0, threads = 1;
};
Place place();

// Maximum number of threads of a region that the calling thread starts.
int max_threads();

// During its lifetime the calling thread computes without a team, also in a region.
class SingleThread {
 public:
  SingleThread();
  SingleThread(const SingleThread&) = delete;
  ~SingleThread();

 private:
  Place place_;
  bool is_alone_;
};

// During its lifetime, threads of the regions of oneDNN that the calling thread starts do not wait for each other.
class Independent {
 public:
  explicit Independent(bool are_independent);
  Independent(const Independent&) = delete;
  ~Independent();

 private:
  bool before_;
};

// The threads that compute the regions of our code and of oneDNN, together with the thread that asks for it. XLA calls
// handlers from many threads: one at a time has the team.
class Team {
 public:
  static Team& get();

  // Runs a task on the calling thread, which has the team meanwhile. A task may call this again.
  template <typename Task>
  void run(Task&& task) {
    Turn turn(*this);
    task();
  }

  // The number of threads that a task has by default.
  int threads() const { return threads_; }
  void set_threads(int threads) {
    // No task may see the number change.
    run([&] { threads_ = threads; });
  }

  // Memory of the task that has the team.
  char* scratch(size_t bytes) { return scratch_.get(bytes); }

  void release_scratch() {
    run([this] { scratch_.release(); });
  }

  // Starts a region of the task: calls `body` with its data in each other thread.
  void begin(void (*body)(void*), void* data, int threads);
  // Ends the region. The calling thread computes what no other thread has begun, unless threads wait for each other.
  void end(bool waits);
  // Waits until all threads of the region are here.
  void meet();

  // The right of the calling thread to the team, until the end of the outermost turn.
  class Turn {
   public:
    explicit Turn(Team& team, bool waits = true);
    Turn(const Turn&) = delete;
    ~Turn();
    // Whether the calling thread has the team.
    explicit operator bool() const;

   private:
    Team& team_;
    bool outer_ = false;
    std::fenv_t floats_;
  };

 private:
  class Helper;

  Team();

  static const int made_;

  std::mutex turn_;
  const int processors_;
  std::atomic<int> threads_;
  // Nanoseconds for which waiting threads poll, and those of the region.
  int64_t polls_, polls_here_ = 0;
  std::vector<Helper*> helpers_;
  Scratch scratch_;
  // The region.
  void (*body_)(void*) = nullptr;
  void* data_ = nullptr;
  int threads_here_ = 1;
  std::atomic<uint32_t> arrived_{0}, meetings_{0};
};

// Computes body() in so many threads, or alone in a region and if another task has the team. If they wait for each
// other, all run at once. An exception of any thread is thrown after all have ended.
template <typename Body>
void in_team(int threads, Body&& body, bool waits = false) {
  auto alone = [&] {
    SingleThread single;
    body();
  };
  if (threads <= 1 || place().threads > 1) return alone();
  Team& team = Team::get();
  Team::Turn turn(team, false);
  if (!turn) return alone();
  std::exception_ptr error;
  std::mutex errors;
  auto part = [&] {
    try {
      body();
    } catch (...) {
      if (waits) std::terminate();  // the other threads would wait forever
      std::lock_guard<std::mutex> lock(errors);
      error = std::current_exception();
    }
  };
  team.begin([](void* data) { (*static_cast<decltype(part)*>(data))(); }, &part, threads);
  part();
  team.end(waits);
  if (error) std::rethrow_exception(error);
}

// Computes body(i) for all i < count, in equal parts. A thread that has finished its part continues with those of others, which
// may have begun late or wait for a processor.
template <typename Body>
void in_parts(int64_t count, Body&& body, int threads = max_threads()) {
  struct alignas(64) Part {
    std::atomic<int64_t> next;
    int64_t end;
  };
  threads = std::min<int64_t>(threads, count);
  if (threads <= 1 || place().threads > 1) {
    in_team(1, [&] {
      for (int64_t i = 0; i < count; ++i) body(i);
    });
    return;
  }
  std::vector<Part> parts(threads);
  for (int64_t t = 0; t < threads; ++t) parts[t].next = count * t / threads, parts[t].end = count * (t + 1) / threads;
  const int64_t unit = std::max<int64_t>(1, count / (8 * threads));
  in_team(threads, [&] {
    const int first = place().thread;
    for (int t = 0; t < threads; ++t) {
      Part& part = parts[(first + t) % threads];
      for (int64_t begin; (begin = part.next.fetch_add(unit, std::memory_order_relaxed)) < part.end;)
        for (int64_t i = begin; i < std::min(begin + unit, part.end); ++i) body(i);
    }
  });
}

struct Stateless {};

// Computes body(i) for all i < count; each thread takes the next one. It has a `State` meanwhile.
template <typename State = Stateless, typename Body>
void in_turns(int64_t count, Body&& body, int threads = max_threads()) {
  std::atomic<int64_t> next{0};
  in_team(std::min<int64_t>(threads, count), [&] {
    State state;
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) body(i);
  });
}

// Reads a descriptor from front to back.
class Reader {
 public:
  Reader(const int64_t* data, size_t size) : data_(data), size_(size) {}
  int64_t next() {
    if (at_ >= size_) throw std::invalid_argument("the descriptor is too short");
    return data_[at_++];
  }
  std::vector<int64_t> list(size_t n) {
    if (n > size_ - at_) throw std::invalid_argument("the descriptor is too short");
    std::vector<int64_t> values(n);
    for (auto& value : values) value = next();
    return values;
  }

 private:
  const int64_t* data_;
  size_t size_, at_ = 0;
};

}  // namespace meshflow
