"""Dry run of a closure by the coordinator.

It creates the closure's variables on the servers, where all workers find them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshflow.core.functions.function import Function
from meshflow.distribute.parameter_server.worker import Call, Worker, WorkerStrategy
from meshflow.environment.types import PyTree

__all__ = ["Rehearsal"]


class Rehearsal(Worker):
    """Worker in the coordinator's process that sends nothing to servers.

    Args:
      strategy: The strategy.
    """

    rehearses = True

    def __init__(self, strategy: WorkerStrategy) -> None:
        super().__init__(0, strategy.cluster.servers, strategy)

    def try_out(self, call: Call) -> None:
        """Trace the function of a closure, or call it if it is no `tf.function`.

        It gets the data of the first worker.

        Args:
          call: The closure.

        Raises:
          StateNeededError: If an optimizer has no slots.
          Exception: The exception that the closure raises.
        """
        self._computed(call, [0] * len(self.servers))

    def _result(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> PyTree:
        if not isinstance(function, Function):
            return super()._result(function, args, kwargs)
        function.concrete_for(args, kwargs)
        return None
