"""`if` statements and conditional expressions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshflow.core.autograph.control_flow_lowering import VALUE
from meshflow.core.autograph.runtime.structure_template import StructureTemplate, label, place_of
from meshflow.core.staging.branches import Merge, select
from meshflow.core.staging.logic import is_symbolic, scalar_bool

_SIDES = ("main", "else")


def if_stmt(
    test: Any,
    body: Callable[[], None],
    orelse: Callable[[], None] | None,
    get: Callable[[], tuple[Any, ...]],
    set_: Callable[..., None],
    template: StructureTemplate,
) -> None:
    """An `if` statement.

    Args:
      test: the value of the condition.
      body: the main branch.
      orelse: the else branch, or None.
      get: reads the state.
      set_: replaces the state.
      template: what the state consists of.
    """
    if not is_symbolic(test):
        if test:
            body()
        elif orelse is not None:
            orelse()
        return
    where = place_of(body)  # type: ignore[arg-type]
    init = get()
    live = template.live()

    def branch(block: Callable[[], None] | None) -> Callable[[], list[Any]]:
        def run() -> list[Any]:
            set_(*init)
            if block is not None:
                block()
            values = get()
            return [values[position] for position in live]

        return run

    final = list(init)
    try:
        merge = _IfMerge([template.labels[p] for p in live], where)
        results = select(scalar_bool(test, "a condition"), [branch(body), branch(orelse)], merge)
        for position, value in zip(live, results, strict=True):
            final[position] = value
    finally:
        # Also after an error: no tensor of a branch may stay behind in the user's objects.
        set_(*final)


def if_exp(test: Any, body: Callable[[], Any], orelse: Callable[[], Any], line: int) -> Any:
    """A conditional expression, `body() if test else orelse()`."""
    if not is_symbolic(test):
        return body() if test else orelse()
    where = f"{body.__code__.co_filename}:{line}"
    merge = _IfMerge(["the conditional expression"], where)
    return select(scalar_bool(test), [lambda: [body()], lambda: [orelse()]], merge)[0]


class _IfMerge(Merge):
    """Errors that name the variable and the line of the `if`."""

    keep_static = True

    def __init__(self, names: list[str], where: str) -> None:
        self.names = names
        self.where = where

    def _label(self, position: int) -> str:
        name = self.names[position]
        return name if " " in name else label(name)

    def may_be_missing(self, position: int) -> bool:
        # A flag says whether the returned value counts.
        return self.names[position] == VALUE

    def missing(self, position: int, branch: int) -> Exception:
        return ValueError(
            f"{self._label(position)} must also be initialized in the {_SIDES[branch]} branch of the "
            f"conditional on a tensor at {self.where}, because it is used afterwards."
        )

    def different(
        self, position: int, what: str, first: str, second: str, branch: int
    ) -> Exception:
        if self.names[position] == VALUE and "None" in (first, second):
            side = _SIDES[branch] if second == "None" else _SIDES[1 - branch]
            return ValueError(
                f"A value must also be returned from the {side} branch of the conditional on a tensor at "
                f"{self.where}. If a value is returned from one branch of a conditional, a value must be "
                "returned from all branches."
            )
        return TypeError(
            f"{self._label(position)} must have the same {what} in both branches of the conditional on a "
            f"tensor at {self.where}: got {first} in the main branch and {second} in the else branch."
            + _ADVICE.get(what, "")
        )


_ADVICE = {
    "dtype": " Use tf.cast in one of them.",
    "shape": " Shapes are static under XLA: pad to one shape, or use tf.where.",
    "value": " Only numbers and tensors can depend on a tensor.",
    "structure": "",
}
