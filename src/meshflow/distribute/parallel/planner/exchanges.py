"""What layers exchange that need more than their own part: attention between parts of sequences, experts for tokens."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from meshflow.core.tracing.trace import Traced
from meshflow.distribute.parallel.cutting import FORMS, size_of
from meshflow.distribute.parallel.routing import Router
from meshflow.environment.jax_internals import jex_core
from meshflow.passes.jaxprs import without_calls
from meshflow.placement.expected_traffic import ring

__all__ = ["Attended", "Experts", "Product", "attention_of", "experts_of", "products_of"]


@dataclasses.dataclass(frozen=True)
class Attended:
    """The attention layers of a model, whose weights name their heads.

    Attributes:
      keys: bytes of keys and values of an example, of all layers.
      whole: bytes of queries, keys, values and what is attended to.
      heads: a number that divides the heads of all layers.
    """

    keys: int
    whole: int
    heads: int

    def sent(self, way: str, parts: int) -> tuple[int, int]:
        """Bytes that a device sends for an example, forwards and backwards.

        Args:
          way: "ring" or "ulysses".
          parts: over how many devices sequences lie.
        """
        if way == "ring":
            once = self.keys * (parts - 1) // parts
            return once, 2 * once
        once = self.whole * (parts - 1) // parts**2
        return once, once


@dataclasses.dataclass(frozen=True)
class Experts:
    """A layer of experts.

    Attributes:
      router: who goes where.
      row: bytes of a token.
      tokens: how many of them an example has.
      groups: how many groups of them compete, or None for one on each device and in each micro-batch.
    """

    router: Router
    row: int
    tokens: int
    groups: int | None

    def sent(
        self,
        examples: int,
        devices: int,
        micro_batches: int,
        exchanges: int,
        over: int | None = None,
    ) -> int:
        """Bytes that a device sends in a step.

        Args:
          examples: of the whole batch.
          devices: over how many devices tokens lie.
          micro_batches: how many parts a step has.
          exchanges: how often tokens, or gradients of them, go to experts or back: four times, or six where layers are
            computed again.
          over: over how many of these devices experts lie; default all.
        """
        over = devices if over is None else over
        groups = self.groups or devices * micro_batches
        slots = self.router.slots(examples * self.tokens // groups)
        here = self.router.experts * slots * groups // devices * self.row
        return exchanges * ring(here, over)

    def refusal(self, devices: int, micro_batches: int) -> str | None:
        """Why its experts cannot lie on so many devices, or None."""
        if self.router.capacity is None:
            return "experts without a capacity are not planned for"
        if self.router.experts % devices:
            return f"{self.router.experts} experts do not divide over {devices} devices"
        if self.groups and self.groups % (devices * micro_batches):
            return f"{self.groups} groups do not divide over {devices} devices and {micro_batches} micro-batches"
        return None


class Product(NamedTuple):
    """A product with a weight.

    Attributes:
      weight: the weight's number.
      shape: the shape of what it is multiplied with.
      given, made: bytes of that, and of the result, of an example.
      owes: whether gradients go on to what it is multiplied with.
    """

    weight: int
    shape: tuple[int, ...]
    given: int
    made: int
    owes: bool


def products_of(traced: Traced, numbers: Mapping[int, int], rows: int) -> tuple[Product, ...]:
    """The products of a model with its weights; arguments as of `attention_of`."""
    return tuple(
        Product(numbers[capture], other.shape, size_of(other) // rows, size_of(out) // rows, owes)
        for capture, other, out, owes in _products(traced, numbers)
    )


def attention_of(
    traced: Traced, numbers: Mapping[int, int], weights: Sequence[Any], rows: int
) -> Attended | None:
    """What the attention layers of a model exchange; None where no weight names its heads.

    Args:
      traced: the loss of some examples.
      numbers: the numbers of the weights among the captures.
      weights: the weights.
      rows: how many examples.
    """
    keys = whole = heads = 0
    for capture, other, out, _ in _products(traced, numbers):
        weight = weights[numbers[capture]]
        axes = [i for i, names in enumerate(weight.dims or ()) if "heads" in names]
        if len(weight.shape) < 3 or not axes:
            continue
        # What comes out of a projection has heads, or what goes in.
        given = axes[0] > 0
        size = size_of(out if given else other) // rows
        whole, heads = whole + size, math.gcd(heads, weight.shape[axes[0]])
        if given and {"key", "value"} & set(weight.name.split("/")):
            keys += size
    return Attended(keys, whole, heads) if keys else None


def experts_of(traced: Traced, model: Any, rows: int) -> tuple[Experts, ...]:
    """The layers of experts of a model.

    Args:
      traced: the loss of some examples.
      model: the model.
      rows: how many examples.
    """
    layers = [layer for layer in model._flatten_layers() if hasattr(layer, "_router")]
    gates = {id(layer.gate): layer for layer in layers if layer.built}
    places = {i: gates[id(c)] for i, c in enumerate(traced.captures) if id(c) in gates}
    found = []
    for capture, other, _, _ in _products(traced, places):
        layer = places[capture]
        width, _ = layer.gate.shape
        row = width * np.dtype(layer.compute_dtype).itemsize
        tokens = math.prod(other.shape) // width // rows
        found.append(Experts(layer._router, row, tokens, layer.groups))
    return tuple(found)


def _products(traced: Traced, numbers: Mapping[int, Any]) -> Iterator[tuple[int, Any, Any, bool]]:
    """For each product with one of some captures its number, the other operand, the result, and whether that follows
    from such captures, too."""
    jaxpr = without_calls(traced.closed).jaxpr
    offset = len(jaxpr.invars) - len(traced.captures)
    source = {jaxpr.invars[offset + i]: i for i in numbers}
    following = set(source)
    for eqn in jaxpr.eqns:
        inputs = [None if isinstance(v, jex_core.Literal) else v for v in eqn.invars]
        known = [source.get(v) for v in inputs]
        if not following.isdisjoint(inputs):
            following.update(eqn.outvars)
        if eqn.primitive.name in FORMS and known[0] is not None:
            source[eqn.outvars[0]] = known[0]
        if eqn.primitive.name == "dot_general":
            for place, number in enumerate(known):
                if number is not None:
                    other = eqn.invars[1 - place]
                    yield number, other.aval, eqn.outvars[0].aval, inputs[1 - place] in following
