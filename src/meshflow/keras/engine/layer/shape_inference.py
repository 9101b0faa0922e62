"""Inference of the outputs of layers and ops on symbolic tensors, by traces of their calls.

Each unknown size is replaced by a concrete placeholder size. If there are unknown sizes, the call
is traced twice with different placeholders: output sizes that differ are unknown in the result.
Sizes that depend on values are unknown as well, because the two traces use different made-up
values. The placeholder sizes have many divisors, so that reshapes and strides inside the layer
succeed.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from meshflow.core.dispatch.composite import SparseTensor, SparseTensorSpec
from meshflow.core.dispatch.shape_probing import ShapeProbe, probe_shapes
from meshflow.core.dispatch.symbolic_calls import UnknownString
from meshflow.core.tracing.trace import trace_shapes
from meshflow.core.values import nest
from meshflow.core.values.composite import (
    is_composite_spec,
    is_extension,
    is_extension_spec,
)
from meshflow.core.values.convert import convert_registered, has_registered_conversion
from meshflow.core.values.dtypes import DTypeLike, string
from meshflow.core.values.shapes import TensorShape
from meshflow.core.values.size_guards import GuardedSizes
from meshflow.core.values.specs import TensorSpec, type_spec_from_value
from meshflow.core.values.tensor import Tensor
from meshflow.environment.types import PyTree
from meshflow.keras.engine.layer.call_errors import merge_messages, replace_message
from meshflow.keras.engine.symbolic.keras_tensor import KerasTensor
from meshflow.ops.ragged import RaggedTensor, RaggedTensorSpec

_PLACEHOLDER_SIZES = (720, 5040)
# Lengths of the rows of ragged placeholders, repeated. They differ, so that no axis seems uniform.
_PLACEHOLDER_LENGTHS = (1, 3)
# Number of elements of sparse placeholders.
_PLACEHOLDER_ELEMENTS = 8
# Used if a call fails with large sizes, for example when it slices a table of position embeddings
# to the input length.
_SMALL_PLACEHOLDER_SIZES = (6, 12)
# Unknown sizes of the inputs of a graph, when sizes inside it must be related, for example because one is half of another.
# They can be halved ten times.
_RELATED_SIZES = (3 << 10, 5 << 10)
# All sizes that replace unknown ones.
INVENTED_SIZES = (*_PLACEHOLDER_SIZES, *_SMALL_PLACEHOLDER_SIZES)
# Maximum number of elements of a placeholder value, beyond which these sizes are used.
_MAX_ELEMENTS = 1 << 22
# A size in the message of an error.
_SIZE = re.compile(r"(?<![\w.])\d{1,6}(?![\w.])")
# Ranks that replace an unknown one, the most frequent first.
_RANKS = (2, 1, 3, 4, 5, 0)
# Maximum number of combinations of sizes that an inference tries.
_MAX_CHOICES = 64

# Returns the specs of symbolic tensors for a size of the inputs of their graph; `graph.related_shapes` sets it.
_trace_graph: Callable[[list[KerasTensor], int], list[TensorSpec]] | None = None


def register_graph_trace(
    function: Callable[[list[KerasTensor], int], list[TensorSpec]],
) -> None:
    """Register the function that returns the specs of symbolic tensors for a size of the inputs of their graph."""
    global _trace_graph
    _trace_graph = function


def infer_outputs(
    call: Callable[..., PyTree],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    declared: Callable[[], PyTree] | None = None,
) -> PyTree:
    """Return the result structure of a call, with a `KerasTensor` for each tensor.

    Args:
      call: Function to trace.
      args: Positional arguments, which may contain `KerasTensor`s.
      kwargs: Keyword arguments, which may contain `KerasTensor`s.
      declared: Function that returns the result if `call` fails with made-up values.
    """
    inferred = _infer_with_symbol(call, args, kwargs)
    if inferred is not None:
        return inferred[0]
    return infer_op_outputs(call, args, kwargs, declared)


def infer_op_outputs(
    call: Callable[..., PyTree],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    declared: Callable[[], PyTree] | None = None,
) -> PyTree:
    """Return the result structure of an op, where an unknown size may have to equal a known one.

    For example, `[None, 3]` and `[2, None]` are added as `[2, 3]`. Shape tensors keep their values.

    Args:
      call: The op.
      args: Positional arguments, which may contain `KerasTensor`s.
      kwargs: Keyword arguments, which may contain `KerasTensor`s.
      declared: See `infer_outputs`.
    """
    if any(map(_has_unknown_rank, nest.flatten((args, kwargs)))):
        return _infer_with_ranks(call, args, kwargs, declared)
    probes = ShapeProbe(0), ShapeProbe(1)
    try:
        return _infer_with_probes(call, args, kwargs, probes)
    except Exception as error:
        if declared is not None and any(probe.used for probe in probes):
            return declared()
        return _infer_with_known_sizes(call, args, kwargs, probes, error)


def _has_unknown_rank(value: object) -> bool:
    return isinstance(value, KerasTensor) and value.shape.rank is None


def _infer_with_ranks(
    call: Callable[..., PyTree], args: PyTree, kwargs: PyTree, declared: Callable[[], PyTree] | None
) -> PyTree:
    """Return what the results of a call have in common for the first two possible ranks of the inputs without one.

    The shapes of the results are unknown if the call is possible for one rank only.
    """
    found: list[Any] = []
    errors: list[Exception] = []
    for rank in _RANKS:

        def fill(value: Any, rank: int = rank) -> Any:
            if not _has_unknown_rank(value):
                return value
            filled = KerasTensor(value.type_spec)
            filled.set_shape([None] * rank)
            return filled

        try:
            filled_args, filled_kwargs = nest.map_structure(fill, (args, kwargs))
            found.append(infer_op_outputs(call, filled_args, filled_kwargs, declared))
        except Exception as error:
            errors.append(error)
        if len(found) == 2:
            return nest.map_structure(_merge_ranks, *found)
    if not found:
        raise errors[0]
    return nest.map_structure(lambda leaf: _merge_ranks(leaf, None), found[0])


def _merge_ranks(first: PyTree, second: PyTree) -> PyTree:
    """Return a symbolic tensor with the shape that two have in common, unknown if there is no second one."""
    if not isinstance(first, KerasTensor):
        return first
    if second is not None:
        return KerasTensor(first.type_spec.most_specific_compatible_type(second.type_spec))
    spec = first.type_spec
    return KerasTensor(TensorSpec(None, spec.dtype)) if isinstance(spec, TensorSpec) else first


def _infer_with_known_sizes(
    call: Callable[..., PyTree], args: PyTree, kwargs: PyTree, probes: tuple[ShapeProbe, ShapeProbe],
    error: Exception,
) -> PyTree:  # fmt: skip
    """Repeat an inference with other sizes for unknown ones, or raise the error that it had."""
    with contextlib.suppress(Exception):
        return _infer_with_related_sizes(call, args, kwargs, probes)
    for filled_args, filled_kwargs in _substitute_known_sizes(args, kwargs, str(error)):
        with contextlib.suppress(Exception):
            return _infer_with_probes(call, filled_args, filled_kwargs, probes)
    _restore_unknown_sizes(error, call, args, kwargs)
    raise error


def _infer_with_related_sizes(
    call: Callable[..., PyTree], args: PyTree, kwargs: PyTree, probes: tuple[ShapeProbe, ShapeProbe]
) -> PyTree:
    """Return the result structure of a call on tensors whose unknown sizes follow from those of the same inputs.

    A layer that adds a feature map to the enlarged map of the next level, for example, works only if the first one is
    twice as large.

    Raises:
      ValueError: If there are no such tensors.
    """
    leaves = nest.flatten((args, kwargs))
    related = [v for v in leaves if _has_substitutable_sizes(v) and None in v.shape.as_list()[1:]]
    if _trace_graph is None or len(related) < 2:
        raise ValueError("No unknown sizes are related.")
    for size, root in zip(_PLACEHOLDER_SIZES, _RELATED_SIZES, strict=True):
        for tensor, spec in zip(related, _trace_graph(related, root), strict=True):
            tensor.related_shapes[size] = spec.shape
    try:
        result = _compare_traces(call, args, kwargs, _PLACEHOLDER_SIZES, probes)
    finally:
        for tensor in related:
            tensor.related_shapes.clear()
    for tensor in nest.flatten(result):
        # They belong to other sizes of the inputs.
        tensor.known_values = {}
    return result


def _restore_unknown_sizes(
    error: Exception, call: Callable[..., PyTree], args: PyTree, kwargs: PyTree
) -> None:
    """Replace the placeholder sizes in the message of an error by None."""
    symbolic = [v for v in nest.flatten((args, kwargs)) if isinstance(v, KerasTensor)]
    if all(t.shape.is_fully_defined() for t in symbolic):
        return
    messages: list[str | None] = []
    for size in _PLACEHOLDER_SIZES:
        try:
            _trace_specs(call, args, kwargs, size, ShapeProbe(0))
        except Exception as repeated:
            messages.append(str(repeated))
        else:
            messages.append(None)
    first = messages[0]
    if first is None:
        first, messages[1] = str(error), None
    replace_message(error, merge_messages(first, messages[1], _PLACEHOLDER_SIZES))


def _substitute_known_sizes(
    args: PyTree, kwargs: PyTree, message: str
) -> Iterator[tuple[Any, Any]]:
    """Iterate over the arguments with known sizes for unknown ones, fewest changes first.

    A size can be that of another argument, or of a constant, which the message of an error names: programs combine
    inputs with arrays for a fixed batch size.
    """
    leaves = nest.flatten((args, kwargs))
    symbolic = [v for v in leaves if _has_substitutable_sizes(v)]
    unknown = sum(size is None for t in symbolic for size in t.shape)
    sizes = {v for v in leaves if type(v) is int}
    if len(symbolic) > 1:
        sizes |= {size for t in symbolic for size in t.shape if size is not None}
    named = {int(n) for n in _SIZE.findall(message)} - {*_PLACEHOLDER_SIZES}
    # Arguments with the same unknown axes usually have the same batch.
    is_batch = [axis == 0 for t in symbolic for axis, n in enumerate(t.shape) if n is None]
    choices: list[tuple[int | None, ...]] = [
        tuple(size if batch else None for batch in is_batch)
        for size in sorted(named - {1})[: _MAX_CHOICES // 8]
        if any(is_batch)
    ]
    candidates = sorted(s for s in sizes | named if s > 1)
    if 1 in named and (2 + len(candidates)) ** unknown <= _MAX_CHOICES:
        # The last one, because an axis of size 1 is broadcast to any size.
        candidates.append(1)
    if unknown and (1 + len(candidates)) ** unknown <= _MAX_CHOICES:
        choices += itertools.product((None, *candidates), repeat=unknown)
    for choice in dict.fromkeys(sorted(choices, key=lambda c: len(c) - c.count(None))):
        if not any(choice):
            continue
        sizes_left = iter(choice)

        def fill(value: Any, chosen: Iterator[int | None] = sizes_left) -> Any:
            if not _has_substitutable_sizes(value):
                return value
            shape = [next(chosen) if size is None else size for size in value.shape]
            filled = KerasTensor(value.type_spec)
            filled.set_shape(shape)
            return filled

        yield nest.map_structure(fill, (args, kwargs))


def _has_substitutable_sizes(value: object) -> bool:
    return (
        isinstance(value, KerasTensor)
        and value.shape.rank is not None
        and not value.known_values
        and not isinstance(value.type_spec, RaggedTensorSpec)
        and not is_extension_spec(value.type_spec)
    )


def _infer_with_symbol(
    call: Callable[..., PyTree], args: PyTree, kwargs: PyTree
) -> tuple[PyTree] | None:
    """Return the results by one trace with a symbol for unknown sizes.

    The result is None if the sizes are known, or if the trace is not valid for all sizes, so that it must be
    repeated for several numbers.
    """
    symbolic = [v for v in nest.flatten((args, kwargs)) if isinstance(v, KerasTensor)]
    if all(map(_has_known_sizes, symbolic)) or any(
        v.is_composite or v.dtype is string or v.shape.rank is None or v.known_values
        for v in symbolic
    ):
        return None
    sizes = GuardedSizes([[(size,)] for size in _PLACEHOLDER_SIZES])
    probe = ShapeProbe(0)
    try:
        with sizes.record():
            found, known, masks = _trace_specs(call, args, kwargs, sizes.shapes[0][0], probe)
            results = [
                leaf for leaf in nest.flatten(found) if isinstance(leaf, (Tensor, TensorSpec))
            ]
            is_plain = len(results) == len(nest.flatten(found))
    except Exception:
        return None
    if probe.used or known or sizes.list_guards() or sizes.num_unknown or not is_plain:
        return None
    masks = {i: _forget_symbols(m) for i, m in masks.items()}
    return (
        _attach_masks(nest.map_structure(lambda t: KerasTensor(_forget_symbols(t)), found), masks),
    )


def _forget_symbols(tensor: Tensor | TensorSpec) -> TensorSpec:
    shape = [n if isinstance(n, int) else None for n in tensor.shape]
    return TensorSpec(shape, tensor.dtype)


def _infer_with_probes(
    call: Callable[..., PyTree], args: PyTree, kwargs: PyTree, probes: tuple[ShapeProbe, ShapeProbe]
) -> PyTree:
    symbolic = [v for v in nest.flatten((args, kwargs)) if isinstance(v, KerasTensor)]
    if all(_has_known_sizes(t) and not t.known_values for t in symbolic):
        first, _, masks = _trace_specs(call, args, kwargs, _PLACEHOLDER_SIZES[0], probes[0])
        if probes[0].used:
            return _compare_traces(call, args, kwargs, _PLACEHOLDER_SIZES, probes)
        return _attach_masks(nest.map_structure(_as_keras_tensor, first), masks)
    try:
        return _compare_traces(call, args, kwargs, _PLACEHOLDER_SIZES, probes)
    except Exception as error:
        if any(t.known_values for t in symbolic):
            # The known values were computed for the large placeholder sizes only.
            raise
        try:
            return _compare_traces(call, args, kwargs, _SMALL_PLACEHOLDER_SIZES, probes)
        except Exception:
            raise error from None


def _has_known_sizes(tensor: KerasTensor) -> bool:
    parts = (
        nest.flatten_parts(tensor.type_spec) if is_extension_spec(tensor.type_spec) else [tensor]
    )
    return all(part.shape.is_fully_defined() for part in parts)


def _compare_traces(
    call: Callable[..., PyTree],
    args: PyTree,
    kwargs: PyTree,
    sizes: tuple[int, int],
    probes: tuple[ShapeProbe, ShapeProbe],
) -> PyTree:
    """Return the result structure of a call; sizes that differ between two traces are unknown."""
    first, known, masks = _trace_specs(call, args, kwargs, sizes[0], probes[0])
    second, also_known, also_masks = _trace_specs(call, args, kwargs, sizes[1], probes[1])
    if len(nest.flatten(first)) != len(nest.flatten(second)):
        raise ValueError("The number of outputs depends on an unknown size of the inputs.")
    result = nest.map_structure(lambda a, b: _as_keras_tensor(_merge_specs(a, b)), first, second)
    masks = {i: _merge_specs(m, also_masks[i]) for i, m in masks.items() if i in also_masks}
    for index, tensor in enumerate(nest.flatten(_attach_masks(result, masks))):
        if index in known and index in also_known:
            tensor.known_values = dict(zip(sizes, (known[index], also_known[index]), strict=True))
    return result


def _trace_specs(
    call: Callable[..., PyTree], args: PyTree, kwargs: PyTree, size: int, probe: ShapeProbe
) -> tuple[Any, dict[int, np.ndarray], dict[int, TensorSpec]]:
    """Trace a call for one placeholder size; return result specs, known values, mask specs.

    Known values allow `tf.shape(x)[0]` in a shape although the batch size is unknown.
    """
    known: dict[int, np.ndarray] = {}
    masks: dict[int, TensorSpec] = {}
    symbolic = [v for v in nest.flatten((args, kwargs)) if isinstance(v, KerasTensor)]
    probe.invents_sizes = not all(map(_has_known_sizes, symbolic))
    probe.invented_size = size if probe.invents_sizes else 0
    is_large = (
        isinstance(size, int)
        and size in _PLACEHOLDER_SIZES
        and not any(v.known_values for v in symbolic)
    )
    probe.max_elements = _MAX_ELEMENTS if is_large and probe.invents_sizes else math.inf
    for v in symbolic:
        if v.dtype is string and v.shape.rank is not None:
            probe.check_size([size if n is None else n for n in v.shape])
    input_masks = {
        str(i): _make_placeholder(v._keras_mask, size)
        for i, v in enumerate(nest.flatten((args, kwargs)))
        if isinstance(v, KerasTensor) and v._keras_mask is not None
    }

    def run(input_masks: dict[str, Any], args: PyTree, kwargs: PyTree) -> PyTree:
        leaves = nest.flatten((args, kwargs))
        for index, mask in input_masks.items():
            leaves[int(index)]._keras_mask = mask
        args, kwargs = nest.map_structure(
            lambda v: Tensor(v.value) if isinstance(v, _KnownValue) else v, (args, kwargs)
        )
        if partitions or extensions:
            leaves = nest.flatten((args, kwargs))
            for position, partition in partitions.items():
                leaves[position] = partition.make_tensor(leaves[position])
            for position, spec in extensions.items():
                leaves[position] = _set_row_lengths(spec, leaves[position], size)
            args, kwargs = nest.pack_sequence_as((args, kwargs), leaves)
        outputs = nest.map_structure(_simplify_result, call(*args, **kwargs))
        for i, leaf in enumerate(nest.flatten(outputs)):
            mask = getattr(leaf, "_keras_mask", None)
            if mask is not None:
                masks[i] = TensorSpec(mask.shape, mask.dtype)
            if (
                isinstance(leaf, Tensor)
                and type(leaf.array) is np.ndarray
                and leaf.dtype.is_integer
            ):
                known[i] = leaf.array
        return outputs

    leaves = nest.flatten((args, kwargs))
    partitions = {
        index: _Partition(leaf.type_spec, size)
        for index, leaf in enumerate(leaves)
        if isinstance(leaf, KerasTensor) and isinstance(leaf.type_spec, RaggedTensorSpec)
    }
    extensions = {
        index: leaf.type_spec
        for index, leaf in enumerate(leaves)
        if isinstance(leaf, KerasTensor) and is_extension_spec(leaf.type_spec)
    }
    for index, partition in partitions.items():
        leaves[index] = KerasTensor(partition.flat_spec)
    filled_args, filled_kwargs = nest.pack_sequence_as(
        (args, kwargs), [_make_placeholder(leaf, size) for leaf in leaves]
    )
    with probe_shapes(probe):
        return trace_shapes(run, (input_masks, filled_args, filled_kwargs), {}), known, masks


def _attach_masks(result: PyTree, masks: dict[int, TensorSpec]) -> PyTree:
    """Attach symbolic masks to the symbolic results, for the layers that follow."""
    leaves = nest.flatten(result)
    for index, spec in masks.items():
        if isinstance(leaves[index], KerasTensor):
            leaves[index]._keras_mask = KerasTensor(spec)
    return result


class _KnownValue:
    """Value that is known for a placeholder size."""

    def __init__(self, value: np.ndarray) -> None:
        self.value = value


class _Partition:
    """Known lengths of the rows of a ragged placeholder.

    Args:
      spec: Spec of the ragged tensor.
      size: Number of rows if the spec does not determine it.
    """

    def __init__(self, spec: RaggedTensorSpec, size: int) -> None:
        sizes = spec.shape.as_list()
        count = size if sizes[0] is None else sizes[0]
        self._lengths: list[np.ndarray] = []
        for length in sizes[1 : spec.ragged_rank + 1]:
            lengths = np.resize(_PLACEHOLDER_LENGTHS if length is None else length, count)
            self._lengths.append(lengths.astype(spec.row_splits_dtype.as_numpy_dtype))
            count = int(lengths.sum())
        self.flat_spec = TensorSpec([count, *sizes[spec.ragged_rank + 1 :]], spec.dtype)

    def make_value(self) -> PyTree:
        """Return a placeholder of specs, with traced row splits."""
        splits = [TensorSpec([len(n) + 1], n.dtype) for n in self._lengths]
        value = self.make_tensor(np.zeros(self.flat_spec.shape, self.flat_spec.dtype.dtype))
        return value.join_parts([self.flat_spec, *splits])

    def make_tensor(self, flat_values: Any) -> Any:
        if not self._lengths:
            return flat_values
        return RaggedTensor.from_nested_row_lengths(flat_values, self._lengths, validate=False)


def _make_placeholder(value: Any, size: int) -> Any:
    if not isinstance(value, KerasTensor):
        return value
    if is_composite_spec(value.type_spec):
        return _fill_spec(value.type_spec, size)
    if size in value.known_values:
        return _KnownValue(value.known_values[size])
    if value.dtype is string:
        # XLA programs have no strings, so string tensors are constants while tracing.
        blank: np.ndarray = np.empty([size if d is None else d for d in value.shape], object)
        blank.fill(UnknownString())
        return Tensor(blank)
    shape = value.related_shapes.get(size, value.shape)
    return TensorSpec([size if d is None else d for d in shape], value.dtype)


def _fill_spec(spec: PyTree, size: int) -> PyTree:
    """Return a placeholder of specs for the values that a spec describes."""
    if is_extension_spec(spec):
        return spec.fill_components(lambda part: _fill_spec(part, size))
    if isinstance(spec, RaggedTensorSpec):
        return _Partition(spec, size).make_value()
    sizes = tuple(size if d is None else d for d in spec.shape)
    if isinstance(spec, SparseTensorSpec):
        return SparseTensor.from_specs(sizes, spec.dtype, _PLACEHOLDER_ELEMENTS)
    return TensorSpec(sizes, spec.dtype)


def _set_row_lengths(spec: PyTree, value: PyTree, size: int) -> PyTree:
    """Replace the traced row splits of ragged tensors in an extension type by the known ones of its placeholder."""
    if isinstance(spec, RaggedTensorSpec):
        return _Partition(spec, size).make_tensor(value.flat_values)
    if not is_extension_spec(spec):
        return value
    parts = jax.tree_util.tree_map(
        lambda inner, part: _set_row_lengths(inner, part, size),
        spec._component_specs,
        spec._to_components(value),
    )
    return spec._from_components(parts)


def _simplify_result(value: PyTree) -> PyTree:
    """Return the spec of a ragged tensor or extension type, or the tensor of another result."""
    if is_extension(value):
        spec = type_spec_from_value(value)
        # Distributions of TensorFlow Probability have specs without a shape.
        has_tensor = not hasattr(spec, "shape") and has_registered_conversion(value)
        return convert_registered(value) if has_tensor else spec
    if isinstance(value, RaggedTensor):
        return RaggedTensorSpec.from_value(value)
    return convert_registered(value)


def _merge_specs(a: Any, b: Any) -> Any:
    if isinstance(a, RaggedTensorSpec) or is_extension_spec(a):
        return a.most_specific_compatible_type(b)
    if isinstance(a, Tensor):
        a, b = (TensorSpec(t.shape, t.dtype) for t in (a, b))
    if isinstance(a, SparseTensor):
        shape = a.shape.most_specific_compatible_shape(b.shape)
        return SparseTensorSpec(shape, a.dtype)
    if not isinstance(a, TensorSpec):
        return a
    return TensorSpec(a.shape.most_specific_compatible_shape(b.shape), a.dtype)


def _as_keras_tensor(value: Any) -> Any:
    if isinstance(value, Tensor):
        value = TensorSpec(value.shape, value.dtype)
    if isinstance(value, SparseTensor):
        value = SparseTensorSpec(value.shape, value.dtype)
    is_spec = isinstance(value, TensorSpec) or is_composite_spec(value)
    return KerasTensor(value) if is_spec else value


def infer_output_shape(
    call: Callable[..., PyTree], input_shape: PyTree, dtype: DTypeLike
) -> PyTree:
    """Infer the shapes of the results of a call for an input shape or structure of shapes."""
    inputs = map_shapes(lambda s: KerasTensor(TensorSpec(s, dtype)), input_shape)
    outputs = infer_outputs(call, (inputs,), {})
    return nest.map_structure(lambda t: t.shape, outputs)


def map_shapes(function: Callable[[TensorShape], Any], shapes: PyTree) -> PyTree:
    """Apply a function to each shape in a structure in which tuples of sizes are shapes."""
    if isinstance(shapes, TensorShape):
        return function(shapes)
    if isinstance(shapes, dict):
        return {key: map_shapes(function, value) for key, value in shapes.items()}
    if isinstance(shapes, (list, tuple)) and not all(
        d is None or isinstance(d, int) for d in shapes
    ):
        return type(shapes)(map_shapes(function, value) for value in shapes)
    return function(TensorShape(shapes))
