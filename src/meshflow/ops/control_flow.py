"""`tf.cond`, `case`, `switch_case` and `while_loop`: control flow as functions.

Eagerly they call the chosen Python function, or run a Python loop. While a function is traced they
become XLA control flow; branches may use tensors and variables from outside, and may assign
variables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import jax.numpy as jnp
import numpy as np

from meshflow.core.autograph.conversion import convert_if_enabled
from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operands import to_static_value
from meshflow.core.dispatch.operation import Op
from meshflow.core.dispatch.symbolic_calls import record_in_graph
from meshflow.core.runtime import errors
from meshflow.core.runtime.context import context
from meshflow.core.staging import branches, loops, scalar_logic
from meshflow.core.staging.branches import BranchMerge
from meshflow.core.staging.loop_state import LoopInvariants
from meshflow.core.values import nest
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.core.variables.variable import Variable
from meshflow.environment.types import PyTree

__all__ = ["case", "cond", "switch_case", "while_loop"]

T = TypeVar("T")


class FunctionMerge(BranchMerge):
    """Error factory for branches that are functions with names."""

    def __init__(self, op: str, functions: Sequence[str]) -> None:
        self.op = op
        self.functions = functions

    def make_mismatch_error(
        self, position: int, aspect: str, first: str, second: str, branch: int
    ) -> Exception:
        advice = {
            "shape": " Shapes are static under XLA: pad to one shape, or use tf.where.",
            "dtype": " Use tf.cast in one of them.",
        }.get(aspect, "")
        return TypeError(
            f"{self.op}: {self.functions[0]} and {self.functions[branch]} must return the same {aspect}, "
            f"got {first} and {second}.{advice}"
        )


@record_in_graph
def cond(
    pred: TensorLike,
    true_fn: Callable[[], T] | None = None,
    false_fn: Callable[[], T] | None = None,
    name: str | None = None,
) -> T:
    """Return `true_fn()` if `pred` is true, else `false_fn()`.

    Args:
      pred: A scalar bool, tensor or Python value.
      true_fn: A function without arguments.
      false_fn: A function without arguments. While tracing, both functions are traced, and must
        return the same structure, dtypes and shapes.
      name: Ignored.

    Returns:
      The result of the chosen function.

    Raises:
      TypeError: If an argument is not callable, or the results have different structures, dtypes or
        shapes.

    Example:
      >>> x = tf.constant(2.0)
      >>> tf.cond(x > 1, lambda: x * 10, lambda: x).numpy()
      np.float32(20.0)
    """
    for label, function in (("true_fn", true_fn), ("false_fn", false_fn)):
        if not callable(function):
            raise TypeError(f"tf.cond: {label} must be callable, got {function!r}.")
    first, second = convert_if_enabled(true_fn), convert_if_enabled(false_fn)  # type: ignore[arg-type]
    if not scalar_logic.is_symbolic(pred):
        return first() if _to_bool(pred) else second()
    merge = FunctionMerge("tf.cond", ("true_fn", "false_fn"))
    predicate = scalar_logic.to_scalar_bool(pred, "the predicate of tf.cond")
    return branches.run_branch(predicate, [lambda: [first()], lambda: [second()]], merge)[0]


def _to_bool(pred: TensorLike) -> bool:
    if isinstance(pred, (Tensor, np.ndarray)) or hasattr(pred, "_as_tensor"):
        return bool(scalar_logic.to_scalar_bool(pred, "a predicate"))
    return bool(pred)


@record_in_graph
def case(
    pred_fn_pairs: Sequence[tuple[TensorLike, Callable[[], PyTree]]]
    | Mapping[TensorLike, Callable[[], PyTree]],
    default: Callable[[], PyTree] | None = None,
    exclusive: bool = False,
    strict: bool = False,
    name: str = "case",
) -> PyTree:
    """Call the function of the first predicate that is true.

    Args:
      pred_fn_pairs: A list of (scalar bool, function without arguments).
      default: Function to call if no predicate is true. Without it, a traced `case` calls the last
        function.
      exclusive: Whether to check, eagerly, that at most one predicate is true.
      strict: Ignored.
      name: Ignored.

    Returns:
      The result of the chosen function.

    Raises:
      TypeError: If `pred_fn_pairs` is not a list of pairs.
      InvalidArgumentError: Eagerly, if no predicate is true and there is no default, or `exclusive`
        is violated.

    Example:
      >>> x = tf.constant(5)
      >>> tf.case([(x < 3, lambda: "small"), (x < 6, lambda: "medium")], default=lambda: "large")
      'medium'
    """
    pairs = list(pred_fn_pairs.items() if isinstance(pred_fn_pairs, Mapping) else pred_fn_pairs)
    for pair in pairs:
        if not isinstance(pair, (list, tuple)) or len(pair) != 2 or not callable(pair[1]):
            raise TypeError(f"tf.case: expected pairs (predicate, callable), got {pair!r}.")
    if default is not None and not callable(default):
        raise TypeError(f"tf.case: default must be callable, got {default!r}.")
    if not any(scalar_logic.is_symbolic(pred) for pred, _ in pairs):
        true = [function for pred, function in pairs if _to_bool(pred)]
        if exclusive and len(true) > 1:
            raise errors.InvalidArgumentError(
                f"tf.case: exclusive=True, but {len(true)} of {len(pairs)} predicates are True."
            )
        if not true and default is None:
            raise errors.InvalidValueError("tf.case: no predicate is True and there is no default.")
        return convert_if_enabled(true[0] if true else default)()  # type: ignore[arg-type]
    if default is None:
        *pairs, (_, default) = pairs
    result = default
    for pred, function in reversed(pairs):
        result = _make_cond(pred, function, result)
    return result()


def _make_cond(
    pred: TensorLike, function: Callable[[], PyTree], otherwise: Callable[[], PyTree]
) -> Callable[[], PyTree]:
    return lambda: cond(pred, function, otherwise)


_branch_position = Op(
    "switch_position",
    lambda o, keys: (
        jnp.sum(jnp.where(o[0] == jnp.asarray(keys), jnp.arange(len(keys)), 0)).astype(jnp.int32)
        + jnp.where(jnp.any(o[0] == jnp.asarray(keys)), 0, len(keys)).astype(jnp.int32)
    ),
    differentiable=False,
)


@record_in_graph
def switch_case(
    branch_index: TensorLike,
    branch_fns: Mapping[int, Callable[[], PyTree]]
    | Sequence[Callable[[], PyTree]]
    | Sequence[tuple[int, Callable[[], PyTree]]],
    default: Callable[[], PyTree] | None = None,
    name: str = "switch_case",
) -> PyTree:
    """Call the function that an integer selects.

    Args:
      branch_index: An integer scalar.
      branch_fns: A list of functions without arguments, a list of (int, function), or a dictionary.
      default: Function to call for any other index; by default the function of the largest index.
      name: Ignored.

    Returns:
      The result of the chosen function; all must return the same structure, dtypes and shapes.

    Raises:
      TypeError: If a branch is not callable or a key is not an int.
      ValueError: If keys are duplicates or there are no branches.

    Example:
      >>> tf.switch_case(tf.constant(1), [lambda: 10, lambda: 20, lambda: 30])
      20
    """
    pairs: list[Any]
    if isinstance(branch_fns, Mapping):
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
    functions = [convert_if_enabled(f) for _, f in pairs]
    otherwise = functions[-1] if default is None else convert_if_enabled(default)
    if not scalar_logic.is_symbolic(branch_index):
        index = int(to_static_value(branch_index, "branch_index"))
        return functions[keys.index(index)]() if index in keys else otherwise()
    position = apply(_branch_position, (convert_to_tensor(branch_index),), keys)
    names = [f"branch_fns[{key}]" for key in keys]
    merge = FunctionMerge("tf.switch_case", [*names, "default"])
    return branches.run_branch(
        position, [_wrap_in_list(f) for f in (*functions, otherwise)], merge
    )[0]


def _wrap_in_list(function: Callable[[], Any]) -> Callable[[], list[Any]]:
    return lambda: [function()]


class LoopVariableInvariants(LoopInvariants):
    """Error factory for the loop variables of `tf.while_loop`, `map_fn`, `scan` and folds."""

    def __init__(
        self, op: str, value_name: str = "loop_vars", allows_shape_changes: bool = False
    ) -> None:
        self.op = op
        self.value_name = value_name
        self.allows_shape_changes = allows_shape_changes

    def make_change_error(self, position: int, aspect: str, before: str, after: str) -> Exception:
        advice = {
            "shape": " Shapes are static under XLA: allocate the final shape before the loop, or use a "
            "tf.TensorArray.",
            "dtype": " Start with a value of the final dtype, or use tf.cast.",
        }.get(aspect, "")
        return ValueError(
            f"{self.op}: {self.value_name}[{position}] must keep its {aspect}, got {before} before and {after} "
            f"after one iteration.{advice}"
        )

    def make_test_write_error(self, variable: Variable) -> Exception:
        return ValueError(
            f"{self.op}: cond may not assign a variable, but assigns {variable.name}."
        )


_stop_gradient = Op("stop_gradient", lambda o, _: o[0], differentiable=False)


@record_in_graph
def while_loop(
    cond: Callable[..., TensorLike],
    body: Callable[..., PyTree],
    loop_vars: PyTree,
    shape_invariants: PyTree = None,
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    maximum_iterations: TensorLike | None = None,
    name: str | None = None,
) -> PyTree:
    """Repeat `loop_vars = body(*loop_vars)` while `cond(*loop_vars)` is true.

    The loop supports reverse-mode derivatives of any order. If `maximum_iterations` is static, the
    states of all iterations are stored for the backward pass. Otherwise at most 128 states are stored
    at a time, and the others are recomputed: once for up to about 4,000 iterations, twice for up to
    70,000 (see `core.staging.dynamic_loop`).

    Args:
      cond: Maps the loop variables to a scalar bool.
      body: Maps the loop variables to new ones of the same structure, dtypes and shapes.
      loop_vars: A list or tuple of (nested) tensors.
      shape_invariants: With a value, loop variables may change their shapes; the program then runs op by op.
      parallel_iterations: Ignored.
      back_prop: Whether gradients flow through the loop.
      swap_memory: Ignored.
      maximum_iterations: Maximum number of iterations.
      name: Ignored.

    Returns:
      The final loop variables.

    Raises:
      TypeError: If `cond` or `body` is not callable.
      ValueError: If `body` changes structure, dtype or shape, or there are no loop variables.

    Example:
      >>> i, total = tf.while_loop(lambda i, s: i < 5, lambda i, s: (i + 1, s + i), (0, 0))
      >>> int(total)
      10
    """
    del parallel_iterations, swap_memory
    for label, function in (("cond", cond), ("body", body)):
        if not callable(function):
            raise TypeError(f"tf.while_loop: {label} must be callable, got {function!r}.")
    if not isinstance(loop_vars, (list, tuple)):
        loop_vars = [loop_vars]
    if not loop_vars:
        raise ValueError("tf.while_loop: no loop variables provided.")
    test, step = convert_if_enabled(cond), convert_if_enabled(body)
    init = nest.map_structure(_to_loop_variable, loop_vars)
    if context.trace is None:
        result = _run_eager_while(test, step, init, maximum_iterations)
    else:
        invariants = LoopVariableInvariants(
            "tf.while_loop", allows_shape_changes=shape_invariants is not None
        )
        result = _stage_while(test, step, init, maximum_iterations, invariants)
    return result if back_prop else nest.map_structure(_block_gradient, result)


def _to_loop_variable(leaf: TensorLike) -> TensorLike:
    return leaf if hasattr(leaf, "_state_parts") else convert_to_tensor(leaf)


def _block_gradient(leaf: TensorLike) -> TensorLike:
    return apply(_stop_gradient, (leaf,)) if isinstance(leaf, Tensor) else leaf


def _pack_body_result(template: Sequence[PyTree], values: PyTree) -> PyTree:
    """Check and pack the result of a body into the structure of the loop variables."""
    if len(template) == 1 and not (isinstance(values, (list, tuple)) and len(values) == 1):
        values = [values]
    if not isinstance(values, (list, tuple)) or len(values) != len(template):
        got = f"{len(values)} values" if isinstance(values, (list, tuple)) else repr(values)
        raise ValueError(
            "tf.while_loop: The two structures don't have the same nested structure. The number and nesting of the values "
            f"that body returns must match loop_vars: expected {len(template)} values, got {got}."
        )
    nest.assert_same_structure(list(template), list(values), check_types=False)
    packed = nest.map_structure(_to_loop_variable, list(values))
    return nest.pack_sequence_as(template, nest.flatten(packed))


def _run_eager_while(
    test: Callable[..., TensorLike],
    step: Callable[..., PyTree],
    state: PyTree,
    limit: TensorLike | None,
) -> PyTree:
    remaining = None if limit is None else int(to_static_value(limit, "maximum_iterations"))
    kind = type(state)
    while _to_bool(test(*state)) and remaining != 0:
        after = step(*state)
        # The result has the container that the body returns.
        if isinstance(after, (list, tuple)):
            kind = list if isinstance(after, list) else tuple
        state = _pack_body_result(state, after)
        remaining = None if remaining is None else remaining - 1
    return state if type(state) is kind or hasattr(state, "_fields") else kind(state)


def _stage_while(
    test: Callable[..., TensorLike],
    step: Callable[..., PyTree],
    init: PyTree,
    limit: TensorLike | None,
    invariants: LoopVariableInvariants,
) -> PyTree:
    static_limit = None
    if limit is not None and not scalar_logic.is_symbolic(limit):
        static_limit = int(to_static_value(limit, "maximum_iterations"))
    count = len(init)

    def run_test(values: list[PyTree]) -> Tensor:
        condition = scalar_logic.to_scalar_bool(
            test(*values[:count]), "the condition of tf.while_loop"
        )
        if static_limit is not None or limit is None:
            return condition
        return scalar_logic.logical_and(condition, scalar_logic.less(values[count], limit))

    def run_step(values: list[PyTree]) -> list[PyTree]:
        after = list(_pack_body_result(init, step(*values[:count])))
        return after if len(values) == count else [*after, scalar_logic.increment(values[count])]

    state = list(init)
    if static_limit is None and limit is not None:
        state.append(convert_to_tensor(0, dtype=convert_to_tensor(limit).dtype))
    needed = [True] * len(state)
    result = loops.while_loop(run_test, run_step, state, needed, invariants, static_limit)[:count]
    return nest.pack_sequence_as(init, nest.flatten(result))
