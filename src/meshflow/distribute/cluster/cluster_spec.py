"""`tf.train.ClusterSpec`: the addresses of a job's processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["ClusterSpec"]


class ClusterSpec:
    """Addresses of tasks by job.

    Args:
      cluster: a dictionary from each job's name to a list of addresses, or to a dictionary from task
        numbers to addresses; or another `ClusterSpec`.

    Raises:
      TypeError: for anything else, or addresses that are not strings.

    Example:
      >>> import meshflow as tf
      >>> spec = tf.train.ClusterSpec({"worker": ["a:1", "b:1"]})
      >>> spec.num_tasks("worker"), spec.task_address("worker", 1)
      (2, 'b:1')
    """

    def __init__(self, cluster: Any) -> None:
        if isinstance(cluster, ClusterSpec):
            cluster = cluster._tasks
        if not isinstance(cluster, Mapping):
            raise TypeError(
                "`cluster` must be a dictionary mapping one or more job names to lists of network "
                f"addresses, or a `ClusterSpec`, got {type(cluster).__name__}."
            )
        self._tasks: dict[str, dict[int, str]] = {}
        for job, tasks in cluster.items():
            numbered = tasks if isinstance(tasks, Mapping) else dict(enumerate(tasks))
            if isinstance(tasks, str) or not all(isinstance(a, str) for a in numbered.values()):
                raise TypeError(
                    f"ClusterSpec: the job {job!r} must be a list or a dictionary of addresses, got {tasks!r}."
                )
            self._tasks[str(job)] = {int(i): str(numbered[i]) for i in sorted(numbered)}

    @property
    def jobs(self) -> list[str]:
        """Names of the jobs, sorted."""
        return sorted(self._tasks)

    def as_dict(self) -> dict[str, Any]:
        """Addresses by job: lists, or dictionaries where task numbers have gaps."""
        return {
            job: list(tasks.values()) if list(tasks) == list(range(len(tasks))) else dict(tasks)
            for job, tasks in self._tasks.items()
        }

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
        return f"ClusterSpec({self.as_dict()!r})"
