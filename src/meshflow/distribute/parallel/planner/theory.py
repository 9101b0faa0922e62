"""What the step of a strategy sends by the planner's formulas, for who counts what it really sends."""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from meshflow.distribute.parallel.planner.choices import PARTS, Choice
from meshflow.distribute.parallel.planner.costs import Costs
from meshflow.distribute.parallel.planner.hardware import Hardware
from meshflow.distribute.parallel.planner.profile import ModelProfile, profiled
from meshflow.distribute.parallel.planner.trial import unplaced
from meshflow.distribute.parallel.planner.weight_traffic import Lying, weight_traffic
from meshflow.distribute.parallel.products import Divided
from meshflow.distribute.parallel.strategy import MeshStrategy, in_training
from meshflow.placement.expected_traffic import Exchange
from meshflow.profiler import description

__all__ = ["Outside", "choice_of", "theory"]


_SUMS = ("all-reduce", "reduce-scatter")
_ANY = (*_SUMS, "all-gather", "all-to-all")
# For each purpose what it is called, and the collectives that do it.
_PURPOSES = {
    "grid": ("products in two or three dimensions", ("all-gather", "reduce-scatter")),
    "gradients": ("gradients", _SUMS),
    "weights": ("weights", ("all-gather",)),
    "coded": ("gradients in few bits", ("all-to-all", "all-gather")),
    "tokens": ("tokens to and from experts", ("all-to-all",)),
    "products": ("sums of divided products", (*_SUMS, "all-gather")),
    "attention": ("attention between parts of sequences", ("collective-permute", "all-to-all")),
    "parts": ("gradients of parts of sequences", (*_SUMS, "all-gather")),
}
# Those that go over the devices of a batch, and those that go over all; others go over those of a rule.
_OF_BATCHES = ("gradients", "weights", "coded", "tokens")
_OF_ALL = ("grid",)
# What the planner calls axes that are split, whatever the model does.
_SPLIT = "split by the mesh"


class Outside(ValueError):
    """A strategy does what there is no formula for."""


def theory(strategy: MeshStrategy, model: Any, *batch: Any) -> list[Exchange]:
    """What each device sends in a training step.

    Args:
      strategy: the strategy.
      model: a compiled model of its scope, whose training step has been made.
      *batch: one batch (x, y, sample_weight) of arrays, tensors or specs.

    Raises:
      Outside: for a strategy that no formula is about.
    """
    weights = list(model.trainable_variables)
    lying = [Lying.of(v, strategy) for v in weights]
    rows = (*batch, *[None] * (3 - len(batch)))
    updates = getattr(model.optimizer, "gradient_accumulation_steps", None) or 1
    _check_sending(strategy, model, updates)
    with unplaced(model):
        profile = profiled(model._loss_program(), rows, model.optimizer)
    grids = _on_grids(strategy, profile, lying)
    if grids:
        sent = {"grid": _sent_on_grids(profile, grids)}
        everything = tuple(strategy.mesh.dim_names)
        lying = [dataclasses.replace(one, copies=_others(everything, one)) for one in lying]
    else:
        choice = choice_of(strategy, profile, lying)
        known = dataclasses.replace(profile, weights=_as_they_lie(profile, strategy, lying))
        sent = Costs(known, Hardware(choice.devices, "1GB")).sent(choice)
        if choice.experts:
            sent["tokens"] = _tokens(strategy, profile, lying, choice)
    if strategy.options.pipeline is not None:
        return _in_stages(strategy, sent)
    sent |= weight_traffic(strategy, list(zip(weights, lying, strict=True)), updates)
    return [
        one for name, count in sent.items() if (one := _exchange(strategy, name, count, lying)).sent
    ]


def _check_sending(strategy: MeshStrategy, model: Any, updates: int) -> None:
    """Refuses steps of which not each sends alike, where nothing says how many do what."""
    options = strategy.options
    inner = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    if options.compress and (options.compress_after or hasattr(inner, "_sending")):
        raise Outside("gradients are sent whole in the first steps, and later in few bits")
    if options.compress and options.zero == 3 and options.recompute:
        raise Outside("no formula is about compress= beside zero=3 and recompute=")
    if options.pipeline is not None and updates > 1:
        raise Outside("no formula is about gradient_accumulation_steps= in a pipeline")
    if options.recompute not in (None, "layer", "gathers"):
        raise Outside("no formula is about a policy for what is computed again")


def _exchange(strategy: MeshStrategy, purpose: str, count: int, lying: Sequence[Lying]) -> Exchange:
    name, kinds = _PURPOSES[purpose]
    everything, data = tuple(strategy.mesh.dim_names), tuple(strategy.batch_dimensions)
    if purpose in _OF_ALL or (
        purpose == "gradients" and {n for one in lying for n in one.copies} - {*data}
    ):
        return Exchange(name, kinds, everything, count)
    rest = tuple(sorted(strategy.rule_dimensions - {*data}))
    return Exchange(name, kinds, data if purpose in _OF_BATCHES else rest, count)


def _in_stages(strategy: MeshStrategy, sent: dict[str, int]) -> list[Exchange]:
    """A pipeline's exchanges."""
    over, data = strategy.options.stages.over, tuple(strategy.batch_dimensions)
    if strategy.pipelined is not None:
        # Of its own table and cuts, which need not be the planner's.
        sent["neighbours"] = strategy.pipelined.report().sent
    found = [
        Exchange("neighbours", ("collective-permute",), (over,), sent.pop("neighbours")),
        Exchange(
            "weights and gradients",
            _ANY,
            (over, *data),
            sent.pop("weights") + sent.pop("gradients"),
        ),
    ]
    found += [_exchange(strategy, name, count, ()) for name, count in sent.items()]
    return [one for one in found if one.sent]


# ---- products in two or three dimensions -------------------------------------------------------


def _on_grids(
    strategy: MeshStrategy, profile: ModelProfile, lying: Sequence[Lying]
) -> dict[int, Divided]:
    """The weights whose products are divided in two or three dimensions, and how."""
    if strategy.options.in_region or strategy.options.sequence:
        return {}
    mesh, batch = strategy.mesh.jax_mesh, strategy.batch_dimensions
    found = {n: Divided.on_grid(one.axes, mesh, batch) for n, one in enumerate(lying)}
    grids = {n: how for n, how in found.items() if how is not None}
    if not grids:
        return {}
    for product in profile.products:
        name, how = profile.weights[product.weight].name, grids.get(product.weight)
        if how is None or not how.fits((profile.batch, product.shape[-1])):
            raise Outside(
                f"the products of {name} are not divided in two or three dimensions, as others are"
            )
    return grids


def _sent_on_grids(profile: ModelProfile, grids: Mapping[int, Divided]) -> int:
    return sum(
        grids[one.weight].sent(
            one.given * profile.batch,
            profile.weights[one.weight].bytes,
            one.made * profile.batch,
            one.owes,
        )
        for one in profile.products
    )


def _others(everything: Sequence[str], one: Lying) -> tuple[str, ...]:
    """Along all dimensions that do not split a weight devices have other terms of its gradient."""
    return tuple(n for n in everything if n not in one.over)


# ---- one dimension beside the batch's ----------------------------------------------------------


def _as_they_lie(
    profile: ModelProfile, strategy: MeshStrategy, lying: Sequence[Lying]
) -> tuple[Any, ...]:
    """The profile's weights, of which axes that the mesh splits beside the batch are called `_SPLIT`."""
    data, found = {*strategy.batch_dimensions}, []
    for weight, one in zip(profile.weights, lying, strict=True):
        names = weight.dims or ((),) * len(weight.shape)
        dims = tuple(
            (*known, *((_SPLIT,) if {*over} - data else ()))
            for known, over in zip(names, one.axes, strict=True)
        )
        found.append(dataclasses.replace(weight, dims=dims))
    return tuple(found)


def _tokens(
    strategy: MeshStrategy, profile: ModelProfile, lying: Sequence[Lying], choice: Choice
) -> int:
    over = _of_experts(profile, lying)
    devices = math.prod(strategy.mesh.dim_size(n) for n in over)
    exchanges = 6 if choice.recompute == "layer" else 4
    return sum(
        e.sent(profile.batch, choice.data, choice.micro_batches, exchanges, devices)
        for e in profile.experts
    )


def _of_experts(profile: ModelProfile, lying: Sequence[Lying]) -> set[str]:
    """The mesh dimensions that experts are split over."""
    found = set[str]()
    for weight, one in zip(profile.weights, lying, strict=True):
        axis = weight.named(["experts"])
        found |= set() if axis is None else {*one.axes[axis]}
    return found


def choice_of(strategy: MeshStrategy, profile: ModelProfile, lying: Sequence[Lying]) -> Choice:
    """A strategy as one of the planner's choices, in which all axes that the mesh splits go by one name.

    Args:
      strategy: the strategy.
      profile: the model.
      lying: how its weights lie.

    Raises:
      Outside: when it is none.
    """
    options, data = strategy.options, strategy.batch_dimensions
    sizes = dict(zip(strategy.mesh.dim_names, strategy.mesh.shape(), strict=True))
    pipelined = options.pipeline is not None
    over = {n for one in lying for n in one.over}
    experts = _of_experts(profile, lying)
    dimensions = over - {*data}
    if pipelined and options.zero_over and {*options.zero_over} != {*data}:
        raise Outside("no formula is about zero_over= in a pipeline")
    if options.sequence in PARTS and dimensions:
        raise Outside("no formula is about parts of sequences beside divided products")
    if options.sequence is not None:
        dimensions |= {*strategy.rules.dimensions("sequence")}
    if len(dimensions) > 1 or any(sum(bool({*a} - {*data}) for a in one.axes) > 1 for one in lying):
        raise Outside(
            f"formulas are of weights that are split over one dimension of the mesh beside the batch's, here {sorted(dimensions)}"
        )
    if over & {*data} != experts:
        raise Outside(
            "of what is split over the batch's devices, formulas are of experts and of products in two or three dimensions"
        )
    if experts and (dimensions or pipelined):
        raise Outside("formulas of experts are of those over the batch's devices alone")
    return Choice(
        math.prod(sizes[d] for d in data),
        math.prod(sizes[d] for d in dimensions),
        sizes[options.stages.over] if pipelined else 1,
        zero=options.zero,
        micro_batches=options.micro_batches,
        recompute=options.recompute if isinstance(options.recompute, str) else None,
        sequence=options.sequence,
        offload=tuple(options.offloaded),
        names=(_SPLIT,) if over - {*data} else (),
        experts=bool(experts),
    )


def _told() -> Mapping[str, Any]:
    """For the profile of this process: the theory of the step that was made last, or why there is none."""
    for model, (known, thread) in reversed([*in_training.items()]):
        strategy = known()
        step = model._steps.get("train")
        concrete = next(reversed([*getattr(step, "_concrete", {}).values()]), None)
        if strategy is None or concrete is None:
            continue
        if thread != threading.get_ident():
            # The model is traced for it, which only who trains it may do.
            return {
                "why": "only the thread that trains can tell, and another one took this profile"
            }
        (batch,), _ = concrete.structured_input_signature
        try:
            found = _of_call(strategy, model, batch if isinstance(batch, tuple) else (batch,))
        except (ValueError, NotImplementedError) as error:
            return {"why": str(error)}
        return {"exchanges": [dataclasses.asdict(one) for one in found]}
    return {}


def _of_call(strategy: MeshStrategy, model: Any, batch: tuple[Any, ...]) -> list[Exchange]:
    """What is sent in a call of a compiled step, which may be several steps; profiles have one name for both."""
    times = model._steps_per_execution
    found = theory(strategy, model, *batch)
    return [dataclasses.replace(one, sent=times * one.sent) for one in found]


description.theory = _told
