"""Higher-order functions over the first axis: `map_fn`, `scan`, `foldl`, `foldr`, `vectorized_map`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.export import is_symbolic_dim

from meshflow.core.autograph.conversion import convert_if_enabled
from meshflow.core.dispatch.composite import SparseTensor, SparseTensorSpec
from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.eager_forms import EagerForm, UncompiledForm
from meshflow.core.dispatch.operation import Op
from meshflow.core.dispatch.symbolic_calls import dispatch_composites, record_in_graph
from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import InvalidValueError, ValueNeededError
from meshflow.core.staging import loops
from meshflow.core.staging.merged_operands import MergedOperands
from meshflow.core.staging.varying_sizes import replace_sizes
from meshflow.core.tracing.trace import trace, trace_shapes
from meshflow.core.values import nest
from meshflow.core.values.composite import get_batch_encoder, is_extension, is_extension_spec
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import DType, as_dtype, string
from meshflow.core.values.shapes import TensorShape, can_be_equal
from meshflow.core.values.specs import TensorSpec, TypeSpec, type_spec_from_value
from meshflow.core.values.tensor import Tensor
from meshflow.environment.types import Array, PyTree
from meshflow.ops.array import boolean_mask, concat, pad, shape, stack, zeros
from meshflow.ops.control_flow import LoopVariableInvariants, while_loop
from meshflow.ops.math import equal, reduce_max
from meshflow.ops.ragged.arrays import pack_rows
from meshflow.ops.ragged.construction import convert_values
from meshflow.ops.ragged.partition import find_value
from meshflow.ops.ragged.tensor import RaggedTensor, RaggedTensorSpec

T = TypeVar("T")

_get_row = Op("getitem", lambda o, i: o[0][i[0]])


def _convert_elements(op: str, elems: PyTree) -> tuple[PyTree, int]:
    """Return the elements as tensors, and their number.

    Raises:
      ValueError: If there are no tensors, or scalars, or tensors with different first sizes.
    """
    tensors = nest.map_structure(convert_to_tensor, elems)
    flat = nest.flatten(tensors)
    if not flat:
        raise ValueError(
            f"tf.{op}: elems must be a Tensor or (possibly nested) sequence of Tensors. Got {elems!r}."
        )
    if any(not t.ndim for t in flat):
        raise ValueError(f"tf.{op}: Elements in elems must be 1+ dimensional Tensors, not scalars.")
    counts = list(dict.fromkeys(map(_get_length, flat)))
    if not all(can_be_equal(n, counts[0]) for n in counts[1:]):
        raise InvalidValueError(
            f"tf.{op}: elems must have the same size in dimension 0, got {counts}."
        )
    if len(counts) > 1:
        # The sizes depend on values, and are assumed to be equal.
        tensors = nest.map_structure(
            lambda t: replace_sizes(t, (counts[0], *t.array.shape[1:])), tensors
        )
    return tensors, counts[0]


def _get_length(tensor: Tensor) -> int:
    """Return the size of the first dimension, which is symbolic in shape-polymorphic programs."""
    return tensor.array.shape[0]


def _get_element(elems: PyTree, i: int) -> PyTree:
    def get(t: Tensor) -> Tensor:
        # XLA has no strings.
        return t[i] if t.dtype is string else apply(_get_row, (t,), (i,))

    return nest.map_structure(get, elems)


def _get_element_specs(elems: PyTree) -> PyTree:
    return nest.map_structure(lambda t: TensorSpec(t.shape[1:], t.dtype), elems)


def _to_tensors(value: PyTree) -> PyTree:
    return nest.map_structure(convert_to_tensor, value)


def _make_empty(spec: Any) -> Tensor:
    """Return no rows like a result of the function, which may be a Python number."""
    spec = spec if isinstance(spec, TensorSpec) else convert_to_tensor(spec)
    shape = [0 if d is None else d for d in spec.shape.as_list()]
    return zeros((0, *shape), spec.dtype)


def _find_extensions(values: PyTree) -> PyTree:
    """Return the specs of values of extension types in a structure, with None for its other leaves."""
    return nest.map_structure(
        lambda x: type_spec_from_value(x) if is_extension(x) else None, values
    )


def _encode(spec: PyTree, value: PyTree, minimum_rank: int) -> PyTree:
    return value if spec is None else get_batch_encoder(spec).encode(spec, value, minimum_rank)


def _decode(specs: PyTree, encoded: PyTree) -> PyTree:
    """Undo `_encode` for each leaf of a structure of specs."""
    pairs = zip(nest.flatten(specs), nest.flatten_up_to(specs, encoded), strict=True)
    values = [x if s is None else get_batch_encoder(s).decode(s, x) for s, x in pairs]
    return nest.pack_sequence_as(specs, values)


def _map_extensions(
    run: Callable[..., Any], fn: Callable[..., T], elems: PyTree, signature: PyTree = None
) -> T:
    """Map over or to values of extension types, by a function that maps over their encodings."""
    specs = _find_extensions(elems)
    element_specs = nest.map_structure(
        lambda s: None if s is None else get_batch_encoder(s).unbatch(s), specs
    )
    result_specs: PyTree = None

    def call(encoded: PyTree) -> PyTree:
        nonlocal result_specs
        value = fn(_decode(element_specs, encoded))
        result_specs = _find_extensions(value)
        return nest.map_structure(lambda s, v: _encode(s, v, 0), result_specs, value)

    if any(map(is_extension_spec, nest.flatten(signature))):
        # The results are values of extension types, which have specs.
        signature = None
    encoded = nest.map_structure(lambda s, v: _encode(s, v, 1), specs, elems)
    results = run(call, encoded, signature)
    leaves = nest.flatten(results)
    size = leaves[0].shape[0] if leaves and isinstance(leaves[0], Tensor) else None
    batch_specs = nest.map_structure(
        lambda s: None if s is None else get_batch_encoder(s).batch(s, size), result_specs
    )
    mapped: T = _decode(batch_specs, results)
    return mapped


def _get_sparse_row(rows: SparseTensor, index: int) -> SparseTensor:
    is_inside = equal(rows.indices[:, 0], index)
    indices = boolean_mask(rows.indices, is_inside)[:, 1:]
    return SparseTensor(indices, boolean_mask(rows.values, is_inside), rows.dense_shape[1:])


def _stack_sparse(rows: Sequence[SparseTensor]) -> SparseTensor:
    indices = [pad(r.indices, [[0, 0], [1, 0]], constant_values=i) for i, r in enumerate(rows)]
    values = concat([r.values for r in rows], 0)
    count = Tensor(np.array([len(rows)], np.int64))
    largest = reduce_max(stack([r.dense_shape for r in rows]), 0)
    return SparseTensor(concat(indices, 0), values, concat([count, largest], 0))


def _map_symbolic_rows(
    call: Callable[[Tensor], PyTree], count: Any, signature: PyTree
) -> PyTree | None:
    """Map the indices of a symbolic number of rows in a loop; return None for results of other specs.

    The results are dense, or rows of ragged tensors, which are joined in each iteration.
    """
    specs: list[Any] = nest.flatten(signature)
    if not any(isinstance(s, (RaggedTensorSpec, SparseTensorSpec)) for s in specs):
        rows = loops.LoopElements(count, lambda i: i)
        run = lambda i, state: (state, _to_tensors(call(i)))
        return loops.scan(rows, run, [], [], LoopVariableInvariants("tf.map_fn"))[1]
    if not all(isinstance(s, RaggedTensorSpec) and s.ragged_rank == 0 for s in specs):
        return None
    empty = [zeros([0, *s.shape[1:]], s.dtype) for s in specs]
    starts = [zeros([0], s.row_splits_dtype) for s in specs]

    def add_rows(i: Tensor, values: list[Tensor], lengths: list[Tensor]) -> PyTree:
        rows = list(map(convert_to_tensor, nest.flatten(call(i))))
        counts = [shape(row, n.dtype)[:1] for row, n in zip(rows, lengths, strict=True)]
        joined = [concat(pair, 0) for pair in zip(values, rows, strict=True)]
        return i + 1, joined, [concat(pair, 0) for pair in zip(lengths, counts, strict=True)]

    is_inside = lambda i, *_: i < convert_to_tensor(count, i.dtype)
    sizes = [TensorShape([None, *s.shape[1:]]) for s in specs]
    invariants = (TensorShape([]), sizes, [TensorShape([None])] * len(specs))
    state = (Tensor(np.int32(0)), empty, starts)
    _, values, lengths = while_loop(is_inside, add_rows, state, invariants)
    results = map(RaggedTensor.from_row_lengths, values, lengths)
    return nest.pack_sequence_as(signature, list(results))


def _map_rows(fn: Callable[..., T], elems: PyTree, signature: PyTree) -> T:
    """Map over rows, or to rows, of ragged and sparse tensors."""
    is_sparse = lambda value: isinstance(value, SparseTensor)
    leaves = [x if is_sparse(x) else convert_values(x) for x in nest.flatten(elems)]
    get_row = lambda rows, i: _get_sparse_row(rows, i) if is_sparse(rows) else rows[i]
    counts = list(dict.fromkeys(x.shape[0] for x in leaves))
    if len(counts) != 1:
        raise ValueError(f"tf.map_fn: elems have different sizes {counts}.")
    count = counts[0]
    call = lambda i: fn(nest.pack_sequence_as(elems, [get_row(x, i) for x in leaves]))
    if (
        is_symbolic_dim(count)
        and (result := _map_symbolic_rows(call, count, signature)) is not None
    ):
        return result
    # The function may change and return the same dictionary for each row.
    outputs = [nest.map_structure(lambda row: row, call(i)) for i in range(int(count))]
    if not outputs:
        return nest.flatten(elems)[0]

    def stack_results(spec: Any, *rows: Any) -> Any:
        if is_sparse(rows[0]):
            return _stack_sparse(rows)
        parts = [convert_values(row) for row in rows]
        if isinstance(spec, RaggedTensorSpec):
            found = RaggedTensorSpec.from_value(parts[0])
            if found.ragged_rank != spec.ragged_rank:
                raise ValueError(
                    f"tf.map_fn: Expected `fn` to return {spec}. But it returned {found}."
                )
        is_row = any(isinstance(p, RaggedTensor) or len(p.shape) for p in parts)
        if spec is None and is_row:
            packed = pack_rows(parts)
            return packed if splits_dtype is None else packed.with_row_splits_dtype(splits_dtype)
        if isinstance(spec, RaggedTensorSpec):
            is_fitting = all(map(spec.is_compatible_with, parts))
            return pack_rows(parts, spec if is_fitting else None)
        return stack(parts)

    # Results without a signature have the dtype of the elements' row splits, and unknown row lengths.
    splits_dtype = leaves[0].row_splits.dtype if isinstance(leaves[0], RaggedTensor) else None
    specs = nest.map_structure(lambda _: None, outputs[0]) if signature is None else signature
    return nest.map_structure(stack_results, specs, *outputs)


@dispatch_composites
def map_fn(
    fn: Callable[..., T],
    elems: PyTree,
    dtype: PyTree = None,
    parallel_iterations: int | None = None,
    back_prop: bool = True,
    swap_memory: bool = False,
    infer_shape: bool = True,
    name: str | None = None,
    fn_output_signature: PyTree = None,
) -> T:
    """Apply `fn` to each slice of `elems` along the first dimension, sequentially.

    `tf.vectorized_map` does the same for all slices at once, and is faster.

    Args:
      fn: Maps a slice, with the structure of `elems`, to a nested structure of tensors.
      elems: A tensor or nested structure of tensors with the same first size n.
      dtype: Deprecated name of `fn_output_signature`.
      parallel_iterations: Ignored.
      back_prop: Ignored.
      swap_memory: Ignored.
      infer_shape: Ignored.
      name: Ignored.
      fn_output_signature: Expected dtypes or specs of the result; by default they are not checked.

    Returns:
      The stacked results: tensors of shape [n, ...].

    Raises:
      TypeError: If `fn` is not callable, or a result does not have the expected dtype.
      ValueError: If `elems` contains scalars or unequal sizes.

    Example:
      >>> tf.map_fn(lambda x: x * x, tf.constant([1, 2, 3])).numpy()
      array([1, 4, 9], dtype=int32)
    """
    if not callable(fn):
        raise TypeError(f"tf.map_fn: fn must be callable, got {fn!r}.")
    signature = dtype if fn_output_signature is None else fn_output_signature
    leaves = nest.flatten((elems, signature))
    if any(is_extension(x) or is_extension_spec(x) for x in leaves):
        run = lambda f, e, s: map_fn(f, e, fn_output_signature=s)
        return _map_extensions(run, fn, elems, signature)
    composites = RaggedTensor, RaggedTensorSpec, SparseTensor, SparseTensorSpec
    if any(isinstance(x, composites) for x in leaves):
        return _map_rows(fn, elems, signature)
    tensors, count = _convert_elements("map_fn", elems)
    function = convert_if_enabled(fn)
    if context.trace is None and count == 0:
        specs = trace_shapes(function, (_get_element_specs(tensors),), {})
        result = nest.map_structure(_make_empty, specs)
    elif context.trace is None:
        outputs = [_to_tensors(function(_get_element(tensors, i))) for i in range(count)]
        result = nest.map_structure(lambda *parts: stack(list(parts)), *outputs)
    else:
        elements = loops.LoopElements(count, lambda i: None, tensors)
        invariants = LoopVariableInvariants("tf.map_fn")
        _, result = loops.scan(
            elements, lambda e, s: (s, _to_tensors(function(e))), [], [], invariants
        )
    _check_signature(signature, result)
    return result


def _check_signature(signature: PyTree, result: PyTree) -> None:
    if signature is None:
        return
    expected = [_get_dtype(s) for s in nest.flatten(signature)]
    actual = [t.dtype for t in nest.flatten(result)]
    if nest.is_nested(signature):
        try:
            nest.assert_same_structure(signature, result)
        except (TypeError, ValueError) as error:
            raise type(error)(
                f"tf.map_fn: fn_output_signature and the result of fn differ. {error}"
            ) from None
    if len(expected) != len(actual) or any(
        e is not None and e is not a for e, a in zip(expected, actual, strict=False)
    ):
        raise TypeError(
            f"tf.map_fn: fn_output_signature says {[e.name if e else '?' for e in expected]}, but fn returned "
            f"{[a.name for a in actual]}. Use tf.cast in fn or correct the signature."
        )


def _get_dtype(signature: PyTree) -> DType | None:
    return signature.dtype if isinstance(signature, TypeSpec) else as_dtype(signature)


@record_in_graph
def scan(
    fn: Callable[..., T],
    elems: PyTree,
    initializer: PyTree = None,
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    infer_shape: bool = True,
    reverse: bool = False,
    name: str | None = None,
) -> T:
    """Compute `a = fn(a, element)` over the slices of `elems` and return every `a`.

    Args:
      fn: Maps (accumulated value, slice) to the next accumulated value, of the same structure,
        dtypes and shapes.
      elems: A tensor or nested structure of tensors with the same first size n.
      initializer: The first accumulated value; by default the first slice, which is then also the
        first result.
      parallel_iterations: Ignored.
      back_prop: Ignored.
      swap_memory: Ignored.
      infer_shape: Ignored.
      reverse: Whether to start with the last slice.
      name: Ignored.

    Returns:
      The stacked accumulated values: tensors of shape [n, ...].

    Raises:
      TypeError: If `fn` is not callable.
      ValueError: If `fn` changes the structure, dtype or shape, or `elems` is empty and
        `initializer` missing.

    Example:
      >>> tf.scan(lambda a, x: a + x, tf.constant([1, 2, 3, 4])).numpy()
      array([ 1,  3,  6, 10], dtype=int32)
    """
    del parallel_iterations, back_prop, swap_memory, infer_shape
    return _accumulate("scan", fn, elems, initializer, reverse, keep=True)[1]


@dispatch_composites
def foldl(
    fn: Callable[..., T],
    elems: PyTree,
    initializer: PyTree = None,
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    name: str | None = None,
) -> T:
    """Compute `a = fn(a, element)` from the first slice to the last, and return the last `a`.

    Args:
      fn: Maps (accumulated value, slice) to the next accumulated value, of the same structure,
        dtypes and shapes.
      elems: A tensor or nested structure of tensors with the same first size.
      initializer: The first accumulated value; by default the first slice.
      parallel_iterations: Ignored.
      back_prop: Ignored.
      swap_memory: Ignored.
      name: Ignored.

    Example:
      >>> tf.foldl(lambda a, x: a - x, tf.constant([10, 3, 2])).numpy()
      np.int32(5)
    """
    del parallel_iterations, back_prop, swap_memory
    return _accumulate("foldl", fn, elems, initializer, False, keep=False)[0]


@dispatch_composites
def foldr(
    fn: Callable[..., T],
    elems: PyTree,
    initializer: PyTree = None,
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    name: str | None = None,
) -> T:
    """Compute `a = fn(a, element)` from the last slice to the first, and return the last `a`.

    The arguments are those of `foldl`; by default the first accumulated value is the last slice.

    Example:
      >>> tf.foldr(lambda a, x: a - x, tf.constant([10, 3, 2])).numpy()
      np.int32(-11)
    """
    del parallel_iterations, back_prop, swap_memory
    return _accumulate("foldr", fn, elems, initializer, True, keep=False)[0]


_slice_rows = Op("slice", lambda o, bounds: jnp.asarray(o[0])[bounds[0] : bounds[1]])
_prepend_row = Op("concat", lambda o, _: jnp.concatenate([jnp.expand_dims(o[0], 0), o[1]]))
_append_row = Op("concat", lambda o, _: jnp.concatenate([o[1], jnp.expand_dims(o[0], 0)]))


def _accumulate(
    op: str, fn: Callable[..., Any], elems: PyTree, initializer: PyTree, backwards: bool, keep: bool
) -> tuple[PyTree, PyTree]:
    """Return the final accumulated value and, with `keep`, all of them stacked."""
    if not callable(fn):
        raise TypeError(f"tf.{op}: fn must be callable, got {fn!r}.")
    tensors, count = _convert_elements(op, elems)
    function = convert_if_enabled(fn)
    head = None
    if initializer is not None:
        state = nest.map_structure(convert_to_tensor, initializer)
    elif count == 0:
        raise ValueError(f"tf.{op}: elems is empty and there is no initializer.")
    else:
        head = state = _get_element(tensors, count - 1 if backwards else 0)
        bounds = (0, count - 1) if backwards else (1, count)
        tensors = nest.map_structure(lambda t: apply(_slice_rows, (t,), bounds), tensors)
        count -= 1
    if context.trace is None and count == 0:
        outputs = nest.map_structure(lambda t: _make_empty(TensorSpec.from_tensor(t)), state)
    elif context.trace is None:
        state, outputs = _accumulate_eagerly(op, function, tensors, state, count, backwards, keep)
    else:
        flat = nest.flatten(state)

        def step(element: PyTree, values: list[PyTree]) -> tuple[list[Tensor], PyTree]:
            after = _to_tensors(function(nest.pack_sequence_as(state, values), element))
            nest.assert_same_structure(state, after, check_types=False)
            return nest.flatten(after), after if keep else ()

        elements = loops.LoopElements(count, lambda i: None, tensors)
        invariants = LoopVariableInvariants(f"tf.{op}", "accumulated value")
        final, outputs = loops.scan(
            elements, step, flat, [True] * len(flat), invariants, reverse=backwards
        )
        state = nest.pack_sequence_as(state, final)
    if keep and head is not None:
        join = _append_row if backwards else _prepend_row
        outputs = nest.map_structure(lambda h, o: apply(join, (h, o)), head, outputs)
    return state, outputs


def _accumulate_eagerly(
    op: str,
    function: Callable[..., Any],
    tensors: PyTree,
    state: PyTree,
    count: int,
    backwards: bool,
    keep: bool,
) -> tuple[PyTree, PyTree]:
    states: list[PyTree] = []
    for i in reversed(range(count)) if backwards else range(count):
        after = _to_tensors(function(state, _get_element(tensors, i)))
        nest.assert_same_structure(state, after, check_types=False)
        for position, (a, b) in enumerate(
            zip(nest.flatten(state), nest.flatten(after), strict=True)
        ):
            for aspect in ("dtype", "shape"):
                if getattr(a, aspect) != getattr(b, aspect):
                    texts = [f"{t.dtype.name}{list(t.shape)}" for t in (a, b)]
                    raise LoopVariableInvariants(f"tf.{op}", "accumulated value").make_change_error(
                        position, aspect, *texts
                    )
        state = after
        states.append(after)
    if not keep:
        return state, None
    ordered = states[::-1] if backwards else states
    return state, nest.map_structure(lambda *parts: stack(list(parts)), *ordered)


class _UncompiledOp(Op):
    """Op without compilation; it is used once, and compiling it would take longer than running it."""

    def get_eager(self, static: tuple[Any, ...]) -> EagerForm:
        return UncompiledForm(self.bind_static(static))

    def get_compiled_residual_function(
        self, static: tuple[Any, ...], requested: tuple[bool, ...]
    ) -> Callable[..., Any]:
        return self.get_residual_function(static, requested)


@record_in_graph
def vectorized_map(
    fn: Callable[..., T], elems: PyTree, fallback_to_while_loop: bool = True, warn: bool = True
) -> T:
    """Apply `fn` to all slices of `elems` along the first dimension at once.

    `fn` is traced once and vectorized by `jax.vmap`. A function that assigns variables or calls
    Python cannot be vectorized and runs as in `tf.map_fn`.

    Args:
      fn: Maps a slice, with the structure of `elems`, to a nested structure of tensors.
      elems: A tensor or nested structure of tensors, or of ragged tensors with rows of one length. Their
        first size is n, or 1 for a tensor that is used for every slice.
      fallback_to_while_loop: Whether to run functions that cannot be vectorized sequentially,
        instead of raising an error.
      warn: Ignored.

    Returns:
      The stacked results: tensors of shape [n, ...].

    Raises:
      ValueError: If `elems` contains scalars or unequal sizes, or `fn` cannot be vectorized and
        `fallback_to_while_loop` is false.

    Example:
      >>> tf.vectorized_map(lambda x: tf.reduce_sum(x * x), tf.constant([[1.0, 2.0], [3.0, 4.0]])).numpy()
      array([ 5., 25.], dtype=float32)
    """
    if any(map(is_extension, nest.flatten(elems))):
        run = lambda f, e, _: vectorized_map(f, e, fallback_to_while_loop)
        return _map_extensions(run, fn, elems)
    elems = nest.map_structure(_join_equal_rows, elems)
    tensors = nest.map_structure(convert_to_tensor, elems)
    flat = nest.flatten(tensors)
    if not flat or any(not t.ndim for t in flat):
        _convert_elements("vectorized_map", elems)  # This call raises the error.
    count = next((n for n in map(_get_length, flat) if n != 1), 1)
    if any(_get_length(t) not in (1, count) for t in flat):
        _convert_elements("vectorized_map", elems)  # This call raises the error.
    function = convert_if_enabled(fn)
    try:
        traced = trace(
            lambda e: _to_tensors(function(e)),
            (_get_element_specs(tensors),),
            name="vectorized_map",
        )
        obstacle = f"assigns variable {traced.writes[0].name}" if traced.writes else ""
        obstacle = obstacle or ("calls Python" if traced.closed_jaxpr.effects else "")
    except ValueNeededError as error:
        if context.trace is not None:
            raise  # The outermost function then runs op by op.
        obstacle = f"calls Python, or needs values ({error})"
    if obstacle:
        if not fallback_to_while_loop:
            raise ValueError(
                f"tf.vectorized_map: fn {obstacle}, which cannot be vectorized. Use tf.map_fn, or "
                "fallback_to_while_loop=True."
            )
        return map_fn(fn, nest.map_structure(lambda t: _repeat_elements(t, count), tensors))
    operands = MergedOperands([traced])

    def call(arguments: list[Array], captures: list[Array]) -> list[Array]:
        captured = operands.select_captures(traced, captures)
        is_shared = [np.shape(a)[0] != count for a in arguments]
        arrays = [
            a[0] if s else a for a, s in zip(map(jnp.asarray, arguments), is_shared, strict=True)
        ]
        if all(is_shared):
            return traced.run_on_arrays(arrays, captured)
        vectorized = jax.vmap(
            functools.partial(traced.run_row, keeps_derivatives=True),
            in_axes=([None if s else 0 for s in is_shared], None),
        )
        return vectorized(arrays, captured)

    op = _UncompiledOp("vectorized_map", lambda o, _: call(o[0], o[1]), heavy=True)
    return traced.rebuild_result(apply(op, (flat, operands.read_captures())))


_repeat_row = Op(
    "repeat",
    lambda o, static: jnp.repeat(jnp.asarray(o[0]), static[0] // jnp.shape(o[0])[0], axis=0),
)


def _join_equal_rows(value: PyTree) -> PyTree:
    """Return a ragged tensor with equal row lengths as a tensor, and other values as they are."""
    if not isinstance(value, RaggedTensor) or value.ragged_rank > 1:
        return value
    lengths = find_value(value.row_lengths())
    is_equal = lengths is not None and (lengths == lengths[:1]).all()
    return value.to_tensor() if is_equal or value.uniform_row_length is not None else value


def _repeat_elements(tensor: Tensor, count: int) -> Tensor:
    if _get_length(tensor) == count:
        return tensor
    result: Tensor = apply(_repeat_row, (tensor,), (count,))
    return result
