// Gathers rows on a second thread while the interpreter continues. A job that the second thread has not
// started when its result is requested runs on the requesting thread: so no thread waits for one that is not
// scheduled, and a forked process without the second thread works as well.

#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>

#include "cpus.h"
#include "guard.h"

struct Rows;
extern "C" int meshflow_rows_take(const Rows* rows, const int64_t* index, int64_t count, char* out,
                                  int threads) noexcept;

namespace {

enum State { kFree, kFilling, kReady, kRunning, kDone };

// Each in a separate cache line.
struct alignas(64) Job {
  std::atomic<int> state{kFree};
  const Rows* rows;
  const int64_t* index;
  int64_t count;
  char* out;
  int failed;
};

constexpr int kJobs = 32;
// Number of polls before a thread sleeps: about 20 us.
constexpr int kLooks = 400;
Job jobs[kJobs];
// The number of jobs so far, and whether the thread sleeps until it changes.
std::atomic<uint32_t> posted{0};
std::atomic<bool> asleep{false};

bool begun(Job& job) {
  int ready = kReady;
  // Reading is cheap; an exchange would take the cache line from the other thread.
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
    for (int i = 0; i < kLooks && !any; ++i, any = posted.load() != seen) meshflow::pause();
    if (any) continue;
    asleep.store(true);
    syscall(SYS_futex, &posted, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
    asleep.store(false);
  }
}

// After a fork, the job that the other thread was processing runs on the requesting thread.
void after_fork() {
  for (Job& job : jobs)
    if (job.state.load() == kRunning) job.state.store(kReady);
}

}  // namespace

// Starts `meshflow_rows_take`; its arguments must remain valid until it is finished. Returns the id of the
// job, -1 if there are too many.
extern "C" int meshflow_rows_begin(const Rows* rows, const int64_t* index, int64_t count, char* out) noexcept {
  static std::once_flag once;
  // Without a second thread, the requesting thread computes the result.
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

// Returns the status of a job and releases its id.
extern "C" int meshflow_rows_finish(int number) noexcept {
  Job& job = jobs[number];
  if (!begun(job))
    for (int i = 0; job.state.load() != kDone; ++i) i < kLooks ? meshflow::pause() : (void)usleep(20);
  const int failed = job.failed;
  job.state.store(kFree);
  return failed;
}
