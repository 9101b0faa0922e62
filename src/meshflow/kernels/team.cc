// The team of threads, and the functions of OpenMP that oneDNN imports, which use the same team.
//
// Waking a thread takes 20 to 100 us, longer than most computations of a step. Therefore the thread that calls a handler
// takes part in its computation, and the other threads poll for a short time before they sleep.

#include "team.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <strings.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cfenv>
#include <chrono>
#include <thread>

#include "cpus.h"
#include "guard.h"
#include "imports.h"

namespace meshflow {

namespace {

// Longer than the pauses between the kernels of most steps; threads of other OpenMP libraries poll for longer.
constexpr int64_t kPollNanoseconds = 500'000;
constexpr std::chrono::microseconds kExclusive{20};
// A yield that takes longer has given a time slice to another program; none follows for a while.
constexpr std::chrono::microseconds kLongYield{1000};
constexpr std::chrono::milliseconds kWithoutYields{200};

using Word = std::atomic<uint32_t>;

// Sleeps until the word is another value, or for no reason.
void sleep_while(Word& word, uint32_t value) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
}

void wake(Word& word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0);
}

// Yields the processor to a thread of XLA that waits for one. Since Linux 6.6, other programs then compute for a complete
// time slice, so that on a busy machine each computation would take milliseconds longer.
template <typename Time>
void yield_unless_busy(Time now) {
  static std::atomic<typename Time::rep> next{0};
  if (now.time_since_epoch().count() < next.load(std::memory_order_relaxed)) return;
  sched_yield();
  const Time after = Time::clock::now();
  if (after - now > kLongYield) next.store((after + kWithoutYields).time_since_epoch().count(), std::memory_order_relaxed);
}

// Polls for a limited time; returns whether the condition became true.
template <typename Condition>
bool poll(int64_t nanoseconds, Condition condition) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  for (;;) {
    for (int i = 0; i < 32; ++i) {
      if (condition()) return true;
      pause();
    }
    const auto now = Clock::now();
    if (now - start > std::chrono::nanoseconds(nanoseconds)) return false;
    if (now - start > kExclusive) yield_unless_busy(now);
  }
}

// What the calling thread knows of its team.
struct Here {
  Place place;
  bool has_team = false, is_alone = false, are_independent = false;
  // The current loop of oneDNN, and the number of this thread's parts of it.
  int64_t first = 0, last = 0, step = 1, part = 0, parts = 0;
};

Here& here() {
  static thread_local Here here;
  return here;
}

int count_processors() {
  cpu_set_t processors;
  int count = sched_getaffinity(0, sizeof(processors), &processors) ? 0 : CPU_COUNT(&processors);
  return std::max(1, count ? count : static_cast<int>(std::thread::hardware_concurrency()));
}

std::atomic<Team*> current{nullptr};

}  // namespace

Place place() { return here().place; }

SingleThread::SingleThread() : place_(here().place), is_alone_(here().is_alone) {
  here().place = {}, here().is_alone = true;
}
SingleThread::~SingleThread() { here().place = place_, here().is_alone = is_alone_; }

Independent::Independent(bool are_independent) : before_(here().are_independent) { here().are_independent = are_independent; }
Independent::~Independent() { here().are_independent = before_; }

// One of the other threads. The thread that has the team calls it; each word is changed by both.
class Team::Helper {
 public:
  Helper(Team& team, int number, int64_t polls) : team_(team), number_(number), polls_(polls) {
    // Signals are handled by threads of the program.
    struct Blocked {
      sigset_t before;
      Blocked() {
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
      }
      ~Blocked() { pthread_sigmask(SIG_SETMASK, &before, nullptr); }
    } blocked;
    std::thread([this] { serve(); }).detach();
  }

  void call() {
    if (state_.exchange(kCalled) == kAsleep) wake(state_);
  }

  // Withdraws a call; returns whether the thread had not begun.
  bool withdraw() {
    uint32_t called = kCalled;
    return state_.compare_exchange_strong(called, kIdle);
  }

  // Waits until the thread has computed its part.
  void join() {
    auto is_free = [&] { return state_.load(std::memory_order_acquire) <= kAsleep; };
    while (!poll(polls_, is_free)) {
      uint32_t running = kRunning;
      if (state_.compare_exchange_strong(running, kAwaited)) running = kAwaited;
      if (running == kAwaited) sleep_while(state_, kAwaited);
    }
  }

 private:
  enum State : uint32_t { kIdle, kAsleep, kCalled, kRunning, kAwaited };

  void serve() {
    // Threads inherit the environment of floats, in which XLA replaces small numbers by zero.
    std::fesetenv(FE_DFL_ENV);
    for (;;) {
      auto is_called = [&] { return state_.load(std::memory_order_acquire) == kCalled; };
      while (!poll(polls_, is_called)) {
        uint32_t idle = kIdle;
        if (state_.compare_exchange_strong(idle, kAsleep)) idle = kAsleep;
        if (idle == kAsleep) sleep_while(state_, kAsleep);
      }
      uint32_t called = kCalled;
      if (!state_.compare_exchange_strong(called, kRunning)) continue;
      here().place = {number_, team_.threads_here_};
      team_.body_(team_.data_);
      if (state_.exchange(kIdle) == kAwaited) wake(state_);
    }
  }

  Team& team_;
  const int number_;
  const int64_t polls_;
  alignas(64) Word state_{kIdle};
};

Team::Turn::Turn(Team& team, bool waits) : team_(team) {
  if (here().has_team) return;
  if (waits) team.turn_.lock();
  outer_ = waits || team.turn_.try_lock();
  if (!outer_) return;
  here().has_team = true;
  std::fegetenv(&floats_);
  std::fesetenv(FE_DFL_ENV);
}

Team::Turn::operator bool() const { return here().has_team; }

Team::Turn::~Turn() {
  if (!outer_) return;
  std::fesetenv(&floats_);
  here().has_team = false;
  team_.turn_.unlock();
}

Team& Team::get() { return *current.load(std::memory_order_acquire); }

// Never destroyed: handlers may be called at exit. A forked process has no other threads yet; it could wait forever for
// one that was making the team, which is therefore made with the library.
const int Team::made_ = [] {
  current = new Team();
  return pthread_atfork(nullptr, nullptr, [] {
    Team* before = current;
    current = new Team();
    current.load()->threads_ = before->threads();
  });
}();

Team::Team() : processors_(count_processors()), threads_(processors_) {
  const char *count = std::getenv("OMP_NUM_THREADS"), *policy = std::getenv("OMP_WAIT_POLICY");
  if (count && std::atoi(count) > 0) threads_ = std::atoi(count);
  polls_ = policy && !strcasecmp(policy, "passive") ? 0 : kPollNanoseconds;
}

int max_threads() { return here().is_alone || here().place.threads > 1 ? 1 : Team::get().threads(); }

void Team::begin(void (*body)(void*), void* data, int threads) {
  // Without a processor for each thread, the others would wait for the one that polls.
  polls_here_ = threads > processors_ ? 0 : polls_;
  while (static_cast<int>(helpers_.size()) < threads - 1)
    helpers_.push_back(new Helper(*this, helpers_.size() + 1, polls_here_));
  body_ = body, data_ = data, threads_here_ = threads;
  here().place = {0, threads};
  for (int i = 0; i < threads - 1; ++i) helpers_[i]->call();
}

void Team::end(bool waits) {
  const int threads = threads_here_;
  for (int i = threads - 1; i > 0 && !waits; --i)
    if (helpers_[i - 1]->withdraw()) {
      here().place = {i, threads};
      body_(data_);
    }
  for (int i = 0; i < threads - 1; ++i) helpers_[i]->join();
  here().place = {};
}

void Team::meet() {
  const uint32_t meeting = meetings_.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1) + 1 == static_cast<uint32_t>(threads_here_)) {
    arrived_ = 0;
    meetings_.fetch_add(1);
    return wake(meetings_);
  }
  auto is_over = [&] { return meetings_.load(std::memory_order_acquire) != meeting; };
  while (!poll(polls_here_, is_over)) sleep_while(meetings_, meeting);
}

namespace {

// The functions of OpenMP, as oneDNN calls them.
struct Outer {
  Place place;
  bool is_region;
};

std::vector<Outer>& outer() {
  static thread_local std::vector<Outer> outer;
  return outer;
}

int max_threads_of_openmp() { return max_threads(); }
int threads_of_openmp() { return place().threads; }
int thread_of_openmp() { return place().thread; }
int in_region() { return place().threads > 1; }

void start(void (*body)(void*), void* data, unsigned threads) {
  int count = threads ? threads : max_threads();
  // Regions in regions have one thread.
  bool is_region = count > 1 && here().has_team && !in_region() && outer().empty();
  outer().push_back({here().place, is_region});
  here().place = {};
  if (is_region) Team::get().begin(body, data, count);
}

void finish() {
  Outer before = outer().back();
  outer().pop_back();
  if (before.is_region) Team::get().end(!here().are_independent);
  here().place = before.place;
}

void barrier() {
  if (in_region()) Team::get().meet();
}

bool next_part(long* first, long* last) {
  Here& h = here();
  const int64_t threads = h.place.threads, thread = h.place.thread;
  int64_t count = h.step > 0 ? (h.last - h.first + h.step - 1) / h.step : (h.first - h.last - h.step - 1) / -h.step;
  count = std::max<int64_t>(count, 0);
  int64_t begin, end;
  if (h.parts == 0) {
    if (h.part++) return false;
    int64_t each = count / threads, rest = count % threads;
    begin = thread * each + std::min(thread, rest), end = begin + each + (thread < rest);
  } else {
    begin = (h.part++ * threads + thread) * h.parts, end = std::min(begin + h.parts, count);
  }
  if (begin >= end) return false;
  *first = h.first + begin * h.step, *last = h.first + end * h.step;
  return true;
}

bool start_loop(long first, long last, long step, long part, long* begin, long* end) {
  Here& h = here();
  h.first = first, h.last = last, h.step = step, h.part = 0, h.parts = part;
  return next_part(begin, end);
}

void end_loop() {}

struct Replacement {
  const char* name;
  void* function;
};

}  // namespace

// Makes oneDNN compute with this team; returns 0 on success.
extern "C" int meshflow_use_team(const char* path) noexcept {
  return guarded(1, [&] {
    const Replacement all[] = {
        {"omp_get_max_threads", reinterpret_cast<void*>(&max_threads_of_openmp)},
        {"omp_get_num_threads", reinterpret_cast<void*>(&threads_of_openmp)},
        {"omp_get_thread_num", reinterpret_cast<void*>(&thread_of_openmp)},
        {"omp_in_parallel", reinterpret_cast<void*>(&in_region)},
        {"GOMP_parallel_start", reinterpret_cast<void*>(&start)},
        {"GOMP_parallel_end", reinterpret_cast<void*>(&finish)},
        {"GOMP_barrier", reinterpret_cast<void*>(&barrier)},
        {"GOMP_loop_static_start", reinterpret_cast<void*>(&start_loop)},
        {"GOMP_loop_static_next", reinterpret_cast<void*>(&next_part)},
        {"GOMP_loop_end_nowait", reinterpret_cast<void*>(&end_loop)},
    };
    const link_map* library = find_loaded(path);
    if (!library) return 1;
    for (const Replacement& one : all)
      if (!replace_import(library, one.name, one.function)) return 1;
    return 0;
  });
}

}  // namespace meshflow
