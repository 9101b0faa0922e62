// Huge pages for XLA's buffers, reuse of buffers, and buffers in offered memory.
//
// XLA allocates every buffer of a step by posix_memalign and frees it afterwards, so each step touches fresh
// memory 4 KiB at a time: tens of thousands of page faults. Linux with huge pages set to "madvise" (the usual
// setting) uses them only on request, and neither XLA nor glibc requests them. The system also clears all of
// this memory, because glibc returns blocks of more than 32 MiB at once: some of these are kept for the next
// step here, and some smaller ones, because glibc keeps them for one thread, while XLA runs steps on several.
// Results for another process can be placed in shared memory that was offered. XLA's library calls posix_memalign
// and free through its table of imported functions; this file replaces these entries.

#include <malloc.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <unordered_set>
#include <vector>

#include "guard.h"
#include "imports.h"
#include "team.h"

namespace {

constexpr size_t kPage = 2 << 20;

// Freed blocks, the most recent last.
class Kept {
 public:
  static constexpr size_t kLeast = 2 * kPage;
  static constexpr size_t kLarge = 32 << 20;  // glibc returns larger blocks to the system

  // Returns the blocks of about this size: large ones, of up to 1 GiB and a sixteenth of the memory, or others.
  static Kept& get(size_t size) {
    // Never destroyed: buffers are freed at exit.
    static Kept* large = new Kept(
        std::min<size_t>(size_t(1) << 30, size_t(sysconf(_SC_PHYS_PAGES)) / 16 * sysconf(_SC_PAGESIZE)));
    static Kept* others = new Kept(2 * kLarge);
    return size < kLarge ? *others : *large;
  }

  // Returns a block of the size or up to a quarter larger, or null.
  void* take(size_t alignment, size_t size) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto block = find(alignment, size);
    if (block == blocks_.end()) return nullptr;
    void* memory = block->memory;
    total_ -= block->size;
    blocks_.erase(block);
    return memory;
  }

  // Waits until `take` would find a block of the size; returns whether it would.
  bool await(size_t size, std::chrono::milliseconds longest) {
    std::unique_lock<std::mutex> lock(mutex_);
    return size <= most_ && given_.wait_for(lock, longest, [&] { return find(kPage, size) != blocks_.end(); });
  }

  // Keeps a block; frees older ones if the total would be too large.
  bool give(void* memory, size_t size) {
    std::vector<Block> old;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      old.reserve(blocks_.size() + 1);
      blocks_.push_back({memory, size});
      total_ += size;
      auto end = blocks_.begin();
      for (; total_ > most_; ++end) total_ -= end->size;
      old.assign(blocks_.begin(), end);
      blocks_.erase(blocks_.begin(), end);
    }
    given_.notify_all();
    for (auto& block : old) std::free(block.memory);
    return true;
  }

  // Frees all blocks; returns their bytes.
  size_t release() {
    std::vector<Block> all;
    size_t bytes = 0;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      all.swap(blocks_);
      std::swap(bytes, total_);
    }
    for (auto& block : all) std::free(block.memory);
    return bytes;
  }

  void hold() { mutex_.lock(); }
  void let_go() { mutex_.unlock(); }

 private:
  struct Block { void* memory; size_t size; };

  explicit Kept(size_t most) : most_(most) {}

  // Returns the most recent block of the size or up to a quarter larger, or the end. The caller holds the lock.
  std::vector<Block>::iterator find(size_t alignment, size_t size) {
    for (auto block = blocks_.end(); block != blocks_.begin();)
      if ((--block)->size >= size && block->size - size <= size / 4 &&
          reinterpret_cast<uintptr_t>(block->memory) % alignment == 0)
        return block;
    return blocks_.end();
  }

  std::mutex mutex_;
  std::condition_variable given_;
  std::vector<Block> blocks_;
  size_t total_ = 0;
  size_t most_;  // bytes
};

// Buffers in offered memory.
class Placed {
 public:
  static Placed& get() {
    static Placed* placed = new Placed();  // never destroyed: buffers are freed at exit
    return *placed;
  }

  // Offers memory for the next buffer of this thread with a size within these limits.
  static void offer(void* memory, size_t least, size_t most) { offers().push_back({memory, least, most}); }

  // Withdraws the memory that was offered to this thread.
  static void withdraw() { offers().clear(); }

  // Returns memory that was offered for a buffer, or null.
  void* take(size_t alignment, size_t size) {
    for (auto offer = offers().begin(); offer != offers().end(); ++offer) {
      if (size < offer->least || size > offer->most || reinterpret_cast<uintptr_t>(offer->memory) % alignment) continue;
      void* memory = offer->memory;
      std::lock_guard<std::mutex> lock(mutex_);
      buffers_.insert(memory);
      count_.store(buffers_.size(), std::memory_order_release);
      offers().erase(offer);
      return memory;
    }
    return nullptr;
  }

  // Returns whether a buffer is at this address.
  bool holds(void* memory) {
    std::lock_guard<std::mutex> lock(mutex_);
    return buffers_.count(memory) != 0;
  }

  // Removes a buffer; returns whether it was one of these.
  bool give(void* memory) {
    if (!count_.load(std::memory_order_acquire)) return false;
    std::lock_guard<std::mutex> lock(mutex_);
    if (!buffers_.erase(memory)) return false;
    count_.store(buffers_.size(), std::memory_order_release);
    return true;
  }

  void hold() { mutex_.lock(); }
  void let_go() { mutex_.unlock(); }

 private:
  struct Offer { void* memory; size_t least, most; };

  static std::vector<Offer>& offers() {
    thread_local std::vector<Offer> offers;
    return offers;
  }

  std::mutex mutex_;
  std::unordered_set<void*> buffers_;
  std::atomic<size_t> count_{0};
};

// Calls a function of each object with a lock.
template <typename Use>
void for_each_lock(Use use) {
  use(Placed::get()), use(Kept::get(0)), use(Kept::get(Kept::kLarge));
}

void let_go() {
  for_each_lock([](auto& owner) { owner.let_go(); });
}

// Holds back other threads while the process forks: the child, which frees its arrays, would wait forever for the lock of one.
const int forks = pthread_atfork([] { for_each_lock([](auto& owner) { owner.hold(); }); }, let_go, let_go);

// Whether XLA's library also frees by `release`: only then may its buffers be outside of glibc's memory.
std::atomic<bool> releases{false};

void* offered(size_t alignment, size_t size) noexcept {
  return meshflow::guarded<void*>(nullptr, [&] { return Placed::get().take(alignment, size); });
}

// Except for offered memory, it is glibc's memory, so that any code can free it.
int allocate(void** memory, size_t alignment, size_t size) noexcept {
  if (void* found = offered(alignment, size)) return *memory = found, 0;
  if (size < Kept::kLeast) return posix_memalign(memory, alignment, size);
  alignment = std::max(alignment, kPage);
  if (void* kept = Kept::get(size).take(alignment, size)) return *memory = kept, 0;
  int failed = posix_memalign(memory, alignment, size);
  if (!failed) meshflow::huge_pages(*memory, size);
  return failed;
}

void release(void* memory) noexcept {
  if (Placed::get().give(memory)) return;
  size_t size = malloc_usable_size(memory);
  // The compiler's memory has another alignment.
  if (size < Kept::kLeast || reinterpret_cast<uintptr_t>(memory) % kPage) return std::free(memory);
  // If there is no memory to record the block, it is freed.
  if (!meshflow::guarded(false, [&] { return Kept::get(size).give(memory, size); })) std::free(memory);
}

// Makes glibc keep blocks below the large ones from the start, as it does itself after the first such block
// is freed: until then each program takes its results from fresh memory.
void keep_small_blocks() {
#ifdef M_TRIM_THRESHOLD
  if (std::getenv("MALLOC_MMAP_THRESHOLD_") || std::getenv("MALLOC_TRIM_THRESHOLD_")) return;
  mallopt(M_MMAP_THRESHOLD, Kept::kLarge);
  mallopt(M_TRIM_THRESHOLD, 2 * Kept::kLarge);
#endif
}

}  // namespace

// Makes a loaded library use huge pages and reuse large blocks; returns 0 on success.
extern "C" int meshflow_huge_pages(const char* path) noexcept {
  const link_map* library = meshflow::find_loaded(path);
  if (!library || !meshflow::replace_import(library, "posix_memalign", reinterpret_cast<void*>(&allocate))) return 1;
  if (meshflow::replace_import(library, "free", reinterpret_cast<void*>(&release))) releases = true;
  keep_small_blocks();
  return 0;
}

// Offers memory for the next XLA buffer of this thread with such a size; returns 0 on success.
extern "C" int meshflow_offer_memory(void* memory, int64_t least, int64_t most) noexcept {
  if (!releases) return 1;
  return meshflow::guarded(1, [&] { return Placed::offer(memory, least, most), 0; });
}

// Withdraws the memory that was offered to this thread.
extern "C" void meshflow_withdraw_memory() noexcept { Placed::withdraw(); }

// Returns whether an XLA buffer is in offered memory.
extern "C" int meshflow_holds_memory(void* memory) noexcept {
  return meshflow::guarded(1, [&] { return int(Placed::get().holds(memory)); });
}

// Waits until the next XLA buffer of this size would reuse memory, at most some milliseconds; returns whether it would.
extern "C" int meshflow_await_memory(int64_t size, int64_t milliseconds) noexcept {
  if (!releases || size < int64_t(Kept::kLeast)) return 0;
  return meshflow::guarded(0, [&] { return int(Kept::get(size).await(size, std::chrono::milliseconds(milliseconds))); });
}

// Frees the memory that is kept for the next step; returns the bytes of its blocks.
extern "C" int64_t meshflow_release_memory() noexcept {
  return meshflow::guarded<int64_t>(0, [] {
    meshflow::Team::get().release_scratch();
    return static_cast<int64_t>(Kept::get(0).release() + Kept::get(Kept::kLarge).release());
  });
}
