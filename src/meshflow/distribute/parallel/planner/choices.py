"""The search space of the planner: meshes, rules and options of a strategy."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from meshflow.distribute.parallel.options import ParallelOptions, Pipeline
from meshflow.distribute.parallel.pipeline import check_pipeline
from meshflow.distribute.parallel.planner.profile import ModelProfile
from meshflow.placement.mesh import Mesh

__all__ = ["PARTS", "Choice", "choices", "refusal"]

# Named dimensions that tensor parallelism splits.
SPLIT = ("heads", "hidden", "vocab", "gates")
# Largest number of micro-batches in the search.
_MOST = 64
# Modes in which devices hold parts of the sequences in all layers, instead of parts of products.
PARTS = ("ring", "ulysses")
_OFFLOADS = ((), ("optimizer",), ("optimizer", "parameters"), ("activations",))


@dataclasses.dataclass(frozen=True)
class Choice:
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
      experts: Whether experts are split over the devices that share a batch.
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
    experts: bool = False

    @property
    def devices(self) -> int:
        """Return the number of devices."""
        return self.data * self.model * self.stage

    @property
    def mesh(self) -> dict[str, int]:
        """Return the sizes of the mesh dimensions."""
        sizes = {"stage": self.stage, "data": self.data, "model": self.model}
        used = {name: size for name, size in sizes.items() if size > 1}
        return used or {"data": 1}

    @property
    def token_exchanges(self) -> int:
        """Return the number of all-to-alls of an expert layer in a step.

        Tokens are sent to experts and back, in the forward pass, in its recomputation, and as gradients in the backward pass.
        """
        return 6 if self.recompute == "layer" else 4

    @property
    def rules(self) -> str:
        """Return the rules as text."""
        rules = ["batch:data"] if "data" in self.mesh else []
        rules += [f"{name}:model" for name in self.names if self.model > 1]
        if self.sequence:
            rules.append("sequence:model")
        if self.experts:
            rules.append("experts:data")
        return ", ".join(rules)

    @property
    def options(self) -> dict[str, Any]:
        """Return the fields of `ParallelOptions` that differ from the defaults."""
        options: dict[str, Any] = {}
        for name in ("zero", "recompute", "sequence"):
            if getattr(self, name):
                options[name] = getattr(self, name)
        if self.micro_batches > 1:
            options["micro_batches"] = self.micro_batches
        if self.stage > 1:
            options["pipeline"] = "stage"
        if self.offload:
            options["offload"] = self.offload
        return options

    def lines(self) -> list[str]:
        """Return the lines of a script that create the strategy."""
        sizes = ", ".join(f'"{name}": {size}' for name, size in self.mesh.items())
        choices = "".join(f", {name}={_literal(value)}" for name, value in self.options.items())
        return [
            f"mesh = tf.experimental.dtensor.create_mesh({{{sizes}}})",
            f'strategy = tf.distribute.MeshStrategy(mesh, rules="{self.rules}"{choices})',
        ]

    def __str__(self) -> str:
        sizes = " x ".join(f"{name} {size}" for name, size in self.mesh.items())
        extra = ["experts"] if self.experts else []
        return ", ".join([sizes, *extra, *(f"{n}={_literal(v)}" for n, v in self.options.items())])


def _literal(value: object) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, tuple):
        return f'"{value[0]}"' if len(value) == 1 else str(value).replace("'", '"')
    return repr(value)


def choices(profile: ModelProfile, devices: int) -> Iterator[Choice]:
    """Enumerate all choices for a number of devices, including those that a strategy would reject.

    Args:
      profile: The model.
      devices: Number of devices.

    Yields:
      The choices.
    """
    dimensions = {name for w in profile.weights for of_axis in w.dims or () for name in of_axis}
    names = tuple(name for name in SPLIT if name in dimensions)
    for stage in _divisors(devices):
        for model in _divisors(devices // stage) if names or profile.attention else [1]:
            data = devices // stage // model
            for zero in (0, 1, 2, 3) if data > 1 else (0,):
                for sequence in _sequences(profile, model, stage, bool(names)):
                    base = Choice(data, model, stage, zero, sequence=sequence)
                    if sequence not in PARTS:
                        base = dataclasses.replace(base, names=names)
                    yield from _timed(base, profile)


def _timed(base: Choice, profile: ModelProfile) -> Iterator[Choice]:
    """Yield a mesh and ZeRO stage with all micro-batches, recomputation, experts and offload."""
    for count in _micro_batches(profile.batch, base.data):
        for recompute in (None, "layer", *(("gathers",) if base.zero == 3 else ())):
            for experts in (False, True) if _has_experts(base, profile) else (False,):
                for offload in _OFFLOADS:
                    yield dataclasses.replace(
                        base,
                        micro_batches=count,
                        recompute=recompute,
                        experts=experts,
                        offload=offload,
                    )


def _sequences(profile: ModelProfile, model: int, stage: int, has_names: bool) -> list[str | None]:
    """Return the modes of sequence parallelism to consider."""
    if model == 1:
        return [None]
    # The second axis of a model without attention, for example of images, is not a sequence.
    has_sequences = bool(profile.attention and profile.sequence)
    modes: list[str | None] = [None, *(["split"] * has_sequences)] if has_names else []
    # The planner has no costs for split sequences in pipeline stages, or together with experts;
    # users can still combine them.
    is_possible = has_sequences and stage == 1 and not profile.experts
    return modes + ([*PARTS] if is_possible else [])


def _has_experts(base: Choice, profile: ModelProfile) -> bool:
    # The planner does not combine split experts with pipelines or tensor parallelism.
    return bool(profile.experts) and base.data > 1 and base.model == base.stage == 1


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def _micro_batches(batch: int, data: int) -> list[int]:
    """Return powers of two that divide a device's examples, or 1 for an indivisible batch."""
    if batch % data:
        return [1]
    return [n for k in range(_MOST.bit_length()) if (batch // data) % (n := 1 << k) == 0]


def refusal(choice: Choice, profile: ModelProfile) -> str | None:
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
        for w, axis in zip(profile.weights, profile.axes(choice.names), strict=True):
            if axis is not None and w.shape[axis] % choice.model:
                return f"{w.name}: {w.shape[axis]} does not divide into {choice.model} parts"
    if choice.experts:
        reasons = [e.refusal(choice.data, choice.micro_batches) for e in profile.experts]
        if any(reasons):
            return next(filter(None, reasons))
    if profile.own_step and ParallelOptions(**choice.options).in_region:
        return (
            "a train_step that computes gradients itself, where the options divide the loss: override compute_loss, or call "
            "super().train_step"
        )
    heads = profile.attention.heads if profile.attention else 0
    if choice.sequence == "ulysses" and heads % choice.model:
        return f"{heads} heads do not divide over {choice.model} devices"
    if choice.sequence and profile.sequence % choice.model:
        return f"sequences of {profile.sequence} do not divide into {choice.model} parts"
    return _refused_options(choice)


_known: dict[tuple[Any, ...], str | None] = {}


def _refused_options(choice: Choice) -> str | None:
    """Return the error of `ParallelOptions` for a choice, or None; the result is cached."""
    kind = (
        *(size > 1 for size in (choice.data, choice.model, choice.stage)),
        choice.zero,
        choice.micro_batches > 1,
        choice.recompute,
        choice.sequence,
        choice.experts,
        choice.offload,
    )
    if kind not in _known:
        _known[kind] = _asked(choice)
    return _known[kind]


def _asked(choice: Choice) -> str | None:
    # Options are checked by names and types of memory, so a mesh of one local device represents any
    # plan.
    names = list(choice.mesh)
    mesh = Mesh(names, np.zeros([1] * len(names), int), [0], [jax.local_devices()[0]])
    try:
        options = ParallelOptions(**choice.options)
        over = {"sequence": ("model",)} if choice.sequence else {}
        options.check(mesh, ("data",) if "data" in names else (), over)
        if isinstance(options.pipeline, Pipeline):
            check_pipeline(options, mesh)
    except (ValueError, NotImplementedError) as error:
        return str(error).split(". ")[0]
    return None
