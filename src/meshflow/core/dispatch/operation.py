"""`Op`: an array function with its compiled forms and its gradient.

The gradient of an op is again an op (`GradientOp`). Its array function is `jax.vjp` of the first
one, so gradients of any order are recorded like every other op.
"""

from __future__ import annotations

import functools
import itertools
import threading
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeAlias, TypeVar

import jax
import numpy as np

from meshflow.core.dispatch.eager_forms import EagerForm
from meshflow.core.dispatch.repeated_calls import ScopedPullback
from meshflow.core.runtime.context import context
from meshflow.core.values.tensor import MAX_HOST_CONSTANT_SIZE, Tensor
from meshflow.environment.jax_internals import source_info_util
from meshflow.environment.types import Array, PyTree

T = TypeVar("T")

# An op caches at most this number of forms of each kind, so programs that never repeat static
# arguments do not fill the memory.
MAX_CACHED_FORMS = 1024
# NumPy 1 supports arrays of 32 axes.
_MAX_SIZES = 31

# An op, its first operand, and its static arguments.
_Separation: TypeAlias = "tuple[Op, Tensor, tuple[Any, ...]]"


# All existing ops, for `clear_op_caches`. The lock is needed because one thread may create ops
# while another lists them.
_ops: weakref.WeakSet[Op] = weakref.WeakSet()
_ops_lock = threading.RLock()


class Op:
    """An operation: a name, an array function, and the rules for its operands.

    Attributes:
      name: The name in errors, traces and profiles.
      differentiable: False if TensorFlow defines no gradient, so the gradient is None.
      strings: How the op treats strings: "moves" or "compares" them (computed on integer codes of
        the strings), "joins" two of them, or None for no support.
      host_function: Computes the op with NumPy on host arrays; returns None for unsupported
        arguments. None if the op has no such function.
      row_gradient: Computes the gradient of the first operand as `tf.IndexedSlices`, from the
        operands, the static arguments and the gradient of the result; returns None if that gradient
        is dense. None if the op has no such rule.
      heavy: Whether a gradient tape keeps intermediate values of the op instead of computing the op
        again.
      is_opaque: Whether the op is a function or a loop, so its gradient is assumed to depend on all
        of its operands.
      sizes: Indices of the static arguments that are sizes or shapes, so that eager calls with different ones use
        the same form, see `separate_sizes`.
      is_foldable: Whether constant operands make the result a constant. False for ops with side
        effects, ops that communicate with other replicas, and ops that set the layout of a value.
    """

    def __init__(
        self,
        name: str,
        call: Callable[..., Any],
        *,
        differentiable: bool = True,
        heavy: bool = False,
        strings: str | None = None,
        is_foldable: bool = True,
        is_opaque: bool = False,
        sizes: Sequence[int] = (),
    ) -> None:
        self.name = name
        self.sizes = tuple(sizes)
        self.is_opaque = is_opaque
        self.call = call
        self.differentiable = differentiable
        self.strings = strings
        self.host_function: Callable[..., Any] | None = None
        self.row_gradient: Callable[..., Any] | None = None
        self.heavy = heavy
        self.is_foldable = is_foldable
        self._eager_forms: dict[Any, EagerForm] = {}
        self._gradient_ops: dict[Any, GradientOp] = {}
        self._residual_functions: dict[Any, Callable[..., Any]] = {}
        self._donating_functions: dict[Any, Callable[..., Any]] = {}
        self._forward_ops: dict[Any, Op] = {}
        self._separations: dict[Any, _Separation | None] = {}
        self._op_of_sizes: Op | None = None
        with _ops_lock:
            _ops.add(self)

    def bind_static(self, static: tuple[Any, ...]) -> Callable[..., Any]:
        """Return the array function of the operands, with fixed static arguments."""
        call = self.call

        def run(*operands: Any) -> Any:
            return call(operands, static)

        run.__name__ = run.__qualname__ = self.name
        return run

    def get_eager(self, static: tuple[Any, ...]) -> EagerForm:
        """Return `bind_static(static)` for calls in eager mode, created once per static arguments."""
        form = self._eager_forms.get(static)
        if form is None:
            host = self.host_function and functools.partial(self.host_function, static=static)
            general = None
            if (separation := self.separate_sizes(static)) is not None:
                op, empty, template = separation
                general = op.get_eager(template), empty.array
            form = EagerForm(self.bind_static(static), host_function=host, general=general)
            form = cache_form(self._eager_forms, static, form)
        return form

    def get_donating(
        self, static: tuple[Any, ...], operands: tuple[int, ...]
    ) -> Callable[..., Any]:
        """Return `bind_static(static)` for calls in eager mode that reuse operand buffers.

        Args:
          static: Static arguments.
          operands: Indices of the operands that are donated, which become invalid after the call.
        """
        key = static, operands
        if (function := self._donating_functions.get(key)) is None:
            form = EagerForm(self.bind_static(static), operands)
            function = cache_form(self._donating_functions, key, form)
        return function

    def get_gradient_op(self, static: tuple[Any, ...], requested: tuple[bool, ...]) -> GradientOp:
        """Return the op that computes the gradients of the requested operands.

        Its operands are those of this op, and the gradients of the outputs.
        """
        key = static, requested
        if (gradient_op := self._gradient_ops.get(key)) is None:
            gradient_op = cache_form(self._gradient_ops, key, GradientOp(self, static, requested))
        return gradient_op

    def get_forward_op(self, key: Hashable, make: Callable[[], Op]) -> Op:
        """Return the op for forward-mode derivatives that `make` creates, created once per key."""
        if (forward_op := self._forward_ops.get(key)) is None:
            forward_op = cache_form(self._forward_ops, key, make())
        return forward_op

    def clear_caches(self) -> None:
        """Delete the forms for all static arguments; they are created again when they are needed."""
        for forms in (
            self._eager_forms,
            self._gradient_ops,
            self._residual_functions,
            self._donating_functions,
            self._forward_ops,
            self._separations,
        ):
            forms.clear()

    def separate_sizes(self, static: tuple[Any, ...]) -> _Separation | None:
        """Return an op with the sizes among the static arguments as an operand; None if they are not positive.

        Args:
          static: Static arguments.

        Returns:
          The op, its first operand (an empty array, so that the sizes may be symbols of a trace), and its static
          arguments.
        """
        if not self.sizes:
            return None
        if static not in self._separations:
            return cache_form(self._separations, static, self._separate_sizes(static))
        return self._separations.get(static)

    def _separate_sizes(self, static: tuple[Any, ...]) -> _Separation | None:
        template, sizes = list(static), []
        for i in self.sizes:
            if isinstance(static[i], tuple):
                template[i] = len(static[i])
                sizes.extend(static[i])
            else:
                template[i] = None
                sizes.append(static[i])
        if (
            not all(isinstance(n, (int, np.integer)) and n > 0 for n in sizes)
            or len(sizes) > _MAX_SIZES
        ):
            return None
        if self._op_of_sizes is None:
            self._op_of_sizes = Op(
                self.name,
                self._call_with_sizes,
                differentiable=self.differentiable,
                heavy=self.heavy,
                strings=self.strings,
            )
        try:
            empty = np.empty((*sizes, 0), np.int8)
        except ValueError:  # The product of the sizes is too large for NumPy.
            return None
        return self._op_of_sizes, Tensor(empty), tuple(template)

    def _call_with_sizes(self, operands: Sequence[Any], template: tuple[Any, ...]) -> PyTree:
        return self.call(operands[1:], self._insert_sizes(operands[0], template))

    def _insert_sizes(self, empty: Array, template: tuple[Any, ...]) -> tuple[Any, ...]:
        sizes, static = iter(empty.shape), list(template)
        for i in self.sizes:
            rank = template[i]
            static[i] = next(sizes) if rank is None else tuple(itertools.islice(sizes, rank))
        return tuple(static)

    def call_in_trace(self, values: Sequence[Any], static: tuple[Any, ...]) -> PyTree:
        """Call the array function in a trace, which copies the equations of an equal call."""
        return self._run_in_trace(
            functools.partial(self.call, values, static), (self, static), values
        )

    def _run_in_trace(
        self, run: Callable[[], PyTree], key: Hashable, values: Sequence[Any]
    ) -> PyTree:
        trace = context.trace
        if trace is None or self.is_opaque or not self.is_foldable:
            return run()
        return trace.repeated_calls.run(run, key, *values)

    def call_with_pullback(
        self, values: Sequence[Any], static: tuple[Any, ...], requested: tuple[bool, ...]
    ) -> tuple[PyTree, ScopedPullback]:
        """Return the outputs in a trace, and the pullback to the requested operands for `apply_traced_pullback`."""

        def run() -> tuple[PyTree, Callable[..., Any], Any]:
            function = self.get_residual_function(static, requested)
            return *function(*values), source_info_util.current_name_stack()

        outputs, pullback, scopes = self._run_in_trace(run, (self, static, requested), values)
        return outputs, ScopedPullback(pullback, scopes)

    def get_residual_function(
        self, static: tuple[Any, ...], requested: tuple[bool, ...]
    ) -> Callable[..., Any]:
        """Return a function that computes the outputs and the pullback to the requested operands."""
        key = static, requested
        if (function := self._residual_functions.get(key)) is None:
            forward = functools.partial(compute_with_pullback, self.bind_static(static), requested)
            function = cache_form(self._residual_functions, key, forward)
        return function

    def get_compiled_residual_function(
        self, static: tuple[Any, ...], requested: tuple[bool, ...]
    ) -> Callable[..., Any]:
        """Return the compiled form of `get_residual_function`."""
        key = static, requested, "compiled"
        if (function := self._residual_functions.get(key)) is None:
            function = cache_form(
                self._residual_functions,
                key,
                jax.jit(self.get_residual_function(static, requested)),
            )
        return function


def clear_op_caches() -> None:
    """Delete the compiled functions and gradient ops of all ops."""
    with _ops_lock:
        ops = list(_ops)
    for op in ops:
        op.clear_caches()


def cache_form(forms: dict[Any, Any], key: Hashable, form: T) -> T:
    """Store and return a form; the oldest one is deleted if the cache is full."""
    if len(forms) >= MAX_CACHED_FORMS:
        # Other threads may add forms at the same time, so the keys are copied first.
        forms.pop(next(iter(tuple(forms))), None)
    forms[key] = form
    return form


@functools.cache
def _is_inexact_dtype(dtype: np.dtype) -> bool:
    return bool(jax.numpy.issubdtype(dtype, jax.numpy.inexact))


def is_inexact(value: Any) -> bool:
    """Check whether an array has a floating or complex dtype."""
    if value.dtype == object:
        return False
    return _is_inexact_dtype(value.dtype)


def is_small_constant(value: Any) -> bool:
    """Check whether an array remains a constant in the programs of functions that use it.

    These are strings, and host arrays of few integers or booleans. A float may be differentiated, so
    it becomes an input of the program.
    """
    if type(value) is not np.ndarray:
        return False
    return value.dtype == object or (
        value.size <= MAX_HOST_CONSTANT_SIZE and not _is_inexact_dtype(value.dtype)
    )


def restrict_to_requested(
    run: Callable[..., Any], requested: tuple[bool, ...], operands: PyTree
) -> tuple[Callable[..., Any], list[Any]]:
    """Return `run` as a function of the requested operands only, and these operands.

    Args:
      run: Function of all operands.
      requested: For each leaf of `operands`, whether it is an argument of the new function.
      operands: Operands of `run`.

    Returns:
      The function and its arguments. The function returns the inexact outputs and, as auxiliary
      data for `jax.vjp`, the leaves of all outputs and a function that restores their structure.
    """
    leaves, tree = jax.tree.flatten(operands)

    def function(*differentiated: Any) -> Any:
        supply = iter(differentiated)
        full = [next(supply) if w else leaf for leaf, w in zip(leaves, requested, strict=True)]
        outputs = run(*jax.tree.unflatten(tree, full))
        flat, out_tree = jax.tree.flatten(outputs)
        inexact = [o for o in flat if is_inexact(o)]
        return inexact, (flat, jax.tree_util.Partial(functools.partial(_unflatten, out_tree)))

    return function, [leaf for leaf, w in zip(leaves, requested, strict=True) if w]


def compute_with_pullback(
    run: Callable[..., Any], requested: tuple[bool, ...], *operands: PyTree
) -> tuple[PyTree, Callable[..., Any]]:
    """Return the outputs of `run` and the pullback from its inexact outputs to the requested operands."""
    function, arguments = restrict_to_requested(run, requested, operands)
    _, pullback, (flat, rebuild) = jax.vjp(function, *arguments, has_aux=True)
    return rebuild(flat), pullback


def _unflatten(tree: jax.tree_util.PyTreeDef, leaves: Sequence[Any]) -> PyTree:
    return jax.tree.unflatten(tree, leaves)


class GradientOp(Op):
    """The gradient of an op with fixed static arguments, which is itself an op.

    Its operands are the operands of `op` and one gradient, or None, for each inexact output.

    Attributes:
      differentiated_op: The op that this is the gradient of.
      root_op: The op at the start of a chain of gradients.
    """

    def __init__(self, op: Op, static: tuple[Any, ...], requested: tuple[bool, ...]) -> None:
        run = op.bind_static(static)
        self.differentiated_op = op
        self.root_op: Op = op.root_op if isinstance(op, GradientOp) else op

        def compute(inputs: Any, cotangents: Any) -> Any:
            outputs, pullback = compute_with_pullback(run, requested, *inputs)
            inexact = [o for o in jax.tree.leaves(outputs) if is_inexact(o)]
            return list(apply_pullback(pullback, inexact, cotangents))

        # JAX caches the program of the gradient for shapes and dtypes, and the derivatives of the
        # program, so equal layers and gradients of higher orders are traced quickly.
        inlined = jax.jit(compute, inline=True)

        def call(operands: Any, _: Any) -> Any:
            is_cached = not (op.is_opaque or context.exporting)
            return (inlined if is_cached else compute)(*operands)

        super().__init__(
            f"grad_{op.name}", call, is_foldable=op.is_foldable, is_opaque=op.is_opaque
        )


def apply_pullback(
    pullback: Callable[..., Any], outputs: Sequence[Any], cotangents: Sequence[Any]
) -> tuple[Any, ...]:
    """Apply a JAX pullback under TensorFlow's conventions.

    A missing output gradient counts as zeros. Complex gradients are conjugated: TensorFlow returns
    conj(f'(z)) * g, JAX returns f'(z) * g.
    """
    full = [
        jax.numpy.zeros(o.shape, o.dtype) if c is None else _conjugate(c)
        for o, c in zip(outputs, cotangents, strict=True)
    ]
    return tuple(map(_conjugate, pullback(full)))


def _conjugate(array: jax.Array) -> jax.Array:
    return jax.lax.conj(array) if array.dtype.kind == "c" else array


def apply_traced_pullback(
    scoped: ScopedPullback, outputs: Sequence[Any], cotangents: Sequence[Any]
) -> tuple[Any, ...]:
    """Apply a pullback of `Op.call_with_pullback` like `apply_pullback`, or copy the equations of an equal one."""
    pullback = scoped.pullback
    if context.trace is None:
        return apply_pullback(pullback, outputs, cotangents)
    run = functools.partial(apply_pullback, pullback, outputs, cotangents)
    calls = context.trace.repeated_calls
    result: tuple[Any, ...] = calls.run(run, apply_pullback, pullback, cotangents, pullback=scoped)
    return result


# Converts a tensor to the dtype that is the first static argument.
CAST = Op("cast", lambda operands, static: jax.lax.convert_element_type(operands[0], static[0]))
