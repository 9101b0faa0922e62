"""`tf.train.ClusterSpec`: the addresses of a job's processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshflow.distribute.cluster import protos

__all__ = ["ClusterSpec"]


class ClusterSpec:
    """Addresses of tasks by job.

    Args:
      cluster: a dictionary from each job's name to a list of addresses, or to a dictionary from task
        numbers to addresses; or another `ClusterSpec`, or a `tf.train.ClusterDef`.

    Raises:
      TypeError: for anything else, or names and addresses that are not strings.

    Example:
      >>> import meshflow as tf
      >>> spec = tf.train.ClusterSpec({"worker": ["a:1", "b:1"]})
      >>> spec.num_tasks("worker"), spec.task_address("worker", 1)
      (2, 'b:1')
    """

    def __init__(self, cluster: Any) -> None:
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
            _text(job, "Job name"): _numbered(job, t) for job, t in cluster.items()
        }

    @property
    def jobs(self) -> list[str]:
        """Names of the jobs."""
        return list(self._tasks)

    def as_dict(self) -> dict[str, Any]:
        """Addresses by job: lists, or dictionaries where task numbers have gaps."""
        return {
            job: list(tasks.values()) if list(tasks) == list(range(len(tasks))) else dict(tasks)
            for job, tasks in self._tasks.items()
        }

    def as_cluster_def(self) -> Any:
        """The same as a message, a `tf.train.ClusterDef`.

        Raises:
          ImportError: without the package protobuf.
        """
        jobs = [protos.JobDef(name=job, tasks=self._tasks[job]) for job in sorted(self._tasks)]
        return protos.ClusterDef(job=jobs)

    def num_tasks(self, job_name: str) -> int:
        """How many tasks a job has.

        Args:
          job_name: the job.

        Raises:
          ValueError: when there is no such job.
        """
        return len(self._job(job_name))

    def task_indices(self, job_name: str) -> list[int]:
        """The numbers of a job's tasks.

        Args:
          job_name: the job.

        Raises:
          ValueError: when there is no such job.
        """
        return list(self._job(job_name))

    def task_address(self, job_name: str, task_index: int) -> str:
        """The address of a task.

        Args:
          job_name: its job.
          task_index: its number.

        Raises:
          ValueError: when there is no such task.
        """
        tasks = self._job(job_name)
        if task_index not in tasks:
            raise ValueError(f"No task with index {task_index!r} in job {job_name!r}.")
        return tasks[task_index]

    def job_tasks(self, job_name: str) -> list[str | None]:
        """Addresses of a job's tasks by number, with None where a number has no task.

        Args:
          job_name: the job.

        Raises:
          ValueError: when there is no such job.
        """
        tasks = self._job(job_name)
        return [tasks.get(i) for i in range(max(tasks, default=-1) + 1)]

    def _job(self, name: str) -> dict[int, str]:
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


def _numbered(job: Any, tasks: Any) -> dict[int, str]:
    """Addresses by number."""
    if isinstance(tasks, list | tuple):
        tasks = dict(enumerate(tasks))
    if not isinstance(tasks, Mapping):
        raise TypeError(
            f"The tasks for job {job!r} must be a list or a dictionary from integers to strings, got {tasks!r}."
        )
    numbered = {int(i): _text(address, "Task address") for i, address in tasks.items()}
    return dict(sorted(numbered.items()))


def _text(value: Any, what: str) -> str:
    if isinstance(value, bytes):
        return value.decode()
    if not isinstance(value, str):
        raise TypeError(f"{what} {value!r} must be bytes or unicode.")
    return value
