"""Messages between the coordinator, workers and parameter servers.

For each closure, a worker sends one message to each server and receives one reply.
`ServerInterface` is the interface that both a server and its proxy in another process implement.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from meshflow.distribute.parameter_server.transport.memory_pools import ArrayReceiver
from meshflow.environment.types import Array, ArrayLike

# Round and id of an attempt. Of two ballots, the greater one wins.
Ballot = tuple[int, int]


class ClosureOptions(NamedTuple):
    """Options of closures, which the coordinator sends to workers; see `ParameterServerStrategy`."""

    max_staleness: int | None = None
    queue_size: int = 4096
    backup_closures: bool = False
    compression: str | float | None = None
    report_every: float | None = None
    log_dir: str | None = None


class VariableRows(NamedTuple):
    """Some rows of a variable or of its gradient.

    Attributes:
      values: The rows, of shape `[n, ...]`.
      indices: Their row indices, of shape `[n]`.
    """

    values: Array
    indices: Array


class TopElements(NamedTuple):
    """The elements of a gradient with the largest absolute values.

    Attributes:
      values: The elements, of shape `[n]`.
      indices: Their offsets in the flattened gradient, of shape `[n]`.
    """

    values: np.ndarray
    indices: np.ndarray


# A gradient as it is sent.
SentGradient: TypeAlias = Array | VariableRows | TopElements


class OptimizerStep(NamedTuple):
    """One call of `apply_gradients`.

    Attributes:
      optimizer: Key of the optimizer.
      keys: Keys of the trained variables on this server. There may be none, because the optimizer
        counts its steps on all servers.
      gradients: The gradient of each variable: an array, `VariableRows` or `TopElements`.
    """

    optimizer: int
    keys: tuple[int, ...]
    gradients: tuple[SentGradient, ...]


@dataclass
class Push:
    """The writes of one closure to one server, which are applied atomically.

    Attributes:
      closure: Id of the closure, by which a server recognizes a push that it has already applied.
      clock: Clock of the server when the worker pulled the values that the closure has used.
      sets: New values, by variable key.
      adds: Values to add after that, by variable key.
      steps: Optimizer steps to take after that.
      attempt: Id of the attempt at the closure.
      others: The pushes of this attempt to other servers, by server; see the module `attempts`.
    """

    closure: int
    clock: int = 0
    sets: dict[int, Array] = field(default_factory=dict)
    adds: dict[int, Array] = field(default_factory=dict)
    steps: list[OptimizerStep] = field(default_factory=list)
    attempt: int = 0
    others: dict[int, Push] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Return the total size of all arrays in bytes."""
        gradients = [g for step in self.steps for g in step.gradients]
        arrays = [*self.sets.values(), *self.adds.values(), *gradients]
        return sum(_count_bytes(array) for array in arrays)


class Decision(NamedTuple):
    """Request to apply the push that an attempt has staged; see the module `attempts`.

    Attributes:
      closure: Id of the closure.
      attempt: Id of the attempt.
      ballot: The ballot under which the attempt was chosen.
    """

    closure: int
    attempt: int
    ballot: Ballot


class CompletedAttempt(NamedTuple):
    """Record of the attempt at a closure that a server has applied.

    Attributes:
      attempt: Id of the attempt.
      others: The attempt's pushes to other servers; see `Push`.
    """

    attempt: int
    others: dict[int, Push]


class PullRequest(NamedTuple):
    """Request for the values of variables.

    Attributes:
      clock: Clock of the server in its last reply.
      known: Keys of variables of which the worker has the values at that clock.
      unknown: Keys of variables of which the worker has no value.
      settled: Ids of closures for which all pushes were sent to this server first and have since
        been applied by all other servers.
    """

    clock: int = -1
    known: tuple[int, ...] = ()
    unknown: tuple[int, ...] = ()
    settled: tuple[int, ...] = ()


@dataclass
class ExchangeReply:
    """Reply of a server to an exchange.

    Attributes:
      clock: Clock of the server, which counts its changes.
      values: New values by variable key: an array, or the `VariableRows` that have changed.
      staleness: Number of changes by other closures between the pull of the closure's values and
        its push.
      repeated: Whether the push had been applied before.
      refused: Round of the higher ballot because of which the push was not applied, or None.
    """

    clock: int
    values: dict[int, Array | VariableRows]
    staleness: int = 0
    repeated: bool = False
    refused: int | None = None


class ServerInterface(ArrayReceiver, Protocol):
    """Interface of `ParameterServer` and of `RemoteServer`, its proxy in other processes.

    The methods are described at `ParameterServer`.
    """

    @property
    def traffic(self) -> tuple[int, int]:
        """Return the numbers of bytes sent to the server and received from it."""

    def create(
        self, key: int, value: Array, name: str, constraint: Callable[..., Any] | None = None
    ) -> None:
        """Create a variable on the server."""

    def read(self, keys: Sequence[int]) -> tuple[int, dict[int, Array]]:
        """Return the clock and the values of variables."""

    def write(self, key: int, value: ArrayLike, adds: bool = False) -> int:
        """Assign or add a value to a variable, and return the clock."""

    def stage(self, push: Push, ballot: Ballot, floor: int = 0) -> CompletedAttempt | None:
        """Store a push until a `Decision` arrives."""

    def exchange(
        self, push: Push | Decision | None, wish: PullRequest, floor: int = 0
    ) -> ExchangeReply:
        """Apply a push and return the values that have changed."""


def _count_bytes(array: SentGradient) -> int:
    if isinstance(array, (VariableRows, TopElements)):
        return int(array.values.nbytes + array.indices.nbytes)
    return int(array.nbytes)


def round_up_to_power_of_two(count: int) -> int:
    """Return the smallest power of two that is at least `count`.

    Rows are padded to such a count, because XLA compiles a program for each shape.
    """
    return 1 << max(count - 1, 0).bit_length()
