"""Products of layers that need explicit collectives under the rules of a `MeshStrategy`.

* `sequence="split"` with rules such as "sequence:model, hidden:model, heads:model": the activations
  between pairs of feature-sharded products are sharded over the sequence axis.
* A kernel with the first axis sharded over a mesh dimension of the batch and the second over
  another: 2D; 2.5D if the batch is sharded over two dimensions ("batch:depth+rows, in:rows,
  out:cols").
* A kernel with the first axis sharded over two mesh dimensions ("in:rows+depth, out:cols"): 3D; the
  next layer must exchange rows and cols, for which `dims=` renames its axes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshflow.core.dispatch.dispatch import apply
from meshflow.core.dispatch.operation import Op
from meshflow.core.values.tensor import Tensor
from meshflow.core.variables.variable import Variable
from meshflow.distribute.parallel import products
from meshflow.distribute.parallel.products import Divided
from meshflow.distribute.parallel.reading import mesh_to_name
from meshflow.distribute.replicas.shares import current_shares
from meshflow.placement.layout import dimensions_of

__all__ = ["divided_product", "projections"]


def divided_product(
    layer: Any, inputs: Tensor, equation: str | None = None
) -> Callable[[Tensor, Variable | Tensor], Tensor] | None:
    """Return a function that multiplies by the kernel of a layer with explicit collectives.

    Args:
      layer: Layer with the weight `kernel`.
      inputs: First operand, batch first.
      equation: Einsum equation of the product; None for a product over the last axis.

    Returns:
      A function of (inputs, kernel), or None if XLA can shard the product by layouts.
    """
    plan = _divided(layer, inputs, equation)
    if plan is None or plan.form == "features":
        return None
    value = lambda kernel: kernel.value() if isinstance(kernel, Variable) else kernel
    return lambda x, kernel: apply(_products, (x, [value(kernel)]), (plan,))[0]


def projections(layers: Sequence[Any], inputs: Tensor, equation: str) -> list[Tensor] | None:
    """Multiply one input by several kernels, so that one collective sums the gradients.

    Args:
      layers: Layers with equal kernel layouts.
      inputs: First operand of all products.
      equation: Einsum equation of the products.

    Returns:
      The products, or None if no collective is needed or XLA can shard the products by layouts.
    """
    plans = {_divided(layer, inputs, equation) for layer in layers}
    plan = plans.pop()
    if plan is None or plans or plan.form not in ("features", "columns"):
        return None
    return list(apply(_products, (inputs, [layer.kernel.value() for layer in layers]), (plan,)))


def _divided(layer: Any, inputs: Tensor, equation: str | None) -> Divided | None:
    strategy = getattr(layer.kernel, "_distribute_strategy", None)
    if not hasattr(strategy, "rules") or layer.kernel.layout is None:
        return None
    shape = inputs.shape.as_list()
    if len(shape) < 2 or None in shape:
        return None
    plan = _how(strategy, layer.kernel, len(shape), equation)
    return plan if plan is not None and plan.fits(tuple(shape)) else None


def _how(strategy: Any, kernel: Variable, rank: int, equation: str | None) -> Divided | None:
    mesh, batch, shares = strategy.mesh, strategy.batch_dimensions, current_shares()
    axes = [
        tuple(n for n in dimensions_of(spec, mesh) if mesh.dim_size(n) > 1)
        for spec in kernel.layout.sharding_specs
    ]
    sequence_dims = strategy.rules.dimensions("sequence")
    if strategy.options.sequence == "split" and sequence_dims and (equation or rank == 3):
        split = [i for i, names in enumerate(axes) if names == sequence_dims]
        if len(split) == 1:
            explicit_equation = equation or "btd,dh->bth"
            inputs, _, output = explicit_equation.partition("->")
            kernel_letters = inputs.partition(",")[2]
            form = "columns" if kernel_letters[split[0]] in output else "rows"
            return _pair(form, explicit_equation, strategy, sequence_dims, split[0])
    split = [i for i, names in enumerate(axes) if names]
    if equation and split == [1] and set(axes[1]).isdisjoint(batch):
        return _pair("features", equation, strategy, axes[1], 1)
    if shares is not None or equation is not None or strategy.options.zero == 3:
        return None
    return Divided.on_grid(axes, mesh.jax_mesh, batch)


def _pair(
    form: str, equation: str, strategy: Any, over: tuple[str, ...], axis: int
) -> Divided | None:
    """Plan a product by columns or rows, if its kernel is sharded along this form's first axis."""
    inputs, _, output = equation.partition("->")
    kernel_letters = inputs.partition(",")[2]
    if next(c for c in kernel_letters if (c in output) is (form != "rows")) != kernel_letters[axis]:
        return None
    mesh = mesh_to_name(strategy)
    return Divided(form, equation, mesh, () if mesh is None else strategy.batch_dimensions, over)


_products = Op(
    "divided_product",
    lambda operands, static: products.product(operands[0], tuple(operands[1]), *static),
    is_foldable=False,
)
