"""Run a job on a Ray cluster of which three processes are killed: one of its own, and two actors."""

import os
import signal
import sys
import time
from pathlib import Path

import ray

import meshflow as tf

killed_names = (sys.argv[1], "ray::_HostActor")
ray.init(
    "local", num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=100 << 20
)
strategy = tf.distribute.ParameterServerStrategy(workers=2, servers=1)
strategy.cluster._patience = 40.0
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    counter = tf.Variable(0)


def descendants():
    """The command of each process that this one, or one of its descendants, has started."""
    parents, commands = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int(
                (folder / "stat").read_text().rsplit(")", 1)[1].split()[1]
            )
            commands[int(folder.name)] = (folder / "cmdline").read_text().partition("\0")[0]
        except OSError:
            continue
    found = {os.getpid()}
    while more := {p for p, parent in parents.items() if parent in found} - found:
        found |= more
    return {pid: commands[pid] for pid in found}


def step():
    time.sleep(0.05)
    counter.assign_add(1)


for _ in range(500):
    coordinator.schedule(step)
commands = descendants()
killed = [pid for name in killed_names for pid, command in commands.items() if name in command]
for pid in killed[:3]:
    os.kill(pid, signal.SIGKILL)
try:
    coordinator.join()
except tf.errors.UnavailableError as error:
    print("unavailable:", error, flush=True)
strategy.cluster.stop()
print("stopped", flush=True)
os._exit(0)
