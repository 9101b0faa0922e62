"""Products of layers that need explicit collectives under the rules of a `MeshStrategy`.

* `sequence="ring"` or `"ulysses"`: the gradients of kernels, biases and scales are summed over
  sequences and batch together.
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
from meshflow.distribute.parallel import sharded_products
from meshflow.distribute.parallel.sharded_products import ShardedProduct
from meshflow.distribute.parallel.weight_reads import find_shard_map_mesh
from meshflow.distribute.replicas.shares import current_shares
from meshflow.distribute.replicas.variables import get_ruled_layout
from meshflow.ops import array, math
from meshflow.ops.linalg import einsum
from meshflow.placement.layout import list_spec_dimensions


def make_sharded_product(
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
    plan = _plan_layer_product(layer, inputs, equation)
    if plan is None or plan.form == "features":
        return None

    def compute(x: Tensor, kernel: Variable | Tensor) -> Tensor:
        shares = current_shares()
        if plan.form == "sequences" and plan.mesh is None and shares is not None:
            copies = shares.get_weight_copies(layer.kernel, plan.over)
            if copies is None:
                return einsum(plan.equation, x, kernel)
            kernel = math.cast(copies, x.dtype)
        value = kernel.value() if isinstance(kernel, Variable) else kernel
        return apply(_products_op, (x, [value]), (plan,))[0]

    return compute


def project_sharded(layers: Sequence[Any], inputs: Tensor, equation: str) -> list[Tensor] | None:
    """Multiply one input by several kernels, so that one collective sums the gradients.

    Args:
      layers: Layers with equal kernel layouts.
      inputs: First operand of all products.
      equation: Einsum equation of the products.

    Returns:
      The products, or None if no collective is needed or XLA can shard the products by layouts.
    """
    plans = {_plan_layer_product(layer, inputs, equation) for layer in layers}
    plan = plans.pop()
    if plan is None or plans or plan.form not in ("features", "columns"):
        return None
    return list(apply(_products_op, (inputs, [layer.kernel.value() for layer in layers]), (plan,)))


def read_for_positions(weight: Variable, inputs: Tensor) -> Tensor | None:
    """Read a bias or a scale of the last axes of values [batch, sequence, ...], for each position.

    Each device has a copy for its positions of a split sequence, so that one collective sums the
    gradients over sequences and batch.

    Args:
      weight: The weight.
      inputs: The values.

    Returns:
      The weight [sequence, ...], or [batch, sequence, ...] outside of a region; None if no sequence
      is split.
    """
    shares, strategy = current_shares(), getattr(weight, "_distribute_strategy", None)
    if not hasattr(strategy, "rules") or weight.layout is None:
        return None
    shape, axes = inputs.shape.as_list(), _list_ruled_dimensions(strategy, weight)
    plan = _plan_sequence_product(strategy, axes, len(shape), "positions")
    if plan is None or shape[2:] != weight.shape.as_list():
        return None
    if None in shape or not plan.can_split(tuple(shape)):
        return None
    if plan.mesh is not None:
        return apply(
            _broadcast_op, (math.cast(weight.value(), inputs.dtype),), (tuple(shape), plan)
        )
    copies = None if shares is None else shares.get_weight_copies(weight, plan.over)
    if copies is None:
        return None
    return array.repeat(math.cast(copies, inputs.dtype), shape[1] // copies.shape[0], axis=0)


def _plan_layer_product(layer: Any, inputs: Tensor, equation: str | None) -> ShardedProduct | None:
    strategy = getattr(layer.kernel, "_distribute_strategy", None)
    if not hasattr(strategy, "rules") or layer.kernel.layout is None:
        return None
    shape = inputs.shape.as_list()
    if len(shape) < 2 or None in shape:
        return None
    plan = _plan_product(strategy, layer.kernel, len(shape), equation)
    return plan if plan is not None and plan.can_split(tuple(shape)) else None


def _plan_product(
    strategy: Any, kernel: Variable, rank: int, equation: str | None
) -> ShardedProduct | None:
    mesh, batch, shares = strategy.mesh, strategy.batch_dimensions, current_shares()
    axes = _list_ruled_dimensions(strategy, kernel)
    sequence_dims = strategy.rules.dimensions("sequence")
    if strategy.options.sequence == "split" and sequence_dims and (equation or rank == 3):
        split = [i for i, names in enumerate(axes) if names == sequence_dims]
        if len(split) == 1:
            explicit_equation = equation or "btd,dh->bth"
            inputs, _, output = explicit_equation.partition("->")
            kernel_letters = inputs.partition(",")[2]
            form = "columns" if kernel_letters[split[0]] in output else "rows"
            return _plan_pair_product(form, explicit_equation, strategy, sequence_dims, split[0])
    split = [i for i, names in enumerate(axes) if names]
    if equation and split == [1] and set(axes[1]).isdisjoint(batch):
        return _plan_pair_product("features", equation, strategy, axes[1], 1)
    plan = _plan_sequence_product(strategy, axes, rank, equation)
    if plan is not None or strategy.options.sequence in ("ring", "ulysses"):
        return plan
    if shares is not None or equation is not None or strategy.options.zero == 3:
        return None
    return ShardedProduct.from_kernel_split(axes, mesh.jax_mesh, batch)


def _list_ruled_dimensions(strategy: Any, weight: Variable) -> list[tuple[str, ...]]:
    """Return the mesh dimensions that rules split each axis of a weight over."""
    # ZeRO splits weights further, but layers read them gathered.
    mesh = strategy.mesh
    return [
        tuple(n for n in list_spec_dimensions(spec, mesh) if mesh.dim_size(n) > 1)
        for spec in get_ruled_layout(weight).sharding_specs
    ]


def _plan_sequence_product(
    strategy: Any, axes: Sequence[tuple[str, ...]], rank: int, equation: str | None
) -> ShardedProduct | None:
    """Plan a product of split sequences with a kernel that no rule splits."""
    if (
        not strategy.options.sequence
        or any(axes)
        or rank < 3
        or not (equation or rank == 3)
        or strategy.options.pipeline
    ):
        return None
    mesh, over = find_shard_map_mesh(strategy), strategy.rules.dimensions("sequence")
    if mesh is not None and strategy.options.sequence == "split":
        # Without a region, XLA reduces the gradients by the layouts of the products around.
        return None
    batch = () if mesh is None else strategy.batch_dimensions
    return ShardedProduct("sequences", equation or "btd,dh->bth", mesh, batch, over)


def _plan_pair_product(
    form: str, equation: str, strategy: Any, over: tuple[str, ...], axis: int
) -> ShardedProduct | None:
    """Plan a product by columns or rows, if its kernel is sharded along this form's first axis."""
    inputs, _, output = equation.partition("->")
    kernel_letters = inputs.partition(",")[2]
    if next(c for c in kernel_letters if (c in output) is (form != "rows")) != kernel_letters[axis]:
        return None
    mesh = find_shard_map_mesh(strategy)
    return ShardedProduct(
        form, equation, mesh, () if mesh is None else strategy.batch_dimensions, over
    )


_products_op = Op(
    "divided_product",
    lambda operands, static: sharded_products.multiply_sharded(
        operands[0], tuple(operands[1]), *static
    ),
    is_foldable=False,
)
_broadcast_op = Op(
    "divided_broadcast",
    lambda operands, static: sharded_products.broadcast_sharded(operands[0], *static),
    is_foldable=False,
)
