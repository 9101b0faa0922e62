"""Parameter servers with up to 1,000 workers, simulated event by event from costs that were measured on a real cluster.

    python benchmarks/parameter_server_simulation.py              # the table, from parameter_server_costs.json
    python benchmarks/parameter_server_simulation.py --measure    # measures the costs on this machine, and writes them
    python benchmarks/parameter_server_simulation.py --validate   # beside real runs of 1, 2 and 4 workers

A worker gets a closure from the coordinator, computes, sends each server its share of the gradients, and has the
answer, the parameters that changed, when the server has come to it. The coordinator and each server do one thing at a
time. In measured runs workers wait instead of computing, as if each had a machine of its own; what the coordinator and a
server are busy with is counted in processor seconds, which others' load does not change much.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

COSTS = Path(__file__).with_name("parameter_server_costs.json")
FLOAT = 4


@dataclass
class Costs:
    """Seconds that things take.

    Attributes:
      dispatch: of the coordinator for each closure.
      closure: of a worker from one closure to the next, besides `dispatch` and what it computes.
      exchange: a message to a server and its answer, besides what the server is busy with.
      exchange_byte: the same for each byte pushed, with the answer of as many bytes.
      apply: of a server for each push, with its message and the answer.
      apply_byte: for each byte of it.
      row_byte: the same for rows of a table.
      jitter: standard deviation of a worker's computing, as a share of it.
      machine: where this was measured.
    """

    dispatch: float
    closure: float
    exchange: float
    exchange_byte: float
    apply: float
    apply_byte: float
    row_byte: float
    jitter: float
    machine: str = ""


@dataclass
class Job:
    """What is trained.

    Attributes:
      name: what it is called.
      compute: seconds a worker computes for a step.
      push: bytes of gradients in a step, over all servers.
      servers: how many servers share them.
      by_rows: whether they are rows of tables.
    """

    name: str
    compute: float
    push: float
    servers: int
    by_rows: bool = False


@dataclass
class Found:
    """What a simulation or a run came to.

    Attributes:
      rate: steps a second.
      staleness: how many pushes a server had done between a worker's last pull and its next push, on average.
      worst: the largest of them in 99 of 100 pushes.
      server: the share of the time in which servers worked.
      coordinator: the share of the time in which the coordinator worked.
    """

    rate: float
    staleness: float
    worst: float
    server: float
    coordinator: float


class Station:
    """A resource that serves one request at a time, in the order of arrival."""

    def __init__(self) -> None:
        self.free, self.worked, self.done = 0.0, 0.0, 0

    def serve(self, now: float, seconds: float) -> float:
        """Return the time at which a request that arrives now and takes some seconds is done."""
        self.free = max(self.free, now) + seconds
        self.worked += seconds
        self.done += 1
        return self.free


def simulate(job: Job, workers: int, costs: Costs, steps: int = 20_000) -> Found:
    """Run the workers' events until a number of steps is done."""
    draw = random.Random(0)
    coordinator, servers = Station(), [Station() for _ in range(job.servers)]
    share = job.push / job.servers
    way = (costs.exchange + costs.exchange_byte * share) / 2
    work = costs.apply + (costs.row_byte if job.by_rows else costs.apply_byte) * share
    # Events are (time, order, action, worker, server); in each queue of a server, pushes are in
    # order.
    order = iter(range(1 << 62))
    events: list[tuple[float, int, str, int, int]] = []
    seen = [[0] * job.servers for _ in range(workers)]
    missing = [0] * workers
    stale: list[int] = []
    warm, done, began, worked = steps // 5, 0, 0.0, (0.0, 0.0)

    def at(when: float, what: str, worker: int, server: int = 0) -> None:
        heapq.heappush(events, (when, next(order), what, worker, server))

    for worker in range(workers):
        at(draw.random() * job.compute, "ask", worker)
    while done < steps + warm:
        now, _, what, worker, server = heapq.heappop(events)
        if what == "ask":
            at(coordinator.serve(now, costs.dispatch) + costs.closure, "compute", worker)
        elif what == "compute":
            took = max(0.1, draw.gauss(1, costs.jitter)) * job.compute
            missing[worker] = job.servers
            for number in range(job.servers):
                at(now + took + way, "push", worker, number)
        elif what == "push":
            station = servers[server]
            if done >= warm:
                stale.append(station.done - seen[worker][server])
            finished = station.serve(now, work)
            seen[worker][server] = station.done
            at(finished + way, "answer", worker, server)
        else:
            missing[worker] -= 1
            if not missing[worker]:
                done += 1
                if done == warm:
                    began = now
                    worked = sum(s.worked for s in servers), coordinator.worked
                at(now, "ask", worker)
    span = now - began
    busy = (sum(s.worked for s in servers) - worked[0]) / job.servers / span
    stale.sort()
    return Found(
        steps / span, statistics.fmean(stale), stale[int(0.99 * len(stale))], min(1.0, busy),
        min(1.0, (coordinator.worked - worked[1]) / span),
    )  # fmt: skip


# ---- a real cluster ------------------------------------------------------------------------


class Cluster:
    """Servers and workers of this machine, and a step whose computing is waiting.

    Args:
      workers: how many workers.
      size: how many numbers the variable has.
      engine: the strategy's engine.
      rows: how many rows of it a step trains, of 64 numbers; default all of it.
    """

    def __init__(self, workers: int, size: int, engine: str, rows: int = 0) -> None:
        import meshflow as tf

        self.strategy = tf.distribute.ParameterServerStrategy(
            engine=engine, workers=workers, servers=1, durable=False
        )
        with self.strategy.scope():
            made = tf.Variable(tf.zeros([size // 64, 64] if rows else [size]), name="w")
            optimizer = (
                tf.keras.optimizers.legacy.Adagrad(0.1) if rows else tf.keras.optimizers.SGD(0.1)
            )
        self.coordinator = tf.distribute.coordinator.ClusterCoordinator(self.strategy)
        chosen = tf.random.uniform([rows], 0, size // 64, "int64", seed=0)

        @tf.function
        def train() -> None:
            if rows:
                gradient = tf.IndexedSlices(tf.gather(made, chosen) * 0.5 + 1.0, chosen)
            else:
                gradient = made * 0.5 + 1.0
            optimizer.apply_gradients([(gradient, made)])

        def step(seconds: float, trains: bool) -> None:
            import time

            time.sleep(seconds)
            if trains:
                train()

        self._step = step
        self.workers = workers

    def rate(self, steps: int, seconds: float = 0.0, trains: bool = True) -> float:
        """Steps a second, with all workers at work."""
        for _ in range(4 * self.workers):  # compiles
            self.coordinator.schedule(self._step, args=(0.01, trains))
        self.coordinator.join()
        began = time.perf_counter()
        for _ in range(steps):
            self.coordinator.schedule(self._step, args=(seconds, trains))
        self.coordinator.join()
        return steps / (time.perf_counter() - began)

    def overheads(
        self, wait: float = 0.03, steps: int = 30, rounds: int = 5
    ) -> tuple[float, float]:
        """Seconds of a closure besides its waiting: of one that does nothing else, and of one that trains.

        The least of some rounds, as what others do only adds to it.
        """
        found: dict[bool, list[float]] = {False: [], True: []}
        for number in range(2 * rounds):
            trains = bool(number % 2)
            found[trains].append(self.workers / self.rate(steps, wait, trains) - wait)
        return min(found[False]), min(found[True])

    def server_seconds(self) -> float:
        """Processor seconds of the server for each push and its answer, with all that it does for the message."""
        server = self.strategy.cluster.get_pid("ps", 0)
        return self._seconds(lambda: _processor_seconds(server), 300, True)

    def coordinator_seconds(self) -> float:
        """Processor seconds of this process for each closure."""
        return self._seconds(time.process_time, 1000, False)

    def _seconds(self, clock: Callable[[], float], steps: int, trains: bool) -> float:
        """The least of some rounds, as a cache that others fill too makes them longer."""
        self.rate(20, trains=trains)
        found = []
        for _ in range(4):
            began = clock()
            self.rate(steps, trains=trains)
            # `rate` runs additional steps first.
            found.append((clock() - began) / (steps + 4 * self.workers))
        return min(found)

    def stop(self) -> None:
        """End its processes."""
        self.strategy.cluster.stop()


def measure(engine: str) -> Costs:
    """The costs on this machine."""
    small, large = 1_000, 1_000_000
    one = Cluster(1, small, engine)
    empty, tiny = one.overheads()
    apply = one.server_seconds()
    one.stop()
    one = Cluster(1, large, engine)
    beside, big = one.overheads()
    apply_large = one.server_seconds()
    one.stop()
    count = 4096
    one = Cluster(1, 64_000_000, engine, count)
    apply_rows = one.server_seconds()
    one.stop()
    four = Cluster(4, small, engine)
    dispatch = four.coordinator_seconds()
    four.stop()
    per_byte = max(0.0, apply_large - apply) / (FLOAT * (large - small))
    row_byte = max(0.0, apply_rows - apply) / (FLOAT * 64 * count)
    exchange = max(0.0, tiny - empty - apply)
    more = (big - beside) - (tiny - empty) - (apply_large - apply)
    exchange_byte = max(0.0, more) / (FLOAT * (large - small))
    return Costs(
        dispatch, max(0.0, empty - dispatch), exchange, exchange_byte, apply, per_byte, row_byte, 0.1,
        machine(),
    )  # fmt: skip


def machine() -> str:
    """This machine, in a few words."""
    import os

    names = [
        line.split(":")[1].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return f"{names[0] if names else 'unknown processor'}, {os.cpu_count()} cores"


def validate(costs: Costs, engine: str) -> None:
    """Real runs of few workers beside the simulation."""
    print(f"{'workers':>8}{'wait ms':>9}{'MB':>6}{'measured/s':>12}{'simulated/s':>13}{'ratio':>7}")
    still = replace(costs, jitter=0.0)
    for size in (1_000, 1_000_000):
        for workers in (1, 2, 4):
            cluster = Cluster(workers, size, engine)
            wait = 0.05
            real = statistics.median(cluster.rate(40 * workers, wait) for _ in range(3))
            cluster.stop()
            job = Job("", wait, FLOAT * size, 1)
            made = simulate(job, workers, still, 4000).rate
            mb = FLOAT * size / 1e6
            print(
                f"{workers:>8}{wait * 1e3:>9.0f}{mb:>6.1f}{real:>12.1f}{made:>13.1f}{made / real:>7.2f}",
                flush=True,
            )


def _processor_seconds(pid: int) -> float:
    """Return the processor time of a process, by its clock in Linux."""
    return time.clock_gettime(~pid << 3 | 2)


# ---- the table -----------------------------------------------------------------------------

JOBS = [
    Job("small MLP, 0.4 MB", 0.02, 0.4e6, 1),
    Job("CNN, 20 MB", 0.2, 20e6, 4),
    Job("CNN, 20 MB", 0.2, 20e6, 32),
    Job("wide and deep, rows of 1 MB", 0.05, 1e6, 4, True),
    Job("wide and deep, rows of 1 MB", 0.05, 1e6, 32, True),
]
WORKERS = (1, 4, 16, 64, 256, 1000)


def table(costs: Costs, steps: int) -> None:
    """Throughput, staleness and who is busy, for each job and number of workers."""
    print(f"costs: {costs.machine}")
    head = ("workers", "steps/s", "of ideal", "staleness", "99 %", "servers", "coordinator")
    for job in JOBS:
        print(f"\n{job.name}, {job.compute * 1e3:.0f} ms a step, {job.servers} servers")
        print("".join(f"{h:>12}" for h in head))
        alone = 0.0
        for workers in WORKERS:
            found = simulate(job, workers, costs, steps)
            alone = alone or found.rate / workers
            print(
                f"{workers:>12}{found.rate:>12.1f}{found.rate / (alone * workers):>12.0%}"
                f"{found.staleness:>12.1f}{found.worst:>12.0f}{found.server:>12.0%}{found.coordinator:>12.0%}"
            )


def main() -> None:
    """Measures, validates, or prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--validate", action="store_true")
    parser.add_argument("--engine", default="processes", choices=["ray", "processes"])
    parser.add_argument("--costs", type=Path, default=COSTS)
    parser.add_argument("--steps", type=int, default=10_000)
    options = parser.parse_args()
    if options.measure:
        options.costs.write_text(json.dumps(asdict(measure(options.engine)), indent=2) + "\n")
    known: dict[str, Any] = json.loads(options.costs.read_text())
    costs = Costs(**known)
    if options.measure:
        print(costs)
    if options.validate:
        validate(costs, options.engine)
    if not (options.measure or options.validate):
        table(costs, options.steps)


if __name__ == "__main__":
    main()
