"""The choices that a planner has: how a mesh is divided, and the options of the strategy on it."""

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

# The named dimensions that are split over devices that compute products together.
SPLIT = ("heads", "hidden", "vocab", "gates")
# The most micro-batches that are looked at.
_MOST = 64
# The ways in which devices have parts of sequences in all layers.
PARTS = ("ring", "ulysses")
_OFFLOADS = ((), ("optimizer",), ("optimizer", "parameters"), ("activations",))


@dataclasses.dataclass(frozen=True)
class Choice:
    """A mesh with rules and options.

    Attributes:
      data: how many devices share a batch.
      model: how many compute products together.
      stage: how many stages a pipeline has; 1 is none.
      zero, micro_batches, recompute, sequence, offload: as of `ParallelOptions`.
      names: the named dimensions that are split over `model`; with `sequence` "ring" and "ulysses" none, as it has parts
        of sequences.
      experts: whether experts lie on the devices that share a batch.
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
        """How many devices it takes."""
        return self.data * self.model * self.stage

    @property
    def mesh(self) -> dict[str, int]:
        """The mesh's dimensions."""
        sizes = {"stage": self.stage, "data": self.data, "model": self.model}
        used = {name: size for name, size in sizes.items() if size > 1}
        return used or {"data": 1}

    @property
    def rules(self) -> str:
        """The rules, as text."""
        found = ["batch:data"] if "data" in self.mesh else []
        found += [f"{name}:model" for name in self.names if self.model > 1]
        if self.sequence:
            found.append("sequence:model")
        if self.experts:
            found.append("experts:data")
        return ", ".join(found)

    @property
    def options(self) -> dict[str, Any]:
        """Those fields of `ParallelOptions` that are not the defaults."""
        found: dict[str, Any] = {}
        for name in ("zero", "recompute", "sequence"):
            if getattr(self, name):
                found[name] = getattr(self, name)
        if self.micro_batches > 1:
            found["micro_batches"] = self.micro_batches
        if self.stage > 1:
            found["pipeline"] = "stage"
        if self.offload:
            found["offload"] = self.offload
        return found

    def lines(self) -> list[str]:
        """The lines of a script that make the strategy."""
        sizes = ", ".join(f'"{name}": {size}' for name, size in self.mesh.items())
        choices = "".join(f", {name}={_literal(value)}" for name, value in self.options.items())
        return [
            f"mesh = tf.experimental.dtensor.create_mesh({{{sizes}}})",
            f'strategy = tf.distribute.MeshStrategy(mesh, rules="{self.rules}"{choices})',
        ]

    def __str__(self) -> str:
        sizes = " x ".join(f"{name} {size}" for name, size in self.mesh.items())
        apart = ["experts"] if self.experts else []
        return ", ".join([sizes, *apart, *(f"{n}={_literal(v)}" for n, v in self.options.items())])


def _literal(value: Any) -> str:
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, tuple):
        return f'"{value[0]}"' if len(value) == 1 else str(value).replace("'", '"')
    return repr(value)


def choices(profile: ModelProfile, devices: int) -> Iterator[Choice]:
    """All choices for a number of devices, also those that a strategy refuses.

    Args:
      profile: the model.
      devices: the number.
    """
    named = {name for w in profile.weights for of_axis in w.dims or () for name in of_axis}
    names = tuple(name for name in SPLIT if name in named)
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
    """A mesh with `zero` and all that says when what is done."""
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


def _sequences(profile: ModelProfile, model: int, stage: int, named: bool) -> list[str | None]:
    """What may be done with sequences."""
    if model == 1:
        return [None]
    # The second axis of what has no attention, such as that of images, is no sequence.
    sequences = bool(profile.attention and profile.sequence)
    found: list[str | None] = [None, *(["split"] * sequences)] if named else []
    # In stages, and beside experts, whose tokens are not in parts, parts of sequences are for users to add.
    possible = sequences and stage == 1 and not profile.experts
    return found + ([*PARTS] if possible else [])


def _has_experts(base: Choice, profile: ModelProfile) -> bool:
    # In stages, and beside divided products, too.
    return bool(profile.experts) and base.data > 1 and base.model == base.stage == 1


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def _micro_batches(batch: int, data: int) -> list[int]:
    """Powers of two into which a device's examples divide; one where they do not divide over the devices."""
    if batch % data:
        return [1]
    return [n for k in range(_MOST.bit_length()) if (batch // data) % (n := 1 << k) == 0]


def refusal(choice: Choice, profile: ModelProfile) -> str | None:
    """Why a choice cannot be, or None.

    Args:
      choice: the choice.
      profile: the model.
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
        why = [e.refusal(choice.data, choice.micro_batches) for e in profile.experts]
        if any(why):
            return next(filter(None, why))
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
    """What `ParallelOptions` says against a choice."""
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
    # What is asked for are names and kinds of memory; the sizes and devices of a plan need not be here.
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
