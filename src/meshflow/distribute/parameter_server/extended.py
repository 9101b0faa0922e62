"""`ParameterServerStrategy.extended`, the part of its interface that mainly libraries use."""

from __future__ import annotations

import logging

from meshflow.core.runtime.context import context
from meshflow.distribute.extended import StrategyExtended
from meshflow.distribute.strategy import Strategy

_log = logging.getLogger("meshflow")


class ParameterServerExtended(StrategyExtended):
    """Less common part of the interface of `ParameterServerStrategy`.

    Args:
      strategy: The strategy.
      workers: Initial number of workers.
      servers: Number of parameter servers.

    Attributes:
      parameter_devices: Device names of the servers, as in `tf.Variable.device`.
    """

    # TensorFlow's names, which its tests and Keras access.
    _allow_run_without_coordinator = False

    def __init__(self, strategy: Strategy, workers: int, servers: int) -> None:
        super().__init__(strategy)
        self._num_workers, self._num_ps = workers, servers
        self._has_warned = False

    @property
    def parameter_devices(self) -> tuple[str, ...]:
        """Return the device names of the servers."""
        return tuple(f"/job:ps/replica:0/task:{i}/device:CPU:0" for i in range(self._num_ps))

    def warn_outside_closure(self) -> None:
        """Warn once if the coordinator's program computes a step itself, so that workers are idle."""
        if (
            context.worker_closure is not None
            or self._allow_run_without_coordinator
            or self._has_warned
        ):
            return
        self._has_warned = True
        _log.warning(
            "A `tf.distribute.experimental.ParameterServerStrategy` method is invoked without using "
            "`ClusterCoordinator.schedule`: the coordinator computes it, and workers are idle. Call `run` and `reduce` in "
            "a function that is passed to `schedule`."
        )
