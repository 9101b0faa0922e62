"""Execution of `if` statements and conditional expressions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshflow.core.autograph.control_flow_lowering import RETURN_VALUE
from meshflow.core.autograph.runtime.structure_template import (
    TENSORLESS,
    StructureTemplate,
    format_label,
    get_location,
)
from meshflow.core.runtime.errors import ListGrowthError, VaryingValueError
from meshflow.core.staging.branches import BranchMerge, run_branch
from meshflow.core.staging.scalar_logic import is_symbolic, to_scalar_bool

_BRANCH_NAMES = ("main", "else")


def if_stmt(
    test: object,
    body: Callable[[], None],
    orelse: Callable[[], None] | None,
    get: Callable[[], tuple[Any, ...]],
    set_: Callable[..., None],
    template: StructureTemplate,
) -> None:
    """Run an `if` statement; `orelse` is None if there is no else branch."""
    if not is_symbolic(test):
        if test:
            body()
        elif orelse is not None:
            orelse()
        return
    location = get_location(body)  # type: ignore[arg-type]
    init = get()
    live = template.list_live_parts()

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
        merge = _IfMerge([template.labels[p] for p in live], location)
        results = run_branch(
            to_scalar_bool(test, "a condition"), [branch(body), branch(orelse)], merge
        )
        for position, value in zip(live, results, strict=True):
            final[position] = value
    finally:
        # This also runs after an error: no tensor of a branch may remain in the user's objects.
        set_(*final)


def if_exp(test: object, body: Callable[[], Any], orelse: Callable[[], Any], line: int) -> Any:
    """Compute a conditional expression, `body() if test else orelse()`."""
    if not is_symbolic(test):
        return body() if test else orelse()
    location = f"{body.__code__.co_filename}:{line}"
    merge = _IfMerge(["the conditional expression"], location)
    return run_branch(to_scalar_bool(test), [lambda: [body()], lambda: [orelse()]], merge)[0]


class _IfMerge(BranchMerge):
    """Branch merge with errors that name the variable and the line of the `if`."""

    keep_static = True

    def __init__(self, names: list[str], location: str) -> None:
        self.names = names
        self.location = location

    def _format_label(self, position: int) -> str:
        name = self.names[position]
        return name if " " in name else format_label(name)

    def can_be_missing(self, position: int) -> bool:
        # A flag records whether a value was returned, so the value itself may be missing.
        return self.names[position] == RETURN_VALUE

    def make_missing_error(self, position: int, branch: int) -> Exception:
        return ValueError(
            f"{self._format_label(position)} must also be initialized in the {_BRANCH_NAMES[branch]} branch of the "
            f"conditional on a tensor at {self.location}, because it is used afterwards."
        )

    def make_mismatch_error(
        self, position: int, aspect: str, first: str, second: str, branch: int
    ) -> Exception:
        advice = _ADVICE.get(aspect, "")
        if "None" in (first, second):
            branch_name = _BRANCH_NAMES[branch] if second == "None" else _BRANCH_NAMES[1 - branch]
            if self.names[position] == RETURN_VALUE:
                return ValueError(
                    f"The {branch_name} branch must also have a return value in the conditional on a tensor at "
                    f"{self.location}. If one branch of a conditional returns a value, all branches must return one."
                )
            advice += (
                f" {self._format_label(position)} is None at the end of the {branch_name} branch."
            )
        is_list = aspect == "structure" and all(
            text == repr(TENSORLESS) or text.startswith("[") for text in (first, second)
        )
        return (ListGrowthError if is_list else VaryingValueError)(
            f"{self._format_label(position)} must have the same {aspect} in both branches of the conditional on a "
            f"tensor at {self.location}: got {first} in the main branch and {second} in the else branch.{advice}"
        )


_ADVICE = {
    "dtype": " Use tf.cast in one of them.",
    "shape": " Shapes are static under XLA: pad to one shape, or use tf.where.",
    "value": " Only numbers and tensors can depend on a tensor.",
    "structure": "",
}
