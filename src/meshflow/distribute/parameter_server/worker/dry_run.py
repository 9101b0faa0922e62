"""Dry run of a closure by the coordinator.

It creates the closure's variables on the servers, where all workers find them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshflow.core.functions.function import Function
from meshflow.distribute.parameter_server.worker.calls import ClosureCall
from meshflow.distribute.parameter_server.worker.worker import ClosureStrategy, Worker
from meshflow.environment.types import PyTree


class DryRunWorker(Worker):
    """Worker in the coordinator's process that sends nothing to servers.

    Args:
      strategy: The strategy.
    """

    is_dry_run = True

    def __init__(self, strategy: ClosureStrategy) -> None:
        super().__init__(0, strategy.cluster.servers, strategy)

    def run_dry(self, call: ClosureCall) -> None:
        """Trace the function of a closure, or call it if it is no `tf.function`.

        It gets the data of the first worker.

        Args:
          call: The closure.

        Raises:
          StateNeededError: If an optimizer has no slots.
          Exception: The exception that the closure raises.
        """
        self._compute(call, [0] * len(self.servers))

    def _call_function(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> PyTree:
        if not isinstance(function, Function):
            return super()._call_function(function, args, kwargs)
        function.get_concrete_for(args, kwargs)
        return None
