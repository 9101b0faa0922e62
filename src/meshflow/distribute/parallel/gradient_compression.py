"""Compressed exchange of gradients, with error feedback.

Each device adds its previous rounding error to its gradient, rounds the sum block by block, and
keeps the new rounding error (Seide et al. 2014; Karimireddy et al. 2019, arXiv:1901.09847). To sum
over N devices, an all-to-all sends the parts of the rounded gradients to the devices that add them
up. If all devices need the sum, it is rounded and all-gathered, with an error of its own (Tang et
al. 2021, 1-bit Adam, arXiv:2102.02888).

| format | bits of a value | scale of a block |
| --- | --- | --- |
| "int8" | 8 | the largest magnitude / 127, of 256 values |
| "1bit" | 1, the sign | the mean magnitude, of 2,048 values |

The first updates can be exchanged without compression. Some optimizers, such as 1-bit Adam,
exchange their momentum in place of gradients.

Small gradients, and those of weights that rules split over dimensions other than the batch's, are
not compressed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.variables.variable import Variable
from meshflow.distribute.parallel.program import LossProgram, RegionStrategy
from meshflow.distribute.parallel.zero import (
    RegionSharding,
    reduce_gradients,
    resolve_region_sharding,
)
from meshflow.placement.layout import UNSHARDED, Layout

BLOCK_LENGTHS = {"int8": 256, "1bit": 2048}
# Names of the slots for rounding errors: of the gradients that a device sends, and of the sum that
# it sends back.
ERROR_SLOTS = ("sent_error", "sum_error")
# Gradients with fewer values are exchanged without compression.
MIN_COMPRESSED_SIZE = 4096


def encode(values: jax.Array, kind: str) -> tuple[jax.Array, jax.Array]:
    """Round values to few bits.

    Args:
      values: float32 [..., n], where n is a multiple of the block length.
      kind: "int8" or "1bit".

    Returns:
      Codes, int8 [..., n] or uint8 [..., n / 8], and the float32 scale of each block.
    """
    blocks = values.reshape(*values.shape[:-1], -1, BLOCK_LENGTHS[kind])
    if kind == "int8":
        scale = jnp.abs(blocks).max(-1) / 127
        codes = jnp.round(blocks / jnp.where(scale > 0, scale, 1)[..., None]).astype(jnp.int8)
        return codes.reshape(values.shape), scale
    bits = (values >= 0).reshape(*values.shape[:-1], -1, 8)
    codes = (bits * (1 << jnp.arange(8))).sum(-1).astype(jnp.uint8)
    return codes, jnp.abs(blocks).mean(-1)


def decode(codes: jax.Array, scale: jax.Array, kind: str) -> jax.Array:
    """Return the float32 values of codes.

    Args:
      codes: Codes of `encode`.
      scale: Scales of `encode`.
      kind: "int8" or "1bit".

    Returns:
      Values [..., n].
    """
    if kind == "1bit":
        bits = (codes[..., None] >> jnp.arange(8, dtype=jnp.uint8)) & 1
        codes = 2.0 * bits.reshape(*codes.shape[:-1], -1) - 1
    blocks = codes.astype(jnp.float32).reshape(*codes.shape[:-1], -1, BLOCK_LENGTHS[kind])
    return (blocks * scale[..., None]).reshape(*codes.shape[:-1], -1)


@dataclasses.dataclass(frozen=True)
class CompressedSum:
    """Plan of a compressed sum of gradients over devices.

    Attributes:
      kind: "int8" or "1bit".
      shape: Shape of the gradient on each device.
      axis: Axis along which the sum remains sharded; None if all devices need the full sum.
      over: Mesh dimensions of the sum.
      devices: Number of devices along them.
      then: Mesh dimensions over which the parts are summed afterwards, without compression.
    """

    kind: str
    shape: tuple[int, ...]
    axis: int | None
    over: tuple[str, ...]
    devices: int
    then: tuple[str, ...]

    @classmethod
    def from_sharding(
        cls, sharding: RegionSharding, shape: Sequence[int], strategy: RegionStrategy
    ) -> CompressedSum | None:
        """Plan the sum of a gradient; return None if it is not summed or not compressed.

        Args:
          sharding: Sharding of the value in the region.
          shape: Global shape of the value.
          strategy: The strategy.

        Returns:
          The plan, or None.
        """
        axis, over = sharding.scatters if sharding.scatters is not None else (None, sharding.sums)
        split = any(entry is not None for entry in sharding.auto_spec)
        if split or not over or math.prod(shape) < MIN_COMPRESSED_SIZE:
            return None
        devices = math.prod(strategy.mesh.dim_size(name) for name in over)
        then = sharding.sums if axis is not None else ()
        kind = strategy.options.compress
        assert kind is not None
        return cls(kind, tuple(shape), axis, tuple(over), devices, then) if devices > 1 else None

    @property
    def part_length(self) -> int:
        """Return the number of values that each device adds up, including padding."""
        block = BLOCK_LENGTHS[self.kind]
        return -(-math.prod(self.shape) // (self.devices * block)) * block

    @property
    def encoded_bytes(self) -> int:
        """Return the bytes of the codes and scales of a device's gradient."""
        block = BLOCK_LENGTHS[self.kind]
        codes = block if self.kind == "int8" else block // 8
        return self.devices * self.part_length // block * (codes + 4)

    @property
    def error_shapes(self) -> list[tuple[int, ...]]:
        """Return the shapes of a device's errors: of its parts, and of the sum that it sends back."""
        sent: tuple[int, ...] = (self.devices, self.part_length)
        return [sent] if self.axis is not None else [sent, (self.part_length,)]

    def reduce(
        self, gradient: jax.Array, errors: Sequence[jax.Array]
    ) -> tuple[jax.Array, list[jax.Array]]:
        """Sum gradients over the devices.

        Args:
          gradient: Gradient of this device.
          errors: Errors of this device, with the shapes `error_shapes`.

        Returns:
          The sum, or this device's part of it, and the new errors.
        """
        rows = self._split_parts(gradient.astype(jnp.float32)) + errors[0]
        codes = encode(rows, self.kind)
        new = [_compute_error(rows, decode(*codes, self.kind))]
        exchange = lambda c: lax.all_to_all(c, self.over, 0, 0, tiled=True)
        total = decode(exchange(codes[0]), exchange(codes[1]), self.kind).sum(0)
        if self.axis is not None:
            result = self._restore_part(total)
            return lax.psum(result, self.then) if self.then else result, new
        total = total + errors[1]
        codes = encode(total, self.kind)
        new.append(_compute_error(total, decode(*codes, self.kind)))
        gather = lambda c: lax.all_gather(c, self.over, axis=0, tiled=True)
        values = decode(gather(codes[0]), gather(codes[1]), self.kind)
        return values[: math.prod(self.shape)].reshape(self.shape), new

    def _split_parts(self, gradient: jax.Array) -> jax.Array:
        """Split a gradient into rows [devices, part_length], padded with zeros."""
        if self.axis is None:
            flat = gradient.reshape(-1)
            flat = jnp.pad(flat, (0, self.devices * self.part_length - flat.shape[0]))
            return flat.reshape(self.devices, self.part_length)
        rows = jnp.moveaxis(gradient, self.axis, 0).reshape(self.devices, -1)
        return jnp.pad(rows, ((0, 0), (0, self.part_length - rows.shape[1])))

    def _restore_part(self, total: jax.Array) -> jax.Array:
        axis = self.axis or 0
        rest = (*self.shape[:axis], *self.shape[axis + 1 :])
        size = self.shape[axis] // self.devices
        part = total[: size * math.prod(rest)].reshape(size, *rest)
        return jnp.moveaxis(part, 0, axis)


def _compute_error(values: jax.Array, sent: jax.Array) -> jax.Array:
    # A gradient that overflowed must not leave an error, because the error would never vanish.
    error = values - sent
    return jnp.where(jnp.isfinite(error), error, 0)


def create_error_slots(
    strategy: RegionStrategy,
    variables: Sequence[Variable],
    add_slot: Callable[[Variable, str, Any], Variable],
) -> dict[int, tuple[CompressedSum, list[Variable]]]:
    """Plan the compressed sums of variables' gradients, and create the slots for their errors.

    Args:
      strategy: The strategy.
      variables: Trained variables.
      add_slot: Function that creates (or finds) a slot of a variable by its name and shape.

    Returns:
      For each id of a variable with a compressed gradient, the plan and the slots.
    """
    axes, plans = strategy.batch_dimensions, {}
    devices = math.prod(strategy.mesh.dim_size(a) for a in axes)
    for variable in variables:
        plan = CompressedSum.from_sharding(
            resolve_region_sharding(strategy, variable), variable.shape.as_list(), strategy
        )
        if plan is None:
            continue
        slots = []
        for name, shape in zip(ERROR_SLOTS, plan.error_shapes, strict=False):
            slot = add_slot(variable, name, (devices, *shape))
            slot._of_its_mesh = True  # type: ignore[attr-defined]
            if slot.layout is None or slot.layout.num_shards(0) != devices:
                specs = ["+".join(axes), *[UNSHARDED] * len(shape)]
                slot.layout = Layout(specs, strategy.mesh)
            slots.append(slot)
        plans[id(variable)] = plan, slots
    return plans


class CompressedExchange:
    """Compressed exchange of the gradients of a step.

    Args:
      strategy: The strategy.
      program: Program that defines the gradients.

    Attributes:
      slots: Slots of the rounding errors.
      operands: Tensors that are equal on all devices: the number of updates, the loss scale, the
        momentum's decay, and momenta.

    Raises:
      ValueError: If the momentum is to be exchanged but devices hold only parts of it.
    """

    def __init__(self, strategy: RegionStrategy, program: LossProgram) -> None:
        self.sent = create_error_slots(strategy, program.variables, program.add_slot)
        program.restore_slots()
        self.slots = [slot for _, slots in self.sent.values() for slot in slots]
        state = program.get_compression_state()
        self._start: int | None = strategy.options.compress_after
        self._is_scaled, self._has_momentum = state.scale is not None, state.momentum is not None
        self.operands = [state.updates]
        if state.scale is not None:
            self.operands.append(state.scale)
        if state.momentum is None:
            return
        if strategy.options.zero:
            raise InvalidValueError(
                f"compress={strategy.options.compress!r}: the optimizer exchanges its momentum, but with "
                f"zero={strategy.options.zero} devices hold only parts of it. Pass zero=0, or use an optimizer such as "
                "Adam, which exchanges gradients."
            )
        if self._start not in (0, state.warm_up):
            raise InvalidValueError(
                f"compress_after={self._start}, but the optimizer's momentum settles for {state.warm_up} updates. "
                "Leave compress_after out."
            )
        self._start = state.warm_up
        slots = {id(v): state.momentum(v) for v in program.variables if id(v) in self.sent}
        self.operands += [state.decay, *(slots[key].value() for key in self.sent)]

    def reduce_gradients(
        self,
        gradients: Sequence[tuple[int, jax.Array, RegionSharding]],
        errors: Sequence[jax.Array],
        operands: Sequence[jax.Array],
    ) -> tuple[list[jax.Array], list[jax.Array]]:
        """Sum gradients over the devices.

        Args:
          gradients: For each gradient the id of its variable, its value on this device, and its
            sharding.
          errors: Values of `slots` on this device.
          operands: Values of `operands`.

        Returns:
          The sums, or this device's parts of them, and the new errors.
        """
        is_coded = [self._is_compressed(key, g) for key, g, _ in gradients]
        coded = [item for item, c in zip(gradients, is_coded, strict=True) if c]
        others = [item for item, c in zip(gradients, is_coded, strict=True) if not c]
        sums = iter(reduce_gradients([k for *_, k in others], [g for _, g, _ in others]))

        def reduce_exactly() -> tuple[list[jax.Array], list[jax.Array]]:
            return reduce_gradients([k for *_, k in coded], [g for _, g, _ in coded]), list(errors)

        def reduce_compressed() -> tuple[list[jax.Array], list[jax.Array]]:
            return self._reduce_compressed(coded, errors, operands)

        if self._start:
            reduced, new = lax.cond(operands[0] < self._start, reduce_exactly, reduce_compressed)
        else:
            reduced, new = reduce_compressed()
        supply = iter(reduced)
        return [next(supply) if c else next(sums) for c in is_coded], new

    def _is_compressed(self, key: int, gradient: jax.Array) -> bool:
        # The gradient of a weight that is gathered where it is used has been reduced there already.
        return key in self.sent and gradient.shape == self.sent[key][0].shape

    def _reduce_compressed(
        self,
        coded: Sequence[tuple[int, jax.Array, RegionSharding]],
        errors: Sequence[jax.Array],
        operands: Sequence[jax.Array],
    ) -> tuple[list[jax.Array], list[jax.Array]]:
        values = iter(operands[1:])
        # The slots hold errors of the unscaled loss, because the loss scale changes.
        scale: Any = next(values) if self._is_scaled else 1.0
        decay: Any = next(values) if self._has_momentum else 0.0
        momenta = dict(zip(self.sent, values, strict=False))
        supply = iter(errors)
        known = {
            k: [next(supply)[0] * scale for _ in s.error_shapes] for k, (s, _) in self.sent.items()
        }
        sums = []
        for key, gradient, _ in coded:
            plan = self.sent[key][0]
            # The result is the gradient for which the optimizer's update yields the exchanged momentum.
            before: Any = (
                decay * scale * momenta[key].astype(jnp.float32) if self._has_momentum else 0.0
            )
            share = before / plan.devices + (1 - decay) * gradient.astype(jnp.float32)
            total, known[key] = plan.reduce(share, known[key])
            sums.append(((total - before) / (1 - decay)).astype(gradient.dtype))
        return sums, [(error / scale)[None] for key in self.sent for error in known[key]]
