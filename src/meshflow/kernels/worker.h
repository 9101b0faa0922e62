// Shared code of the handlers: the computing thread, its scratch memory, and the reader of descriptors.

#pragma once

#include <omp.h>
#include <sys/mman.h>

#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <functional>
#include <mutex>
#include <new>
#include <stdexcept>
#include <thread>
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

// During its lifetime the calling thread computes without a team of OpenMP or oneDNN threads.
class SingleThread {
 public:
  SingleThread() : before_(omp_get_max_threads()) {
    if (before_ != 1) omp_set_num_threads(1);
  }
  SingleThread(const SingleThread&) = delete;
  ~SingleThread() {
    if (before_ != 1) omp_set_num_threads(before_);
  }

 private:
  int before_;
};

// One thread owns oneDNN's team of OpenMP threads. XLA calls handlers from many threads, each of which would
// otherwise start a separate team, with more threads than cores.
class Worker {
 public:
  static Worker& get() {
    static Worker* worker = new Worker();  // never destroyed: handlers may be called at exit
    return *worker;
  }

  void run(const std::function<void()>& task) {
    std::lock_guard<std::mutex> turn(turn_);
    std::unique_lock<std::mutex> lock(mutex_);
    task_ = &task;
    wake_.notify_one();
    done_.wait(lock, [&] { return task_ == nullptr; });
    if (error_) {
      std::exception_ptr error = error_;
      error_ = nullptr;
      std::rethrow_exception(error);
    }
  }

  void set_threads(int threads) {
    run([threads] { omp_set_num_threads(threads); });
  }

  char* scratch(size_t bytes) { return scratch_.get(bytes); }

  void release_scratch() {
    run([this] { scratch_.release(); });
  }

 private:
  Worker() {
    std::thread([this] {
      std::unique_lock<std::mutex> lock(mutex_);
      for (;;) {
        wake_.wait(lock, [&] { return task_ != nullptr; });
        try {
          (*task_)();
        } catch (...) {
          error_ = std::current_exception();
        }
        task_ = nullptr;
        done_.notify_one();
      }
    }).detach();
  }

  std::mutex turn_, mutex_;
  std::condition_variable wake_, done_;
  const std::function<void()>* task_ = nullptr;
  std::exception_ptr error_;
  Scratch scratch_;
};

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
