"""Traffic of layers that exchange tokens: attention over split sequences, and experts."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from meshflow.core.tracing.trace import TracedFunction
from meshflow.distribute.parallel.expert_routing import Router
from meshflow.distribute.parallel.stage_programs import FORM_PRIMITIVES, count_bytes
from meshflow.environment.jax_internals import jex_core
from meshflow.environment.types import Jaxpr, Var
from meshflow.passes.jaxprs import inline_calls, select_variables
from meshflow.placement.expected_traffic import count_ring_bytes

# Operations over all steps of a sequence.
_LOOPS = ("recurrent_layer", "scan", "while")


@dataclasses.dataclass(frozen=True)
class AttentionTraffic:
    """Sizes of the attention layers of a model; only layers with named axes of heads count.

    Attributes:
      key_value_bytes: Bytes of keys and values of an example, in all layers.
      total_bytes: Bytes of queries, keys, values and results of an example, in all layers.
      common_heads: Greatest common divisor of the numbers of heads.
    """

    key_value_bytes: int
    total_bytes: int
    common_heads: int

    def count_sent_bytes(self, mode: str, parts: int) -> tuple[int, int]:
        """Return the bytes that a device sends for an example.

        Args:
          mode: "ring" or "ulysses".
          parts: Number of devices that sequences are split over.

        Returns:
          Bytes in the forward pass and in the backward pass.
        """
        if mode == "ring":
            size = self.key_value_bytes * (parts - 1) // parts
            return size, 2 * size
        size = self.total_bytes * (parts - 1) // parts**2
        return size, size


@dataclasses.dataclass(frozen=True)
class ExpertLayer:
    """Sizes of a layer of experts.

    Attributes:
      router: Rules of routing.
      row: Bytes of a token.
      tokens: Number of tokens of an example.
      groups: Number of groups of tokens that compete for slots, or None for one group for each device
        and micro-batch.
      kernel: Index of the weight with the first kernels of the experts, or None if it is frozen.
    """

    router: Router
    row: int
    tokens: int
    groups: int | None
    kernel: int | None = None

    def count_sent_bytes(
        self,
        examples: int,
        devices: int,
        micro_batches: int,
        exchanges: int,
        over: int | None = None,
    ) -> int:
        """Return the bytes that a device sends in a step.

        Args:
          examples: Number of examples of the global batch.
          devices: Number of devices that tokens are split over.
          micro_batches: Number of micro-batches of a step.
          exchanges: Number of all-to-alls of tokens or their gradients: four, or six with
            activation recomputation.
          over: Number of these devices that experts are split over. Default: all.

        Returns:
          The bytes.
        """
        over = devices if over is None else over
        size = self.count_slot_bytes(examples, devices, micro_batches)
        return exchanges * count_ring_bytes(size, over)

    def count_slot_bytes(self, examples: int, devices: int, micro_batches: int) -> int:
        """Return the bytes of the slots of experts on a device in a step.

        Args:
          examples: Number of examples of the global batch.
          devices: Number of devices that tokens are split over.
          micro_batches: Number of micro-batches of a step.

        Returns:
          The bytes.
        """
        groups = self.groups or devices * micro_batches
        slots = self.router.count_slots(-(-examples * self.tokens // groups))
        return self.router.experts * slots * groups // devices * self.row

    def find_refusal(self, devices: int, micro_batches: int) -> str | None:
        """Return the reason why the experts cannot be split over devices, or None."""
        if self.router.capacity is None:
            return "experts without a capacity are not planned for"
        if self.groups and self.groups % (devices * micro_batches):
            return f"{self.groups} groups do not divide over {devices} devices and {micro_batches} micro-batches"
        return None


class WeightProduct(NamedTuple):
    """A product with a weight.

    Attributes:
      weight: Index of the weight.
      shape: Shape of the other operand.
      input_bytes: Bytes of the other operand, of an example.
      output_bytes: Bytes of the result, of an example.
      has_input_gradient: Whether the other operand has a gradient.
    """

    weight: int
    shape: tuple[int, ...]
    input_bytes: int
    output_bytes: int
    has_input_gradient: bool


def find_products(
    traced: TracedFunction, indices: Mapping[int, int], rows: int
) -> tuple[WeightProduct, ...]:
    """Find the products of a model with its weights.

    Args:
      traced: Trace of the loss of some examples.
      indices: Indices of the weights, by index of the capture.
      rows: Number of traced examples.

    Returns:
      The products in the order of execution.
    """
    return tuple(
        WeightProduct(
            indices[capture],
            other.shape,
            count_bytes(other) // rows,
            count_bytes(out) // rows,
            owes,
        )
        for capture, other, out, owes in _iterate_products(traced, indices)
    )


class WeightReads(NamedTuple):
    """Operations that combine a weight with examples.

    Attributes:
      terms: Number of operations, which is the number of terms of the gradient, at least 1.
      rows: Number of looked up rows of an example, if all operations are lookups in a table; else 0.
      in_loop: Whether a recurrent layer reads the weight. It computes the gradients of all its weights at the same time.
    """

    terms: int
    rows: int
    in_loop: bool = False


def count_reads(
    traced: TracedFunction, indices: Mapping[int, int], rows: int
) -> tuple[WeightReads, ...]:
    """Count the operations that combine each weight with examples.

    Args:
      traced: Trace of the loss of some examples.
      indices: Indices of the weights, by index of the capture.
      rows: Number of traced examples.

    Returns:
      The counts by index of the weight.
    """
    jaxpr, captures = _find_sources(traced, indices)
    # Weights that a value depends on, if it depends on nothing else, such as a cast of a weight or a penalty.
    sources = {v: {indices[capture]} for v, capture in captures.items()}
    counts, lookups, looked_up = Counter[int](), Counter[int](), Counter[int]()
    in_loop = set[int]()
    for eqn in jaxpr.eqns:
        read = select_variables(eqn.invars)
        if read and all(v in sources for v in read):
            found = set[int]().union(*(sources[v] for v in read))
            sources.update((out, found) for out in eqn.outvars)
        else:
            known = [n for v in read if v in sources and v.aval.ndim for n in sources[v]]
            counts.update(known)
            in_loop.update(known if eqn.primitive.name in _LOOPS else ())
            if eqn.primitive.name in ("gather", "take") and known:
                table: Any = eqn.invars[0].aval
                out: Any = eqn.outvars[0].aval
                lookups.update(known)
                looked_up[known[0]] += math.prod(out.shape) // math.prod(table.shape[1:]) // rows
    return tuple(
        WeightReads(max(counts[n], 1), looked_up[n] * (lookups[n] == counts[n]), n in in_loop)
        for n in range(max(indices.values(), default=-1) + 1)
    )


def find_attention(
    traced: TracedFunction, indices: Mapping[int, int], weights: Sequence[Any], rows: int
) -> AttentionTraffic | None:
    """Find the sizes of a model's attention layers.

    Args:
      traced: Trace of the loss of some examples.
      indices: Indices of the weights, by index of the capture.
      weights: The weights.
      rows: Number of traced examples.

    Returns:
      The sizes, or None if no weight names its heads.
    """
    keys = total = heads = 0
    for capture, other, out, _ in _iterate_products(traced, indices):
        weight = weights[indices[capture]]
        axes = [i for i, names in enumerate(weight.dims or ()) if "heads" in names]
        if len(weight.shape) < 3 or not axes:
            continue
        # Either the result of the projection has heads, or its input.
        makes_heads = axes[0] > 0
        size = count_bytes(out if makes_heads else other) // rows
        total, heads = total + size, math.gcd(heads, weight.shape[axes[0]])
        if makes_heads and {"key", "value"} & set(weight.name.split("/")):
            keys += size
    return AttentionTraffic(keys, total, heads) if keys else None


def find_expert_layers(
    traced: TracedFunction, indices: Mapping[int, int], model: Any, rows: int
) -> tuple[ExpertLayer, ...]:
    """Find the expert layers of a model.

    Args:
      traced: Trace of the loss of some examples.
      indices: Indices of the weights, by index of the capture.
      model: The model.
      rows: Number of traced examples.

    Returns:
      The layers in the order of execution.
    """
    layers = [layer for layer in model.submodules if hasattr(layer, "_router")]
    gates = {id(layer.gate): layer for layer in layers if layer.built}
    layers_by_capture = {i: gates[id(c)] for i, c in enumerate(traced.captures) if id(c) in gates}
    weights = {id(traced.captures[i]): n for i, n in indices.items()}
    expert_layers = []
    for capture, other, _, _ in _iterate_products(traced, layers_by_capture):
        layer = layers_by_capture[capture]
        width, _ = layer.gate.shape
        row = width * np.dtype(layer.compute_dtype).itemsize
        tokens = math.prod(other.shape) // width // rows
        kernel = weights.get(id(layer.kernel_in))
        expert_layers.append(ExpertLayer(layer._router, row, tokens, layer.groups, kernel))
    return tuple(expert_layers)


def _find_sources(
    traced: TracedFunction, captures: Collection[int]
) -> tuple[Jaxpr, dict[Var, int]]:
    """Return the program without calls, and the index of the capture that each of some inputs is."""
    jaxpr = inline_calls(traced.closed_jaxpr).jaxpr
    offset = len(jaxpr.invars) - len(traced.captures)
    return jaxpr, {jaxpr.invars[offset + i]: i for i in captures}


def _iterate_products(
    traced: TracedFunction, captures: Collection[int]
) -> Iterator[tuple[int, Any, Any, bool]]:
    """Yield the products with one of some captures.

    Each item has the index of the capture, the shapes of the other operand and of the result, and
    whether the other operand depends on such captures, too.
    """
    jaxpr, source = _find_sources(traced, captures)
    dependent = set(source)
    for eqn in jaxpr.eqns:
        inputs = [None if isinstance(v, jex_core.Literal) else v for v in eqn.invars]
        known = [None if v is None else source.get(v) for v in inputs]
        if not dependent.isdisjoint(inputs):
            dependent.update(eqn.outvars)
        if eqn.primitive.name in FORM_PRIMITIVES and known[0] is not None:
            source[eqn.outvars[0]] = known[0]
        if eqn.primitive.name == "dot_general":
            for position, capture in enumerate(known):
                if capture is not None:
                    other = eqn.invars[1 - position]
                    is_dependent = inputs[1 - position] in dependent
                    yield capture, other.aval, eqn.outvars[0].aval, is_dependent
