"""`GradientTape` records ops while they run, and computes gradients from the record.

A tape holds *nodes*, one for each op with a watched operand. A tensor is watched after `watch`,
after it was read from a trainable variable, or if a recorded op returned it. `gradient` visits the
nodes from last to first and adds up the gradients of each tensor. Every step of this
backpropagation is also an op, which an active outer tape records for higher orders.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Collection, Iterator, Sequence
from typing import Any, TypeAlias, overload

import jax

from meshflow.core.dispatch.composite import IndexedSlices
from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import Op
from meshflow.core.dispatch.recorded_op import RecordedOp, is_differentiable
from meshflow.core.gradients.gradient_targets import (
    UnconnectedGradients,
    convert_target,
    make_initial_gradient,
    parse_unconnected,
    zeros_like,
)
from meshflow.core.gradients.jacobians import JacobianMethods
from meshflow.core.gradients.tape_nodes import FunctionNode, ReadNode, backpropagate, to_dense
from meshflow.core.runtime.broadcasting import combine
from meshflow.core.runtime.context import Recorder, context
from meshflow.core.runtime.tracebacks import hide_frames_of_methods
from meshflow.core.values import nest
from meshflow.core.values.composite import (
    CompositeTensor,
    list_components,
    replace_components,
    split_value,
)
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.variable import Variable
from meshflow.environment.types import PyTree

# Lists are invariant, so each kind is listed.
Node: TypeAlias = RecordedOp | FunctionNode | ReadNode
SourceList: TypeAlias = list[Variable] | list[Tensor] | list[Tensor | Variable]
_log = logging.getLogger("meshflow")


@hide_frames_of_methods
class GradientTape(JacobianMethods):
    """Record operations for automatic differentiation.

    Trainable variables are watched when they are read; tensors are watched with `watch`.

    Args:
      persistent: Whether `gradient` may be called more than once.
      watch_accessed_variables: Whether trainable variables are watched automatically.

    Example:
      >>> x = tf.constant(3.0)
      >>> with tf.GradientTape() as outer:
      ...     outer.watch(x)
      ...     with tf.GradientTape() as inner:
      ...         inner.watch(x)
      ...         y = x * x * x
      ...     dy = inner.gradient(y, x)
      >>> float(dy), float(outer.gradient(dy, x))
      (27.0, 18.0)
    """

    def __init__(self, persistent: bool = False, watch_accessed_variables: bool = True) -> None:
        self._persistent = persistent
        self._watch_accessed = watch_accessed_variables
        self._clear()
        self._recording = False
        self._used = False
        self._was_reset = False
        self._stack: list[Recorder] | None = None

    @property
    def _tape(self) -> GradientTape | None:
        """Return the tape, or None if it has recorded nothing; libraries compute their own gradients with it."""
        return None if self._stack is None else self

    @contextlib.contextmanager
    def _ensure_recording(self) -> Iterator[None]:
        """Record a block, even after the block of the tape."""
        if self._recording:
            yield
        else:
            with self:
                yield

    def _clear(self) -> None:
        self._nodes: list[Node] = []
        # Watched objects by id; they are held so that no other object can get their ids.
        self._watched: dict[int, Any] = {}
        self._variables: dict[int, Variable] = {}

    # ---- recording -------------------------------------------------------------------------

    def __enter__(self) -> GradientTape:
        if self._recording:
            raise ValueError("Tape is still recording; this tape is already active.")
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._recording:
            self._stop()

    def _start(self) -> None:
        self._stack = context.tapes
        self._stack.append(self)
        self._recording = True

    def _stop(self) -> None:
        if self._stack is not None and self in self._stack:
            self._stack.remove(self)
        self._recording = False

    def watch(self, tensor: PyTree) -> None:
        """Start to record the ops on a tensor, variable, or nested structure of them.

        Args:
          tensor: Tensors or variables with a floating or complex dtype.

        Raises:
          ValueError: If an object is not a tensor.
        """
        for item in nest.flatten(tensor):
            if isinstance(item, CompositeTensor):
                self.watch([part for part in split_value(item) if is_differentiable(part)])
            elif hasattr(item, "_should_act_as_resource_variable"):
                self.watch(item.handle)
            elif hasattr(item, "_components"):
                self.watch(list_components(item))
            elif hasattr(item, "_watch_on"):
                item._watch_on(self)
            elif isinstance(item, Tensor):
                if not is_differentiable(item):
                    _log.warning(
                        "The dtype of the watched tensor must be floating (e.g. tf.float32), got %r",
                        item.dtype,
                    )
                    continue
                self._watched[id(item)] = item
            else:
                raise ValueError(
                    f"Passed in object {item!r} of type {type(item).__name__!r}, not tf.Tensor or "
                    "tf.Variable."
                )

    def watch_variable(self, variable: Variable) -> None:
        """Watch a variable, also if it is not trainable."""
        self._variables[id(variable)] = variable

    def record_read(self, variable: Variable, value: Tensor) -> None:
        """Record that `value` was read from `variable`."""
        if id(variable) not in self._variables:
            if not (self._watch_accessed and variable.trainable):
                return
            self._variables[id(variable)] = variable
        if is_differentiable(value) and id(value) not in self._watched:
            self._watched[id(value)] = value
            self._nodes.append(ReadNode(variable, value))

    def watches(self, tensor: Tensor) -> bool:
        """Check whether the tensor is watched."""
        return id(tensor) in self._watched

    def is_watching(self, tensors: Sequence[Tensor]) -> bool:
        """Check whether at least one of the tensors is watched."""
        watched = self._watched
        return any(id(t) in watched for t in tensors)

    def record(self, node: Node) -> None:
        """Add a node and watch its outputs."""
        self._nodes.append(node)
        for output in node.outputs:
            self._watched[id(output)] = output

    @contextlib.contextmanager
    def stop_recording(self) -> Iterator[None]:
        """Pause recording inside a `with` block.

        Raises:
          RuntimeError: If the tape is not recording.
        """
        if not self._recording:
            raise RuntimeError("Tape is not recording, so recording cannot be paused.")
        stack = self._stack
        self._stop()
        try:
            yield
        finally:
            self._stack = stack
            stack.append(self)  # type: ignore[union-attr]
            self._recording = True

    def reset(self) -> None:
        """Delete all nodes and watched tensors."""
        self._was_reset = True
        self._clear()
        self._used = False

    @property
    def has_all_reads(self) -> bool:
        """Whether the tape has recorded all reads of trainable variables since its start."""
        return self._watch_accessed and not self._was_reset

    def watched_variables(self) -> tuple[Variable, ...]:
        """Return the watched variables, in the order in which they were created."""
        return tuple(sorted(self._variables.values(), key=lambda v: v._creation_number))

    # ---- gradients -------------------------------------------------------------------------

    @overload
    def gradient(
        self,
        target: PyTree,
        sources: Tensor | Variable,
        output_gradients: PyTree = None,
        unconnected_gradients: UnconnectedGradients | str = UnconnectedGradients.NONE,
    ) -> Tensor: ...
    @overload
    def gradient(
        self,
        target: PyTree,
        sources: SourceList,
        output_gradients: PyTree = None,
        unconnected_gradients: UnconnectedGradients | str = UnconnectedGradients.NONE,
    ) -> list[Tensor]: ...
    @overload
    def gradient(
        self,
        target: PyTree,
        sources: tuple[Tensor | Variable, ...],
        output_gradients: PyTree = None,
        unconnected_gradients: UnconnectedGradients | str = UnconnectedGradients.NONE,
    ) -> tuple[Tensor, ...]: ...
    @overload
    def gradient(
        self,
        target: PyTree,
        sources: PyTree,
        output_gradients: PyTree = None,
        unconnected_gradients: UnconnectedGradients | str = UnconnectedGradients.NONE,
    ) -> PyTree: ...
    def gradient(
        self,
        target: PyTree,
        sources: PyTree,
        output_gradients: PyTree = None,
        unconnected_gradients: UnconnectedGradients | str = UnconnectedGradients.NONE,
    ) -> PyTree:
        """Compute the derivative of the sum of `target` with respect to `sources`.

        Args:
          target: A tensor or nested structure of tensors to differentiate.
          sources: Tensors or variables, in any nested structure.
          output_gradients: Initial gradients, in a structure like `target`; by default ones.
          unconnected_gradients: `NONE` or `ZERO`, for sources on which `target` does not depend.

        Returns:
          Gradients in the structure of `sources`: tensors, or `tf.IndexedSlices` if the target uses
          only rows of the source (`tf.gather` along the first dimension, `tf.nn.embedding_lookup`).

        Raises:
          RuntimeError: If a tape that is not persistent is used twice.
          TypeError: If target is None.
          ValueError: If output_gradients and target have different numbers of tensors.
        """
        self._mark_used()
        if context.graph is not None and context.trace is None:
            return context.graph.differentiate(
                target, sources, output_gradients, unconnected_gradients, self._watches_source
            )
        result = self._compute_gradient(
            target, sources, output_gradients, parse_unconnected(unconnected_gradients)
        )
        if not self._persistent:
            self._nodes = []
            self._watched = {}
        return result

    def _watches_source(self, source: object) -> bool:
        """Check whether the tape watches a tensor, or would watch a variable that is read."""
        if isinstance(source, Variable):
            is_accessed = self._watch_accessed and source.trainable
            return is_accessed or id(source) in self._variables
        return id(source) in self._watched

    def _mark_used(self) -> None:
        """Record that gradients are computed, which is allowed once unless the tape is persistent."""
        if self._used and not self._persistent:
            raise RuntimeError(
                "A non-persistent GradientTape can only be used to compute one set of gradients "
                "(or jacobians). Use GradientTape(persistent=True), and delete it when done."
            )
        if self._recording and not self._persistent:
            self._stop()
        self._used = True

    def _compute_gradient(
        self,
        target: PyTree,
        sources: PyTree,
        output_gradients: PyTree,
        unconnected: UnconnectedGradients,
        stopped: Collection[int] = (),
    ) -> PyTree:
        leaves = nest.flatten(sources)
        flat_sources = _list_components(leaves)
        source_ids = {id(s) for s in flat_sources}
        # A variable that is both target and source is differentiated as itself.
        target_parts = _list_components(nest.flatten(target))
        targets = [t if id(t) in source_ids else convert_target(t) for t in target_parts]
        for source in flat_sources:
            if not (isinstance(source, Tensor) or hasattr(source, "_watch_on")):
                raise ValueError(
                    f"Cannot differentiate with respect to {source!r} of type "
                    f"{type(source).__name__}: expected a tf.Tensor or tf.Variable."
                )
        if output_gradients is None:
            seeds: list[Any] = [None] * len(targets)
        else:
            seeds = _list_components(nest.flatten(output_gradients))
            if len(seeds) != len(targets):
                raise ValueError(
                    f"Expected a gradient for each of {len(targets)} targets, got {len(seeds)}."
                )
        gradients = self._backpropagate(targets, seeds, flat_sources, stopped)
        results = []
        for source in flat_sources:
            gradient = gradients.get(id(source))
            if gradient is None and unconnected is UnconnectedGradients.ZERO:
                gradient = zeros_like(source)
            results.append(gradient)
        if context.batch_gradients is not None:
            results = context.batch_gradients.reduce_gradients(
                self, targets, seeds, flat_sources, results
            )
        remaining = iter(results)
        return nest.pack_sequence_as(sources, [_take_gradient(leaf, remaining) for leaf in leaves])

    def _list_nodes(self) -> list[Node]:
        return list(self._nodes)

    def _backpropagate(
        self, targets: list[Tensor], seeds: list[Any], sources: list[Any], stopped: Collection[int]
    ) -> dict[int, Any]:
        """Visit the nodes backwards; return the gradient for each id.

        Gradients are not propagated through tensors with an id in `stopped`.
        """
        gradients: dict[int, Any] = {}
        for target, seed in zip(targets, seeds, strict=True):
            if not is_differentiable(target):
                _log.warning(
                    "The dtype of the target tensor must be floating (e.g. tf.float32) when calling "
                    "GradientTape.gradient, got %r",
                    target.dtype,
                )
                continue
            _accumulate(gradients, target, make_initial_gradient(target, seed))
        keep = {id(s) for s in sources}
        # An active tape also records the ops of this loop, so it iterates over a copy.
        for node in reversed(self._list_nodes()):
            outputs = node.outputs
            # Only the gradients of sources are kept after they are propagated.
            output_gradients = [
                gradients.get(id(o)) if id(o) in keep else gradients.pop(id(o), None)
                for o in outputs
            ]
            if stopped:
                output_gradients = [
                    None if id(o) in stopped else g
                    for o, g in zip(outputs, output_gradients, strict=True)
                ]
            if any(g is not None for g in output_gradients):
                inputs = zip(node.inputs, backpropagate(node, output_gradients), strict=True)
                for tensor, gradient in inputs:
                    if gradient is not None:
                        _accumulate(gradients, tensor, gradient)
        return gradients


def _accumulate(
    gradients: dict[int, Any], tensor: object, gradient: Tensor | IndexedSlices
) -> None:
    previous = gradients.get(id(tensor))
    if previous is None:
        gradients[id(tensor)] = gradient
    elif isinstance(previous, IndexedSlices) and isinstance(gradient, IndexedSlices):
        # Nodes are visited backwards, so the rows of earlier uses precede the others.
        gradients[id(tensor)] = gradient.concatenate(previous)
    else:
        gradients[id(tensor)] = apply(_add, (to_dense(previous), to_dense(gradient)))


_add = Op("add_gradients", lambda operands, _: combine(jax.lax.add, *operands))


@contextlib.contextmanager
def suspend_tapes() -> Iterator[None]:
    """Run a block without the tapes of this level."""
    saved = context.tapes
    context.tapes = []
    try:
        yield
    finally:
        context.tapes = saved


def _list_components(leaves: Sequence[Any]) -> list[Any]:
    """Replace composite tensors by their parts with gradients, and variables by those that hold their values."""
    return [
        part.handle if not isinstance(part, Tensor) and _is_variable(part) else part
        for leaf in leaves
        for part in (list_components(leaf) if isinstance(leaf, CompositeTensor) else [leaf])
    ]


def _is_variable(value: object) -> bool:
    """Return whether a value is a variable, or refers to one as the variables of Keras Core do."""
    return isinstance(value, Variable) or hasattr(value, "_should_act_as_resource_variable")


def _take_gradient(source: Any, gradients: Iterator[Any]) -> Any:
    """Return the next gradient, or the composite gradient of a composite tensor."""
    if not isinstance(source, CompositeTensor):
        return next(gradients)
    parts = [next(gradients) for _ in list_components(source)]
    return None if all(part is None for part in parts) else replace_components(source, parts)
