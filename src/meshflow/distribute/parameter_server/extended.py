"""`ParameterServerStrategy.extended`: what library code asks of a strategy whose variables are on servers."""

from __future__ import annotations

import logging
from typing import Any

from meshflow.core.runtime.context import context
from meshflow.distribute.extended import StrategyExtended

__all__ = ["ParameterServerExtended"]

_log = logging.getLogger("meshflow")


class ParameterServerExtended(StrategyExtended):
    """The less used part of a `ParameterServerStrategy`.

    Args:
      strategy: the strategy.
      workers: how many workers it began with.
      servers: how many parameter servers there are.

    Attributes:
      parameter_devices: names of the servers, as in `tf.Variable.device`.
    """

    # By TensorFlow's names, which its tests and Keras set and read.
    _allow_run_without_coordinator = False

    def __init__(self, strategy: Any, workers: int, servers: int) -> None:
        super().__init__(strategy)
        self._num_workers, self._num_ps = workers, servers
        self._has_warned = False

    @property
    def parameter_devices(self) -> tuple[str, ...]:
        """Names of the servers' devices."""
        return tuple(f"/job:ps/replica:0/task:{i}/device:CPU:0" for i in range(self._num_ps))

    def note_use(self) -> None:
        """Warns, once, when a step is computed by the coordinator's own program: workers do nothing then."""
        if context.closure is not None or self._allow_run_without_coordinator or self._has_warned:
            return
        self._has_warned = True
        _log.warning(
            "A `tf.distribute.experimental.ParameterServerStrategy` method is invoked without using "
            "`ClusterCoordinator.schedule`: the coordinator computes it, and workers have nothing to do. Call `run` and "
            "`reduce` in a function that is passed to `schedule`."
        )
