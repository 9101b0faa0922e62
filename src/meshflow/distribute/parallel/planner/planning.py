"""Plans: every choice is estimated, those that fit are ranked, and the best few compiled and compared."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from meshflow.core.runtime.errors import InvalidValueError, ResourceExhaustedError
from meshflow.core.values import nest
from meshflow.distribute.parallel.planner.choices import Choice, choices, refusal
from meshflow.distribute.parallel.planner.costs import Costs, Estimate
from meshflow.distribute.parallel.planner.hardware import (
    Hardware,
    measured,
    shown_bytes,
    shown_seconds,
)
from meshflow.distribute.parallel.planner.profile import ModelProfile, profiled
from meshflow.distribute.parallel.planner.trial import Trial, bare, tried
from meshflow.distribute.parallel.strategy import MeshStrategy
from meshflow.distribute.replicas.variables import SyncOnReadVariable
from meshflow.placement.mesh import Mesh

__all__ = ["Candidate", "Plan", "plan", "planned"]

_OBJECTIVES = ("time", "bytes", "memory")
# Devices that are looked at when a model fits on none of those given.
_MANY = 4096


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A choice, what it costs by theory, and as a compiled program where it was tried.

    Attributes:
      choice: the choice.
      estimate: its costs by theory.
      trial: its costs as compiled, or None.
      dropped: why it is not to be taken, or None.
    """

    choice: Choice
    estimate: Estimate | None
    trial: Trial | None = None
    dropped: str | None = None

    @property
    def memory(self) -> int:
        """Bytes that each device holds, as compiled if it was."""
        if self.trial is not None:
            return self.trial.memory
        return self._known.memory

    @property
    def bytes(self) -> int:
        """Bytes that each device sends in a step, as compiled if it was."""
        return self._known.bytes if self.trial is None else self.trial.sent

    def time(self, hardware: Hardware) -> float:
        """Seconds that a step takes.

        Args:
          hardware: the machine.
        """
        return self._known.time + (self.bytes - self._known.bytes) / hardware.link

    @property
    def _known(self) -> Estimate:
        assert self.estimate is not None
        return self.estimate


@dataclasses.dataclass(frozen=True)
class Plan:
    """How a model may be trained on some devices; `str` gives it as a table.

    Attributes:
      profile: the model.
      hardware: the devices.
      objective: what the candidates are ranked by.
      candidates: those that fit, the best first.
      dropped: the others, each with its reason.
    """

    profile: ModelProfile
    hardware: Hardware
    objective: str
    candidates: tuple[Candidate, ...]
    dropped: tuple[Candidate, ...]

    @property
    def best(self) -> Candidate:
        """The first of the candidates."""
        return self.candidates[0]

    @property
    def lines(self) -> list[str]:
        """The lines of a script that make the best candidate's strategy."""
        return self.best.choice.lines()

    def strategy(self, devices: Sequence[Any] | None = None) -> MeshStrategy:
        """The strategy of the best candidate.

        Args:
          devices: the devices of its mesh; default this process's first ones.

        Raises:
          ValueError: when there are too few.
        """
        return strategy_of(self.best.choice, devices)

    def reasons(self) -> list[str]:
        """Why others were dropped, in a line for each reason."""
        counts = Counter(_kind(c.dropped or "") for c in self.dropped)
        lines = []
        for kind, count in counts.most_common():
            of_kind = [c for c in self.dropped if _kind(c.dropped or "") == kind]
            if kind == _TOO_LARGE:
                least = min(of_kind, key=lambda c: c.memory)
                kind = f"{kind}, the least of them {shown_bytes(least.memory)} ({least.choice})"
            lines.append(f"{count:,}: {kind}")
        return lines

    def rows(self, top: int = 5) -> list[tuple[str, ...]]:
        """The best candidates as text; the first row has the headings.

        Args:
          top: how many.
        """
        tried_some = any(c.trial is not None for c in self.candidates)
        heads = ["choice", "memory", "sent", "time", "bubble"]
        rows = [(*heads, *(("by theory",) if tried_some else ()))]
        for c in self.candidates[:top]:
            assert c.estimate is not None
            row = [
                str(c.choice),
                shown_bytes(c.memory),
                shown_bytes(c.bytes),
                shown_seconds(c.time(self.hardware)),
                f"{c.estimate.bubble:.3f}" if c.estimate.bubble else "",
            ]
            if tried_some:
                theory = f"{shown_bytes(c.estimate.memory)}, {shown_bytes(c.estimate.bytes)}"
                row.append("not compiled" if c.trial is None else theory)
            rows.append(tuple(row))
        return rows

    def described(self) -> dict[str, Any]:
        """The plan as data for JSON."""
        return {
            "model": self.profile.name,
            "parameters": self.profile.parameters,
            "batch": self.profile.batch,
            "hardware": dataclasses.asdict(self.hardware),
            "objective": self.objective,
            "candidates": [self._described(c) for c in self.candidates],
            "dropped": self.reasons(),
            "lines": self.lines,
        }

    def _described(self, c: Candidate) -> dict[str, Any]:
        assert c.estimate is not None
        found = {
            "mesh": c.choice.mesh,
            "rules": c.choice.rules,
            "options": c.choice.options,
            "memory": c.estimate.memory,
            "held": dict(c.estimate.held),
            "sent": c.estimate.bytes,
            "sent_for": dict(c.estimate.sent),
            "seconds": dict(c.estimate.seconds),
            "bubble": c.estimate.bubble,
        }
        if c.trial is not None:
            found["compiled"] = {"memory": c.trial.memory, "sent": c.trial.sent}
        return found

    def __str__(self) -> str:
        rows = self.rows()
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        table = [
            "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows
        ]
        return "\n".join([self.title(), *table, *self.reasons(), *self.lines])

    __repr__ = __str__

    def title(self) -> str:
        """What is planned, in a line."""
        p, h = self.profile, self.hardware
        return (
            f"{p.name}: {p.parameters:,} parameters, {p.batch:,} examples a step, {h.devices:,} devices of "
            f"{shown_bytes(float(h.memory))}"
        )


_TOO_LARGE = "do not fit"


def _kind(reason: str) -> str:
    return _TOO_LARGE if reason.startswith("needs ") else reason


def strategy_of(choice: Choice, devices: Sequence[Any] | None = None) -> MeshStrategy:
    """The strategy of a choice.

    Args:
      choice: the choice.
      devices: its devices; default this process's first ones.

    Raises:
      ValueError: when there are too few.
    """
    return MeshStrategy(mesh_of(choice, devices), choice.rules, **choice.options)


def mesh_of(choice: Choice, devices: Sequence[Any] | None = None) -> Mesh:
    """The mesh of a choice; arguments and errors as of `strategy_of`."""
    found = list(jax.local_devices() if devices is None else devices)
    if len(found) < choice.devices and devices is None:
        found = list(jax.local_devices(backend="cpu"))
    if len(found) < choice.devices:
        raise InvalidValueError(
            f"A plan for {choice.devices} devices: there are {len(found)} here. Run the lines of the plan where they "
            "are, or make virtual ones with tf.config.set_logical_device_configuration before the first op."
        )
    sizes, flat = choice.mesh, np.arange(choice.devices)
    shape = tuple(sizes.values())
    return Mesh(list(sizes), flat.reshape(shape), flat.tolist(), found[: choice.devices])


def plan(
    model: Any,
    *batch: Any,
    devices: int | None = None,
    memory: int | str | None = None,
    hardware: Hardware | None = None,
    objective: str = "time",
    compiled: int = 0,
    progress: Callable[[str], None] | None = None,
) -> Plan:
    """Finds how a model is trained best on some devices; nothing is run, and no weight moved.

    All divisions of the devices into data, model and stages, all states, micro-batches and what is computed again or
    kept on the host are estimated by the formulas of theory.

    Args:
      model: a compiled model.
      *batch: one batch (x, y, sample_weight) of the size of a step on all devices: arrays, tensors or `tf.TensorSpec`s.
      devices: how many devices there are; default this process's.
      memory: bytes of each, such as "80GB".
      hardware: devices and memory with speeds, in the place of both.
      objective: what candidates are ranked by: "time", "bytes" or "memory".
      compiled: so many of the best are compiled, for as many devices of this process, and ranked by what the programs
        hold and send.
      progress: told what is being done, for who waits.

    Returns:
      A `Plan`.

    Raises:
      ValueError: for an unknown objective or unit, a model that is not compiled, that works on text, or that replicas
        have, a batch of unknown size, and fewer devices here than plans are to be compiled for.
      ResourceExhaustedError: when nothing fits, saying by how much, and what would.

    Example:
      >>> import meshflow as tf
      >>> model = tf.keras.Sequential([tf.keras.Input([8]), tf.keras.layers.Dense(8), tf.keras.layers.Dense(8)])
      >>> model.compile("adam", "mse")
      >>> rows = tf.TensorSpec([32, 8])
      >>> found = tf.distribute.plan(model, rows, rows, devices=4, memory="16GB")
      >>> print(found.lines[0])
      mesh = tf.experimental.dtensor.create_mesh({"data": 4})
    """
    if not getattr(model, "_is_compiled", False):
        raise InvalidValueError(
            f"plan: the model {getattr(model, 'name', model)!r} is not compiled; call model.compile(...) first."
        )
    check_objective(objective)
    if compiled < 0:
        raise InvalidValueError(
            f"plan: compiled must be 0 or a number of candidates, got {compiled}."
        )
    if hardware is not None and (devices is not None or memory is not None):
        raise InvalidValueError("plan: pass hardware=, or devices= and memory=, not both.")
    if hardware is None and memory is None:
        raise InvalidValueError("plan: pass memory=, such as '16GB', or hardware=.")
    rows = (*batch, *[None] * (3 - len(batch)))
    leaves = nest.flatten([v for v in rows if v is not None])
    if not leaves:
        raise InvalidValueError("plan: pass a batch, as arrays or tf.TensorSpecs.")
    _check_places(model, leaves)
    if hardware is None:
        assert memory is not None
        hardware = measured(len(jax.local_devices()) if devices is None else devices, memory)
    if compiled:
        mesh_of(Choice(hardware.devices))  # so that too few devices are told of now
    tell = progress or (lambda text: None)
    tell(f"Reading {model.name}")
    try:
        with bare(model):
            profile = profiled(model._loss_program(), rows, model.optimizer)
            profile = dataclasses.replace(profile, own_step=not model._leaves_gradients(rows))
    except ValueError as error:
        if getattr(model, "loss", None):
            raise
        raise InvalidValueError(
            f"plan: {model.name} was compiled without a loss, and what a train_step of its own computes is not read "
            f"({error}) Give compile the loss, or the layers add_loss."
        ) from None
    found = planned(profile, hardware, objective, tell)
    return tested(found, model, rows, compiled, tell) if compiled else found


def _check_places(model: Any, leaves: Sequence[Any]) -> None:
    """Refuses what no device computes, and models that replicas have in parts of their own."""
    hosted = [n.name for n in model._flatten_layers() if getattr(n, "runs_on_host", False)]
    text = [v for v in leaves if getattr(v.dtype, "name", v.dtype) in ("string", "object")]
    if hosted or text:
        what = f"its layer {hosted[0]!r} runs" if hosted else "what works on text runs"
        raise InvalidValueError(
            f"plan: no device computes all of {model.name}: {what} on the host. Have that done by the dataset's map, and "
            "plan the model that takes what it gives."
        )
    if getattr(model, "built", True):
        own = [v.name for v in model.variables if isinstance(v, SyncOnReadVariable)]
        if own:
            raise InvalidValueError(
                f"plan: {model.name} was made for several replicas, of which each has its own {own}. Make it in the scope of a "
                "MeshStrategy, of tf.distribute.shapes_only(), or of none."
            )


def check_objective(objective: str) -> None:
    """Checks that plans can be ranked by something.

    Args:
      objective: what it is.

    Raises:
      ValueError: for anything but "time", "bytes" and "memory".
    """
    if objective not in _OBJECTIVES:
        known = ", ".join(map(repr, _OBJECTIVES))
        raise InvalidValueError(f"plan: objective must be one of {known}, got {objective!r}.")


def planned(
    profile: ModelProfile,
    hardware: Hardware,
    objective: str = "time",
    tell: Callable[[str], None] = lambda text: None,
) -> Plan:
    """A plan by formulas alone.

    Args:
      profile: the model.
      hardware: the devices.
      objective: "time", "bytes" or "memory".
      tell: told what is being done.

    Raises:
      ValueError: for an unknown objective.
      ResourceExhaustedError: when nothing fits.
    """
    check_objective(objective)
    tell(f"Estimating choices for {hardware.devices:,} devices")
    kept, dropped = _searched(profile, hardware)
    if not kept:
        tell("Looking for what would fit")
        raise _nothing_fits(profile, hardware, dropped)
    kept.sort(key=lambda c: _rank(c, hardware, objective))
    return Plan(profile, hardware, objective, tuple(kept), tuple(dropped))


def _searched(profile: ModelProfile, hardware: Hardware) -> tuple[list[Candidate], list[Candidate]]:
    """The candidates that fit, and those that do not."""
    costs = Costs(profile, hardware)
    kept: list[Candidate] = []
    dropped: list[Candidate] = []
    for choice in choices(profile, hardware.devices):
        why = refusal(choice, profile)
        if why is not None:
            dropped.append(Candidate(choice, None, dropped=why))
            continue
        candidate = _limited(Candidate(choice, costs.of(choice)), hardware)
        (kept if candidate.dropped is None else dropped).append(candidate)
    return kept, dropped


def _limited(candidate: Candidate, hardware: Hardware) -> Candidate:
    memory = int(hardware.memory)
    if candidate.memory <= memory:
        return candidate
    needs = f"needs {shown_bytes(candidate.memory)} of {shown_bytes(memory)}"
    return dataclasses.replace(candidate, dropped=needs)


def _rank(candidate: Candidate, hardware: Hardware, objective: str) -> tuple[Any, ...]:
    time = candidate.time(hardware)
    few = len(candidate.choice.options)
    if objective == "memory":
        return candidate.memory, candidate.bytes, time, few
    if objective == "bytes":
        return candidate.bytes, few, candidate.memory, time
    return time, few, candidate.memory


def _nothing_fits(
    profile: ModelProfile, hardware: Hardware, dropped: Sequence[Candidate]
) -> ResourceExhaustedError:
    sized = [c for c in dropped if _kind(c.dropped or "") == _TOO_LARGE]
    memory = int(hardware.memory)
    if not sized:
        reasons = list(dict.fromkeys(c.dropped for c in dropped))
        shown = "; ".join(str(r) for r in reasons[:4])
        return ResourceExhaustedError(
            f"No plan for {profile.name} on {hardware.devices} devices: {shown}."
        )
    least = min(sized, key=lambda c: c.memory)
    assert least.estimate is not None
    most = max(least.estimate.held.items(), key=lambda item: item[1])
    text = (
        f"No plan holds {profile.name} ({profile.parameters:,} parameters, {profile.batch:,} examples a step) on "
        f"{hardware.devices} devices of {shown_bytes(memory)}. The smallest, {least.choice}, needs "
        f"{shown_bytes(least.memory)}, {shown_bytes(least.memory - memory)} too much; most of it are {most[0]} "
        f"({shown_bytes(most[1])})."
    )
    return ResourceExhaustedError(f"{text} {_next(profile, hardware)}")


def _next(profile: ModelProfile, hardware: Hardware) -> str:
    """What would fit."""
    count = 2 * hardware.devices
    while count <= _MANY and profile.batch % count == 0:
        kept, _ = _searched(profile, dataclasses.replace(hardware, devices=count))
        if kept:
            best = min(kept, key=lambda c: _rank(c, hardware, "time"))
            return f"{count} devices would do: {best.choice}, {shown_bytes(best.memory)}."
        count *= 2
    return "More such devices alone do not help: take a smaller batch, or devices with more memory."


def tested(
    found: Plan,
    model: Any,
    batch: Any,
    count: int,
    tell: Callable[[str], None] = lambda text: None,
) -> Plan:
    """A plan whose best candidates were compiled; those that turn out not to fit are dropped.

    Args:
      found: the plan.
      model: its model.
      batch: its batch.
      count: how many.
      tell: told what is being done.
    """
    first: list[Candidate] = []
    dropped = list(found.dropped)
    waiting = list(found.candidates)
    # Where theory errs for one, it does so for those alike: not all are tried.
    tries = 3 * count
    while waiting and len(first) < count and len(dropped) - len(found.dropped) < tries:
        candidate = waiting.pop(0)
        tell(f"Compiling {len(first) + 1} of {count}: {candidate.choice}")
        try:
            trial = tried(model, batch, strategy_of(candidate.choice))
            candidate = _limited(dataclasses.replace(candidate, trial=trial), found.hardware)
        except (ValueError, NotImplementedError) as error:
            # What only shows as the step is made.
            why = str(error).split(". ")[0]
            candidate = dataclasses.replace(candidate, dropped=why)
        (first if candidate.dropped is None else dropped).append(candidate)
    if not first:
        raise _nothing_fits(found.profile, found.hardware, dropped)
    first.sort(key=lambda c: _rank(c, found.hardware, found.objective))
    return dataclasses.replace(found, candidates=(*first, *waiting), dropped=tuple(dropped))
