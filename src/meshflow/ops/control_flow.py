"""`tf.cond`, `case`, `switch_case` and `while_loop`: control flow as functions.

Eagerly they run the chosen Python function, or the Python loop. While a function is traced they
become XLA control flow; outer tensors and variables may be used, and variables assigned, freely.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax.numpy as jnp
import numpy as np

from meshflow.core.autograph.conversion import convert_if_enabled
from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operands import static_value
from meshflow.core.dispatch.operation import Op
from meshflow.core.runtime import errors
from meshflow.core.runtime.context import context
from meshflow.core.staging import branches, logic, loops
from meshflow.core.staging.branches import Merge
from meshflow.core.staging.loop_state import Invariants
from meshflow.core.values import nest
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor

__all__ = ["case", "cond", "switch_case", "while_loop"]

T = TypeVar("T")


class FunctionMerge(Merge):
    """Errors for branches that are functions with names."""

    def __init__(self, op: str, functions: Sequence[str]) -> None:
        self.op = op
        self.functions = functions

    def different(
        self, position: int, what: str, first: str, second: str, branch: int
    ) -> Exception:
        one, other = self.functions[0], self.functions[branch]
        advice = {
            "shape": " Shapes are static under XLA: pad to one shape, or use tf.where.",
            "dtype": " Use tf.cast in one of them.",
        }.get(what, "")
        return TypeError(
            f"{self.op}: {one} and {other} must return the same {what}, got {first} and {second}.{advice}"
        )


def cond(
    pred: Any,
    true_fn: Callable[[], T] | None = None,
    false_fn: Callable[[], T] | None = None,
    name: str | None = None,
) -> T:
    """Runs `true_fn()` if `pred`, else `false_fn()`.

    Args:
      pred: a scalar bool, tensor or Python value.
      true_fn: a function without arguments.
      false_fn: a function without arguments; while tracing both are traced, and must return the
        same structure, dtypes and shapes.
      name: ignored.

    Returns:
      What the chosen function returns.

    Raises:
      TypeError: when an argument is not callable, or the results differ in form.

    Example:
      >>> import meshflow as tf
      >>> x = tf.constant(2.0)
      >>> tf.cond(x > 1, lambda: x * 10, lambda: x).numpy()
      np.float32(20.0)
    """
    for label, function in (("true_fn", true_fn), ("false_fn", false_fn)):
        if not callable(function):
            raise TypeError(f"tf.cond: {label} must be callable, got {function!r}.")
    first, second = _converted(true_fn), _converted(false_fn)
    if not logic.is_symbolic(pred):
        return first() if _truth(pred) else second()
    merge = FunctionMerge("tf.cond", ("true_fn", "false_fn"))
    chosen = logic.scalar_bool(pred, "the predicate of tf.cond")
    return branches.select(chosen, [lambda: [first()], lambda: [second()]], merge)[0]


def _converted(function: Any) -> Callable[..., Any]:
    return convert_if_enabled(function)


def _truth(pred: Any) -> bool:
    if isinstance(pred, (Tensor, np.ndarray)) or hasattr(pred, "_as_tensor"):
        return bool(logic.scalar_bool(pred, "a predicate"))
    return bool(pred)


def case(
    pred_fn_pairs: Any,
    default: Callable[[], Any] | None = None,
    exclusive: bool = False,
    strict: bool = False,
    name: str = "case",
) -> Any:
    """Runs the function of the first predicate that is True.

    Args:
      pred_fn_pairs: a list of (scalar bool, function without arguments).
      default: runs when no predicate is True; without it the last function does while tracing.
      exclusive: eagerly, checks that at most one predicate is True.
      strict: accepted.
      name: ignored.

    Returns:
      What the chosen function returns.

    Raises:
      TypeError: when `pred_fn_pairs` is not a list of pairs.
      InvalidArgumentError: eagerly, when nothing can run or `exclusive` is violated.

    Example:
      >>> import meshflow as tf
      >>> x = tf.constant(5)
      >>> tf.case([(x < 3, lambda: "small"), (x < 6, lambda: "medium")], default=lambda: "large")
      'medium'
    """
    pairs = list(pred_fn_pairs.items()) if isinstance(pred_fn_pairs, dict) else list(pred_fn_pairs)
    for pair in pairs:
        if not isinstance(pair, (list, tuple)) or len(pair) != 2 or not callable(pair[1]):
            raise TypeError(f"tf.case: expected pairs (predicate, callable), got {pair!r}.")
    if default is not None and not callable(default):
        raise TypeError(f"tf.case: default must be callable, got {default!r}.")
    if not any(logic.is_symbolic(pred) for pred, _ in pairs):
        true = [function for pred, function in pairs if _truth(pred)]
        if exclusive and len(true) > 1:
            raise errors.InvalidArgumentError(
                f"tf.case: exclusive=True, but {len(true)} of {len(pairs)} predicates are True."
            )
        if not true and default is None:
            raise errors.InvalidArgumentError(
                "tf.case: no predicate is True and there is no default."
            )
        return _converted(true[0] if true else default)()
    if default is None:
        *pairs, (_, default) = pairs
    result = default
    for pred, function in reversed(pairs):
        result = _either(pred, function, result)
    return result()


def _either(
    pred: Any, function: Callable[[], Any], otherwise: Callable[[], Any]
) -> Callable[[], Any]:
    return lambda: cond(pred, function, otherwise)


_position = Op(
    "switch_position",
    lambda o, keys: (
        jnp.sum(jnp.where(o[0] == jnp.asarray(keys), jnp.arange(len(keys)), 0)).astype(jnp.int32)
        + jnp.where(jnp.any(o[0] == jnp.asarray(keys)), 0, len(keys)).astype(jnp.int32)
    ),
    differentiable=False,
)


def switch_case(
    branch_index: Any,
    branch_fns: Any,
    default: Callable[[], Any] | None = None,
    name: str = "switch_case",
) -> Any:
    """Runs the function that an integer chooses.

    Args:
      branch_index: an integer scalar.
      branch_fns: a list of functions without arguments, a list of (int, function), or a dictionary.
      default: runs for any other index; without it the function of the largest index does.
      name: ignored.

    Returns:
      What the chosen function returns; all must return the same structure, dtypes and shapes.

    Raises:
      TypeError: when a branch is not callable or a key is no int.
      ValueError: for duplicate keys or no branches.

    Example:
      >>> import meshflow as tf
      >>> tf.switch_case(tf.constant(1), [lambda: 10, lambda: 20, lambda: 30])
      20
    """
    if isinstance(branch_fns, dict):
        pairs = list(branch_fns.items())
    elif all(callable(f) for f in branch_fns):
        pairs = list(enumerate(branch_fns))
    else:
        pairs = list(branch_fns)
    for key, function in pairs:
        if not isinstance(key, int) or not callable(function):
            raise TypeError(
                f"tf.switch_case: expected int keys and callables, got ({key!r}, {function!r})."
            )
    pairs.sort(key=lambda pair: pair[0])
    keys = tuple(key for key, _ in pairs)
    if not pairs or len(set(keys)) != len(keys):
        raise ValueError(f"tf.switch_case: needs branches with distinct keys, got {list(keys)}.")
    functions = [_converted(f) for _, f in pairs]
    otherwise = functions[-1] if default is None else _converted(default)
    if not logic.is_symbolic(branch_index):
        index = int(static_value(branch_index, "branch_index"))
        return functions[keys.index(index)]() if index in keys else otherwise()
    position = apply(_position, (convert_to_tensor(branch_index),), keys)
    names = [f"branch_fns[{key}]" for key in keys]
    merge = FunctionMerge("tf.switch_case", [*names, "default"])
    return branches.select(position, [_listed(f) for f in (*functions, otherwise)], merge)[0]


def _listed(function: Callable[[], Any]) -> Callable[[], list[Any]]:
    return lambda: [function()]


class LoopVariables(Invariants):
    """Errors for the loop variables of `tf.while_loop` and its relatives."""

    def __init__(self, op: str, what: str = "loop_vars") -> None:
        self.op = op
        self.what = what

    def changed(self, position: int, what: str, before: str, after: str) -> Exception:
        advice = {
            "shape": " Shapes are static under XLA: allocate the final shape before the loop, or use a "
            "tf.TensorArray.",
            "dtype": " Start with a value of the final dtype, or use tf.cast.",
        }.get(what, "")
        return ValueError(
            f"{self.op}: {self.what}[{position}] must keep its {what}, got {before} before and {after} after one "
            f"iteration.{advice}"
        )

    def write_in_test(self, variable: Any) -> Exception:
        return ValueError(
            f"{self.op}: cond may not assign a variable, but assigns {variable.name}."
        )


_stop = Op("stop_gradient", lambda o, _: o[0], differentiable=False)


def while_loop(
    cond: Callable[..., Any],
    body: Callable[..., Any],
    loop_vars: Any,
    shape_invariants: Any = None,
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    maximum_iterations: Any = None,
    name: str | None = None,
) -> Any:
    """Runs `loop_vars = body(*loop_vars)` while `cond(*loop_vars)` is True.

    The loop can be differentiated, any number of times, in reverse mode. With a known
    `maximum_iterations` that keeps the states of so many iterations; without, states are kept at
    some iterations and computed again in between, which costs two to three forward runs for up to
    4,096 iterations and more beyond (see `core.staging.dynamic_loop`).

    Args:
      cond: from the loop variables to a scalar bool.
      body: from the loop variables to new ones of the same structure, dtypes and shapes.
      loop_vars: a list or tuple of (nested) tensors.
      shape_invariants: accepted; shapes are always invariant under XLA.
      parallel_iterations: ignored.
      back_prop: False stops gradients.
      swap_memory: ignored.
      maximum_iterations: the most iterations to run.
      name: ignored.

    Returns:
      The final loop variables.

    Raises:
      TypeError: when `cond` or `body` is not callable.
      ValueError: when `body` changes structure, dtype or shape; when there are no loop variables.

    Example:
      >>> import meshflow as tf
      >>> i, total = tf.while_loop(lambda i, s: i < 5, lambda i, s: (i + 1, s + i), (0, 0))
      >>> int(total)
      10
    """
    del shape_invariants, parallel_iterations, swap_memory
    for label, function in (("cond", cond), ("body", body)):
        if not callable(function):
            raise TypeError(f"tf.while_loop: {label} must be callable, got {function!r}.")
    if not isinstance(loop_vars, (list, tuple)):
        loop_vars = [loop_vars]
    if not loop_vars:
        raise ValueError("tf.while_loop: no loop variables provided.")
    test, step = _converted(cond), _converted(body)
    init = nest.map_structure(_loop_variable, loop_vars)
    if context.trace is None:
        result = _eager_while(test, step, init, maximum_iterations)
    else:
        result = _staged_while(test, step, init, maximum_iterations)
    return result if back_prop else nest.map_structure(_without_gradient, result)


def _loop_variable(leaf: Any) -> Any:
    return leaf if hasattr(leaf, "_state_parts") else convert_to_tensor(leaf)


def _without_gradient(leaf: Any) -> Any:
    return apply(_stop, (leaf,)) if isinstance(leaf, Tensor) else leaf


def _as_variables(template: Any, values: Any) -> Any:
    """What a body returned, in the structure of the loop variables."""
    if len(template) == 1 and not (isinstance(values, (list, tuple)) and len(values) == 1):
        values = [values]
    if not isinstance(values, (list, tuple)) or len(values) != len(template):
        got = f"{len(values)} values" if isinstance(values, (list, tuple)) else repr(values)
        raise ValueError(
            f"tf.while_loop: the number and nesting of what body returns must match loop_vars: expected "
            f"{len(template)} values, got {got}."
        )
    nest.assert_same_structure(list(template), list(values), check_types=False)
    packed = nest.map_structure(_loop_variable, list(values))
    return nest.pack_sequence_as(template, nest.flatten(packed))


def _eager_while(test: Callable[..., Any], step: Callable[..., Any], state: Any, limit: Any) -> Any:
    left = None if limit is None else int(static_value(limit, "maximum_iterations"))
    while _truth(test(*state)) and left != 0:
        state = _as_variables(state, step(*state))
        left = None if left is None else left - 1
    return state


def _staged_while(test: Callable[..., Any], step: Callable[..., Any], init: Any, limit: Any) -> Any:
    known = None
    if limit is not None and not logic.is_symbolic(limit):
        known = int(static_value(limit, "maximum_iterations"))
    count = len(init)

    def run_test(values: list[Any]) -> Any:
        wanted = logic.scalar_bool(test(*values[:count]), "the condition of tf.while_loop")
        return (
            wanted
            if known is not None or limit is None
            else logic.both(wanted, logic.less(values[count], limit))
        )

    def run_step(values: list[Any]) -> list[Any]:
        after = list(_as_variables(init, step(*values[:count])))
        return after if len(values) == count else [*after, logic.next_integer(values[count])]

    state = list(init)
    if known is None and limit is not None:
        state.append(convert_to_tensor(0, dtype=convert_to_tensor(limit).dtype))
    invariants = LoopVariables("tf.while_loop")
    result = loops.while_loop(run_test, run_step, state, [True] * len(state), invariants, known)[
        :count
    ]
    return nest.pack_sequence_as(init, nest.flatten(result))
