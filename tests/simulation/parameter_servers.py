"""Simulated jobs with parameter servers, and their invariants.

Each closure adds to elements of its own of variables on all servers: 1 to a count, and the number of its run to another
one. So a count shows how often the closure was applied, and the numbers show whether all servers applied the same run.
"""

import contextlib
import functools
import itertools
import json
import sys

import numpy as np

import meshflow as tf
from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import DeadlineExceededError, UnavailableError
from meshflow.distribute.cluster import channel
from meshflow.distribute.cluster.cluster_spec import ClusterSpec
from meshflow.distribute.parameter_server import strategy as strategies
from meshflow.distribute.parameter_server.closures import pickling
from meshflow.distribute.parameter_server.cluster import external_processes, local_processes, roles
from meshflow.distribute.parameter_server.cluster.remote_cluster import RemoteCluster
from meshflow.distribute.parameter_server.processes import entry_point
from meshflow.distribute.parameter_server.server import journal, remote_server
from meshflow.distribute.parameter_server.server.parameter_server import ParameterServer
from meshflow.distribute.parameter_server.transport import connection
from meshflow.distribute.parameter_server.variables.hosted_variable import (
    get_outboxes,
    place_on_servers,
)
from meshflow.distribute.parameter_server.worker import server_client
from meshflow.distribute.parameter_server.worker.server_client import (
    AttemptFailedError,
    PartialClosureError,
)
from simulation import machine, network
from simulation.faults import Faults
from simulation.scheduler import Event, Facade, Process, check, world

# Seconds of silence after which a process is lost.
SILENCE = 4.0


class HostProgram:
    """Compute the program of a push by NumPy, because a compilation would take longer than a run."""

    is_ready = True

    def __init__(self, server, kind):
        self.server, (self.steps, self.sets, self.adds) = server, kind

    def run_arrays(self, arrays, lock):
        values = iter(arrays)
        assert not self.steps
        with lock:
            for key in self.sets:
                self.server._get_variable(key)._value = np.array(next(values))
            for key in self.adds:
                variable = self.server._get_variable(key)
                variable._value = np.asarray(variable._value) + np.asarray(next(values))

    def prepare(self):
        pass


class HostServer(ParameterServer):
    """Parameter server whose programs are computed by NumPy."""

    def _make_program(self, key, operands):
        world().preempt()
        self._programs[key] = HostProgram(self, key[0])


def closure(index, counts, runs, last):
    """Add to the elements of a closure, and return its run and the counts that it sees."""
    here = world()
    job = here.services["job"]
    run = next(job.run_ids)
    job.runs.setdefault(index, set()).add(run)
    here.note(here.current.process.name, f"runs closure {index} as run {run}")
    running = context.worker_closure
    seen = [np.array(running.get_value(v)) for v in counts]
    if here.rng.random() < job.slow_closures:
        # Other runs of the same closure often end at the same time.
        here.sleep(here.rng.choice([1.0, 2.0]) - here.now % 1.0)
    servers = job.touched[index]
    for n in servers:
        one = np.zeros(job.num_closures, np.int32)
        one[index] = 1
        _add(running, counts[n], one)
        _add(running, runs[n], one * run)
        if index in job.setters:
            boxes = get_outboxes(last[n])
            running.outboxes[id(boxes.value)] = boxes.value, np.full(1, run, np.int32)
            running.outboxes[id(boxes.is_set)] = boxes.is_set, np.int32(1)
    if index in job.failing and here.rng.random() < 0.5:
        raise ValueError(f"closure {index} fails")
    return run, seen


def _add(running, variable, value):
    box = get_outboxes(variable).added
    running.outboxes[id(box)] = box, value


class Folder:
    """The folder of the journals on the simulated disk."""

    is_local = False

    def __init__(self, path):
        self.path = path

    def get_server_folder(self, index):
        return f"{self.path}/server-{index}"

    def close(self):
        pass


class Resolver:
    """A resolver of a cluster."""

    def __init__(self, spec):
        self.spec = spec

    def cluster_spec(self):
        return self.spec


class Job:
    """A simulated job: a program with some faults, both drawn from the seed."""

    def __init__(self, here):
        rng = here.rng
        self.world = here
        self.run_ids = itertools.count(1)
        self.runs = {}
        self.num_servers = rng.choice([1, 2, 2, 3])
        self.num_workers = rng.choice([1, 2, 2, 3])
        self.num_closures = rng.randint(3, 12)
        self.num_writes = 0
        every = range(self.num_servers)
        self.touched = [
            [n for n in every if rng.random() < 0.7] or [rng.choice(every)]
            for _ in range(self.num_closures)
        ]
        self.setters = {n for n in range(self.num_closures) if rng.random() < 0.3}
        self.failing = {rng.randrange(self.num_closures)} if rng.random() < 0.3 else set()
        self.slow_closures = rng.choice([0.0, 0.0, 0.5])
        self.options = {
            "max_staleness": rng.choice([None, None, None, 0, 1]),
            "queue_size": rng.choice([4096, 1, 2]),
            "backup_closures": rng.random() < 0.5,
        }
        self.stages = rng.random() < 0.3
        self.snapshots = rng.random() < 0.5
        # Whether servers and workers are separate programs, which something else restarts.
        self.is_external = rng.random() < 0.3
        # The sum of what the coordinator has written, by server.
        self.written = [0] * self.num_servers
        # The number of its writes that have failed, and may have been applied.
        self.attempted = [0] * self.num_servers
        self.has_variables = Event()
        # Variables that were created later.
        self.late = []
        self.results = {}
        # Closures before this one have ended, and those that are known to have been applied.
        self.joined, self.applied = 0, set()

    # ---- the program -----------------------------------------------------------------------

    def run(self):
        """The program of the coordinator."""
        rng = self.world.rng
        if self.is_external:
            cluster = {"engine": None, "cluster_resolver": Resolver(self.start_tasks())}
        else:
            cluster = {"engine": "processes", "backup_dir": "/journals"}
        strategy = tf.distribute.ParameterServerStrategy(
            **cluster,
            workers=self.num_workers,
            servers=self.num_servers,
            patience=30.0,
            **self.options,
        )
        cluster = strategy.cluster
        try:
            with strategy.scope():
                create = functools.partial(
                    self.create_variables, np.zeros(self.num_closures, np.int32)
                )
                counts, runs = create("count"), create("run")
                last, own = (
                    self.create_variables(np.zeros(1, np.int32), n) for n in ("last", "own")
                )
            self.has_variables.set()
            coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
            variables = counts, runs, last, own
            for index in range(self.num_closures):
                with self.errors_of_closures():
                    self.results[index] = coordinator.schedule(
                        closure, args=(index, *variables[:3])
                    )
                if rng.random() < 0.2:
                    self.write(own)
                if rng.random() < 0.1:
                    self.create_late(strategy)
                if rng.random() < 0.2:
                    self.join(coordinator, variables)
                if rng.random() < 0.03 and not self.is_external:
                    coordinator.resize(rng.randint(1, 3))
            self.join(coordinator, variables)
        except PartialClosureError as error:
            check(
                "full_for_long" in self.world.services["faults"].counts, f"{error!r} has no cause"
            )
            raise
        finally:
            if strategy._cluster_coordinator is not None:
                strategy._cluster_coordinator._shut_down()
            cluster.stop()

    def start_tasks(self):
        """Start the programs of a cluster, and start them again when they end."""
        counts = {"worker": self.num_workers, "ps": self.num_servers}
        spec = ClusterSpec(
            {
                job: [f"{network.HOST}:{3000 + 100 * len(job) + n}" for n in range(counts[job])]
                for job in counts
            }
        )

        def keep_running(job, index):
            while True:
                main = lambda: entry_point.make_listener(spec, job, index).join()
                process = machine.start_process(f"{job}{index}", main)
                self.world.wait(process.waiting_for_end)
                self.world.sleep(self.world.rng.random() * 2.0)

        manager = Process(self.world, "manager")
        for job in counts:
            for index in range(counts[job]):
                manager.start_thread(functools.partial(keep_running, job, index), f"{job}{index}")
        return spec

    @contextlib.contextmanager
    def errors_of_closures(self):
        """Continue after an error of a closure, as programs may."""
        try:
            yield
        except (ValueError, OSError, AttemptFailedError, PartialClosureError) as error:
            check(
                self.failing or "fill_disk" in self.world.services["faults"].counts,
                f"{error!r} has no cause",
            )
            self.world.note("main", f"got {error!r}")

    def join(self, coordinator, variables):
        with self.errors_of_closures():
            coordinator.join()
        self.check_seen()
        self.check_values(*variables)
        self.joined = max(self.results, default=-1) + 1

    def create_variables(self, value, name):
        variables = []
        for n in range(self.num_servers):
            with place_on_servers((n,)):
                variables.append(tf.Variable(value, name=f"{name}_{n}", trainable=False))
        return variables

    def create_late(self, strategy):
        """Create a variable and write to it at once."""
        name = f"late_{len(self.late)}"
        with self.errors_of_closures(), strategy.scope():
            variable = tf.Variable(np.ones(1, np.int32), name=name, trainable=False)
            variable.assign_add(np.ones(1, np.int32))
            self.late.append(variable)

    def write(self, own):
        """Write from the coordinator, as programs do between closures."""
        server = self.world.rng.randrange(self.num_servers)
        self.attempted[server] += 1
        with self.errors_of_closures():
            own[server].assign_add(np.full(1, 1, np.int32))
            self.written[server] += 1
            self.attempted[server] -= 1

    # ---- invariants ------------------------------------------------------------------------

    def check_values(self, counts, runs, last, own):
        """Check that finished closures were applied exactly once, and failed ones completely or not at all."""
        counts = [v.numpy() for v in counts]
        runs = [v.numpy() for v in runs]
        for index in range(self.num_closures):
            result = self.results.get(index)
            found = [int(counts[n][index]) for n in range(self.num_servers)]
            once, never = (
                [int(n in self.touched[index]) for n in range(self.num_servers)],
                [0] * self.num_servers,
            )
            allowed = (
                [never] if result is None else [once] if result._error is None else [once, never]
            )
            check(
                found in allowed,
                f"closure {index} was applied {found} times on the servers, not {allowed}",
            )
            applied = {int(runs[n][index]) for n in self.touched[index]} - {0}
            check(
                len(applied) <= 1,
                f"the servers applied different runs of closure {index}: {applied}",
            )
            check(
                applied <= self.runs.get(index, set()), f"{applied} are no runs of closure {index}"
            )
            if found == once:
                self.applied.add(index)
        for variable in self.late:
            value = int(variable.numpy()[0])
            check(
                value == 2, f"the value of {variable.name} is {value}: a write was lost or repeated"
            )
        for n in range(self.num_servers):
            value = int(own[n].numpy()[0])
            excess = value - self.written[n]
            check(
                0 <= excess <= self.attempted[n],
                f"{self.written[n]} writes to server {n} were acknowledged, found {value}",
            )
            setters = self.setters & {i for i in self.applied if n in self.touched[i]}
            value = int(last[n].numpy()[0])
            allowed = {int(runs[n][i]) for i in setters} or {0}
            check(
                value in allowed,
                f"server {n} has the value of run {value}, and not of one of {allowed}",
            )

    def check_seen(self):
        """Check the observations of closures: those applied before the last join exactly once,
        others at most once."""
        for index, result in self.results.items():
            if index < self.joined or result._error is not None:
                continue
            run, seen = result.fetch()
            check(
                run in self.runs[index],
                f"closure {index} returned run {run}, one of another closure",
            )
            for n, values in enumerate(seen):
                for other, count in enumerate(values):
                    least = int(other in self.applied and n in self.touched[other])
                    check(
                        least <= count <= 1
                        and (other != index or count == 0 or len(self.runs[index]) > 1),
                        f"closure {index} saw closure {other} {count} times on server {n}",
                    )


# Errors by which a job may end, if there are faults.
ALLOWED_ERRORS = (UnavailableError, DeadlineExceededError, OSError, PartialClosureError)


class JobFaults(Faults):
    """Faults of a job, after it has created its variables or from its start."""

    def __init__(self, here, job):
        kinds = ["kill", "kill_in_step", "suspend", "partition", "reset", "fill_disk"]
        super().__init__(here, [*kinds, "vanish"] if job.is_external else kinds)
        self.job = job
        self.is_early = here.rng.random() < 0.1

    def run(self):
        if not self.is_early:
            self.job.has_variables.wait()
        super().run()

    def fill_disk(self):
        files = self.world.services["disk"]
        name = f"ps{self.world.rng.randrange(self.job.num_servers)}"
        self.world.note("disk", f"of {name} is full")
        files.full.add(name)
        seconds = self.world.rng.choice([0.1, 1.0, 5.0])
        if self.world.seed % 5 == 0:
            seconds, self.counts["full_for_long"] = 90.0, 1
        self.world.after(seconds, lambda: files.full.discard(name))
        if self.world.rng.random() < 0.5:
            self.world.after(self.world.rng.random() * 5.0, lambda: self.kill_role(name))

    def kill_role(self, name):
        for process in self.world.services["started"]:
            if process.role == name:
                process.kill()


def simulate(seed, keeps_trace=False, mutations=()):
    """Run the job of a seed.

    Returns:
      The report, and the simulation.

    Raises:
      SimulationFailure: If the run violates an invariant.
    """
    here = machine.create_world(seed, keeps_trace, mutations)
    rng = here.rng
    job = here.services["job"] = Job(here)
    here.services["programs"] = find_program
    here.services["start_failures"] = rng.choice([0.0, 0.0, 0.1])
    here.services["unreachable"] = rng.choice([0.0, 0.0, 0.3])
    faults = JobFaults(here, job)
    files = here.services["disk"]
    replaced = [
        (connection, "_HAS_ABSTRACT_SOCKETS", False),
        (remote_server, "ParameterServer", HostServer),
        (strategies, "RemoteCluster", functools.partial(RemoteCluster, silence=SILENCE)),
        (local_processes, "sys", Facade(sys, path=[])),
        (pickling, "find_unimportable_modules", lambda strategy: []),
        (strategies, "JournalFolder", Folder),
        (external_processes, "Path", machine.Folder),
        (external_processes, "_local_listeners", machine.PerProcess()),
        (
            entry_point,
            "ServerService",
            functools.partial(remote_server.ServerService, storage=files),
        ),
        (server_client, "MAX_FORWARDED_BYTES", 0 if job.stages else 1 << 18),
        (journal.Journal, "min_snapshot_bytes", 2000 if job.snapshots else 1 << 26),
        *mutations,
    ]
    return machine.run(here, "parameter_servers", job.run, faults, replaced, ALLOWED_ERRORS)


def find_program(command, environment):
    """The name and the main function of a process."""
    role = roles.Role(**json.loads(environment[roles.ROLE_VARIABLE]))
    return f"{role.kind}{role.number}", lambda: entry_point.serve(
        role, environment[channel.SECRET_VARIABLE]
    )
