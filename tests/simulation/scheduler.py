"""The scheduler of a simulation: processes, threads, locks and a clock, driven by one seed.

Simulated threads are greenlets, of which one runs at a time. It runs until it waits, or until it reaches a lock, a send or
a write at which the scheduler decides to go on with another one. Time advances only when all of them wait.
"""

import collections
import heapq
import itertools
import random
import threading
import time

import greenlet

from meshflow.core.runtime.context import context
from meshflow.distribute.cluster.channel import SECRET_VARIABLE
from meshflow.distribute.parameter_server.cluster.roles import current_worker
from meshflow.distribute.parameter_server.variables.hosted_variable import _placement
from meshflow.distribute.replicas.context import context_stack
from meshflow.profiler import description

# Thread-local objects that code in a simulated thread uses. Each thread gets contents of its own.
THREAD_LOCALS = (context, context_stack, current_worker, _placement)
# The clock at the start: durations of processes that were started earlier are positive.
START = 1000.0
# Seconds of each step, so that a loop that only asks for the time ends.
STEP_SECONDS = 1e-6
# Probability to switch to another thread where this is possible.
PREEMPTION = 0.15


class Killed(greenlet.GreenletExit):
    """End a thread of a process that has been killed."""


class SimulationFailure(AssertionError):
    """A run violates an invariant."""


class Process:
    """A simulated process: threads, sockets, files and locks that end with it.

    Attributes:
      name: Name in the trace.
      exit_code: None while the process runs.
      is_suspended: Whether it was stopped by SIGSTOP.
      objects: Sockets and files that are closed at the end.
    """

    def __init__(self, world, name):
        self.world, self.name, self.globals = world, name, {}
        self.environment = {SECRET_VARIABLE: "secret of the simulation"}
        self.pid = next(world.pids)
        self.exit_code, self.is_silent = None, False
        self.is_suspended = False
        self.tasks = {}
        self.parked = []
        self.objects = {}
        self.variable_lock = RLock()
        self.waiting_for_end = []
        # By kind of step, such as "write", the number of steps until the process is killed in the middle of one.
        self.fuses = {}
        world.processes.append(self)

    @property
    def role(self):
        """The name without the number of the process, such as "ps0"."""
        return self.name.partition(".")[0]

    @property
    def is_dead(self):
        return self.exit_code is not None

    def start_thread(self, function, name):
        return Task(self.world, self, function, name)

    def kill(self, exit_code=-9, is_silent=False):
        """End the process. Its threads unwind before any other thread runs.

        If the process ends silently, as with its machine, the other ends of its connections do not notice.
        """
        if self.is_dead:
            return
        self.is_silent = is_silent
        world = self.world
        world.note(self.name, f"ends with code {exit_code}")
        self.exit_code = exit_code
        self.parked.clear()
        world.ready = [task for task in world.ready if task.process is not self]
        world.dying.extend(task for task in self.tasks if task is not world.current)
        for thing in list(self.objects):
            thing.abandon()
        self.objects.clear()
        world.wake_all(self.waiting_for_end)
        if world.current is not None and world.current.process is self:
            raise Killed

    def burn(self, kind):
        """Count a step of the process, and kill the process if it was to be killed there."""
        if kind in self.fuses:
            self.fuses[kind] -= 1
            if self.fuses[kind] <= 0:
                self.world.note(self.name, f"is killed at a {kind}")
                self.kill()

    def suspend(self):
        if not self.is_dead:
            self.world.note(self.name, "is suspended")
            self.is_suspended = True

    def resume(self):
        if self.is_suspended and not self.is_dead:
            self.world.note(self.name, "goes on")
        self.is_suspended = False
        self.world.ready.extend(self.parked)
        self.parked.clear()


class Task:
    """A simulated thread."""

    def __init__(self, world, process, function, name):
        self.world, self.process, self.function, self.name = world, process, function, name
        # The contents of thread-local objects; None if they are those of a new thread.
        self.locals = None
        self.greenlet = greenlet.greenlet(self._run, world.hub)
        self.is_done = False
        self.joiners = []
        process.tasks[self] = None
        world.make_ready(self)

    def _run(self):
        try:
            self.function()
        except Killed:
            pass
        except BaseException as error:
            self.world.note(self.process.name, f"thread {self.name} ends with {error!r}")
            self.world.thread_errors.append((self.process.name, self.name, error))
        finally:
            self.is_done = True
            self.process.tasks.pop(self, None)
            if not self.process.is_dead:
                self.world.wake_all(self.joiners)


class _Waiter:
    """One wait of a thread, which ends once: by a wake-up or by its time limit."""

    __slots__ = ("is_done", "task", "was_woken")

    def __init__(self, task):
        self.task, self.is_done, self.was_woken = task, False, False


class World:
    """The state of one simulation.

    Attributes:
      rng: The source of all random decisions.
      now: The simulated time in seconds.
      trace: The latest events, or all of them.
    """

    current_world = None

    def __init__(self, seed, max_steps=400_000, max_seconds=3600.0, keeps_trace=False):
        self.seed, self.rng = seed, random.Random(seed)
        self.now, self.end = START, START + max_seconds
        self.steps, self.max_steps = 0, max_steps
        self.ready, self.dying, self.timers = [], [], []
        self.order = itertools.count()
        self.pids = itertools.count(100)
        self.processes = []
        self.current = None
        self.hub, self.real_thread = greenlet.getcurrent(), threading.get_ident()
        self.trace = collections.deque(maxlen=None if keeps_trace else 60)
        self.thread_errors = []
        self.num_events = 0
        self.services = {}

    # ---- scheduling ------------------------------------------------------------------------

    def run(self, main):
        """Run a function as the main thread of a first process, until it ends.

        Raises:
          SimulationFailure: If it does not end.
        """
        self.hub, self.real_thread = greenlet.getcurrent(), threading.get_ident()
        saved = [dict(local.__dict__) for local in THREAD_LOCALS]
        tables = dict(description.tables)
        self.default_locals, self.has_default_locals = _make_locals(), False
        process = Process(self, "main")
        result = []
        task = process.start_thread(lambda: result.append(_call(main)), "main")
        try:
            while not task.is_done:
                self._step()
        finally:
            self._end_all()
            _set_locals(saved)
            # A profile recorded later must not ask a simulated coordinator, whose locks need a scheduler.
            description.tables.clear()
            description.tables.update(tables)
        if not result:
            raise SimulationFailure(f"the program's process was killed: {self.thread_errors}")
        value, error = result[0]
        if error is not None:
            raise error
        return value

    def _step(self):
        while self.dying:
            self._resume(self.dying.pop())
        self.steps += 1
        self.now += STEP_SECONDS
        if self.steps > self.max_steps or self.now > self.end:
            raise SimulationFailure(
                f"the run has not ended after {self.steps} steps and {self.now - START:.0f} simulated seconds: "
                + self.describe_threads()
            )
        timers = self.timers
        while timers and not self.dying and (timers[0][0] <= self.now or not self.ready):
            at, _, waiter, function = heapq.heappop(timers)
            if waiter is not None and waiter.is_done:
                continue
            self.now = max(self.now, at)
            if waiter is not None:
                waiter.is_done = True
                self.make_ready(waiter.task)
            else:
                function()
        if self.dying:
            return
        if not self.ready:
            raise SimulationFailure("all threads wait forever: " + self.describe_threads())
        ready = self.ready
        index = int(self.rng.random() * len(ready))
        ready[index], ready[-1] = ready[-1], ready[index]
        task = ready.pop()
        if task.process.is_suspended:
            task.process.parked.append(task)
        else:
            self._resume(task)

    def _resume(self, task):
        if task.is_done:
            return
        self.current = task
        if task.locals is not None or not self.has_default_locals:
            _set_locals(self.default_locals if task.locals is None else task.locals)
        if task.process.is_dead:
            task.greenlet.throw(Killed)
            # A thread that had not started has not recorded its end.
            task.is_done = True
            task.process.tasks.pop(task, None)
        else:
            task.greenlet.switch()
        self.current = None
        locals = [local.__dict__ for local in THREAD_LOCALS]
        self.has_default_locals = locals == self.default_locals
        if self.has_default_locals:
            task.locals = None
        else:
            task.locals = [dict(content) for content in locals]
            # The thread may have changed lists in the others.
            self.default_locals = _make_locals()

    def _end_all(self):
        for process in self.processes:
            process.kill(0)
        while self.dying:
            self._resume(self.dying.pop())

    def make_ready(self, task):
        if not task.process.is_dead:
            (task.process.parked if task.process.is_suspended else self.ready).append(task)

    def find_process(self, pid):
        """The running process with an id, or None."""
        return next((p for p in self.processes if p.pid == pid and not p.is_dead), None)

    def check_alive(self):
        """End the current thread if its process was killed."""
        if self.current.process.is_dead:
            raise Killed

    def yield_now(self):
        """Let other threads run."""
        self.check_alive()
        self.ready.append(self.current)
        self.hub.switch()

    def preempt(self, probability=PREEMPTION):
        """Let other threads run, sometimes."""
        self.check_alive()
        if self.rng.random() < probability:
            self.ready.append(self.current)
            self.hub.switch()

    def wait(self, waiters, timeout=None):
        """Wait until `wake` is called for the list of waiters; return whether it was."""
        self.check_alive()
        waiter = _Waiter(self.current)
        if waiters is not None:
            waiters.append(waiter)
        if timeout is not None:
            at = self.now + max(timeout, 0)
            heapq.heappush(self.timers, (at, next(self.order), waiter, None))
        self.hub.switch()
        if not waiter.was_woken and waiters is not None and waiter in waiters:
            waiters.remove(waiter)
        return waiter.was_woken

    def wait_until(self, condition, waiters, timeout=None):
        """Wait until a condition holds, which is checked at each wake-up; return its value."""
        end = None if timeout is None else self.now + timeout
        while not condition():
            if end is not None and self.now >= end:
                return False
            self.wait(waiters, None if end is None else end - self.now)
        return True

    def wake(self, waiters, count=1):
        woken = 0
        while waiters and woken < count:
            waiter = waiters.pop(0)
            if not waiter.is_done:
                waiter.is_done = waiter.was_woken = True
                self.make_ready(waiter.task)
                woken += 1

    def wake_all(self, waiters):
        self.wake(waiters, len(waiters))

    def after(self, seconds, function):
        """Call a function, which does not wait, after a time."""
        heapq.heappush(self.timers, (self.now + seconds, next(self.order), None, function))

    def sleep(self, seconds):
        self.wait(None, seconds)

    # ---- reports ---------------------------------------------------------------------------

    def note(self, who, what):
        """Add an event to the trace."""
        self.num_events += 1
        self.trace.append((self.now, who, what))

    def format_trace(self):
        return "\n".join(f"{at - START:10.4f} {who:<14} {what}" for at, who, what in self.trace)

    def describe_threads(self):
        return "; ".join(
            f"{p.name}{' (suspended)' if p.is_suspended else ''}: "
            + ", ".join(t.name for t in p.tasks)
            for p in self.processes
            if p.tasks
        )


def _call(function):
    try:
        return function(), None
    except Killed:
        raise
    except BaseException as error:
        return None, error


def _make_locals():
    """The contents of thread-local objects in a new thread."""
    return [type(local)().__dict__.copy() for local in THREAD_LOCALS]


def _set_locals(contents):
    for local, content in zip(THREAD_LOCALS, contents, strict=True):
        local.__dict__.clear()
        local.__dict__.update(content)


def check(condition, message):
    if not condition:
        raise SimulationFailure(message)


def world():
    """The current simulation."""
    return World.current_world


# ---- the module `threading` ----------------------------------------------------------------


class RLock:
    def __init__(self):
        self.owner, self.count, self.waiters = None, 0, []

    def acquire(self, blocking=True, timeout=-1):
        here = world()
        task = here.current
        here.check_alive()
        if self.owner is task:
            return self._enter_again()
        if here.rng.random() < PREEMPTION:
            here.yield_now()
        if self.owner is not None:
            limit = None if blocking and timeout < 0 else max(timeout, 0)
            if not here.wait_until(lambda: self.owner is None, self.waiters, limit):
                return False
        self.owner, self.count = task, 1
        return True

    def _enter_again(self):
        self.count += 1
        return True

    def release(self):
        here = world()
        if here.current.process.is_dead:
            return
        if self.owner is not here.current:
            raise RuntimeError("cannot release un-acquired lock")
        self.count -= 1
        if not self.count:
            self.owner = None
            here.wake(self.waiters)

    def locked(self):
        return self.owner is not None

    def __enter__(self):
        return self.acquire()

    def __exit__(self, *_):
        self.release()


class Lock(RLock):
    def _enter_again(self):
        # A thread that acquires its lock again waits forever.
        world().wait(self.waiters)


class Condition:
    def __init__(self, lock=None):
        self.lock = RLock() if lock is None else lock
        self.waiters = []
        self.acquire, self.release = self.lock.acquire, self.lock.release

    def __enter__(self):
        return self.lock.acquire()

    def __exit__(self, *_):
        self.lock.release()

    def wait(self, timeout=None):
        here, lock = world(), self.lock
        here.check_alive()
        if lock.owner is not here.current:
            raise RuntimeError("cannot wait on un-acquired lock")
        count, lock.count = lock.count, 1
        lock.release()
        was_woken = here.wait(self.waiters, timeout)
        lock.acquire()
        lock.count = count
        return was_woken

    def wait_for(self, predicate, timeout=None):
        here = world()
        end = None if timeout is None else here.now + timeout
        while not (result := predicate()):
            if end is not None and here.now >= end:
                break
            self.wait(None if end is None else end - here.now)
        return result

    def notify(self, n=1):
        here = world()
        if not here.current.process.is_dead:
            here.wake(self.waiters, n)

    def notify_all(self):
        self.notify(len(self.waiters))


class Event:
    def __init__(self):
        self.flag, self.waiters = False, []

    def is_set(self):
        return self.flag

    def set(self):
        self.flag = True
        if not world().current.process.is_dead:
            world().wake_all(self.waiters)

    def clear(self):
        self.flag = False

    def wait(self, timeout=None):
        if not self.flag:
            world().wait(self.waiters, timeout)
        return self.flag


class Semaphore:
    def __init__(self, value=1):
        self.value, self.waiters = value, []

    def acquire(self, blocking=True, timeout=None):
        here = world()
        here.preempt()
        if not here.wait_until(lambda: self.value, self.waiters, timeout if blocking else 0):
            return False
        self.value -= 1
        return True

    def release(self, n=1):
        if not world().current.process.is_dead:
            self.value += n
            world().wake(self.waiters, n)

    def __enter__(self):
        return self.acquire()

    def __exit__(self, *_):
        self.release()


class Thread:
    def __init__(self, group=None, target=None, name=None, args=(), kwargs=None, daemon=None):
        self.target, self.args, self.kwargs = target, args, kwargs or {}
        self.name, self.daemon, self.task = (
            name or getattr(target, "__name__", "thread"),
            daemon,
            None,
        )

    def run(self):
        self.target(*self.args, **self.kwargs)

    def start(self):
        here = world()
        here.check_alive()
        self.task = here.current.process.start_thread(self.run, self.name)
        here.preempt()

    def join(self, timeout=None):
        here = world()
        here.check_alive()
        if not self.task.is_done:
            here.wait(self.task.joiners, timeout)

    def is_alive(self):
        return self.task is not None and not self.task.is_done


class ThreadPoolExecutor:
    """Executor that starts a thread for each call."""

    def __init__(self, max_workers=None, thread_name_prefix="executor", **_):
        self.name = thread_name_prefix

    def map(self, function, *iterables):
        threads, results = [], []
        for index, args in enumerate(zip(*iterables, strict=False)):
            results.append(None)

            def call(index=index, args=args):
                results[index] = _call(lambda: function(*args))

            threads.append(Thread(target=call, name=self.name))
            threads[-1].start()
        return self._collect(threads, results)

    @staticmethod
    def _collect(threads, results):
        for index, thread in enumerate(threads):
            thread.join()
            value, error = results[index]
            if error is not None:
                raise error
            yield value

    def shutdown(self, *_, **__):
        pass


class Facade:
    """A module of which some names are replaced."""

    def __init__(self, module, **names):
        self._module = module
        self.__dict__.update(names)

    def __getattr__(self, name):
        return getattr(self._module, name)


THREADING = Facade(
    threading,
    Lock=Lock,
    RLock=RLock,
    Condition=Condition,
    Event=Event,
    Semaphore=Semaphore,
    BoundedSemaphore=Semaphore,
    Thread=Thread,
    current_thread=lambda: world().current,
    get_ident=lambda: id(world().current),
)


def _simulate_for_tasks(real, simulate):
    """Return a function that simulates for tasks only: a real thread of an earlier test may still run."""

    def function(*args):
        here = world()
        if here is None or threading.get_ident() != here.real_thread:
            return real(*args)
        return simulate(here, *args)

    return function


TIME = Facade(
    time,
    monotonic=_simulate_for_tasks(time.monotonic, lambda here: here.now),
    time=_simulate_for_tasks(time.time, lambda here: here.now),
    perf_counter=_simulate_for_tasks(time.perf_counter, lambda here: here.now),
    sleep=_simulate_for_tasks(time.sleep, World.sleep),
)


class VariableLock:
    """The lock of the variables of the current process."""

    def __enter__(self):
        return world().current.process.variable_lock.acquire()

    def __exit__(self, *_):
        world().current.process.variable_lock.release()
