"""Higher-order functions over the first dimension: `map_fn`, `scan`, `foldl`, `foldr`, `vectorized_map`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from meshflow.core.autograph.conversion import convert_if_enabled
from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import Op
from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import ValueNeededError
from meshflow.core.staging import loops
from meshflow.core.staging.operands import Operands
from meshflow.core.tracing.trace import trace, trace_shapes
from meshflow.core.values import nest
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import as_dtype
from meshflow.core.values.specs import TensorSpec, TypeSpec
from meshflow.core.values.tensor import Tensor
from meshflow.ops.array import stack
from meshflow.ops.control_flow import LoopVariables

__all__ = ["foldl", "foldr", "map_fn", "scan", "vectorized_map"]

T = TypeVar("T")

_row = Op("getitem", lambda o, i: o[0][i[0]])


def _elements(op: str, elems: Any) -> tuple[Any, int]:
    """The elements as tensors, and how many there are.

    Raises:
      ValueError: for no tensors, scalars, or tensors of different length.
    """
    tensors = nest.map_structure(convert_to_tensor, elems)
    flat = nest.flatten(tensors)
    if not flat:
        raise ValueError(
            f"tf.{op}: elems must be a tensor or a nested structure of tensors, got {elems!r}."
        )
    if any(not t.ndim for t in flat):
        raise ValueError(f"tf.{op}: elements in elems must be 1+ dimensional tensors, not scalars.")
    counts = list(dict.fromkeys(map(_length, flat)))
    if len(counts) > 1:
        raise ValueError(f"tf.{op}: elems must have the same size in dimension 0, got {counts}.")
    return tensors, counts[0]


def _length(tensor: Tensor) -> Any:
    """The size of the first dimension, a symbol in programs for any size."""
    return tensor._value.shape[0]


def _take(elems: Any, i: int) -> Any:
    return nest.map_structure(lambda t: apply(_row, (t,), (i,)), elems)


def _heads(elems: Any) -> Any:
    return nest.map_structure(lambda t: TensorSpec(t.shape[1:], t.dtype), elems)


def _tensors(value: Any) -> Any:
    return nest.map_structure(convert_to_tensor, value)


def _empty(spec: Any) -> Any:
    shape = [0 if d is None else d for d in spec.shape.as_list()]
    return Tensor(jnp.zeros((0, *shape), spec.dtype.dtype))


def map_fn(
    fn: Callable[..., T],
    elems: Any,
    dtype: Any = None,
    parallel_iterations: int | None = None,
    back_prop: bool = True,
    swap_memory: bool = False,
    infer_shape: bool = True,
    name: str | None = None,
    fn_output_signature: Any = None,
) -> T:
    """Applies `fn` to each slice of `elems` along the first dimension, one after the other.

    `tf.vectorized_map` does the same for all slices at once, and is faster.

    Args:
      fn: from one slice, of the structure of `elems`, to a nested structure of tensors.
      elems: a tensor or nested structure of tensors of the same first size n.
      dtype: the old name of `fn_output_signature`.
      parallel_iterations: ignored.
      back_prop: accepted.
      swap_memory: ignored.
      infer_shape: accepted.
      name: ignored.
      fn_output_signature: the dtype(s) of the result; needed when they differ from those of `elems`
        and checked when given.

    Returns:
      The results stacked: tensors of shape [n, ...].

    Raises:
      TypeError: when `fn` is not callable or returns another dtype than announced.
      ValueError: for scalars or unequal sizes in `elems`.

    Example:
      >>> import meshflow as tf
      >>> tf.map_fn(lambda x: x * x, tf.constant([1, 2, 3])).numpy()
      array([1, 4, 9], dtype=int32)
    """
    if not callable(fn):
        raise TypeError(f"tf.map_fn: fn must be callable, got {fn!r}.")
    tensors, count = _elements("map_fn", elems)
    function = convert_if_enabled(fn)
    signature = dtype if fn_output_signature is None else fn_output_signature
    if count == 0:
        specs = trace_shapes(function, (_heads(tensors),), {})
        result = nest.map_structure(_empty, specs)
    elif context.trace is None:
        outputs = [_tensors(function(_take(tensors, i))) for i in range(count)]
        result = nest.map_structure(lambda *parts: stack(list(parts)), *outputs)
    else:
        elements = loops.Elements(count, lambda i: None, tensors)
        invariants = LoopVariables("tf.map_fn")
        _, result = loops.scan(
            elements, lambda e, s: (s, _tensors(function(e))), [], [], invariants
        )
    _check_signature(signature, result)
    return result


def _check_signature(signature: Any, result: Any) -> None:
    if signature is None:
        return
    wanted = [_dtype_of(s) for s in nest.flatten(signature)]
    got = [t.dtype for t in nest.flatten(result)]
    if len(wanted) != len(got) or any(
        w is not None and w is not g for w, g in zip(wanted, got, strict=False)
    ):
        raise TypeError(
            f"tf.map_fn: fn_output_signature says {[w.name if w else '?' for w in wanted]}, but fn returned "
            f"{[g.name for g in got]}. Use tf.cast in fn or correct the signature."
        )


def _dtype_of(signature: Any) -> Any:
    return signature.dtype if isinstance(signature, TypeSpec) else as_dtype(signature)


def scan(
    fn: Callable[..., T],
    elems: Any,
    initializer: Any = None,
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    infer_shape: bool = True,
    reverse: bool = False,
    name: str | None = None,
) -> T:
    """Runs `a = fn(a, element)` over the slices of `elems` and returns every `a`.

    Args:
      fn: from (accumulated value, slice) to the next accumulated value, of the same form.
      elems: a tensor or nested structure of tensors of the same first size n.
      initializer: the first accumulated value; default the first slice, which is then also the
        first result.
      parallel_iterations: ignored.
      back_prop: accepted.
      swap_memory: ignored.
      infer_shape: accepted.
      reverse: whether to go from the last slice to the first.
      name: ignored.

    Returns:
      The accumulated values stacked: tensors of shape [n, ...].

    Raises:
      TypeError: when `fn` is not callable.
      ValueError: when `fn` changes the form of the accumulated value; for nothing to scan.

    Example:
      >>> import meshflow as tf
      >>> tf.scan(lambda a, x: a + x, tf.constant([1, 2, 3, 4])).numpy()
      array([ 1,  3,  6, 10], dtype=int32)
    """
    del parallel_iterations, back_prop, swap_memory, infer_shape
    state, outputs = _accumulate("scan", fn, elems, initializer, reverse, keep=True)
    del state
    return outputs


def foldl(
    fn: Callable[..., T],
    elems: Any,
    initializer: Any = None,
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    name: str | None = None,
) -> T:
    """Runs `a = fn(a, element)` from the first slice of `elems` to the last; returns the last `a`.

    The result has the shape of what the function gives.

    Args:
      fn: from (accumulated value, slice) to the next accumulated value, of the same form.
      elems: a tensor or nested structure of tensors of the same first size.
      initializer: the first accumulated value; default the first slice.
      parallel_iterations: ignored.
      back_prop: accepted.
      swap_memory: ignored.
      name: ignored.

    Returns:
      The final accumulated value.

    Example:
      >>> import meshflow as tf
      >>> tf.foldl(lambda a, x: a - x, tf.constant([10, 3, 2])).numpy()
      np.int32(5)
    """
    del parallel_iterations, back_prop, swap_memory
    return _accumulate("foldl", fn, elems, initializer, False, keep=False)[0]


def foldr(
    fn: Callable[..., T],
    elems: Any,
    initializer: Any = None,
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    name: str | None = None,
) -> T:
    """`foldl` from the last slice to the first.

    The result has the shape of what the function gives.

    Args:
      fn: from (accumulated value, slice) to the next accumulated value, of the same form.
      elems: a tensor or nested structure of tensors of the same first size.
      initializer: the first accumulated value; default the last slice.
      parallel_iterations: ignored.
      back_prop: accepted.
      swap_memory: ignored.
      name: ignored.

    Returns:
      The final accumulated value.

    Example:
      >>> import meshflow as tf
      >>> tf.foldr(lambda a, x: a - x, tf.constant([10, 3, 2])).numpy()
      np.int32(-11)
    """
    del parallel_iterations, back_prop, swap_memory
    return _accumulate("foldr", fn, elems, initializer, True, keep=False)[0]


_slice_op = Op("slice", lambda o, bounds: jnp.asarray(o[0])[bounds[0] : bounds[1]])
_join = Op("concat", lambda o, _: jnp.concatenate([jnp.expand_dims(o[0], 0), o[1]]))
_append = Op("concat", lambda o, _: jnp.concatenate([o[1], jnp.expand_dims(o[0], 0)]))


def _accumulate(
    op: str, fn: Callable[..., Any], elems: Any, initializer: Any, backwards: bool, keep: bool
) -> tuple[Any, Any]:
    """The final accumulated value, and with `keep` all of them stacked."""
    if not callable(fn):
        raise TypeError(f"tf.{op}: fn must be callable, got {fn!r}.")
    tensors, count = _elements(op, elems)
    function = convert_if_enabled(fn)
    head = None
    if initializer is not None:
        state = nest.map_structure(convert_to_tensor, initializer)
    elif count == 0:
        raise ValueError(f"tf.{op}: elems is empty and there is no initializer.")
    else:
        head = state = _take(tensors, count - 1 if backwards else 0)
        bounds = (0, count - 1) if backwards else (1, count)
        tensors = nest.map_structure(lambda t: apply(_slice_op, (t,), bounds), tensors)
        count -= 1
    if count == 0:
        outputs = nest.map_structure(lambda t: _empty(TensorSpec.from_tensor(t)), state)
    elif context.trace is None:
        state, outputs = _eager_accumulate(op, function, tensors, state, count, backwards, keep)
    else:
        flat = nest.flatten(state)

        def step(element: Any, values: list[Any]) -> tuple[list[Any], Any]:
            after = _tensors(function(nest.pack_sequence_as(state, values), element))
            nest.assert_same_structure(state, after, check_types=False)
            return nest.flatten(after), after if keep else ()

        elements = loops.Elements(count, lambda i: None, tensors)
        invariants = LoopVariables(f"tf.{op}", "accumulated value")
        final, outputs = loops.scan(
            elements, step, flat, [True] * len(flat), invariants, reverse=backwards
        )
        state = nest.pack_sequence_as(state, final)
    if keep and head is not None:
        join = _append if backwards else _join
        outputs = nest.map_structure(lambda h, o: apply(join, (h, o)), head, outputs)
    return state, outputs


def _eager_accumulate(
    op: str,
    function: Callable[..., Any],
    tensors: Any,
    state: Any,
    count: int,
    backwards: bool,
    keep: bool,
) -> tuple[Any, Any]:
    kept: list[Any] = []
    for i in reversed(range(count)) if backwards else range(count):
        after = _tensors(function(state, _take(tensors, i)))
        nest.assert_same_structure(state, after, check_types=False)
        for position, (a, b) in enumerate(
            zip(nest.flatten(state), nest.flatten(after), strict=True)
        ):
            for what in ("dtype", "shape"):
                if getattr(a, what) != getattr(b, what):
                    texts = [f"{t.dtype.name}{list(t.shape)}" for t in (a, b)]
                    raise LoopVariables(f"tf.{op}", "accumulated value").changed(
                        position, what, *texts
                    )
        state = after
        kept.append(after)
    if not keep:
        return state, None
    ordered = kept[::-1] if backwards else kept
    return state, nest.map_structure(lambda *parts: stack(list(parts)), *ordered)


class _Interpreted(Op):
    """An op that is used once, so that compiling it would cost more than running it."""

    def compiled(self, static: tuple[Any, ...]) -> Callable[..., Any]:
        return self.bound(static)

    def compiled_residual(
        self, static: tuple[Any, ...], wanted: tuple[bool, ...]
    ) -> Callable[..., Any]:
        return self.residual(static, wanted)


def vectorized_map(
    fn: Callable[..., T], elems: Any, fallback_to_while_loop: bool = True, warn: bool = True
) -> T:
    """Applies `fn` to all slices of `elems` along the first dimension at once.

    `fn` is traced once and vectorized by `jax.vmap`. A function that assigns variables or calls
    Python cannot be; it runs as by `tf.map_fn`.

    Args:
      fn: from one slice, of the structure of `elems`, to a nested structure of tensors.
      elems: a tensor or nested structure of tensors of the same first size n, or of size 1, which
        is then used for every slice.
      fallback_to_while_loop: False raises for functions that cannot be vectorized.
      warn: accepted.

    Returns:
      The results stacked: tensors of shape [n, ...].

    Raises:
      ValueError: for scalars or unequal sizes in `elems`; for a function that assigns variables
        without `fallback_to_while_loop`.

    Example:
      >>> import meshflow as tf
      >>> tf.vectorized_map(lambda x: tf.reduce_sum(x * x), tf.constant([[1.0, 2.0], [3.0, 4.0]])).numpy()
      array([ 5., 25.], dtype=float32)
    """
    tensors = nest.map_structure(convert_to_tensor, elems)
    flat = nest.flatten(tensors)
    if not flat or any(not t.ndim for t in flat):
        _elements("vectorized_map", elems)  # raises
    count = next((n for n in map(_length, flat) if n != 1), 1)
    if any(_length(t) not in (1, count) for t in flat):
        _elements("vectorized_map", elems)  # raises
    function = convert_if_enabled(fn)
    try:
        traced = trace(lambda e: _tensors(function(e)), (_heads(tensors),), name="vectorized_map")
        does = f"assigns variable {traced.writes[0].name}" if traced.writes else ""
        does = does or ("calls Python" if traced.closed.effects else "")
    except ValueNeededError as error:
        if context.trace is not None:
            raise  # the outermost function runs op by op
        does = f"calls Python, or needs values ({error})"
    if does:
        if not fallback_to_while_loop:
            raise ValueError(
                f"tf.vectorized_map: fn {does}, which cannot be vectorized. Use tf.map_fn, or "
                "fallback_to_while_loop=True."
            )
        return map_fn(fn, nest.map_structure(lambda t: _repeated(t, count), tensors))
    operands = Operands([traced])

    def call(arguments: list[Any], captures: list[Any]) -> list[Any]:
        own = operands.captures_of(traced, captures)
        shared = [np.shape(a)[0] != count for a in arguments]
        given = [a[0] if s else a for a, s in zip(map(jnp.asarray, arguments), shared, strict=True)]
        if all(shared):
            return traced.arrays(given, own)
        vectorized = jax.vmap(traced.arrays, in_axes=([None if s else 0 for s in shared], None))
        return vectorized(given, own)

    op = _Interpreted("vectorized_map", lambda o, _: call(o[0], o[1]), heavy=True)
    return traced.rebuild(apply(op, (flat, operands.tensors())))


_repeat = Op(
    "repeat",
    lambda o, static: jnp.repeat(jnp.asarray(o[0]), static[0] // jnp.shape(o[0])[0], axis=0),
)


def _repeated(tensor: Tensor, count: int) -> Tensor:
    if _length(tensor) == count:
        return tensor
    result: Tensor = apply(_repeat, (tensor,), (count,))
    return result
