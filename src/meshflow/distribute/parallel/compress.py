"""Gradients sent in fewer bits, with what rounding took away added to the next step's.

Each device rounds its gradient plus the error so far, block by block, and keeps what is lost as its new error (Seide et
al. 2014; Karimireddy et al. 2019, arXiv:1901.09847). A sum over N devices sends the parts to those that add them up, and,
where all are to have it, the rounded sum back, with an error of its own (Tang et al. 2021, 1-bit Adam, arXiv:2102.02888).

| | bits of a value | numbers of a block |
| --- | --- | --- |
| "int8" | 8 | the largest magnitude / 127, of 256 values |
| "1bit" | 1, the sign | the mean magnitude, of 2,048 values |

For the first updates gradients may be sent whole, while nothing is lost; optimizers that ask for it have their momentum
sent in few bits in the gradients' place, as 1-bit Adam does.

Small gradients, and those of weights that rules split over other dimensions than the batch's, are sent as they are.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.variables.variable import Variable
from meshflow.distribute.parallel.program import LossProgram
from meshflow.distribute.parallel.zero import Kept, kept_like
from meshflow.placement.layout import UNSHARDED, Layout

__all__ = ["ERRORS", "Exchange", "Sent", "decoded", "encoded", "errors_of"]

BLOCKS = {"int8": 256, "1bit": 2048}
# The slots of what rounding took away: of what a device sends, and of the sum that goes back.
ERRORS = ("sent_error", "sum_error")
# Gradients of fewer values are not worth it.
SMALL = 4096


def encoded(values: Any, kind: str) -> tuple[Any, Any]:
    """Values in few bits.

    Args:
      values: float32 [..., n], n a multiple of the kind's block.
      kind: "int8" or "1bit".

    Returns:
      Codes, int8 [..., n] or uint8 [..., n / 8], and a float32 number for each block.
    """
    blocks = values.reshape(*values.shape[:-1], -1, BLOCKS[kind])
    if kind == "int8":
        scale = jnp.abs(blocks).max(-1) / 127
        codes = jnp.round(blocks / jnp.where(scale > 0, scale, 1)[..., None]).astype(jnp.int8)
        return codes.reshape(values.shape), scale
    bits = (values >= 0).reshape(*values.shape[:-1], -1, 8)
    codes = (bits * (1 << jnp.arange(8))).sum(-1).astype(jnp.uint8)
    return codes, jnp.abs(blocks).mean(-1)


def decoded(codes: Any, scale: Any, kind: str) -> Any:
    """The values that codes stand for."""
    if kind == "1bit":
        bits = (codes[..., None] >> jnp.arange(8, dtype=jnp.uint8)) & 1
        codes = 2.0 * bits.reshape(*codes.shape[:-1], -1) - 1
    blocks = codes.astype(jnp.float32).reshape(*codes.shape[:-1], -1, BLOCKS[kind])
    return (blocks * scale[..., None]).reshape(*codes.shape[:-1], -1)


@dataclasses.dataclass(frozen=True)
class Sent:
    """How a gradient is summed in few bits.

    Attributes:
      kind: "int8" or "1bit".
      shape: the gradient's shape on each device.
      axis: the axis along which the sum stays divided; None where all devices get all of it.
      over: the mesh dimensions of the sum.
      devices: how many devices these are.
      then: the mesh dimensions over which the parts are summed after that, as they are.
    """

    kind: str
    shape: tuple[int, ...]
    axis: int | None
    over: tuple[str, ...]
    devices: int
    then: tuple[str, ...]

    @classmethod
    def of(cls, kept: Kept, shape: Sequence[int], strategy: Any) -> Sent | None:
        """How the gradient of a value is sent; None where it is sent as it is, or not at all.

        Args:
          kept: how the region takes the value.
          shape: the value's whole shape.
          strategy: the strategy.
        """
        axis, over = kept.scatters if kept.scatters is not None else (None, kept.sums)
        split = any(entry is not None for entry in kept.others)
        if split or not over or math.prod(shape) < SMALL:
            return None
        devices = math.prod(strategy.mesh.dim_size(name) for name in over)
        then = kept.sums if axis is not None else ()
        found = cls(strategy.options.compress, tuple(shape), axis, tuple(over), devices, then)
        return found if devices > 1 else None

    @property
    def part(self) -> int:
        """How many values each device adds up, with padding."""
        block = BLOCKS[self.kind]
        return -(-math.prod(self.shape) // (self.devices * block)) * block

    @property
    def bytes(self) -> int:
        """The size of the codes and numbers of a device's gradient."""
        block = BLOCKS[self.kind]
        codes = block if self.kind == "int8" else block // 8
        return self.devices * self.part // block * (codes + 4)

    @property
    def errors(self) -> list[tuple[int, ...]]:
        """Shapes of a device's errors: of the parts that it sends, and of the sum that it sends back."""
        sent: tuple[int, ...] = (self.devices, self.part)
        return [sent] if self.axis is not None else [sent, (self.part,)]

    def summed(self, gradient: Any, errors: Sequence[Any]) -> tuple[Any, list[Any]]:
        """The sum over the devices, or this device's part of it, and the new errors.

        Args:
          gradient: this device's gradient.
          errors: this device's errors.
        """
        rows = self._in_parts(gradient.astype(jnp.float32)) + errors[0]
        codes = encoded(rows, self.kind)
        new = [_lost(rows, decoded(*codes, self.kind))]
        there = lambda c: lax.all_to_all(c, self.over, 0, 0, tiled=True)
        total = decoded(there(codes[0]), there(codes[1]), self.kind).sum(0)
        if self.axis is not None:
            result = self._of_part(total)
            return lax.psum(result, self.then) if self.then else result, new
        total = total + errors[1]
        codes = encoded(total, self.kind)
        new.append(_lost(total, decoded(*codes, self.kind)))
        everywhere = lambda c: lax.all_gather(c, self.over, axis=0, tiled=True)
        whole = decoded(everywhere(codes[0]), everywhere(codes[1]), self.kind)
        return whole[: math.prod(self.shape)].reshape(self.shape), new

    def _in_parts(self, gradient: Any) -> Any:
        """[devices, part], padded with zeros."""
        if self.axis is None:
            flat = gradient.reshape(-1)
            flat = jnp.pad(flat, (0, self.devices * self.part - flat.shape[0]))
            return flat.reshape(self.devices, self.part)
        rows = jnp.moveaxis(gradient, self.axis, 0).reshape(self.devices, -1)
        return jnp.pad(rows, ((0, 0), (0, self.part - rows.shape[1])))

    def _of_part(self, total: Any) -> Any:
        axis = self.axis or 0
        rest = (*self.shape[:axis], *self.shape[axis + 1 :])
        size = self.shape[axis] // self.devices
        part = total[: size * math.prod(rest)].reshape(size, *rest)
        return jnp.moveaxis(part, 0, axis)


def _lost(values: Any, sent: Any) -> Any:
    # A gradient that overflowed leaves nothing behind.
    lost = values - sent
    return jnp.where(jnp.isfinite(lost), lost, 0)


def errors_of(
    strategy: Any, variables: Sequence[Variable], add_slot: Callable[[Variable, str, Any], Variable]
) -> dict[int, tuple[Sent, list[Variable]]]:
    """How gradients are sent, and the slots that keep their errors, by the variables' ids.

    Args:
      strategy: the strategy.
      variables: the trained variables.
      add_slot: makes (or finds) a slot of a variable, by its name and shape.
    """
    axes, found = strategy.batch_dimensions, {}
    everywhere = math.prod(strategy.mesh.dim_size(a) for a in axes)
    for variable in variables:
        sent = Sent.of(kept_like(strategy, variable), variable.shape.as_list(), strategy)
        if sent is None:
            continue
        slots = []
        for name, shape in zip(ERRORS, sent.errors, strict=False):
            slot = add_slot(variable, name, (everywhere, *shape))
            slot._of_its_mesh = True  # type: ignore[attr-defined]
            if slot.layout is None or slot.layout.num_shards(0) != everywhere:
                specs = ["+".join(axes), *[UNSHARDED] * len(shape)]
                slot._layout = Layout(specs, strategy.mesh)
            slots.append(slot)
        found[id(variable)] = sent, slots
    return found


class Exchange:
    """How the gradients of a step are sent in few bits, and what that takes besides them.

    Args:
      strategy: the strategy.
      program: the program whose gradients they are.

    Attributes:
      slots: the errors of rounding.
      operands: tensors that all devices have: the number of updates, the loss's scale, the momentum's decay, momenta.

    Raises:
      ValueError: where momentum is to be sent, but devices hold parts of it.
    """

    def __init__(self, strategy: Any, program: LossProgram) -> None:
        self.sent = errors_of(strategy, program.variables, program.add_slot)
        program.restore_slots()
        self.slots = [slot for _, slots in self.sent.values() for slot in slots]
        said = program.sending()
        self._after = strategy.options.compress_after
        self._scaled, self._momentum = said.scale is not None, said.momentum is not None
        self.operands = [said.updates]
        if said.scale is not None:
            self.operands.append(said.scale)
        if said.momentum is None:
            return
        if strategy.options.zero:
            raise InvalidValueError(
                f"compress={strategy.options.compress!r}: the optimizer has its momentum sent, of which devices hold "
                f"parts with zero={strategy.options.zero}. Pass zero=0, or an optimizer such as Adam, whose "
                "gradients are sent."
            )
        if self._after not in (0, said.warm_up):
            raise InvalidValueError(
                f"compress_after={self._after}, but the optimizer's momentum settles for {said.warm_up} updates. "
                "Leave compress_after out."
            )
        self._after = said.warm_up
        slots = {id(v): said.momentum(v) for v in program.variables if id(v) in self.sent}
        self.operands += [said.decay, *(slots[key].value() for key in self.sent)]

    def collected(
        self,
        wanted: Sequence[tuple[int, Any, Kept]],
        errors: Sequence[Any],
        operands: Sequence[Any],
    ) -> tuple[list[Any], list[Any]]:
        """Sums of gradients over the devices, or this device's parts of them, and its new errors.

        Args:
          wanted: for each gradient the id of its variable, the gradient on this device, and how it is held.
          errors: the values of `slots` on this device.
          operands: the values of `operands`.
        """
        sums = [None if self._codes(key, g) else kept.collected(g) for key, g, kept in wanted]
        coded = [each for each, made in zip(wanted, sums, strict=True) if made is None]

        def whole() -> tuple[list[Any], list[Any]]:
            return [kept.collected(gradient) for _, gradient, kept in coded], list(errors)

        def in_few_bits() -> tuple[list[Any], list[Any]]:
            return self._in_few_bits(coded, errors, operands)

        if self._after:
            found, new = lax.cond(operands[0] < self._after, whole, in_few_bits)
        else:
            found, new = in_few_bits()
        supply = iter(found)
        return [next(supply) if made is None else made for made in sums], new

    def _codes(self, key: int, gradient: Any) -> bool:
        # Of weights that are brought together where they are used, the sum has been made there.
        return key in self.sent and gradient.shape == self.sent[key][0].shape

    def _in_few_bits(
        self, coded: Sequence[tuple[int, Any, Kept]], errors: Sequence[Any], operands: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:
        values = iter(operands[1:])
        # Errors are kept as those of the loss itself, whose scale changes.
        scale = next(values) if self._scaled else 1.0
        decay = next(values) if self._momentum else 0.0
        momenta = dict(zip(self.sent, values, strict=False))
        supply = iter(errors)
        known = {k: [next(supply)[0] * scale for _ in s.errors] for k, (s, _) in self.sent.items()}
        sums = []
        for key, gradient, _ in coded:
            sent = self.sent[key][0]
            # The momentum that the optimizer makes of what comes out is what was sent.
            before = decay * scale * momenta[key].astype(jnp.float32) if self._momentum else 0.0
            share = before / sent.devices + (1 - decay) * gradient.astype(jnp.float32)
            total, known[key] = sent.summed(share, known[key])
            sums.append(((total - before) / (1 - decay)).astype(gradient.dtype))
        return sums, [(error / scale)[None] for key in self.sent for error in known[key]]
