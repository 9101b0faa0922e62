"""Mistakes in the production code that the simulation must find.

Each mutation has a scenario, and a list of an owner, an attribute, and the value that replaces it.
"""

from meshflow.cli import launch
from meshflow.distribute.cluster import rendezvous, supervision
from meshflow.distribute.parameter_server.cluster import remote_cluster
from meshflow.distribute.parameter_server.coordination import closure_queue
from meshflow.distribute.parameter_server.server import (
    attempts,
    journal,
    parameter_server,
    remote_server,
)
from meshflow.distribute.parameter_server.transport.messages import CompletedAttempt
from meshflow.distribute.parameter_server.worker import server_client, worker


def replace(owner, name, make):
    """Replace a method by a function of the method."""
    return [(owner, name, make(getattr(owner, name)))]


def answer_before_writing(append):
    """Records stay in the memory of the process until the next one."""

    def append_later(self, record):
        earlier, self.late = self.__dict__.get("late", []), [record]
        for one in earlier:
            append(self, one)

    return append_later


def apply_before_writing(_):
    def call(self, method, *args):
        if self._journal is None:
            return self._calls[method](*args)
        with remote_server.variable_lock:
            result = self._calls[method](*args)
            self._journal.append((method, args))
        return result

    return call


def without_truncation(append):
    """A record after an incomplete one."""

    def append_only(self, record):
        log = self._log

        class Log:
            write, close = log.write, log.close
            truncate = seek = staticmethod(lambda size: size)

        self._log = Log()
        try:
            append(self, record)
        finally:
            self._log = log

    return append_only


def without_attempts(get_state):
    """A snapshot that lacks the closures that were applied."""

    def get_less(self):
        values, clock, _, order = get_state(self)
        return values, clock, attempts.AttemptLog().get_state(), order

    return get_less


def delete_logs_first(write_snapshot):
    def write(self, state):
        for generation, kind in journal.JournalFiles(self._folder, self._storage)._files:
            if kind == "log" and generation < self._generation:
                self._storage.delete(self._files.get_path("log", generation))
        self._log.truncate(0)
        self._log.seek(0)
        self._offset = self._index = 0
        write_snapshot(self, state)

    return write


def without_staging(_):
    """All attempts send their pushes at once."""

    def push(self, closure, attempt, floor, pushes):
        with self._lock:
            replies = self._exchange_all(pushes, floor)
            return replies, any(c.repeated for c in replies)

    return push


def forget_at_once(finish):
    def finish_without_others(self, closure, done):
        finish(self, closure, CompletedAttempt(done.attempt, {}))

    return finish_without_others


def high_floor(get_floor):
    return lambda self: self._next


def without_retry(call):
    """Calls of a lost server are not repeated."""

    def call_once(self, method, *args):
        with self._lock:
            if self._caller is None:
                address, self._num_starts = self._locate(self.index, self._num_starts)
                self._caller = remote_server.RemoteCaller(
                    remote_server.connect(address, self._secret)
                )
            return self._caller.call(method, *args)

    return call_once


def unbounded_heartbeats(monitor):
    def monitor_without_limit(self, kind, index, process):
        saved, self._max_silence = self._max_silence, 1e9
        monitor(self, kind, index, process)
        self._max_silence = saved

    return monitor_without_limit


def lose_closures(put_back):
    def forget(self, closure):
        with self._closure_added:
            closure.num_runs -= 1
            if closure.num_runs == 0:
                self._running.pop(closure.closure_id, None)
            self._closure_finished.notify_all()

    return forget


def cancel_started(put_back):
    """Cancel closures after an error, though some servers may have applied them."""

    def put(self, closure):
        with self._closure_added:
            put_back(self, closure)
            if self._error is not None and closure in self._waiting:
                self._waiting.remove(closure)
                closure.result._cancel("cancelled")
                self._closure_finished.notify_all()

    return put


def keep_lost_worker(close):
    return lambda self: None


def stale_copies(should_pull):
    return lambda self, call: False


_SERVER_MUTATIONS = {
    "records are written after the answer": replace(journal.Journal, "append", answer_before_writing),
    "a change is applied before it is written": replace(remote_server.ServerService, "_call_logged", apply_before_writing),
    "an incomplete record remains": replace(journal.Journal, "append", without_truncation),
    "snapshots lack the applied closures": replace(parameter_server.ParameterServer, "get_state", without_attempts),
    "logs are deleted before their snapshot is complete": replace(journal.Journal, "write_snapshot", delete_logs_first),
    "an older server is not fenced": replace(journal.Journal, "check_ownership", lambda _: lambda self: None),
    "repeated pushes are applied": replace(attempts.AttemptLog, "find_completed", lambda _: lambda self, closure: None),
    "repeated writes are applied": replace(
        parameter_server.ParameterServer,
        "write",
        lambda write: lambda self, key, value, adds=False, order=0: write(self, key, value, adds, 0),
    ),
    "older attempts are not refused": replace(attempts.AttemptLog, "find_refusal", lambda _: lambda self, message: None),
    "later attempts are not staged": replace(server_client.ServerClient, "push", without_staging),
    "the parts of other servers are forgotten": replace(attempts.AttemptLog, "finish", forget_at_once),
    "running closures count as finished": replace(closure_queue.ClosureQueue, "get_floor", high_floor),
    "calls of lost servers are not repeated": replace(remote_server.RemoteServer, "_call", without_retry),
    "silent processes are not replaced": replace(remote_cluster.RemoteCluster, "_monitor_process", unbounded_heartbeats),
    "closures of lost workers are dropped": replace(closure_queue.ClosureQueue, "put_back", lose_closures),
    "started closures are cancelled": replace(closure_queue.ClosureQueue, "put_back", cancel_started),
    "a worker that is lost is not replaced": replace(remote_cluster._RegisteredProcess, "close", keep_lost_worker),
    "failed attempts leave others incomplete": replace(
        server_client.ServerClient, "settle", lambda _: lambda self, closure, attempt, floor: None
    ),
    "workers keep old values": replace(worker.Worker, "_should_pull", stale_copies),
    "full disks end closures": [(remote_server, "_FULL_DISK_SECONDS", -1.0)],
    "jobs go on after a part of a closure": replace(
        remote_cluster.RemoteCluster, "_end_job", lambda _: lambda self, error: None
    ),
}  # fmt: skip


def accept_failures(watch):
    """A job succeeds when one worker has succeeded."""

    def watch_one(self, supervisor):
        while not any(p.poll() == 0 for p in self._processes):
            launch.time.sleep(0.05)

    return watch_one


_LAUNCHER_MUTATIONS = {
    "workers that hang are not noticed": replace(
        supervision.JobSupervisor, "check_workers", lambda _: lambda self, running: None
    ),
    "stopped workers are not noticed": replace(launch, "_is_stopped", lambda _: lambda pid: False),
    "workers are left running": replace(
        launch.Job, "_stop_workers", lambda _: lambda self, grace: None
    ),
    "the coordination service is left running": replace(
        supervision.JobSupervisor, "close", lambda _: lambda self: self._rendezvous.close()
    ),
    "a job is complete when one worker is": replace(launch.Job, "_watch_workers", accept_failures),
    "two processes may be one worker": replace(
        rendezvous.Rendezvous,
        "_list_missing",
        lambda _: lambda self: [] if self.connections else [0],
    ),
}
MUTATIONS = {
    **{name: ("parameter_servers", mutations) for name, mutations in _SERVER_MUTATIONS.items()},
    **{name: ("launching", mutations) for name, mutations in _LAUNCHER_MUTATIONS.items()},
}

# Schedules that detected mutations which few schedules detect.
SEEDS = {
    "a change is applied before it is written": 18,
    "an incomplete record remains": 18,
    "an older server is not fenced": 147,
    "calls of lost servers are not repeated": 23,
    "failed attempts leave others incomplete": 4393,
    "full disks end closures": 51,
    "jobs go on after a part of a closure": 330,
    "later attempts are not staged": 34,
    "logs are deleted before their snapshot is complete": 201,
    "older attempts are not refused": 146,
    "repeated pushes are applied": 8,
    "repeated writes are applied": 288,
    "snapshots lack the applied closures": 37,
    "started closures are cancelled": 839,
    "the parts of other servers are forgotten": 72,
}
