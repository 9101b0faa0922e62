"""An operator of a deployed model, with what it costs."""

from __future__ import annotations

import dataclasses

__all__ = ["Operator"]


@dataclasses.dataclass
class Operator:
    """An operator and its costs.

    Attributes:
      name: its own.
      kind: what it computes.
      calls: for each run of the model.
      seconds: for each run of the model.
      first_seconds: in the first run, or None where it is not known.
      bytes: of its results, for XLA of its operands, too; None where it is not known.
    """

    name: str
    kind: str
    calls: float
    seconds: float
    first_seconds: float | None = None
    bytes: int | None = None
