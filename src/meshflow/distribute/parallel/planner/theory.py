"""What the step of a strategy sends by the planner's formulas, for who counts what it really sends."""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Mapping
from typing import Any

from meshflow.distribute.parallel.planner.choices import PARTS, SPLIT, Choice
from meshflow.distribute.parallel.planner.costs import Costs
from meshflow.distribute.parallel.planner.hardware import Hardware
from meshflow.distribute.parallel.planner.profile import profiled
from meshflow.distribute.parallel.planner.trial import unplaced
from meshflow.distribute.parallel.strategy import MeshStrategy, in_training
from meshflow.placement.expected_traffic import Exchange
from meshflow.profiler import description

__all__ = ["Outside", "choice_of", "theory"]


_SUMS = ("all-reduce", "reduce-scatter")
_ANY = (*_SUMS, "all-gather", "all-to-all")
# For each purpose of the planner's what it is called, and the collectives that do it.
_PURPOSES = {
    "gradients": ("gradients", _SUMS),
    "weights": ("weights", ("all-gather",)),
    "tokens": ("tokens to and from experts", ("all-to-all",)),
    "products": ("sums of divided products", (*_SUMS, "all-gather")),
    "attention": ("attention between parts of sequences", ("collective-permute", "all-to-all")),
    "parts": ("gradients of parts of sequences", (*_SUMS, "all-gather")),
}
# Those that go over the devices of a batch; others go over those of a rule.
_OF_BATCHES = ("gradients", "weights", "tokens")


class Outside(ValueError):
    """A strategy does what the planner has no formula for."""


def theory(strategy: MeshStrategy, model: Any, *batch: Any) -> list[Exchange]:
    """What each device sends in a training step.

    Args:
      strategy: the strategy.
      model: a compiled model of its scope, whose training step has been made.
      *batch: one batch (x, y, sample_weight) of arrays, tensors or specs.

    Raises:
      Outside: for a strategy that no formula is about.
    """
    choice = choice_of(strategy)
    rows = (*batch, *[None] * (3 - len(batch)))
    with unplaced(model):
        profile = profiled(model._loss_program(), rows, model.optimizer)
    sent = Costs(profile, Hardware(choice.devices, "1GB")).sent(choice)
    data = tuple(strategy.batch_dimensions)
    of_rules = tuple(sorted(strategy.rule_dimensions - set(data)))
    found = []
    if strategy.options.pipeline is not None:
        over = strategy.options.stages.over
        if strategy.pipelined is not None:
            # Of its own table and cuts, which need not be the planner's.
            sent["neighbours"] = strategy.pipelined.report().sent
        to_neighbours = ("neighbours", ("collective-permute",), (over,))
        found.append(Exchange(*to_neighbours, sent.pop("neighbours")))
        both = sent.pop("weights") + sent.pop("gradients")
        found.append(Exchange("weights and gradients", _ANY, (over, *data), both))
    for purpose, count in sent.items():
        name, kinds = _PURPOSES[purpose]
        found.append(Exchange(name, kinds, data if purpose in _OF_BATCHES else of_rules, count))
    return [one for one in found if one.sent]


def choice_of(strategy: MeshStrategy) -> Choice:
    """A strategy as one of the planner's choices.

    Args:
      strategy: the strategy.

    Raises:
      Outside: when it is none.
    """
    options, data = strategy.options, strategy.batch_dimensions
    sizes = dict(zip(strategy.mesh.dim_names, strategy.mesh.shape(), strict=True))
    if strategy.layout_map is not None:
        raise Outside("formulas are of rules, not of a LayoutMap")
    if options.compress or (options.zero_over and {*options.zero_over} != {*data}):
        raise Outside("no formula is about compress= and zero_over=")
    if options.recompute not in (None, "layer", "gathers"):
        raise Outside("no formula is about a policy for what is computed again")
    over = {name: strategy.rules.dimensions(name) for name in strategy.rules.over}
    sequence = over.pop("sequence", ())
    experts = over.pop("experts", ())
    over.pop("batch", None)
    dimensions = {d for named in over.values() for d in named}
    if options.sequence is not None:
        dimensions |= set(sequence)
    if len(dimensions) > 1 or dimensions & set(data) or not {*over} <= {*SPLIT}:
        raise Outside(
            f"formulas are of rules that split {', '.join(SPLIT)} over one dimension of the mesh, beside the batch's"
        )
    if options.sequence in PARTS and over:
        raise Outside("no formula is about parts of sequences beside divided products")
    if experts and (tuple(experts) != tuple(data) or dimensions or options.pipeline is not None):
        raise Outside("formulas of experts are of those over the batch's devices alone")
    return Choice(
        math.prod(sizes[d] for d in data),
        math.prod(sizes[d] for d in dimensions),
        sizes[options.stages.over] if options.pipeline is not None else 1,
        zero=options.zero,
        micro_batches=options.micro_batches,
        recompute=options.recompute if isinstance(options.recompute, str) else None,
        sequence=options.sequence,
        offload=tuple(options.offloaded),
        names=tuple(over),
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
    if getattr(model.optimizer, "gradient_accumulation_steps", None):
        raise Outside("no formula is about gradient_accumulation_steps=")
    times = model._steps_per_execution
    found = theory(strategy, model, *batch)
    return [dataclasses.replace(one, sent=times * one.sent) for one in found]


description.theory = _told
