// Rows taken by a second thread while the interpreter goes on. What that thread has not begun when it is
// asked for is done by the one who asks: nobody waits for a thread that gets no processor, and a forked
// process, which has no second thread, works as well.

#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>

#include "guard.h"

struct Rows;
extern "C" int meshflow_rows_take(const Rows* rows, const int64_t* index, int64_t count, char* out,
                                  int threads) noexcept;

namespace {

enum State { kFree, kFilling, kReady, kRunning, kDone };

// Each in a cache line of its own.
struct alignas(64) Job {
  std::atomic<int> state{kFree};
  const Rows* rows;
  const int64_t* index;
  int64_t count;
  char* out;
  int failed;
};

constexpr int kJobs = 32;
// How often a thread looks before it sleeps: some 20 us.
constexpr int kLooks = 400;
Job jobs[kJobs];
// The number of jobs so far, and whether the thread sleeps until it changes.
std::atomic<uint32_t> posted{0};
std::atomic<bool> asleep{false};

bool begun(Job& job) {
  int ready = kReady;
  // Looking is cheap, trying takes the line from the other thread.
  if (job.state.load() != kReady || !job.state.compare_exchange_strong(ready, kRunning)) return false;
  job.failed = meshflow_rows_take(job.rows, job.index, job.count, job.out, 1);
  job.state.store(kDone);
  return true;
}

void work() {
  for (;;) {
    const uint32_t seen = posted.load();
    bool any = false;
    for (Job& job : jobs) any |= begun(job);
    for (int i = 0; i < kLooks && !any; ++i, any = posted.load() != seen) __builtin_ia32_pause();
    if (any) continue;
    asleep.store(true);
    syscall(SYS_futex, &posted, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
    asleep.store(false);
  }
}

// What the other thread was at when the process was forked is done by who asks for it.
void after_fork() {
  for (Job& job : jobs)
    if (job.state.load() == kRunning) job.state.store(kReady);
}

}  // namespace

// `meshflow_rows_take` begun; what it is given must stay until it is finished. The job's number, -1 when
// there are too many.
extern "C" int meshflow_rows_begin(const Rows* rows, const int64_t* index, int64_t count, char* out) noexcept {
  static std::once_flag once;
  // Without another thread the one that asks for the result computes it.
  meshflow::guarded([&] {
    std::call_once(once, [] {
      std::thread(work).detach();
      pthread_atfork(nullptr, nullptr, after_fork);
    });
  });
  for (int i = 0; i < kJobs; ++i) {
    Job& job = jobs[i];
    int free = kFree;
    if (job.state.load() != kFree || !job.state.compare_exchange_strong(free, kFilling)) continue;
    job.rows = rows, job.index = index, job.count = count, job.out = out;
    job.state.store(kReady);
    posted.fetch_add(1);
    if (asleep.load()) syscall(SYS_futex, &posted, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
    return i;
  }
  return -1;
}

// The result of a job, whose number is then another's.
extern "C" int meshflow_rows_finish(int number) noexcept {
  Job& job = jobs[number];
  if (!begun(job))
    for (int i = 0; job.state.load() != kDone; ++i) i < kLooks ? __builtin_ia32_pause() : (void)usleep(20);
  const int failed = job.failed;
  job.state.store(kFree);
  return failed;
}
