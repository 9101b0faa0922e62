"""`rnn`: the loop of a step function over the time axis of sequences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshflow.core.runtime.context import context
from meshflow.core.staging import loops
from meshflow.core.tracing.trace import trace_shapes
from meshflow.core.values import nest
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.environment.types import PyTree
from meshflow.ops import array, math
from meshflow.ops.control_flow import LoopVariableInvariants

# A step function maps the inputs of one step and the states to the output and the next states.
Step = Callable[[PyTree, PyTree], tuple[PyTree, PyTree]]


def rnn(
    step_function: Step,
    inputs: PyTree,
    initial_states: Sequence[PyTree],
    go_backwards: bool = False,
    mask: Tensor | None = None,
    constants: Sequence[TensorLike] | None = None,
    unroll: bool = False,
    input_length: int | Tensor | None = None,
    time_major: bool = False,
    zero_output_for_mask: bool = False,
    return_all_outputs: bool = True,
) -> tuple[PyTree, PyTree, list[PyTree]]:
    """Run a step function over the time axis of sequences.

    Args:
      step_function: Function of (inputs of one step, states followed by `constants`) that returns
        (output, next states).
      inputs: Tensor [batch, time, ...], or a nested structure of such tensors.
      initial_states: Tensors [batch, ...].
      go_backwards: Whether to start with the last step; outputs are in the order of execution.
      mask: Booleans [batch, time] or [batch, time, 1]; a step with False does not change states and
        output.
      constants: Tensors that all steps receive after the states.
      unroll: Whether a compiled function repeats the step instead of running a loop.
      input_length: Ignored, because sizes are known.
      time_major: Whether inputs and outputs are [time, batch, ...].
      zero_output_for_mask: Whether the output of a masked step is zero instead of the previous
        output.
      return_all_outputs: Whether to return all outputs; otherwise the last one, as a sequence of
        length 1.

    Returns:
      The last output [batch, ...], all outputs [batch, time, ...], and the states after the last
      step.

    Raises:
      ValueError: If the inputs have no time axis, or no steps.

    Example:
      >>> def step(x, states):
      ...     total = states[0] + x
      ...     return total, [total]
      >>> last, every, _ = tf.keras.backend.rnn(step, tf.ones([1, 3, 2]), [tf.zeros([1, 2])])
      >>> last.numpy(), every.shape
      (array([[3., 3.]], dtype=float32), TensorShape([1, 3, 2]))
    """
    del input_length
    sequences = nest.map_structure(convert_to_tensor, inputs)
    if any(s.ndim < 2 for s in nest.flatten(sequences)):
        raise ValueError("K.rnn: inputs need a batch and a time dimension.")
    if not time_major:
        sequences = nest.map_structure(_swap_batch_and_time, sequences)
    masks = None if mask is None else _to_time_major_mask(mask, time_major)
    if go_backwards:
        sequences = nest.map_structure(lambda s: array.reverse(s, [0]), sequences)
        masks = None if masks is None else array.reverse(masks, [0])
    count = nest.flatten(sequences)[0].shape[0]
    if count == 0:
        raise ValueError("K.rnn: the sequences have no steps.")
    extra = tuple(constants or ())
    states = nest.map_structure(convert_to_tensor, list(initial_states))

    def step(x: PyTree, before: PyTree) -> tuple[PyTree, PyTree]:
        output, after = step_function(x, (*before, *extra))
        return output, list(after)

    if context.trace is None or unroll:
        outputs, states = _run_unrolled(step, sequences, masks, states, count, zero_output_for_mask)
    else:
        outputs, states = _run_loop(step, sequences, masks, states, count, zero_output_for_mask)
    last = nest.map_structure(lambda o: o[-1], outputs)
    if not return_all_outputs:
        outputs = nest.map_structure(lambda o: array.expand_dims(o, 0), last)
    if not time_major:
        outputs = nest.map_structure(_swap_batch_and_time, outputs)
    return last, outputs, states


def _swap_batch_and_time(x: Tensor) -> Tensor:
    return array.transpose(x, [1, 0, *range(2, x.ndim)])


def _to_time_major_mask(mask: TensorLike, time_major: bool) -> Tensor:
    """Convert a mask to booleans [time, batch]."""
    mask = math.cast(convert_to_tensor(mask), "bool")
    if mask.ndim == 3:
        mask = array.squeeze(mask, -1)
    return mask if time_major else _swap_batch_and_time(mask)


def _select_examples(mask: Tensor, chosen: PyTree, fallback: PyTree) -> PyTree:
    """Select complete examples of `chosen` where the mask is True, and of `fallback` otherwise."""

    def choose(a: Tensor, b: Tensor) -> Tensor:
        return array.where(array.reshape(mask, [-1, *[1] * (a.ndim - 1)]), a, b)

    return nest.map_structure(choose, chosen, fallback)


def _run_masked_step(
    step: Step, x: PyTree, keep: Tensor | None, states: PyTree, previous: PyTree, zero: bool
) -> tuple[PyTree, PyTree]:
    """Run one step; examples with a False `keep` retain states and output."""
    output, after = step(x, states)
    if keep is None:
        return output, after
    if zero or previous is None:
        previous = nest.map_structure(array.zeros_like, output)
    return _select_examples(keep, output, previous), _select_examples(
        keep, after, nest.pack_sequence_as(after, nest.flatten(states))
    )


def _run_unrolled(
    step: Step, sequences: PyTree, masks: Tensor | None, states: PyTree, count: int, zero: bool
) -> tuple[PyTree, PyTree]:
    collected: list[Any] = []
    for i in range(count):
        x = nest.map_structure(lambda s, i=i: s[i], sequences)
        keep = None if masks is None else masks[i]
        output, states = _run_masked_step(
            step, x, keep, states, collected[-1] if collected else None, zero
        )
        collected.append(output)
    return nest.map_structure(lambda *parts: array.stack(list(parts)), *collected), states


def _run_loop(
    step: Step, sequences: PyTree, masks: Tensor | None, states: PyTree, count: int, zero: bool
) -> tuple[PyTree, PyTree]:
    """Add the steps as one loop to the program that is traced."""
    carried: PyTree = {"states": states}
    if masks is not None and not zero:
        heads = nest.map_structure(lambda s: TensorSpec(s.shape[1:], s.dtype), sequences)
        specs = nest.map_structure(lambda s: TensorSpec(s.shape, s.dtype), states)
        output, _ = trace_shapes(step, (heads, specs), {})
        carried["previous"] = nest.map_structure(lambda o: array.zeros(o.shape, o.dtype), output)

    def body(element: PyTree, values: list[Tensor]) -> tuple[list[Tensor], PyTree]:
        before = nest.pack_sequence_as(carried, values)
        x, keep = element if masks is not None else (element, None)
        output, after = _run_masked_step(
            step, x, keep, before["states"], before.get("previous"), zero
        )
        result = {"states": nest.pack_sequence_as(states, nest.flatten(after))}
        if "previous" in carried:
            result["previous"] = output
        return nest.flatten(result), output

    flat = nest.flatten(carried)
    stacked = (sequences, masks) if masks is not None else sequences
    elements = loops.LoopElements(count, lambda i: None, stacked)
    final, outputs = loops.scan(
        elements, body, flat, [True] * len(flat), LoopVariableInvariants("K.rnn", "state")
    )
    return outputs, nest.pack_sequence_as(carried, final)["states"]
