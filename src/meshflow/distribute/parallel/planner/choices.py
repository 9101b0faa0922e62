"""The search space of the planner: meshes, rules and options of a strategy."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from meshflow.distribute.parallel.options import ParallelOptions, Pipeline
from meshflow.distribute.parallel.pipeline import check_pipeline
from meshflow.distribute.parallel.planner.model_profile import ModelProfile
from meshflow.placement.mesh import Mesh

# Named dimensions that tensor parallelism splits. Parts of the concatenated gates of recurrent layers are exchanged in each step,
# for which there is no formula.
TENSOR_DIMENSIONS = ("heads", "hidden", "vocab")
# Largest number of micro-batches in the search.
_MAX_MICRO_BATCHES = 64
# Modes in which devices hold parts of the sequences in all layers, instead of parts of products.
SEQUENCE_PARALLEL_MODES = ("ring", "ulysses")
# More parameters than any model has.
_ALL_PARAMETERS = 10**15
_OFFLOADS = (
    (),
    ("optimizer",),
    ("optimizer", "parameters"),
    ("activations",),
    ("optimizer", "activations"),
    ("optimizer", "parameters", "activations"),
)


@dataclasses.dataclass(frozen=True)
class PlanChoice:
    """A mesh with rules and options.

    Attributes:
      data: Number of devices that share a batch.
      model: Number of devices of tensor or sequence parallelism.
      stage: Number of devices of a pipeline; 1 is no pipeline.
      zero: As in `ParallelOptions`.
      micro_batches: As in `ParallelOptions`.
      recompute: As in `ParallelOptions`.
      sequence: As in `ParallelOptions`.
      offload: As in `ParallelOptions`.
      names: Named dimensions that are split over `model`; empty with `sequence` "ring" and
        "ulysses", which split only sequences.
      experts: Number of the devices of a batch that experts are split over; 0 if they are not split.
      keeps_weights: Whether `zero=3` keeps gathered weights from the forward to the backward pass.
      keep: As in `Pipeline`.
      precision: Name of the Keras policy, or None for the model's own.
    """

    data: int
    model: int = 1
    stage: int = 1
    zero: int = 0
    micro_batches: int = 1
    recompute: str | None = None
    sequence: str | None = None
    offload: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    experts: int = 0
    keeps_weights: bool = False
    keep: str = "inputs"
    precision: str | None = None

    @property
    def devices(self) -> int:
        """Return the number of devices."""
        return self.data * self.model * self.stage

    @property
    def mesh(self) -> dict[str, int]:
        """Return the sizes of the mesh dimensions."""
        experts = self.experts if self._has_copies_of_experts else 1
        sizes = {
            "stage": self.stage,
            "data": self.data // experts,
            "expert": experts,
            "model": self.model,
        }
        used = {name: size for name, size in sizes.items() if size > 1}
        return used or {"data": 1}

    @property
    def _has_copies_of_experts(self) -> bool:
        return 0 < self.experts < self.data

    @property
    def token_exchanges(self) -> int:
        """Return the number of all-to-alls of an expert layer in a step.

        Tokens are sent to experts and back, in the forward pass, in its recomputation, and as gradients in the backward pass.
        """
        return 6 if self.recompute == "layer" else 4

    @property
    def rules(self) -> str:
        """Return the rules as text."""
        copied = self._has_copies_of_experts
        rules = ["batch:data+expert" if copied else "batch:data"] if "data" in self.mesh else []
        rules += [f"{name}:model" for name in self.names if self.model > 1]
        if self.sequence:
            rules.append("sequence:model")
        if self.experts:
            rules.append("experts:expert" if copied else "experts:data")
        return ", ".join(rules)

    @property
    def options(self) -> dict[str, Any]:
        """Return the fields of `ParallelOptions` that differ from the defaults."""
        options: dict[str, Any] = {}
        for name in ("zero", "recompute", "sequence"):
            if getattr(self, name):
                options[name] = getattr(self, name)
        if self.keeps_weights:
            options["max_live_parameters"] = _ALL_PARAMETERS
        if self.micro_batches > 1:
            options["micro_batches"] = self.micro_batches
        if self.stage > 1:
            is_default = self.keep == "inputs"
            options["pipeline"] = "stage" if is_default else Pipeline("stage", keep=self.keep)
        if self.offload:
            options["offload"] = self.offload
        return options

    @property
    def flat_options(self) -> dict[str, Any]:
        """Return the fields that differ from the defaults, with those of the pipeline, for tables and JSON."""
        options = self.options
        if self.keep != "inputs":
            options |= {"pipeline": "stage", "keep": self.keep}
        return options | ({"precision": self.precision} if self.precision else {})

    def to_script_lines(self) -> list[str]:
        """Return the lines of a script that create the strategy."""
        sizes = ", ".join(f'"{name}": {size}' for name, size in self.mesh.items())
        choices = "".join(
            f", {name}={_format_literal(value)}" for name, value in self.options.items()
        )
        policy = f'tf.keras.mixed_precision.set_global_policy("{self.precision}")'
        return [
            *([policy] if self.precision else []),
            f"mesh = tf.experimental.dtensor.create_mesh({{{sizes}}})",
            f'strategy = tf.distribute.MeshStrategy(mesh, rules="{self.rules}"{choices})',
        ]

    def __str__(self) -> str:
        sizes = " x ".join(f"{name} {size}" for name, size in self.mesh.items())
        extra = ["experts"] if self.experts else []
        options = [f"{n}={_format_literal(v)}" for n, v in self.flat_options.items()]
        return ", ".join([sizes, *extra, *options])


def _format_literal(value: object) -> str:
    if isinstance(value, Pipeline):
        return f'tf.distribute.Pipeline("{value.over}", keep="{value.keep}")'
    if isinstance(value, str):
        return f'"{value}"'
    if value == _ALL_PARAMETERS:
        return "10**15"
    if isinstance(value, tuple):
        return f'"{value[0]}"' if len(value) == 1 else str(value).replace("'", '"')
    return repr(value)


def enumerate_choices(profile: ModelProfile, devices: int) -> Iterator[PlanChoice]:
    """Enumerate all choices for a number of devices, including those that a strategy would reject.

    Args:
      profile: The model.
      devices: Number of devices.

    Yields:
      The choices.
    """
    dimensions = {name for w in profile.weights for of_axis in w.dims or () for name in of_axis}
    names = tuple(name for name in TENSOR_DIMENSIONS if name in dimensions)
    for stage in _list_divisors(devices):
        for model in _list_divisors(devices // stage) if names or profile.attention else [1]:
            data = devices // stage // model
            for zero in (0, 1, 2, 3) if data > 1 else (0,):
                for sequence in _list_sequence_modes(profile, model, stage, bool(names)):
                    base = PlanChoice(data, model, stage, zero, sequence=sequence)
                    base = dataclasses.replace(base, precision=profile.precision)
                    if sequence not in SEQUENCE_PARALLEL_MODES:
                        base = dataclasses.replace(base, names=names)
                    yield from _vary_options(base, profile)


def _vary_options(base: PlanChoice, profile: ModelProfile) -> Iterator[PlanChoice]:
    """Yield a mesh and ZeRO stage with all micro-batches, recomputation, experts and offload."""
    for count in _list_micro_batch_counts(profile.batch, base.data):
        variants: list[tuple[str | None, bool]] = [(None, False), ("layer", False)]
        if profile.own_step and base.zero == 3:
            # The loops of steps with their own gradients keep weights, and so do layouts.
            variants = [(recompute, count > 1) for recompute in (None, "layer")]
        elif base.zero == 3 and base.stage == 1:
            variants.append((None, True))
        for recompute, keeps in variants:
            for experts in _list_expert_splits(base, profile):
                for offload in _OFFLOADS:
                    is_fixed = base.stage == 1 or "activations" in offload
                    for keep in ("inputs",) if is_fixed else ("inputs", "residuals"):
                        yield dataclasses.replace(
                            base,
                            micro_batches=count,
                            recompute=recompute,
                            keeps_weights=keeps,
                            experts=experts,
                            offload=offload,
                            keep=keep,
                        )


def _list_sequence_modes(
    profile: ModelProfile, model: int, stage: int, has_names: bool
) -> list[str | None]:
    """Return the modes of sequence parallelism to consider."""
    if model == 1:
        return [None]
    # The second axis of a model without attention, for example of images, is not a sequence.
    has_sequences = bool(profile.attention and profile.sequence)
    modes: list[str | None] = [None, *(["split"] * has_sequences)] if has_names else []
    # The planner has no costs for split sequences in pipeline stages, or together with experts;
    # users can still combine them.
    is_possible = has_sequences and stage == 1 and not profile.experts
    return modes + ([*SEQUENCE_PARALLEL_MODES] if is_possible else [])


def _list_expert_splits(base: PlanChoice, profile: ModelProfile) -> list[int]:
    """Return the numbers of devices to split experts over: none, and the largest possible one."""
    # The planner does not combine split experts with split sequences.
    if not profile.experts or base.sequence:
        return [0]
    count = math.gcd(base.data, *(e.router.experts for e in profile.experts))
    return [0, count] if count > 1 else [0]


def _list_divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def _list_micro_batch_counts(batch: int, data: int) -> list[int]:
    """Return powers of two that divide a device's examples, or 1 for an indivisible batch."""
    if batch % data:
        return [1]
    return [
        n for k in range(_MAX_MICRO_BATCHES.bit_length()) if (batch // data) % (n := 1 << k) == 0
    ]


def find_refusal(choice: PlanChoice, profile: ModelProfile) -> str | None:
    """Return the reason why a choice is impossible, or None.

    Args:
      choice: The choice.
      profile: The model.

    Returns:
      The reason, or None.
    """
    if profile.batch % choice.data:
        return f"{profile.batch} examples do not divide over {choice.data} devices"
    if choice.stage > len(profile.layers):
        return f"{choice.stage} stages are more than the {len(profile.layers)} layers"
    if choice.names and choice.model > 1:
        for w, axis in zip(profile.weights, profile.find_named_axes(choice.names), strict=True):
            if axis is not None and w.shape[axis] % choice.model:
                return f"{w.name}: {w.shape[axis]} does not divide into {choice.model} parts"
    if choice.experts and choice.stage > 1 and {"optimizer", "parameters"} & {*choice.offload}:
        return "split experts in stages with weights or slots on the host are not planned for"
    if choice.experts:
        reasons = [e.find_refusal(choice.data, choice.micro_batches) for e in profile.experts]
        if any(reasons):
            return next(filter(None, reasons))
    has_shares = choice.micro_batches > 1 and profile.step_loops > 0
    if profile.own_step and ParallelOptions(**choice.options).get_loss_options(True, has_shares):
        return (
            "a train_step that computes gradients itself, where the options divide the loss: override compute_loss, or call "
            "super().train_step"
        )
    heads = profile.attention.common_heads if profile.attention else 0
    if choice.sequence == "ulysses" and heads % choice.model:
        return f"{heads} heads do not divide over {choice.model} devices"
    if choice.sequence and profile.sequence % choice.model:
        return f"sequences of {profile.sequence} do not divide into {choice.model} parts"
    return _check_options(choice)


_refusals: dict[tuple[Any, ...], str | None] = {}


def _check_options(choice: PlanChoice) -> str | None:
    """Return the error of `ParallelOptions` for a choice, or None; the result is cached."""
    kind = (
        *(size > 1 for size in (choice.data, choice.model, choice.stage)),
        choice.zero,
        choice.micro_batches > 1,
        choice.recompute,
        choice.keeps_weights,
        choice.sequence,
        (choice.experts > 0, choice._has_copies_of_experts),
        choice.offload,
    )
    if kind not in _refusals:
        _refusals[kind] = _validate_options(choice)
    return _refusals[kind]


def _validate_options(choice: PlanChoice) -> str | None:
    # Options are checked by names and types of memory, so a mesh of one local device represents any
    # plan.
    names = list(choice.mesh)
    mesh = Mesh(names, np.zeros([1] * len(names), int), [0], [jax.local_devices()[0]])
    try:
        options = ParallelOptions(**choice.options)
        over = {"sequence": ("model",)} if choice.sequence else {}
        options.check_mesh(mesh, tuple(n for n in ("data", "expert") if n in names), over)
        if isinstance(options.pipeline, Pipeline):
            check_pipeline(options, mesh)
    except (ValueError, NotImplementedError) as error:
        return str(error).split(". ")[0]
    return None
