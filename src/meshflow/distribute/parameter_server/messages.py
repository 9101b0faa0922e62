"""What workers and parameter servers say to each other: one message and one answer for each closure and server."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

__all__ = [
    "Ballot",
    "Change",
    "Decision",
    "Done",
    "Largest",
    "Push",
    "Rows",
    "Step",
    "Wish",
    "rounded_up",
]

# A round, and the number of the attempt: of two, the higher one counts.
Ballot = tuple[int, int]


class Rows(NamedTuple):
    """Some rows of a variable, or of its gradient.

    Attributes:
      values: the rows.
      indices: their numbers.
    """

    values: Any
    indices: Any


class Largest(NamedTuple):
    """The largest elements of a gradient.

    Attributes:
      values: the elements.
      indices: their places in the flat gradient.
    """

    values: Any
    indices: Any


class Step(NamedTuple):
    """One call of `apply_gradients`.

    Attributes:
      optimizer: the optimizer's key.
      keys: the variables of this server; perhaps none, as the optimizer counts its steps everywhere.
      gradients: an array, `Rows` or `Largest` for each.
    """

    optimizer: int
    keys: tuple[int, ...]
    gradients: tuple[Any, ...]


@dataclass
class Push:
    """What one closure has a server do, at once or not at all.

    Attributes:
      closure: the closure's number, by which a server knows what it has done already.
      clock: the server's clock when the worker took the values that the closure worked with.
      sets: new values by key.
      adds: what is added afterwards, by key.
      steps: what optimizers do after that.
      attempt: which attempt at the closure it is.
      others: by server, what the attempt has others do after this one; see `attempts`.
    """

    closure: int
    clock: int = 0
    sets: dict[int, Any] = field(default_factory=dict)
    adds: dict[int, Any] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    attempt: int = 0
    others: dict[int, Push] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """How many bytes its arrays have."""
        gradients = [g for step in self.steps for g in step.gradients]
        arrays = [*self.sets.values(), *self.adds.values(), *gradients]
        return sum(_nbytes(array) for array in arrays)


class Decision(NamedTuple):
    """Has a server do what an attempt has staged; see `attempts`.

    Attributes:
      closure: the closure's number.
      attempt: the attempt.
      ballot: under which ballot it was decided.
    """

    closure: int
    attempt: int
    ballot: Ballot


class Done(NamedTuple):
    """Which attempt at a closure a server has done.

    Attributes:
      attempt: the attempt.
      others: what it has others do; see `Push`.
    """

    attempt: int
    others: dict[int, Push]


class Wish(NamedTuple):
    """Which values a worker wants.

    Attributes:
      clock: the server's clock of the last answer.
      known: variables of which it has the values of that time.
      unknown: variables of which it has nothing.
      settled: closures that this server was told first of, and of which the others have done their parts, too.
    """

    clock: int = -1
    known: tuple[int, ...] = ()
    unknown: tuple[int, ...] = ()
    settled: tuple[int, ...] = ()


@dataclass
class Change:
    """A server's answer: what has changed.

    Attributes:
      clock: the server's clock now: how many changes it has made.
      values: new values by key, an array or the `Rows` that changed.
      staleness: how many changes of others came between the closure's values and its push.
      repeated: whether the push had been done before.
      refused: the round of a higher ballot, when the push was not done because of it.
    """

    clock: int
    values: dict[int, Any]
    staleness: int = 0
    repeated: bool = False
    refused: int | None = None


def _nbytes(array: Any) -> int:
    if isinstance(array, (Rows, Largest)):
        return int(array.values.nbytes + array.indices.nbytes)
    return int(array.nbytes)


def rounded_up(rows: int) -> int:
    """The power of two that holds some rows: a program is compiled for each number of them."""
    return 1 << max(rows - 1, 0).bit_length()
