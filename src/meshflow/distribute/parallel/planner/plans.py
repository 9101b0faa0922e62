"""Search for plans: choices are estimated and ranked, and the best can be compiled and compared."""

from __future__ import annotations

import dataclasses
import functools
import html
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from meshflow.core.runtime.errors import InvalidValueError, ResourceExhaustedError
from meshflow.core.values import nest
from meshflow.distribute.parallel.planner.choices import PlanChoice, enumerate_choices, find_refusal
from meshflow.distribute.parallel.planner.costs import CostModel, StepCosts
from meshflow.distribute.parallel.planner.hardware import (
    Hardware,
    format_bytes,
    format_seconds,
    measure_hardware,
)
from meshflow.distribute.parallel.planner.model_profile import ModelProfile, profile_model
from meshflow.distribute.parallel.planner.trial import (
    CompiledTrial,
    compile_trial,
    precision_scope,
    shape_only_variables,
)
from meshflow.distribute.parallel.strategy import MeshStrategy
from meshflow.distribute.replicas.variables import SyncOnReadVariable
from meshflow.environment.html_tables import format_table
from meshflow.environment.types import Json, PyTree
from meshflow.placement.mesh import Mesh

_OBJECTIVES = ("time", "bytes", "memory")
# Relative difference of predicted values that counts as a tie, which less memory decides.
_TIE = 0.01
# Smaller relative differences of memory do not decide a tie: estimates have an error of 4 % on average, as `memory.py` explains.
_MEMORY_TIE = 0.1
# Between plans that differ by less than the error of predicted times, a plan that sends so many times the bytes of another
# one is not chosen.
_MAX_BYTES_RATIO = 3
# Error of the ratio of two predicted times. Steps of 11 plans of a language model (2 blocks of width 256, 32 sequences of 64
# tokens) were measured on 4 virtual CPU devices with the speeds of `measure_hardware`. Except for a common factor, the predictions
# differ by -19 % to +46 %, 17 % in the root mean square, which is 24 % for two independent errors.
_TIME_ERROR = 0.25
# Policy to suggest if a model of float32 does not fit.
_SMALL_PRECISION = "mixed_bfloat16"
# Largest number of devices to suggest if a model fits on none of the given ones.
_MAX_SUGGESTED_DEVICES = 4096


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A choice with its estimated costs, and with those of its compiled program if there is one.

    Attributes:
      choice: The choice.
      estimate: Its estimated costs, or None if it is impossible.
      trial: Its costs as compiled, or None.
      dropped: Reason why it cannot be used, or None.
    """

    choice: PlanChoice
    estimate: StepCosts | None
    trial: CompiledTrial | None = None
    dropped: str | None = None

    @property
    def memory(self) -> int:
        """Return the bytes that each device holds; as compiled if possible."""
        if self.trial is not None:
            return self.trial.memory
        return self._required_estimate.memory

    @property
    def bytes(self) -> int:
        """Return the bytes that each device sends in a step; as compiled if possible."""
        return self._required_estimate.bytes if self.trial is None else self.trial.sent

    def estimate_time(self, hardware: Hardware) -> float:
        """Return the estimated seconds of a step.

        Args:
          hardware: The machine.

        Returns:
          The seconds.
        """
        return (
            self._required_estimate.time
            + (self.bytes - self._required_estimate.bytes) / hardware.link
        )

    @property
    def _required_estimate(self) -> StepCosts:
        assert self.estimate is not None
        return self.estimate


@dataclasses.dataclass(frozen=True)
class Plan:
    """Ways to train a model on some devices; `str` formats them as a table.

    Attributes:
      profile: Profile of the model.
      hardware: The devices.
      objective: Quantity that the candidates are ranked by.
      candidates: Candidates that fit, the best first.
      dropped: Other candidates, with their reasons.
    """

    profile: ModelProfile
    hardware: Hardware
    objective: str
    candidates: tuple[Candidate, ...]
    dropped: tuple[Candidate, ...]

    @property
    def best(self) -> Candidate:
        """Return the best candidate."""
        return self.candidates[0]

    @property
    def lines(self) -> list[str]:
        """Return the lines of a script that create the best candidate's strategy.

        A comment names a batch normalization that uses the statistics of each micro-batch.
        """
        lines = self.best.choice.to_script_lines()
        if self.best.choice.micro_batches > 1 and self.profile.batch_normalization:
            layer = self.profile.batch_normalization
            lines.append(f"# Batch normalization ({layer}) uses statistics of each micro-batch.")
        return lines

    def strategy(self, devices: Sequence[jax.Device] | None = None) -> MeshStrategy:
        """Create the strategy of the best candidate.

        Args:
          devices: Devices of its mesh. Default: the first devices of this process.

        Returns:
          The strategy.

        Raises:
          ValueError: If there are too few devices.
        """
        return create_strategy(self.best.choice, devices)

    def reasons(self) -> list[str]:
        """Return why other candidates were dropped, in a line for each reason."""
        counts = Counter(_get_reason_kind(c.dropped or "") for c in self.dropped)
        lines = []
        for kind, count in counts.most_common():
            candidates = [c for c in self.dropped if _get_reason_kind(c.dropped or "") == kind]
            if kind == _TOO_LARGE_REASON:
                smallest = min(candidates, key=lambda c: c.memory)
                kind = (
                    f"{kind}, the least of them {format_bytes(smallest.memory)} ({smallest.choice})"
                )
            lines.append(f"{count:,}: {kind}")
        return lines

    def rows(self, top: int = 5) -> list[tuple[str, ...]]:
        """Return the best candidates as rows of text; the first row has the headings.

        Args:
          top: Largest number of candidates.

        Returns:
          The rows.
        """
        has_trials = any(c.trial is not None for c in self.candidates)
        heads = ["choice", "memory", "sent", "time", "bubble"]
        rows = [(*heads, *(("by theory",) if has_trials else ()))]
        for c in self.candidates[:top]:
            assert c.estimate is not None
            row = [
                str(c.choice),
                format_bytes(c.memory),
                format_bytes(c.bytes),
                format_seconds(c.estimate_time(self.hardware)),
                f"{c.estimate.bubble:.3f}" if c.estimate.bubble else "",
            ]
            if has_trials:
                theory = f"{format_bytes(c.estimate.memory)}, {format_bytes(c.estimate.bytes)}"
                row.append("not compiled" if c.trial is None else theory)
            rows.append(tuple(row))
        return rows

    def described(self) -> dict[str, Json]:
        """Return the plan as data for JSON."""
        return {
            "model": self.profile.name,
            "parameters": self.profile.parameters,
            "batch": self.profile.batch,
            "hardware": dataclasses.asdict(self.hardware),
            "objective": self.objective,
            "candidates": [self._describe_candidate(c) for c in self.candidates],
            "dropped": self.reasons(),
            "lines": self.lines,
        }

    def _describe_candidate(self, c: Candidate) -> dict[str, Json]:
        assert c.estimate is not None
        description = {
            "mesh": c.choice.mesh,
            "rules": c.choice.rules,
            "options": c.choice.flat_options,
            "memory": c.estimate.memory,
            "held": dict(c.estimate.held),
            "sent": c.estimate.bytes,
            "sent_for": dict(c.estimate.sent),
            "seconds": dict(c.estimate.seconds),
            "bubble": c.estimate.bubble,
        }
        if c.trial is not None:
            description["compiled"] = {"memory": c.trial.memory, "sent": c.trial.sent}
        return description

    def __str__(self) -> str:
        rows = self.rows()
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        table = [
            "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows
        ]
        return "\n".join([self.title(), *table, *self.reasons(), *self.lines])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        head, *rows = self.rows()
        table = format_table(head, rows, self.title(), self.reasons())
        script = "\n".join(self.lines)
        return f"{table}<pre>{html.escape(script)}</pre>"

    def title(self) -> str:
        """Return the task of the plan in one line."""
        p, h = self.profile, self.hardware
        return (
            f"{p.name}: {p.parameters:,} parameters, {p.batch:,} examples a step, {h.devices:,} devices of "
            f"{format_bytes(float(h.memory))}, {float(h.margin):.0%} of them free"
        )


_TOO_LARGE_REASON = "do not fit"


def _get_reason_kind(reason: str) -> str:
    return _TOO_LARGE_REASON if reason.startswith("needs ") else reason


def create_strategy(
    choice: PlanChoice, devices: Sequence[jax.Device] | None = None
) -> MeshStrategy:
    """Create the strategy of a choice.

    Args:
      choice: The choice.
      devices: Its devices. Default: the first devices of this process.

    Returns:
      The strategy.

    Raises:
      ValueError: If there are too few devices.
    """
    return MeshStrategy(create_mesh(choice, devices), choice.rules, **choice.options)


def create_mesh(choice: PlanChoice, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """Create the mesh of a choice; arguments and errors are those of `create_strategy`."""
    available = list(jax.local_devices() if devices is None else devices)
    if len(available) < choice.devices and devices is None:
        available = list(jax.local_devices(backend="cpu"))
    if len(available) < choice.devices:
        raise InvalidValueError(
            f"A plan for {choice.devices} devices: there are {len(available)} here. Run the lines of the plan on a machine "
            "with these devices, or create virtual ones with tf.config.set_logical_device_configuration before the first op."
        )
    sizes, flat = choice.mesh, np.arange(choice.devices)
    shape = tuple(sizes.values())
    return Mesh(list(sizes), flat.reshape(shape), flat.tolist(), available[: choice.devices])


def plan(
    model: Any,
    *batch: PyTree,
    devices: int | None = None,
    memory: int | str | None = None,
    hardware: Hardware | None = None,
    objective: str = "time",
    compiled: int = 0,
    progress: Callable[[str], None] | None = None,
    precisions: Sequence[str] | None = None,
    margin: float | str | None = None,
) -> Plan:
    """Find the best way to train a model on some devices; nothing is run, and no weight is moved.

    The search covers all splits of the devices into data, model and stages, all ZeRO stages,
    micro-batches, recomputation and offload. Formulas estimate the costs.

    Args:
      model: A compiled model.
      *batch: One batch (x, y, sample_weight) with the size of a step on all devices: arrays,
        tensors or `tf.TensorSpec`s.
      devices: Number of devices. Default: those of this process.
      memory: Bytes of each device, such as "80GB".
      hardware: Devices and memory with speeds, instead of `devices` and `memory`.
      objective: Quantity that candidates are ranked by: "time", "bytes" or "memory".
      compiled: Number of the best candidates to compile for devices of this process, and to rank by
        the memory and traffic of their programs.
      progress: Function that receives messages about the progress.
      precisions: Keras policies to choose from, such as ["float32", "mixed_bfloat16"]. Default:
        the policies of the model's layers, because another policy changes the numbers.
      margin: Part of the memory that plans leave free. Default: that of `hardware`, or 10 %.

    Returns:
      A `Plan`.

    Raises:
      ValueError: If the objective or a unit is unknown; if the model is not compiled, works on
        text, or was created for several replicas; if the batch has an unknown size; or if this
        process has too few devices to compile plans for.
      ResourceExhaustedError: If nothing fits. The message states the missing memory, and a number
        of devices that would suffice.

    Example:
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
    _check_plannable(model, leaves)
    if hardware is None:
        assert memory is not None
        hardware = measure_hardware(
            len(jax.local_devices()) if devices is None else devices, memory
        )
    if margin is not None:
        hardware = dataclasses.replace(hardware, margin=margin)
    if compiled:
        create_mesh(
            PlanChoice(hardware.devices)
        )  # This raises an error early if there are too few devices.
    report = progress or (lambda text: None)
    report(f"Reading {model.name}")
    policies: Sequence[str | None] = precisions or [None]
    profiles = [_profile(model, rows, name) for name in policies]
    try:
        result = estimate_plan(profiles, hardware, objective, report)
    except ResourceExhaustedError as error:
        if precisions is not None or profiles[0].computes_bfloat16:
            raise
        advice = _suggest_precision(_profile(model, rows, _SMALL_PRECISION), hardware)
        raise ResourceExhaustedError(f"{error}{advice}") from None
    return compile_best(result, model, rows, compiled, report) if compiled else result


def _profile(model: Any, rows: tuple[PyTree, ...], precision: str | None) -> ModelProfile:
    """Profile a model under a policy, or under its own."""
    try:
        with shape_only_variables(model), precision_scope(model, precision):
            profile = profile_model(model._make_loss_program(), rows, model.optimizer)
            loops = model._count_gradient_loops(rows)
            dtypes = [getattr(v, "compute_dtype", None) for v in model.submodules]
            return dataclasses.replace(
                profile,
                own_step=loops is not None,
                step_loops=loops or 0,
                precision=precision,
                computes_bfloat16="bfloat16" in dtypes,
            )
    except ValueError as error:
        if getattr(model, "loss", None):
            raise
        raise InvalidValueError(
            f"plan: {model.name} was compiled without a loss, and what a train_step of its own computes is not read "
            f"({error}) Pass the loss to compile, or call add_loss in a layer."
        ) from None


def _suggest_precision(profile: ModelProfile, hardware: Hardware) -> str:
    """Return a sentence about a plan with a policy that holds less, or an empty one if none fits."""
    candidates, _ = _search_choices(profile, hardware)
    if not candidates:
        return ""
    best = _rank_candidates(candidates, hardware, "time")[0]
    return f" With this policy, it would fit: {best.choice}, {format_bytes(best.memory)}."


def _check_plannable(model: Any, leaves: Sequence[Any]) -> None:
    """Raise an error for models with host computations or with variables of replicas."""
    hosted = [n.name for n in model.submodules if getattr(n, "runs_on_host", False)]
    text = [v for v in leaves if getattr(v.dtype, "name", v.dtype) in ("string", "object")]
    if hosted or text:
        reason = f"its layer {hosted[0]!r} runs" if hosted else "what works on text runs"
        raise InvalidValueError(
            f"plan: no device computes all of {model.name}: {reason} on the host. Move that work into the dataset's map, "
            "and plan the model that takes the results."
        )
    if getattr(model, "built", True):
        replica_variables = [v.name for v in model.variables if isinstance(v, SyncOnReadVariable)]
        if replica_variables:
            raise InvalidValueError(
                f"plan: {model.name} was made for several replicas, of which each has its own {replica_variables}. Create it "
                "in the scope of a MeshStrategy, of tf.distribute.shapes_only(), or outside of any scope."
            )


def check_objective(objective: str) -> None:
    """Check that plans can be ranked by an objective.

    Args:
      objective: Name of the objective.

    Raises:
      ValueError: If it is not "time", "bytes" or "memory".
    """
    if objective not in _OBJECTIVES:
        known = ", ".join(map(repr, _OBJECTIVES))
        raise InvalidValueError(f"plan: objective must be one of {known}, got {objective!r}.")


def estimate_plan(
    profile: ModelProfile | Sequence[ModelProfile],
    hardware: Hardware,
    objective: str = "time",
    report: Callable[[str], None] = lambda text: None,
) -> Plan:
    """Find a plan by formulas only.

    Args:
      profile: The model, or its profiles under several policies.
      hardware: The devices.
      objective: "time", "bytes" or "memory".
      report: Function that receives messages about the progress.

    Returns:
      The plan.

    Raises:
      ValueError: If the objective is unknown.
      ResourceExhaustedError: If nothing fits.
    """
    check_objective(objective)
    report(f"Estimating choices for {hardware.devices:,} devices")
    profiles = [profile] if isinstance(profile, ModelProfile) else profile
    profile = profiles[0]
    candidates: list[Candidate] = []
    dropped: list[Candidate] = []
    for p in profiles:
        fitting, others = _search_choices(p, hardware)
        candidates += fitting
        dropped += others
    if not candidates:
        report("Looking for what would fit")
        raise _make_nothing_fits_error(profile, hardware, dropped)
    candidates = _rank_candidates(candidates, hardware, objective)
    return Plan(profile, hardware, objective, tuple(candidates), tuple(dropped))


def _search_choices(
    profile: ModelProfile, hardware: Hardware
) -> tuple[list[Candidate], list[Candidate]]:
    """Estimate all choices, and return the candidates that fit and those that do not."""
    costs = CostModel(profile, hardware)
    fitting: list[Candidate] = []
    dropped: list[Candidate] = []
    for choice in enumerate_choices(profile, hardware.devices):
        reason = find_refusal(choice, profile)
        if reason is not None:
            dropped.append(Candidate(choice, None, dropped=reason))
            continue
        candidate = _drop_if_too_large(Candidate(choice, costs.estimate(choice)), hardware)
        (fitting if candidate.dropped is None else dropped).append(candidate)
    return fitting, dropped


def _drop_if_too_large(candidate: Candidate, hardware: Hardware) -> Candidate:
    memory = hardware.usable_memory
    if candidate.memory <= memory:
        return candidate
    reason = f"needs {format_bytes(candidate.memory)} of {format_bytes(memory)}"
    return dataclasses.replace(candidate, dropped=reason)


def _rank_candidates(
    candidates: Sequence[Candidate], hardware: Hardware, objective: str
) -> list[Candidate]:
    """Sort candidates, the best first.

    Of nearly equally fast ones, the one that holds less memory is better. The fastest plan must not send many times the bytes of
    another one if the difference is within the error of the cost model.
    """
    ordered = sorted(candidates, key=lambda c: _get_rank_key(c, hardware, objective))
    if objective != "time":
        return ordered
    groups: list[list[Candidate]] = []
    for c in ordered:
        is_tie = groups and c.estimate_time(hardware) <= (1 + _TIE) * groups[-1][0].estimate_time(
            hardware
        )
        groups[-1].append(c) if is_tie else groups.append([c])
    limit = (1 + _TIME_ERROR) * ordered[0].estimate_time(hardware)
    ordered = []
    for group in groups:
        least = (1 + _MEMORY_TIE) * min(c.memory for c in group)
        ordered += sorted(group, key=functools.partial(_bound_memory, least=least))
    within = [c for c in ordered if c.estimate_time(hardware) <= limit]
    best = ordered[0]
    while cheaper := [c for c in within if _MAX_BYTES_RATIO * c.bytes <= best.bytes > c.bytes]:
        best = cheaper[0]
    return [best, *(c for c in ordered if c is not best)]


def _bound_memory(candidate: Candidate, least: float) -> float:
    return max(candidate.memory, least)


def _get_rank_key(candidate: Candidate, hardware: Hardware, objective: str) -> tuple[Any, ...]:
    time = candidate.estimate_time(hardware)
    num_options = len(candidate.choice.options)
    if objective == "memory":
        return candidate.memory, candidate.bytes, time, num_options
    if objective == "bytes":
        return candidate.bytes, num_options, candidate.memory, time
    return time, num_options, candidate.memory


def _make_nothing_fits_error(
    profile: ModelProfile, hardware: Hardware, dropped: Sequence[Candidate]
) -> ResourceExhaustedError:
    sized = [c for c in dropped if _get_reason_kind(c.dropped or "") == _TOO_LARGE_REASON]
    memory = hardware.usable_memory
    if not sized:
        reasons = list(dict.fromkeys(c.dropped for c in dropped))
        shown = "; ".join(str(r) for r in reasons[:4])
        return ResourceExhaustedError(
            f"No plan for {profile.name} on {hardware.devices} devices: {shown}."
        )
    smallest = min(sized, key=lambda c: c.memory)
    assert smallest.estimate is not None
    kind, size = max(smallest.estimate.held.items(), key=lambda item: item[1])
    text = (
        f"No plan holds {profile.name} ({profile.parameters:,} parameters, {profile.batch:,} examples a step) on "
        f"{hardware.devices} devices of {format_bytes(float(hardware.memory))}. The smallest, {smallest.choice}, needs "
        f"{format_bytes(smallest.memory)}, {format_bytes(smallest.memory - memory)} too much with a margin of {float(hardware.margin):.0%}; most of it are {kind} "
        f"({format_bytes(size)})."
    )
    return ResourceExhaustedError(f"{text} {_suggest_devices(profile, hardware)}")


def _suggest_devices(profile: ModelProfile, hardware: Hardware) -> str:
    """Return a sentence with a number of devices that would suffice, or with other advice."""
    count = 2 * hardware.devices
    while count <= _MAX_SUGGESTED_DEVICES and profile.batch % count == 0:
        candidates, _ = _search_choices(profile, dataclasses.replace(hardware, devices=count))
        if candidates:
            best = _rank_candidates(candidates, hardware, "time")[0]
            return f"{count} devices would do: {best.choice}, {format_bytes(best.memory)}."
        count *= 2
    return "More such devices do not help: take a smaller batch, or devices with more memory."


def compile_best(
    plan: Plan,
    model: Any,
    batch: PyTree,
    count: int,
    report: Callable[[str], None] = lambda text: None,
) -> Plan:
    """Compile the best candidates of a plan, drop those that do not fit, and rank the others again.

    Args:
      plan: The plan.
      model: Its model.
      batch: Its batch.
      count: Number of candidates to compile.
      report: Function that receives messages about the progress.

    Returns:
      The plan with compiled candidates.
    """
    compiled: list[Candidate] = []
    dropped = list(plan.dropped)
    waiting = list(plan.candidates)
    # Similar candidates have similar errors of the estimate, so the number of failed attempts is limited.
    max_failures = 3 * count
    while waiting and len(compiled) < count and len(dropped) - len(plan.dropped) < max_failures:
        candidate = waiting.pop(0)
        report(f"Compiling {len(compiled) + 1} of {count}: {candidate.choice}")
        try:
            with precision_scope(model, candidate.choice.precision):
                trial = compile_trial(model, batch, create_strategy(candidate.choice))
            candidate = _drop_if_too_large(
                dataclasses.replace(candidate, trial=trial), plan.hardware
            )
        except (ValueError, NotImplementedError) as error:
            # Some options are checked only while the step is traced.
            reason = str(error).split(". ")[0]
            candidate = dataclasses.replace(candidate, dropped=reason)
        (compiled if candidate.dropped is None else dropped).append(candidate)
    if not compiled:
        raise _make_nothing_fits_error(plan.profile, plan.hardware, dropped)
    compiled = _rank_candidates(compiled, plan.hardware, plan.objective)
    return dataclasses.replace(plan, candidates=(*compiled, *waiting), dropped=tuple(dropped))
