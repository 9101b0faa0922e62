"""Faults of processes and connections, at times and of kinds that the seed determines."""


class Faults:
    """Thread that causes faults.

    Args:
      here: The simulation.
      kinds: Names of methods.

    Attributes:
      counts: The number of faults by kind.
    """

    def __init__(self, here, kinds):
        rng = here.rng
        self.world = here
        self.kinds = rng.sample(kinds, rng.randint(0, len(kinds)))
        self.count = rng.choice([1, 2, 3, 5, 8]) if self.kinds else 0
        self.pause = rng.choice([0.02, 0.1, 0.5, 2.0])
        self.counts = {}

    def run(self):
        here = self.world
        for _ in range(self.count):
            here.sleep(here.rng.expovariate(1 / self.pause))
            kind = here.rng.choice(self.kinds)
            self.counts[kind] = self.counts.get(kind, 0) + 1
            getattr(self, kind)()

    def choose(self):
        """A process that the job has started, or None."""
        alive = [p for p in self.world.services["started"] if not p.is_dead]
        return self.world.rng.choice(alive) if alive else None

    def kill(self):
        process = self.choose()
        if process is not None:
            process.kill()

    def kill_in_step(self):
        process, rng = self.choose(), self.world.rng
        if process is not None:
            process.fuses[rng.choice(["disk", "send"])] = rng.randint(1, 20)

    def suspend(self):
        process = self.choose()
        if process is not None:
            process.suspend()
            seconds = self.world.rng.choice([0.5, 3.0, 10.0, 60.0, None])
            if seconds is not None:
                self.world.after(seconds, process.resume)

    def partition(self):
        end = self.choose_connection()
        if end is not None:
            seconds = self.world.rng.choice([0.2, 2.0, 8.0, 30.0])
            end.network.partition(end.process, end.peer.process, seconds)

    def reset(self):
        end = self.choose_connection()
        if end is not None:
            end.network.reset(end)

    def choose_connection(self):
        """An end of a connection, or None."""
        net, rng = self.world.services["network"], self.world.rng
        net.connections = [c for c in net.connections if not (c.is_closed or c.peer.is_closed)]
        if not net.connections:
            return None
        end = rng.choice(net.connections)
        return rng.choice([end, end.peer])
