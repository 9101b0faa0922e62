"""Products of tensors that lie on a mesh, with the collectives written down: pure functions of arrays.

XLA finds collectives for any layouts, but not always those of least bytes. Letters: X the input, W the kernel and Y the
output in bytes of all devices, N, q and d sizes of mesh dimensions; sent by each device, in a backward pass by itself:

| form | split | forwards | backwards |
| --- | --- | --- | --- |
| columns and rows (Narayanan et al. 2021, arXiv:2104.04473; sequences as Korthikanti et al. 2022, arXiv:2205.05198) | sequences between, features inside of a pair | (N-1)/N (X+Y) | as much |
| 2D (SUMMA; Xu et al. 2021, arXiv:2104.05343) | rows of X and W by q, columns by q | (q-1)/q (X+W)/q | twice that |
| 2.5D (Wang et al. 2021, arXiv:2105.14500) | rows of X by d*q | (q-1)/q (X/d+W)/q | twice that + 2(d-1)/d W/q^2 |
| 3D (Bian et al. 2021, arXiv:2105.14450) | all by q^3 | (q-1)/q (X+W+Y)/q^2 | (q-1)/q (2X+2W+Y)/q^2 |
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from meshflow.placement.expected_traffic import ring

__all__ = ["Divided", "product"]


@dataclasses.dataclass(frozen=True)
class Divided:
    """How a product is divided.

    Attributes:
      form: "features", where kernels' columns are split and sequences are whole; "columns", where sequences come together;
        "rows", where they are split again; "2d", which 2.5D is too; or "3d".
      equation: the product, such as "btd,dh->bth"; the first letter is the batch, the second the sequence.
      mesh: a JAX mesh; None for that of the program around.
      batch: the mesh dimensions that the batch is split over.
      over: for columns and rows the mesh dimensions of sequence and features; for 2D (rows, columns), for 3D the dimensions
        of the input's features, of the batch in both, and of the output's features.
    """

    form: str
    equation: str
    mesh: Any
    batch: tuple[str, ...]
    over: tuple[str, ...]

    @classmethod
    def on_grid(
        cls, axes: Sequence[Sequence[str]], mesh: Any, batch: Sequence[str]
    ) -> Divided | None:
        """A product in two or three dimensions; None where a kernel's split asks for none.

        Args:
          axes: for each axis of the kernel the mesh dimensions that it is split over.
          mesh: the JAX mesh.
          batch: the mesh dimensions that the batch is split over.
        """
        if len(axes) != 2 or len(axes[1]) != 1 or axes[1][0] in axes[0]:
            return None
        first, second = axes
        if len(first) == 1 and first[0] in batch and second[0] not in batch:
            return cls("2d", "", mesh, tuple(batch), (*first, *second))
        return cls("3d", "", mesh, tuple(batch), (*first, *second)) if len(first) == 2 else None

    def sent(self, x: int, w: int, y: int, owes: bool = True) -> int:
        """Bytes that each device sends in a training step for a product in two or three dimensions.

        What is brought together forwards is kept for the backward pass, which scatters where the other gathers.

        Args:
          x, w, y: bytes of input, kernel and output on all devices.
          owes: whether the input has a gradient.
        """
        size = self.sizes
        if self.form == "2d":
            rows, columns = self.over
            of_x, of_w = (
                ring(x // size(*self.batch), size(columns)),
                ring(w // size(columns), size(rows)),
            )
            return (1 + owes) * of_x + 2 * of_w
        into, third, out = self.over
        of_x = ring(x // size(third, into), size(out))
        of_w = ring(w // size(into, out), size(third))
        return (1 + owes) * of_x + 2 * (of_w + ring(y // size(third, out), size(into)))

    def sizes(self, *names: str) -> int:
        """How many parts some mesh dimensions make."""
        mesh = jax.sharding.get_abstract_mesh() if self.mesh is None else self.mesh
        return math.prod(mesh.shape[name] for name in names)

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Whether an input of a shape divides."""
        if self.form == "3d":
            into, third, out = self.over
            parts = math.lcm(self.sizes(third, out), self.sizes(third, into))
            return shape[0] % parts == 0 and shape[-1] % self.sizes(into) == 0
        if shape[0] % self.sizes(*self.batch):
            return False
        if self.form == "2d":
            return shape[-1] % self.sizes(self.over[1]) == 0
        return self.form == "features" or shape[1] % self.sizes(*self.over) == 0


def _gathered(x: Any, names: Any, axis: int) -> Any:
    return lax.all_gather(x, names, axis=axis % x.ndim, tiled=True)


def product(x: Any, kernels: tuple[Any, ...], how: Divided) -> tuple[Any, ...]:
    """The products of an input and kernels, whose gradients of the input are added up before they are sent.

    Args:
      x: the input, batch first.
      kernels: kernels of one equation.
      how: how they are divided; the input's shape must fit.
    """
    local, into, of_kernel, result = _forms[how.form](how, x.ndim)
    specs = (into, *[of_kernel] * len(kernels))
    mapped = jax.shard_map(
        local,
        mesh=how.mesh,
        in_specs=specs,
        out_specs=(result,) * len(kernels),
        axis_names={n for spec in (*specs, result) for entry in spec for n in _names(entry)},
        check_vma=False,
    )
    return mapped(x, *kernels)


def _names(entry: Any) -> tuple[str, ...]:
    return () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)


def _spec(rank: int, **at: Any) -> PartitionSpec:
    """A spec by axis: `first`, `second`, `last`."""
    entries = [None] * rank
    for axis, name in (("last", rank - 1), ("second", 1), ("first", 0)):
        if at.get(axis):
            entries[name] = at[axis]
    return PartitionSpec(*entries)


def _of_pair(how: Divided, rank: int) -> Any:
    inputs, _, output = how.equation.partition("->")
    of_x, _, of_w = inputs.partition(",")
    onto = how.form != "rows"
    letter = next(c for c in of_w if (c in output) is onto)
    among = lambda letters: [how.over if c == letter else None for c in letters]
    batch = how.batch or None
    by_sequence = PartitionSpec(batch, how.over)

    def columns(x: Any, *kernels: Any) -> Any:
        x = _gathered(x, how.over, 1) if how.form == "columns" else x
        return tuple(jnp.einsum(how.equation, x, w) for w in kernels)

    def rows(x: Any, w: Any) -> Any:
        y = jnp.einsum(how.equation, x, w)
        return (lax.psum_scatter(y, how.over, scatter_dimension=1, tiled=True),)

    if not onto:
        of_input = PartitionSpec(batch, *among(of_x[1:]))
        return rows, of_input, PartitionSpec(*among(of_w)), by_sequence
    of_input = by_sequence if how.form == "columns" else PartitionSpec(batch)
    return columns, of_input, PartitionSpec(*among(of_w)), PartitionSpec(batch, *among(output[1:]))


def _of_grid(how: Divided, rank: int) -> Any:
    rows, columns = how.over
    spec = PartitionSpec(how.batch, *[None] * (rank - 2), columns)

    def local(x: Any, w: Any) -> Any:
        return (jnp.dot(_gathered(x, columns, -1), _gathered(w, rows, 0)),)

    return local, spec, PartitionSpec(rows, columns), spec


def _of_cube(how: Divided, rank: int) -> Any:
    into, third, out = how.over
    middle = [None] * (rank - 2)

    def local(x: Any, w: Any) -> Any:
        y = jnp.dot(_gathered(x, out, 0), _gathered(w, third, 0))
        return (lax.psum_scatter(y, into, scatter_dimension=0, tiled=True),)

    of_input = PartitionSpec((third, out), *middle, into)
    of_output = PartitionSpec((third, into), *middle, out)
    return local, of_input, PartitionSpec((into, third), out), of_output


_forms: dict[str, Any] = {
    "features": _of_pair,
    "columns": _of_pair,
    "rows": _of_pair,
    "2d": _of_grid,
    "3d": _of_cube,
}
