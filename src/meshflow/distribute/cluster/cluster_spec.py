"""`tf.train.ClusterSpec`: the addresses of a job's processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshflow.distribute.cluster import protos


class ClusterSpec:
    """Addresses of the tasks of each job.

    Args:
      cluster: Dictionary from the name of each job to a list of addresses, or to a dictionary from
        task ids to addresses; or another `ClusterSpec`, or a `tf.train.ClusterDef`.

    Raises:
      TypeError: If the argument has another type, or if names and addresses are not strings.

    Example:
      >>> spec = tf.train.ClusterSpec({"worker": ["a:1", "b:1"]})
      >>> spec.num_tasks("worker"), spec.task_address("worker", 1)
      (2, 'b:1')
    """

    def __init__(self, cluster: object) -> None:
        if isinstance(cluster, ClusterSpec):
            cluster = cluster._tasks
        elif protos.is_message(cluster, "ClusterDef"):
            cluster = {job.name: dict(job.tasks) for job in cluster.job}
        if not isinstance(cluster, Mapping):
            raise TypeError(
                "`cluster` must be a dictionary mapping one or more job names to lists of network "
                f"addresses, or a `ClusterSpec` or `ClusterDef`, got {type(cluster).__name__}."
            )
        self._tasks: dict[str, dict[int, str]] = {
            _to_string(job, "Job name"): _index_tasks(job, t) for job, t in cluster.items()
        }

    @property
    def jobs(self) -> list[str]:
        """Return the names of the jobs."""
        return list(self._tasks)

    def as_dict(self) -> dict[str, list[str] | dict[int, str]]:
        """Return addresses by job: lists, or dictionaries if task ids have gaps."""
        return {
            job: list(tasks.values()) if list(tasks) == list(range(len(tasks))) else dict(tasks)
            for job, tasks in self._tasks.items()
        }

    def as_cluster_def(self) -> Any:
        """Convert the addresses to a message, a `tf.train.ClusterDef`.

        Raises:
          ImportError: If the package protobuf is not installed.
        """
        jobs = [protos.JobDef(name=job, tasks=self._tasks[job]) for job in sorted(self._tasks)]
        return protos.ClusterDef(job=jobs)

    def num_tasks(self, job_name: str) -> int:
        """Return the number of tasks of a job.

        Raises:
          ValueError: If there is no such job.
        """
        return len(self._get_tasks(job_name))

    def task_indices(self, job_name: str) -> list[int]:
        """Return the task ids of a job.

        Raises:
          ValueError: If there is no such job.
        """
        return list(self._get_tasks(job_name))

    def task_address(self, job_name: str, task_index: int) -> str:
        """Return the address of a task.

        Raises:
          ValueError: If there is no such task.
        """
        tasks = self._get_tasks(job_name)
        if task_index not in tasks:
            raise ValueError(f"No task with index {task_index!r} in job {job_name!r}.")
        return tasks[task_index]

    def job_tasks(self, job_name: str) -> list[str | None]:
        """Return the addresses of a job's tasks in the order of their ids, with None for missing ids.

        Raises:
          ValueError: If there is no such job.
        """
        tasks = self._get_tasks(job_name)
        return [tasks.get(i) for i in range(max(tasks, default=-1) + 1)]

    def _get_tasks(self, name: str) -> dict[int, str]:
        if name not in self._tasks:
            raise ValueError(f"No such job in cluster: {name!r}; it has {self.jobs}.")
        return self._tasks[name]

    def __bool__(self) -> bool:
        return bool(self._tasks)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Mapping):
            other = ClusterSpec(other)
        return isinstance(other, ClusterSpec) and self._tasks == other._tasks

    def __hash__(self) -> int:
        return hash(str(self._tasks))

    def __repr__(self) -> str:
        return f"ClusterSpec({dict(sorted(self.as_dict().items()))!r})"


def _index_tasks(job: object, tasks: object) -> dict[int, str]:
    """Return the addresses of a job by task id."""
    if isinstance(tasks, list | tuple):
        tasks = dict(enumerate(tasks))
    if not isinstance(tasks, Mapping):
        raise TypeError(
            f"The tasks for job {job!r} must be a list or a dictionary from integers to strings, got {tasks!r}."
        )
    indexed = {int(i): _to_string(address, "Task address") for i, address in tasks.items()}
    return dict(sorted(indexed.items()))


def _to_string(value: object, label: str) -> str:
    if isinstance(value, bytes):
        return value.decode()
    if not isinstance(value, str):
        raise TypeError(f"{label} {value!r} must be bytes or unicode.")
    return value
