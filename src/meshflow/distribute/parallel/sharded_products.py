"""Matrix products over a mesh with explicit collectives: pure functions of arrays.

XLA finds collectives for all layouts, but not always those with the fewest bytes. In the table X is
the input, W the kernel and Y the output, in bytes of all devices; N, q and d are sizes of mesh
dimensions. It lists the bytes that a device sends.

| form | split | forward pass | backward pass |
| --- | --- | --- | --- |
| columns and rows (Narayanan et al. 2021, arXiv:2104.04473; Korthikanti et al. 2022, arXiv:2205.05198) | sequences, or features | (N-1)/N (X+Y) | the same |
| 2D (SUMMA; Xu et al. 2021, arXiv:2104.05343) | rows of X and W by q, columns by q | (q-1)/q (X+W)/q | twice that |
| 2.5D (Wang et al. 2021, arXiv:2105.14500) | rows of X by d*q | (q-1)/q (X/d+W)/q | twice that + 2(d-1)/d W/q^2 |
| 3D (Bian et al. 2021, arXiv:2105.14450) | all by q^3 | (q-1)/q (X+W+Y)/q^2 | (q-1)/q (2X+2W+Y)/q^2 |
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from meshflow.placement.expected_traffic import count_ring_bytes

# The function of one device's parts, and the specs of input, kernels and outputs.
_Form: TypeAlias = tuple[Callable[..., Any], PartitionSpec, PartitionSpec, PartitionSpec]


@dataclasses.dataclass(frozen=True)
class ShardedProduct:
    """Sharding of a product over a mesh.

    Attributes:
      form: "features" splits columns of kernels and no sequences; "columns" all-gathers sequences
        before the product; "rows" reduce-scatters sequences after it; "sequences" splits only
        sequences, and the gradients of kernels are summed over these and the batch together; "2d"
        includes 2.5D; "3d".
      equation: Equation such as "btd,dh->bth"; its first letter is the batch, the second the
        sequence. Empty for 2D and 3D.
      mesh: JAX mesh, or None for the mesh of the surrounding program.
      batch: Mesh dimensions that the batch is split over.
      over: For columns and rows the mesh dimensions of sequences and features. For 2D (rows,
        columns). For 3D the dimensions of the input's features, of the batch in both, and of the
        output's features.
    """

    form: str
    equation: str
    mesh: Any
    batch: tuple[str, ...]
    over: tuple[str, ...]

    @classmethod
    def from_kernel_split(
        cls, axes: Sequence[Sequence[str]], mesh: Any, batch: Sequence[str]
    ) -> ShardedProduct | None:
        """Return the 2D or 3D product for the split of a kernel, or None for another split.

        Args:
          axes: Mesh dimensions that each axis of the kernel is split over.
          mesh: The JAX mesh.
          batch: Mesh dimensions that the batch is split over.

        Returns:
          The product, or None.
        """
        if len(axes) != 2 or len(axes[1]) != 1 or axes[1][0] in axes[0]:
            return None
        first, second = axes
        if len(first) == 1 and first[0] in batch and second[0] not in batch:
            return cls("2d", "", mesh, tuple(batch), (*first, *second))
        return cls("3d", "", mesh, tuple(batch), (*first, *second)) if len(first) == 2 else None

    def count_sent_bytes(self, x: int, w: int, y: int, has_input_gradient: bool = True) -> int:
        """Return the bytes that each device sends for a 2D or 3D product in a training step.

        Values gathered in the forward pass are kept for the backward pass, which scatters where the
        forward pass gathers.

        Args:
          x: Bytes of the input on all devices.
          w: Bytes of the kernel on all devices.
          y: Bytes of the output on all devices.
          has_input_gradient: Whether the input has a gradient.

        Returns:
          The bytes.
        """
        size = self.count_parts
        if self.form == "2d":
            rows, columns = self.over
            x_bytes, w_bytes = (
                count_ring_bytes(x // size(*self.batch), size(columns)),
                count_ring_bytes(w // size(columns), size(rows)),
            )
            return (1 + has_input_gradient) * x_bytes + 2 * w_bytes
        into, third, out = self.over
        x_bytes = count_ring_bytes(x // size(third, into), size(out))
        w_bytes = count_ring_bytes(w // size(into, out), size(third))
        return (1 + has_input_gradient) * x_bytes + 2 * (
            w_bytes + count_ring_bytes(y // size(third, out), size(into))
        )

    def count_parts(self, *names: str) -> int:
        """Return the number of parts along mesh dimensions."""
        mesh = jax.sharding.get_abstract_mesh() if self.mesh is None else self.mesh
        return math.prod(mesh.shape[name] for name in names)

    def can_split(self, shape: tuple[int, ...]) -> bool:
        """Check whether the sizes of an input are divisible by the numbers of parts."""
        if self.form == "3d":
            into, third, out = self.over
            parts = math.lcm(self.count_parts(third, out), self.count_parts(third, into))
            return shape[0] % parts == 0 and shape[-1] % self.count_parts(into) == 0
        if shape[0] % self.count_parts(*self.batch):
            return False
        if self.form == "2d":
            return shape[-1] % self.count_parts(self.over[1]) == 0
        return self.form == "features" or shape[1] % self.count_parts(*self.over) == 0


def _gather_axis(x: jax.Array, names: str | tuple[str, ...], axis: int) -> jax.Array:
    return lax.all_gather(x, names, axis=axis % x.ndim, tiled=True)


def multiply_sharded(
    x: jax.Array, kernels: tuple[jax.Array, ...], how: ShardedProduct
) -> tuple[jax.Array, ...]:
    """Multiply an input by kernels; the gradients of the input are summed before they are sent.

    Args:
      x: Input with the batch on the first axis.
      kernels: Kernels with the same equation.
      how: Sharding of the products; the input's shape must be divisible.

    Returns:
      The products.
    """
    local, input_spec, kernel_spec, output_spec = _FORM_BUILDERS[how.form](how, x.ndim)
    specs = (input_spec, *[kernel_spec] * len(kernels))
    mapped = jax.shard_map(
        local,
        mesh=how.mesh,
        in_specs=specs,
        out_specs=(output_spec,) * len(kernels),
        axis_names={
            n for spec in (*specs, output_spec) for entry in spec for n in _list_names(entry)
        },
        check_vma=False,
    )
    return mapped(x, *kernels)


def broadcast_sharded(w: jax.Array, shape: tuple[int, ...], how: ShardedProduct) -> jax.Array:
    """Broadcast a bias or a scale, so that one collective sums its gradient over batch and sequences.

    Args:
      w: The weight, with the last axes of the result.
      shape: Shape [batch, sequence, ...] of the result; both sizes must be divisible.
      how: Sharding of the batch and the sequence, with a mesh.

    Returns:
      The weight for each position.
    """
    local = shape[0] // how.count_parts(*how.batch), shape[1] // how.count_parts(*how.over)
    return jax.shard_map(
        lambda own: jnp.broadcast_to(own, (*local, *shape[2:])),
        mesh=how.mesh,
        in_specs=PartitionSpec(),
        out_specs=PartitionSpec(how.batch or None, how.over),
        axis_names={*how.batch, *how.over},
        check_vma=False,
    )(w)


def _list_names(entry: str | tuple[str, ...] | None) -> tuple[str, ...]:
    return () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)


def _build_pair_form(how: ShardedProduct, rank: int) -> _Form:
    inputs, _, output = how.equation.partition("->")
    x_letters, _, w_letters = inputs.partition(",")
    splits_output = how.form != "rows"
    letter = next(c for c in w_letters if (c in output) is splits_output)
    list_entries = lambda letters: [how.over if c == letter else None for c in letters]
    batch = how.batch or None
    by_sequence = PartitionSpec(batch, how.over)

    def columns(x: jax.Array, *kernels: jax.Array) -> tuple[jax.Array, ...]:
        x = _gather_axis(x, how.over, 1) if how.form == "columns" else x
        return tuple(jnp.einsum(how.equation, x, w) for w in kernels)

    def rows(x: jax.Array, w: jax.Array) -> tuple[jax.Array, ...]:
        y = jnp.einsum(how.equation, x, w)
        return (lax.psum_scatter(y, how.over, scatter_dimension=1, tiled=True),)

    kernel_spec = PartitionSpec(*list_entries(w_letters))
    if not splits_output:
        return rows, PartitionSpec(batch, *list_entries(x_letters[1:])), kernel_spec, by_sequence
    input_spec = by_sequence if how.form == "columns" else PartitionSpec(batch)
    return columns, input_spec, kernel_spec, PartitionSpec(batch, *list_entries(output[1:]))


def _build_sequence_form(how: ShardedProduct, rank: int) -> _Form:
    # In a region kernels have copies, with gradients that the region sums.
    has_copies = how.mesh is None
    spec = PartitionSpec(how.batch or None, how.over)

    def local(x: jax.Array, *kernels: jax.Array) -> tuple[jax.Array, ...]:
        return tuple(jnp.einsum(how.equation, x, w[0] if has_copies else w) for w in kernels)

    # The residual is the kernel with its axis of copies, which ZeRO 3 releases, and not its part.
    product = jax.checkpoint(local, prevent_cse=False)
    return product, spec, PartitionSpec(how.over) if has_copies else PartitionSpec(), spec


def _build_2d_form(how: ShardedProduct, rank: int) -> _Form:
    rows, columns = how.over
    spec = PartitionSpec(how.batch, *[None] * (rank - 2), columns)

    def local(x: jax.Array, w: jax.Array) -> tuple[jax.Array, ...]:
        return (jnp.dot(_gather_axis(x, columns, -1), _gather_axis(w, rows, 0)),)

    return local, spec, PartitionSpec(rows, columns), spec


def _build_3d_form(how: ShardedProduct, rank: int) -> _Form:
    into, third, out = how.over
    middle = [None] * (rank - 2)

    def local(x: jax.Array, w: jax.Array) -> tuple[jax.Array, ...]:
        y = jnp.dot(_gather_axis(x, out, 0), _gather_axis(w, third, 0))
        return (lax.psum_scatter(y, into, scatter_dimension=0, tiled=True),)

    input_spec = PartitionSpec((third, out), *middle, into)
    output_spec = PartitionSpec((third, into), *middle, out)
    return local, input_spec, PartitionSpec((into, third), out), output_spec


_FORM_BUILDERS: dict[str, Callable[[ShardedProduct, int], _Form]] = {
    "features": _build_pair_form,
    "columns": _build_pair_form,
    "rows": _build_pair_form,
    "sequences": _build_sequence_form,
    "2d": _build_2d_form,
    "3d": _build_3d_form,
}
