"""Products of layers under the rules of a `MeshStrategy` that ask for collectives of their own.

* `sequence="split"` with rules such as "sequence:model, hidden:model, heads:model": sequences are split between the pairs
  of products whose features are split.
* A kernel whose first axis is split over a dimension of the batch and whose second over another: 2D, and 2.5D with a
  batch over two dimensions ("batch:depth+rows, in:rows, out:cols").
* A kernel whose first axis is split over two dimensions ("in:rows+depth, out:cols"): 3D, where the next layer changes
  rows and cols. `dims=` gives its axes other names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import Op
from meshflow.core.variables.variable import Variable
from meshflow.distribute.parallel import products
from meshflow.distribute.parallel.products import Divided
from meshflow.distribute.parallel.reading import mesh_to_name
from meshflow.distribute.replicas.shares import current_shares
from meshflow.placement.layout import dimensions_of

__all__ = ["divided_product", "projections"]


def divided_product(
    layer: Any, inputs: Any, equation: str | None = None
) -> Callable[[Any, Any], Any] | None:
    """The product of a layer's inputs and kernel with collectives of its own; None where layouts alone do.

    Args:
      layer: the layer, whose weight `kernel` it is.
      inputs: what it is multiplied with, batch first.
      equation: the product; None for that over the last axis.
    """
    how = _divided(layer, inputs, equation)
    if how is None or how.form == "features":
        return None
    value = lambda kernel: kernel.value() if isinstance(kernel, Variable) else kernel
    return lambda x, kernel: apply(_products, (x, [value(kernel)]), (how,))[0]


def projections(layers: Sequence[Any], inputs: Any, equation: str) -> list[Any] | None:
    """The products of one input and the kernels of several layers, where their gradients can be sent as one sum.

    Args:
      layers: the layers, whose kernels lie alike.
      inputs: what they are all multiplied with.
      equation: the product.

    Returns:
      The products; None where there is nothing to send, or layouts alone do.
    """
    found = {_divided(layer, inputs, equation) for layer in layers}
    how = found.pop()
    if how is None or found or how.form not in ("features", "columns"):
        return None
    return list(apply(_products, (inputs, [layer.kernel.value() for layer in layers]), (how,)))


def _divided(layer: Any, inputs: Any, equation: str | None) -> Divided | None:
    strategy = getattr(layer.kernel, "_distribute_strategy", None)
    if not hasattr(strategy, "rules") or layer.kernel.layout is None:
        return None
    shape = inputs.shape.as_list()
    if len(shape) < 2 or None in shape:
        return None
    how = _how(strategy, layer.kernel, len(shape), equation)
    return how if how is not None and how.fits(tuple(shape)) else None


def _how(strategy: Any, kernel: Any, rank: int, equation: str | None) -> Divided | None:
    mesh, batch, shares = strategy.mesh, strategy.batch_dimensions, current_shares()
    axes = [
        tuple(n for n in dimensions_of(spec, mesh) if mesh.dim_size(n) > 1)
        for spec in kernel.layout.sharding_specs
    ]
    over = strategy.rules.dimensions("sequence")
    if strategy.options.sequence == "split" and over and (equation or rank == 3):
        split = [i for i, names in enumerate(axes) if names == over]
        if len(split) == 1:
            known = equation or "btd,dh->bth"
            inputs, _, output = known.partition("->")
            of_w = inputs.partition(",")[2]
            form = "columns" if of_w[split[0]] in output else "rows"
            return _pair(form, known, strategy, over, split[0])
    split = [i for i, names in enumerate(axes) if names]
    if equation and split == [1] and set(axes[1]).isdisjoint(batch):
        return _pair("features", equation, strategy, axes[1], 1)
    if shares is not None or equation is not None or strategy.options.zero == 3:
        return None
    return Divided.on_grid(axes, mesh.jax_mesh, batch)


def _pair(
    form: str, equation: str, strategy: Any, over: tuple[str, ...], axis: int
) -> Divided | None:
    """A product of columns or rows whose kernel is split along an axis, the first that can be."""
    inputs, _, output = equation.partition("->")
    of_w = inputs.partition(",")[2]
    if next(c for c in of_w if (c in output) is (form != "rows")) != of_w[axis]:
        return None
    mesh = mesh_to_name(strategy)
    return Divided(form, equation, mesh, () if mesh is None else strategy.batch_dimensions, over)


_products = Op(
    "divided_product",
    lambda operands, static: products.product(operands[0], tuple(operands[1]), *static),
    is_foldable=False,
)
