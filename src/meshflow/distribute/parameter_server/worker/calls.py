"""Calls of closures by workers, their outcomes, and reasons to run a closure again."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from meshflow.distribute.parameter_server.variables.hosted_variable import Optimizer
from meshflow.environment.types import PyTree


class StateNeededError(BaseException):
    """A closure uses an optimizer without slots.

    The coordinator creates the slots, and the closure runs again.

    This is no `Exception`, so that handlers in the closure do not catch it.

    Args:
      optimizer: The optimizer, or its key if it is from another process.
      variables: The variables, or their keys.
    """

    def __init__(self, optimizer: Optimizer, variables: Sequence[Any]) -> None:
        super().__init__("an optimizer has no slots yet")
        self.optimizer, self.variables = optimizer, list(variables)


class VariablesNeededError(BaseException):
    """A closure creates a variable.

    The coordinator creates it for all workers, and the closure runs again.

    This is no `Exception`, so that handlers in the closure do not catch it.

    Args:
      num_variables: Number of variables when the function of the closure was sent.
    """

    def __init__(self, num_variables: int = 0) -> None:
        super().__init__("a closure makes a variable")
        self.num_variables = num_variables


class StepLocation(enum.IntEnum):
    """Location where the optimizer steps of a closure are taken.

    By default, servers take them. If the closure reads variables that it has trained, the worker
    takes them too, on its copies. In other cases the worker takes them, and the servers get the
    resulting changes.
    """

    SERVERS = 0
    BOTH = 1
    WORKER = 2


class StepLocationError(BaseException):
    """A closure uses variables that it has trained.

    It must run again with another location of its optimizer steps.

    This is no `Exception`, so that handlers in the closure do not catch it.

    Args:
      location: The new location.
      loses_slots: Whether concurrent updates of optimizer slots are lost then.
    """

    def __init__(self, location: StepLocation, loses_slots: bool = False) -> None:
        super().__init__("a closure goes on with what it has trained")
        self.location, self.loses_slots = location, loses_slots


@dataclass
class ClosureCall:
    """A closure for a worker.

    Attributes:
      closure_id: Id of the closure, unique within its coordinator.
      function: The function.
      args: Its arguments.
      kwargs: Its keyword arguments.
      min_clocks: The clock of each server when the closure was scheduled. The closure sees at least
        the changes up to then.
      floor: Closures with smaller ids are finished.
      slot_keys: By optimizer, the keys of the variables for which it has slots.
      deleted_iterators: Keys of iterators that the program has deleted.
      attempt: Number of earlier attempts at the closure.
      has_private_variables: Whether variables that the closure creates belong to the worker.
    """

    closure_id: int
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    min_clocks: Sequence[int] = ()
    floor: int = 0
    slot_keys: Mapping[int, set[int]] = field(default_factory=dict)
    deleted_iterators: Sequence[int] = ()
    attempt: int = 0
    has_private_variables: bool = False


@dataclass
class Outcome:
    """Result of a closure.

    Attributes:
      value: The returned value, with NumPy arrays in place of tensors.
      clocks: The clock of each server.
      staleness: For each push, the number of changes by other closures between pull and push.
      repeated: Whether some server had applied the writes before.
      traffic: Bytes that the worker has sent and received since the last outcome.
    """

    value: PyTree
    clocks: list[int]
    staleness: list[int]
    repeated: bool = False
    traffic: tuple[int, int] = (0, 0)
