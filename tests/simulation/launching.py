"""Simulated jobs of `meshflow launch`: the launcher, its supervisor, the rendezvous, and workers.

A worker joins the cluster by the code of production and trains: it waits for the others at each step, as collectives do,
and worker 0 writes checkpoints. JAX's coordination service and collectives are no part of the simulation.
"""

import contextlib
import itertools
import json

from meshflow.cli import launch
from meshflow.cli import worker as worker_script
from meshflow.distribute.cluster import coordination, coordination_service
from simulation import machine, network
from simulation.faults import Faults
from simulation.scheduler import Process, check, world

WATCHDOG_SECONDS = 5.0
# What processes outside the job send to its rendezvous.
STRANGE_MESSAGES = [
    b"",
    b"GET / HTTP/1.1\r\n\r\n",
    b'{"meshflow": "' + b"0" * 64 + b'"}\n{}\n',
]


class Output:
    """The output of the launcher."""

    def write(self, text):
        world().note("launch", text.strip())

    def flush(self):
        pass


class JaxStub:
    """Objects of JAX that `join_cluster` uses, and that the simulation does not have."""

    def __getattr__(self, name):
        return self

    def __call__(self, *_, **__):
        return False


class Settings:
    """`FunctionSettings` of each process."""

    @property
    def on_launch(self):
        return world().current.process.globals["on_launch"]

    @on_launch.setter
    def on_launch(self, function):
        world().current.process.globals["on_launch"] = function


class Training:
    """A training job and its program.

    Attributes:
      steps: Steps of each worker in the current start.
      checkpoint: Step of the last checkpoint.
      finished: The starts in which each worker has finished.
    """

    def __init__(self, here):
        rng = here.rng
        self.world = here
        self.num_workers, self.num_steps = rng.randint(1, 4), rng.randint(1, 8)
        self.max_restarts = rng.choice([0, 1, 3])
        self.loses_peers = rng.random() < 0.5
        # The step at which a worker hangs. Workers are monitored from their second step on.
        hangs = self.num_steps > 3 and rng.random() < 0.3
        self.hang_step = rng.randint(4, self.num_steps) if hangs else None
        self.step_seconds = rng.choice([0.01, 0.5])
        self.steps, self.arrivals = {}, []
        self.checkpoint = 0
        self.starts = set()
        self.finished = set()
        self.is_launcher_killed = rng.random() < 0.15
        self.code = None
        self.ended = []
        self.names = itertools.count()

    # ---- the program of workers ------------------------------------------------------------

    def find_program(self, command, environment):
        if command[1] == coordination_service.__file__:
            return "service", self.serve
        assert command[1] == worker_script.__file__
        index = json.loads(environment["TF_CONFIG"])["task"]["index"]
        return f"worker{index}", lambda: self.work(index, environment)

    def serve(self):
        """JAX's coordination service, which ends with its launcher."""
        here = self.world
        here.sleep(here.rng.random() * 0.5)
        here.current.process.stdout.write("serving\n")
        here.wait([])

    def work(self, index, environment):
        here = self.world
        process = here.current.process
        start = int(environment["MESHFLOW_RESTARTS"])
        self.starts.add(start)
        for other in here.services["started"]:
            is_older = other is not process and other.role == process.role
            check(not is_older or other.is_dead, f"two processes are worker {index}")
        process.globals.update(start=start, on_launch=lambda: None)
        addresses = json.loads(environment["TF_CONFIG"])["cluster"]["worker"]
        coordination.join_cluster([f"worker:{i}" for i in range(len(addresses))], addresses, index)
        step = self.checkpoint
        while step < self.num_steps:
            here.sleep(here.rng.random() * self.step_seconds)
            if (start, index, step + 1) == (0, 0, self.hang_step):
                here.note(process.name, "hangs")
                here.services["faults"].counts["hang"] = 1
                here.wait([])
            coordination.FunctionSettings.on_launch()
            step += 1
            self.wait_for_peers(start, index, step)
            if index == 0 and step > self.checkpoint:
                self.checkpoint = step
        self.finished.add((start, index))

    def wait_for_peers(self, start, index, step):
        """Wait until all workers have done a step, as a collective does."""
        here = self.world
        self.steps[start, index] = step
        here.wake_all(self.arrivals)
        while any(self.steps.get((start, n), 0) < step for n in range(self.num_workers)):
            here.wait(self.arrivals, 1.0)
            peers = [p for p in here.services["started"] if p.globals.get("start") == start]
            if self.loses_peers and any(p.exit_code for p in peers):
                raise RuntimeError("a collective has failed")

    # ---- the launcher ----------------------------------------------------------------------

    def run(self):
        here = self.world
        launcher = Process(here, "launcher")
        job = launch.Job(
            __file__,
            workers=self.num_workers,
            max_restarts=self.max_restarts,
            watchdog=WATCHDOG_SECONDS,
            output=Output(),
        )

        def run_job():
            self.code = job.run()
            launcher.kill(self.code)

        launcher.start_thread(run_job, "main")
        if self.is_launcher_killed:
            here.after(here.rng.random() * 5.0, launcher.kill)
        while not launcher.is_dead:
            here.wait(launcher.waiting_for_end)
        if self.code is None:
            # The kernel ends the processes of a launcher that was killed.
            for process in list(here.services["started"]):
                process.kill()
            return
        self.check_end()

    def check_end(self):
        alive = [p.name for p in self.world.services["started"] if not p.is_dead]
        check(not alive, f"processes are left after the end of the job: {alive}")
        check(
            len(self.starts) <= self.max_restarts + 1,
            f"the job was started {len(self.starts)} times",
        )
        last = max(self.starts, default=0)
        finished = {index for start, index in self.finished if start == last}
        everyone = set(range(self.num_workers))
        check(
            self.code or finished == everyone,
            f"the job succeeded, but only the workers {finished} have finished",
        )
        check(
            not self.code or self.world.services["faults"].counts,
            f"the job failed without a fault: {self.code}",
        )


class JobFaults(Faults):
    """Faults of a job, and strangers that connect to its rendezvous."""

    def __init__(self, here):
        super().__init__(here, ["kill", "kill_in_step", "suspend", "partition", "reset", "intrude"])

    def intrude(self):
        """A process outside the job connects to a listener and sends something."""
        here = self.world
        listeners = list(here.services["network"].listeners)
        if not listeners:
            return
        port = here.rng.choice(listeners)

        def connect():
            with contextlib.suppress(OSError):
                connection = network.create_connection((network.HOST, port), 5.0)
                connection.sendall(here.rng.choice(STRANGE_MESSAGES))
                here.sleep(here.rng.random() * 20.0)
                connection.close()

        Process(here, "stranger").start_thread(connect, "main")


def simulate(seed, keeps_trace=False, mutations=()):
    """Run the job of a seed; see `parameter_servers.simulate`."""
    here = machine.create_world(seed, keeps_trace, mutations)
    job = here.services["job"] = Training(here)
    here.services["programs"] = job.find_program
    here.services["start_failures"] = here.rng.choice([0.0, 0.0, 0.1])
    stub = JaxStub()
    replaced = [
        (coordination, "jax", stub),
        (coordination, "xla_bridge", stub),
        (coordination, "_connect_to_service", lambda *_: None),
        (coordination, "_share_random_seed", lambda: None),
        (coordination, "FunctionSettings", Settings()),
        (coordination, "_current_cluster", machine.PerProcessList()),
        (launch, "_list_gpus", lambda: []),
        *mutations,
    ]
    return machine.run(here, "launching", job.run, JobFaults(here), replaced, ())
