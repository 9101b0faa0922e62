"""A closure tried out by the coordinator, so that the variables which it makes are where all workers find them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshflow.core.functions.function import Function
from meshflow.distribute.parameter_server.worker import Call, Worker

__all__ = ["Rehearsal"]


class Rehearsal(Worker):
    """A worker in the coordinator's process that tells servers nothing.

    Args:
      strategy: the strategy.
    """

    rehearses = True

    def __init__(self, strategy: Any) -> None:
        super().__init__(0, strategy.cluster.servers, strategy)

    def try_out(self, call: Call) -> None:
        """Traces a closure's function, or runs one that is not traced, on the data of the first worker.

        Args:
          call: the closure.

        Raises:
          StateNeededError: when an optimizer has no slots.
          Exception: the closure's own.
        """
        self._computed(call, [0] * len(self.servers))

    def _result(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if not isinstance(function, Function):
            return super()._result(function, args, kwargs)
        function.concrete_for(args, kwargs)
        return None
