"""Bytes that a strategy's step sends by the planner's formulas, for comparison with profiles."""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from meshflow.distribute.parallel.planner.choices import SEQUENCE_PARALLEL_MODES, PlanChoice
from meshflow.distribute.parallel.planner.costs import CostModel
from meshflow.distribute.parallel.planner.hardware import Hardware
from meshflow.distribute.parallel.planner.model_profile import ModelProfile, profile_model
from meshflow.distribute.parallel.planner.trial import suspend_layouts
from meshflow.distribute.parallel.planner.weight_traffic import (
    WeightLayout,
    count_own_step_traffic,
    count_weight_traffic,
)
from meshflow.distribute.parallel.sharded_products import ShardedProduct
from meshflow.distribute.parallel.strategy import MeshStrategy, training_models
from meshflow.environment.types import Json, PyTree
from meshflow.placement.expected_traffic import ExpectedTraffic, count_ring_bytes
from meshflow.profiler import description

_SUMS = ("all-reduce", "reduce-scatter")
_ALL_KINDS = (*_SUMS, "all-gather", "all-to-all")
# For each purpose its description, and the types of collectives that serve it.
_PURPOSES = {
    "grid": ("products in two or three dimensions", ("all-gather", "reduce-scatter")),
    "gradients": ("gradients", _SUMS),
    "rows": ("gradients of rows of tables", ("all-gather",)),
    "weights": ("weights", ("all-gather",)),
    "coded": ("gradients in few bits", ("all-to-all", "all-gather")),
    "tokens": ("tokens to and from experts", ("all-to-all",)),
    "products": ("sums of divided products", (*_SUMS, "all-gather")),
    "attention": ("attention between parts of sequences", ("collective-permute", "all-to-all")),
    "joint": ("gradients of batch and sequences", ("all-reduce",)),
    "parts": ("gradients of parts of sequences", (*_SUMS, "all-gather")),
}
# Purposes with collectives over the devices of a batch, and over all devices; the others are over
# the dimensions of rules.
_BATCH_PURPOSES = ("gradients", "rows", "weights", "coded", "tokens")
_GLOBAL_PURPOSES = ("grid", "joint")
# Common name for all split axes in the planner's profile, independent of the model.
_SPLIT_AXIS = "split by the mesh"


class NoFormulaError(ValueError):
    """Error for a strategy that the planner has no formula for."""


def compute_expected_traffic(
    strategy: MeshStrategy, model: Any, *batch: PyTree
) -> list[ExpectedTraffic]:
    """Compute the bytes that each device sends in a training step.

    Args:
      strategy: The strategy.
      model: A compiled model of its scope, with an existing training step.
      *batch: One batch (x, y, sample_weight) of arrays, tensors or specs.

    Returns:
      The exchanges with their purposes.

    Raises:
      NoFormulaError: If there is no formula for the strategy.
    """
    weights = list(model.trainable_variables)
    layouts = [WeightLayout.from_variable(v, strategy) for v in weights]
    rows = (*batch, *[None] * (3 - len(batch)))
    updates = getattr(model.optimizer, "gradient_accumulation_steps", None) or 1
    loops = model._count_gradient_loops(rows)
    own_step, options = loops is not None, strategy.options
    has_loop = (
        loops == 1 and options.micro_batches > 1 and not (options.pipeline or options.compress)
    )
    _check_formula_exists(strategy, model, updates, own_step, has_loop)
    program = model._make_loss_program()
    with suspend_layouts(model):
        profile = profile_model(program, rows, model.optimizer)
    profile = dataclasses.replace(profile, own_step=own_step, step_loops=int(has_loop))
    grids = _find_grid_products(strategy, profile, layouts)
    terms: Sequence[int] = [1] * len(weights)
    if grids:
        sent = {"grid": _count_grid_bytes(profile, grids)}
        everything = tuple(strategy.mesh.dim_names)
        layouts = [
            dataclasses.replace(one, copies=_find_copy_dimensions(everything, one))
            for one in layouts
        ]
    else:
        choice = convert_to_choice(strategy, profile, layouts)
        known = dataclasses.replace(profile, weights=_name_split_axes(profile, strategy, layouts))
        in_region = strategy.options.uses_region
        model_costs = CostModel(known, Hardware(choice.devices, "1GB"), in_region)
        sent = model_costs.count_sent_bytes(choice)
        terms = model_costs.count_gradient_terms(choice)
    if strategy.options.pipeline is not None:
        return _make_pipeline_exchanges(strategy, sent)
    if own_step and not has_loop:
        has_slots = [w.slots > 0 for w in profile.weights]
        sent |= count_own_step_traffic(layouts, has_slots, terms, updates)
    else:
        recompute = options.recompute if isinstance(options.recompute, str) else None
        # The loop of a step with gradients of its own keeps weights.
        budget = profile.parameters if has_loop else options.max_live_parameters
        regathered = profile.list_regathered(recompute, budget)
        pairs = list(zip(weights, layouts, strict=True))
        sent |= count_weight_traffic(
            strategy, pairs, regathered, terms, profile.layer_counts, updates
        )
    if not grids and choice.sequence:
        # The codes and the norms of gradients need their sums over sequences.
        sums_parts_first = strategy.options.compress or program.needs_gradient_norms
        if sums_parts_first:
            sent["parts"] = model_costs.count_part_sums(choice, joint=False)
        elif not choice.zero and model_costs.has_joint_sums(choice):
            # One all-reduce over all devices sums the gradients of all weights but tables.
            summed, _ = model_costs.count_sequence_gradients(choice)
            over_batch = 2 * count_ring_bytes(summed, choice.data)
            over_parts = 2 * count_ring_bytes(summed // choice.data, choice.model)
            sent["joint"] = over_batch + over_parts
            sent["gradients"] -= over_batch
            sent["parts"] -= over_parts
    return [
        exchange
        for name, count in sent.items()
        if (exchange := _make_exchange(strategy, name, count, layouts)).sent
    ]


def _check_formula_exists(
    strategy: MeshStrategy, model: Any, updates: int, own_step: bool, has_loop: bool
) -> None:
    """Raise an error if steps send different bytes, or if there is no formula for the options."""
    options = strategy.options
    inner = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    if options.compress and (options.compress_after or hasattr(inner, "_get_compression_settings")):
        raise NoFormulaError("gradients are sent whole in the first steps, and compressed later")
    if options.compress and options.zero == 3 and options.recompute:
        raise NoFormulaError("there is no formula for compress= with zero=3 and recompute=")
    if options.pipeline is not None and updates > 1:
        raise NoFormulaError("there is no formula for gradient_accumulation_steps= in a pipeline")
    if options.recompute not in (None, "layer", "gathers"):
        raise NoFormulaError("there is no formula for a policy of recomputation")
    if options.zero and own_step and getattr(inner, "use_ema", False):
        raise NoFormulaError(
            "there is no formula for use_ema= in a train_step that computes gradients itself"
        )
    if own_step and options.splits_own_steps and not has_loop:
        raise NoFormulaError(
            "there are formulas for a train_step that computes gradients itself only if it is one loop over micro-batches"
        )
    if options.zero == 3 and own_step and not has_loop:
        raise NoFormulaError(
            "with zero=3, XLA decides whether it sends weights or activations in a train_step that computes gradients itself"
        )


def _make_exchange(
    strategy: MeshStrategy, purpose: str, count: int, layouts: Sequence[WeightLayout]
) -> ExpectedTraffic:
    name, kinds = _PURPOSES[purpose]
    everything, data = tuple(strategy.mesh.dim_names), tuple(strategy.batch_dimensions)
    if purpose in _GLOBAL_PURPOSES or (
        purpose == "gradients" and {n for one in layouts for n in one.copies} - {*data}
    ):
        return ExpectedTraffic(name, kinds, everything, count)
    rest = tuple(sorted(strategy.rule_dimensions - {*data}))
    return ExpectedTraffic(name, kinds, data if purpose in _BATCH_PURPOSES else rest, count)


def _make_pipeline_exchanges(strategy: MeshStrategy, sent: dict[str, int]) -> list[ExpectedTraffic]:
    """Return the exchanges of a pipeline."""
    over, data = strategy.options.pipeline_options.over, tuple(strategy.batch_dimensions)
    if strategy.pipelined is not None:
        # The pipeline's own schedule and stages can differ from those of the planner.
        sent["neighbours"] = strategy.pipelined.make_report().sent
    exchanges = [
        ExpectedTraffic("neighbours", ("collective-permute",), (over,), sent.pop("neighbours")),
        ExpectedTraffic(
            "weights and gradients",
            _ALL_KINDS,
            (over, *data),
            sent.pop("weights") + sent.pop("gradients"),
        ),
    ]
    exchanges += [_make_exchange(strategy, name, count, ()) for name, count in sent.items()]
    return [one for one in exchanges if one.sent]


# ---- products in two or three dimensions -------------------------------------------------------


def _find_grid_products(
    strategy: MeshStrategy, profile: ModelProfile, layouts: Sequence[WeightLayout]
) -> dict[int, ShardedProduct]:
    """Return the weights with 2D or 3D products, with the sharding of these products."""
    if strategy.options.uses_region or strategy.options.sequence:
        return {}
    mesh, batch = strategy.mesh.jax_mesh, strategy.batch_dimensions
    by_weight = {
        n: ShardedProduct.from_kernel_split(one.axes, mesh, batch) for n, one in enumerate(layouts)
    }
    grids = {n: how for n, how in by_weight.items() if how is not None}
    if not grids:
        return {}
    for product in profile.products:
        name, how = profile.weights[product.weight].name, grids.get(product.weight)
        if how is None or not how.can_split((profile.batch, product.shape[-1])):
            raise NoFormulaError(
                f"the products of {name} are not split in two or three dimensions, unlike others"
            )
    return grids


def _count_grid_bytes(profile: ModelProfile, grids: Mapping[int, ShardedProduct]) -> int:
    return sum(
        grids[product.weight].count_sent_bytes(
            product.input_bytes * profile.batch,
            profile.weights[product.weight].bytes,
            product.output_bytes * profile.batch,
            product.has_input_gradient,
        )
        for product in profile.products
    )


def _find_copy_dimensions(everything: Sequence[str], layout: WeightLayout) -> tuple[str, ...]:
    """Return the dimensions along which devices have different terms of a weight's gradient."""
    return tuple(n for n in everything if n not in layout.split_dimensions)


# ---- splits over one dimension in addition to the batch's --------------------------------------


def _name_split_axes(
    profile: ModelProfile, strategy: MeshStrategy, layouts: Sequence[WeightLayout]
) -> tuple[Any, ...]:
    """Return the profile's weights, with a common name for axes split beyond the batch."""
    data, weights = {*strategy.batch_dimensions}, []
    for weight, layout in zip(profile.weights, layouts, strict=True):
        names = weight.dims or ((),) * len(weight.shape)
        dims = tuple(
            (*known, *((_SPLIT_AXIS,) if {*over} - data else ()))
            for known, over in zip(names, layout.axes, strict=True)
        )
        weights.append(dataclasses.replace(weight, dims=dims))
    return tuple(weights)


def _find_expert_dimensions(profile: ModelProfile, layouts: Sequence[WeightLayout]) -> set[str]:
    """Return the mesh dimensions that experts are split over."""
    dimensions = set[str]()
    for weight, layout in zip(profile.weights, layouts, strict=True):
        axis = weight.find_named_axis(["experts"])
        dimensions |= set() if axis is None else {*layout.axes[axis]}
    return dimensions


def convert_to_choice(
    strategy: MeshStrategy, profile: ModelProfile, layouts: Sequence[WeightLayout]
) -> PlanChoice:
    """Convert a strategy into a choice of the planner.

    All axes that the mesh splits have one common name in the choice.

    Args:
      strategy: The strategy.
      profile: The model.
      layouts: Layouts of its weights.

    Returns:
      The choice.

    Raises:
      NoFormulaError: If the planner has no such choice.
    """
    options, data = strategy.options, strategy.batch_dimensions
    sizes = dict(zip(strategy.mesh.dim_names, strategy.mesh.shape(), strict=True))
    pipelined = options.pipeline is not None
    over = {n for layout in layouts for n in layout.split_dimensions}
    experts = _find_expert_dimensions(profile, layouts)
    dimensions = over - {*data}
    if pipelined and options.zero_over and {*options.zero_over} != {*data}:
        raise NoFormulaError("there is no formula for zero_over= in a pipeline")
    if options.sequence in SEQUENCE_PARALLEL_MODES and dimensions:
        raise NoFormulaError(
            "there is no formula for split sequences together with tensor parallelism"
        )
    if options.sequence is not None:
        dimensions |= {*strategy.rules.dimensions("sequence")}
    if len(dimensions) > 1 or any(
        sum(bool({*names} - {*data}) for names in layout.axes) > 1 for layout in layouts
    ):
        raise NoFormulaError(
            "formulas require that weights are split over one dimension of the mesh in addition to the batch's, here "
            f"{sorted(dimensions)}"
        )
    if over & {*data} != experts:
        raise NoFormulaError(
            "over the devices of the batch, formulas cover only the split of experts and of products in two or three dimensions"
        )
    if experts and options.sequence is not None:
        raise NoFormulaError("there is no formula for split experts together with split sequences")
    return PlanChoice(
        math.prod(sizes[d] for d in data),
        math.prod(sizes[d] for d in dimensions),
        sizes[options.pipeline_options.over] if pipelined else 1,
        zero=options.zero,
        micro_batches=options.micro_batches,
        recompute=options.recompute if isinstance(options.recompute, str) else None,
        sequence=options.sequence,
        offload=tuple(options.offload_patterns),
        names=(_SPLIT_AXIS,) if over - {*data} else (),
        experts=math.prod(sizes[d] for d in experts) if experts else 0,
        keeps_weights=bool(profile.own_step and profile.step_loops)
        or (
            options.max_live_parameters is not None
            and options.max_live_parameters >= profile.parameters
        ),
        keep=options.pipeline_options.keep if pipelined else "inputs",
    )


def _describe_last_step() -> Mapping[str, Json]:
    """Return the expected traffic of the last training step, or why it is unknown."""
    for model, (strategy_reference, thread) in reversed([*training_models.items()]):
        strategy = strategy_reference()
        step = model._steps.get("train")
        concrete = next(reversed([*getattr(step, "_concrete", {}).values()]), None)
        if strategy is None or concrete is None:
            continue
        if thread != threading.get_ident():
            # The model is traced for the formulas, which is safe only on the thread that trains it.
            return {
                "why": "only the thread that trains can compute it, and another one took this profile"
            }
        (batch,), _ = concrete.structured_input_signature
        try:
            exchanges = _compute_call_traffic(
                strategy, model, batch if isinstance(batch, tuple) else (batch,)
            )
        except (ValueError, NotImplementedError) as error:
            return {"why": str(error)}
        return {"exchanges": [dataclasses.asdict(one) for one in exchanges]}
    return {}


def _compute_call_traffic(
    strategy: MeshStrategy, model: Any, batch: tuple[Any, ...]
) -> list[ExpectedTraffic]:
    """Return the traffic of a call of a compiled step, which may run several steps."""
    times = model._steps_per_execution
    exchanges = compute_expected_traffic(strategy, model, *batch)
    return [dataclasses.replace(one, sent=times * one.sent) for one in exchanges]


description.theory = _describe_last_step
