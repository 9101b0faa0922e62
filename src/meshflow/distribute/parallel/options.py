"""Options of a `MeshStrategy`: ZeRO, recomputation, pipelines, offload and compression."""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from meshflow.core.runtime.errors import InvalidValueError
from meshflow.environment.types import StrPath
from meshflow.placement.layout import check_memory
from meshflow.placement.mesh import Mesh

_RECOMPUTE_MODES = ("layer", "gathers")
_SEQUENCE_MODES = ("ring", "ulysses", "split")
_OFFLOAD_KINDS = ("optimizer", "parameters", "activations")
_COMPRESSION_FORMATS = ("int8", "1bit")


@dataclasses.dataclass(frozen=True)
class Pipeline:
    r"""Options of a pipeline: a model cut into stages, with several micro-batches in flight.

    Args:
      over: Mesh dimension of the pipeline. Its size is the number of devices that hold different
        stages.
      schedule: Order of the forward and backward passes: "1f1b", "gpipe", "interleaved:2" (the
        number is the stages of a device), "zero_bubble", or a custom table, given as text such as
        "0F0,0B0\n1F0,1B0" or as the path of a .csv file.
      balance: "auto", or a list with the number of layers of each stage.
      keep: Values that a stage keeps of a micro-batch until its backward pass. "inputs" keeps the
        input of the stage, and computes the stage again. "residuals" keeps all values that the
        backward pass reads, and computes nothing twice.

    Raises:
      ValueError: If `keep` is another value.

    Example:
      >>> tf.distribute.Pipeline("stage").schedule
      '1f1b'
    """

    over: str = "stage"
    schedule: Any = "1f1b"
    balance: str | Sequence[int] = "auto"
    keep: str = "inputs"

    def __post_init__(self) -> None:
        _check_choice("Pipeline: keep", self.keep, ("inputs", "residuals"))


@dataclasses.dataclass(frozen=True)
class ParallelOptions:
    """Options of a `MeshStrategy`. Each field is also a keyword argument of the strategy.

    Args:
      zero: ZeRO stage. 0 shards nothing, 1 shards the optimizer's slots, 2 also gradients, 3 also
        weights.
      zero_over: Mesh dimension or dimensions ("node+data") that ZeRO shards over. Default: the
        dimensions of the batch.
      max_live_parameters: Number of weight elements that `zero=3` keeps gathered during a step, in
        addition to those of the layer that is computed; the smallest weights are kept. All others
        are gathered for the forward and again for the backward pass of their layer. A number that
        exceeds the model's keeps all weights, so that each is gathered once. Default: 1/32 of the
        weights.
      prefetch_bucket_size: Number of weight elements up to which `zero=3` gathers a layer's weights
        while the previous layer computes, on devices that communicate and compute at the same time;
        0 saves their memory. With `recompute="layer"` nothing is gathered early.
      micro_batches: Number of parts that a device's examples are split into. They are computed one
        after the other.
      recompute: Activation recomputation. "layer" recomputes all values inside layers, "gathers"
        only gathered weights, the default of `zero=3`; a policy of `jax.checkpoint_policies` is
        accepted, too. None keeps all activations.
      stack: Whether four or more equal layers in a row that are recomputed, or that release their
        weights, become one loop over their stacked weights, so that the program does not grow with
        their number. Default: True with `recompute`, except on CPUs, where the loop needs more
        memory.
      pipeline: A `Pipeline`, or the mesh dimension of its stages.
      sequence: Sequence parallelism of attention layers: "ring", "ulysses" or "split".
      offload: Values that are stored in the host's memory: some of "optimizer" (slots) and
        "parameters" (weights), both between steps, and "activations", the values that the backward
        pass needs of each layer; with `recompute="layer"` these are the layer's inputs. A
        dictionary restricts them by name: `{"optimizer": "decoder/.*"}` has one or several regular
        expressions that match the beginning of the names of variables, or of layers for
        activations.
      offload_to: Folder on a fast local disk for the offloaded values, instead of the host's
        memory. Slots are read when their variable is updated, one variable after the other;
        activations are read by the backward pass of their layer. A dictionary restricts it:
        `{"optimizer": folder}` leaves other offloaded values in the host's memory. Each process has
        its own files, so the folder may differ between processes.
      deferred_batch_norm: Whether the moving averages of batch normalization are updated once for a
        batch, with the statistics of all its micro-batches; otherwise once for each micro-batch.
        Micro-batches are normalized by their own statistics in both cases.
      compress: Format in which the devices that share a batch exchange gradients: "int8" or "1bit".
        The rounding error is added to the gradients of the next step.
      compress_after: Number of updates before compression starts. `tf.keras.optimizers.OneBitAdam`
        sets it itself, and exchanges its momentum instead of gradients.

    Raises:
      ValueError: If a field has an invalid value.

    Example:
      >>> tf.distribute.ParallelOptions(zero=3, micro_batches=4).zero
      3
    """

    zero: int = 0
    zero_over: str | Sequence[str] | None = None
    max_live_parameters: int | None = None
    prefetch_bucket_size: int = 50_000_000
    micro_batches: int = 1
    recompute: str | Callable[..., Any] | None = None
    stack: bool | None = None
    pipeline: Pipeline | str | None = None
    sequence: str | None = None
    offload: str | Sequence[str] | Mapping[str, str | Sequence[str]] = ()
    offload_to: StrPath | Mapping[str, StrPath] | None = None
    deferred_batch_norm: bool = False
    compress: str | None = None
    compress_after: int = 0

    def __post_init__(self) -> None:
        _check_choice("zero", self.zero, (0, 1, 2, 3))
        _check_minimum("micro_batches", self.micro_batches, 1)
        _check_minimum("prefetch_bucket_size", self.prefetch_bucket_size, 0)
        if self.max_live_parameters is not None:
            _check_minimum("max_live_parameters", self.max_live_parameters, 0)
            if self.zero != 3:
                raise InvalidValueError(
                    f"max_live_parameters={self.max_live_parameters} limits the weights that zero=3 keeps gathered, but "
                    f"zero={self.zero} shards no weights. Pass zero=3."
                )
        _check_minimum("compress_after", self.compress_after, 0)
        if self.compress_after and self.compress is None:
            raise InvalidValueError(
                f"compress_after={self.compress_after} sets when compression of gradients starts, but compress=None "
                "disables it. Pass compress='int8' or '1bit'."
            )
        if not callable(self.recompute):
            _check_choice(
                "recompute",
                self.recompute,
                (None, *_RECOMPUTE_MODES),
                "or a policy of jax.checkpoint_policies",
            )
        if self.stack not in (None, True, False) or (
            self.stack and not self.recompute and self.zero != 3
        ):
            raise InvalidValueError(
                f"stack={self.stack!r}: expected None, True or False. Only recomputed layers, and those of zero=3, are "
                f"stacked, but recompute={self.recompute!r} and zero={self.zero}."
            )
        if not isinstance(self.deferred_batch_norm, bool):
            raise InvalidValueError(
                f"deferred_batch_norm must be True or False, got {self.deferred_batch_norm!r}."
            )
        _check_choice("sequence", self.sequence, (None, *_SEQUENCE_MODES))
        _check_choice("compress", self.compress, (None, *_COMPRESSION_FORMATS))
        object.__setattr__(self, "offload", _normalize_offload(self.offload))
        object.__setattr__(
            self, "offload_to", _normalize_folders(self.offload_to, self.offload_patterns)
        )
        if self.zero_over is not None:
            if not self.zero:
                raise InvalidValueError(
                    f"zero_over={self.zero_over!r} selects the dimensions of ZeRO, but zero=0 shards nothing. Pass "
                    "zero=1, 2 or 3."
                )
            object.__setattr__(
                self, "zero_over", _parse_dimension_names("zero_over", self.zero_over)
            )
        if isinstance(self.pipeline, str):
            object.__setattr__(self, "pipeline", Pipeline(self.pipeline))
        elif not isinstance(self.pipeline, (Pipeline, type(None))):
            raise InvalidValueError(
                f"pipeline must be a tf.distribute.Pipeline or the name of a mesh dimension, got {self.pipeline!r}."
            )

    @classmethod
    def from_kwargs(cls, choices: Mapping[str, Any]) -> ParallelOptions:
        """Create options from keyword arguments.

        Args:
          choices: Names and values of fields.

        Returns:
          The options.

        Raises:
          TypeError: If a name is not a field.
        """
        names = [field.name for field in dataclasses.fields(cls)]
        for name in choices:
            if name not in names:
                close = difflib.get_close_matches(name, names, n=1)
                suggestion = f" (did you mean {close[0]!r}?)" if close else ""
                raise TypeError(
                    f"MeshStrategy: {name!r} is no option{suggestion}; the options are {', '.join(names)}."
                )
        return cls(**choices)

    def check_mesh(
        self, mesh: Mesh, batch: Sequence[str], rules: Mapping[str, Sequence[str]]
    ) -> None:
        """Check the options against a mesh.

        Args:
          mesh: The mesh.
          batch: Mesh dimensions that batches are split over.
          rules: Mesh dimensions of each named dimension.

        Raises:
          ValueError: If a mesh dimension does not exist or is used twice, or if states are to be
            sharded although the batch is not split.
        """
        if self.offload:
            check_memory("host", mesh, f"offload={sorted(self.offload_patterns)}")
        if self.compress and (not batch or self.pipeline is not None):
            reason = "with a pipeline" if batch else "where no rule splits the batch"
            raise InvalidValueError(
                f"compress={self.compress!r} is about gradients that devices sum for a batch, and does nothing {reason}."
            )
        for name in self.zero_over or ():
            check_dimension(name, mesh, "zero_over")
            if name not in batch:
                raise InvalidValueError(
                    f"zero_over={'+'.join(self.zero_over or ())!r}: batches are split over {list(batch)}, not over "
                    f"{name!r}. States can be sharded only over dimensions of the batch; add it to the rule of 'batch'."
                )
        if self.zero and not batch:
            raise InvalidValueError(
                f"zero={self.zero} shards states over the devices that share a batch, but no rule splits the batch. "
                "Pass rules='batch:data', with the name of a mesh dimension."
            )
        if self.sequence is not None and not rules.get("sequence"):
            raise InvalidValueError(
                f"sequence={self.sequence!r} needs a rule that splits sequences, such as rules='batch:data, "
                "sequence:model'."
            )
        if self.pipeline is not None:
            over = self.pipeline_options.over
            check_dimension(over, mesh, "pipeline")
            if over in batch:
                raise InvalidValueError(
                    f"pipeline: the stages use the dimension {over!r}, which batches are split over already "
                    f"({list(batch)}). Use a separate mesh dimension for each."
                )
            for name, dimensions in rules.items():
                if over in dimensions:
                    raise InvalidValueError(
                        f"pipeline: the stages use the dimension {over!r}, over which a rule splits {name!r}. Use a "
                        "separate mesh dimension for the stages."
                    )

    @property
    def pipeline_options(self) -> Pipeline:
        """Return the pipeline's options; there must be a pipeline."""
        assert isinstance(self.pipeline, Pipeline)
        return self.pipeline

    @property
    def offload_patterns(self) -> dict[str, tuple[str, ...]]:
        """Return the patterns of names for each kind of offloaded value."""
        return dict(self.offload)  # type: ignore[arg-type]

    @property
    def offload_folders(self) -> dict[str, str]:
        """Return the folders of values that are offloaded to files instead of host memory."""
        return dict(self.offload_to or ())  # type: ignore[arg-type]

    def is_offloaded(self, kind: str, name: str) -> bool:
        """Check whether a value is offloaded to the host's memory or to files.

        Args:
          kind: "optimizer", "parameters" or "activations".
          name: Name of the variable or layer.

        Returns:
          True if the options offload it.
        """
        return any(re.match(p, name) for p in self.offload_patterns.get(kind, ()))

    @property
    def uses_region(self) -> bool:
        """Whether loss and gradients are computed in a region, instead of only by layouts."""
        return bool(
            self.zero
            or self.micro_batches > 1
            or self.recompute
            or self.pipeline
            or self.compress
            or "activations" in self.offload_patterns
        )

    def get_loss_options(
        self, is_compiled: bool, has_shares: bool = False, has_pipeline: bool = False
    ) -> dict[str, Any]:
        """Return the fields that have an effect only if the strategy computes the gradients.

        Args:
          is_compiled: Whether the step is compiled, so that layers can be recomputed in any case.
          has_shares: Whether the step is computed in shares of the batch, so that only fields remain that need
            the loss of `compile`.
          has_pipeline: Whether the step is computed by a pipeline.
        """
        names = {"stack"} if has_pipeline else {"stack", "pipeline"}
        if not has_shares:
            names |= {"micro_batches", "compress", "deferred_batch_norm"}
        if self.recompute == "gathers" or not is_compiled:
            names.add("recompute")
        options = {n: v for n, v in self.get_non_defaults().items() if n in names}
        patterns = None if has_shares else self.offload_patterns.get("activations")
        return options | ({"offload": {"activations": patterns}} if patterns else {})

    @property
    def splits_own_steps(self) -> bool:
        """Whether training steps that compute gradients themselves are computed in shares of a batch."""
        return self.micro_batches > 1 or self.compress is not None or self.pipeline is not None

    def get_non_defaults(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults."""
        pairs = ((f.name, getattr(self, f.name), f.default) for f in dataclasses.fields(self))
        return {name: value for name, value, default in pairs if value != default}


def check_dimension(name: str, mesh: Mesh, where: str) -> None:
    """Check that a mesh has a dimension.

    Args:
      name: Name of the dimension.
      mesh: The mesh.
      where: Argument or rule that the error names.

    Raises:
      ValueError: If the mesh does not have the dimension.
    """
    if name not in mesh:
        raise InvalidValueError(
            f"{where}: the mesh has no dimension {name!r}; its dimensions are "
            f"{dict(zip(mesh.dim_names, mesh.shape(), strict=True))}."
        )


def _normalize_offload(value: object) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return (kind, patterns of names) pairs of the option `offload`."""
    if isinstance(value, str):
        value = (value,)
    if not isinstance(value, (Mapping, Sequence, set, frozenset)):
        raise InvalidValueError(
            f"offload must name some of {_OFFLOAD_KINDS}, or be a dictionary from these to patterns of names, got {value!r}."
        )
    if not isinstance(value, Mapping):
        # The items are names, or pairs if the value is that of another options object.
        value = dict((kind, ".*") if isinstance(kind, str) else tuple(kind) for kind in value)
    pairs = []
    for kind, patterns in value.items():
        _check_choice("offload", kind, _OFFLOAD_KINDS)
        patterns = (patterns,) if isinstance(patterns, str) else tuple(patterns)
        for pattern in patterns:
            try:
                re.compile(pattern)
            except (re.error, TypeError) as error:
                raise InvalidValueError(
                    f"offload: {pattern!r} for {kind!r} is no regular expression of names: {error}."
                ) from None
        pairs.append((kind, patterns))
    return tuple(pairs)


def _normalize_folders(
    value: StrPath | Mapping[str, StrPath] | None, offloaded: Mapping[str, object]
) -> tuple[tuple[str, str], ...] | None:
    """Return (kind, folder) pairs of the option `offload_to`."""
    if value is None:
        return None
    if isinstance(value, (str, os.PathLike)):
        if not offloaded:
            raise InvalidValueError(
                f"offload_to={os.fspath(value)!r} is a folder for offloaded values, but offload=() selects none. Pass "
                "offload= some of 'optimizer', 'parameters' and 'activations'."
            )
        value = dict.fromkeys(offloaded, value)
    folders = dict(value)
    for kind in folders:
        _check_choice("offload_to", kind, _OFFLOAD_KINDS)
        if kind not in offloaded:
            raise InvalidValueError(
                f"offload_to={folders} has a folder for {kind!r}, which offload={sorted(offloaded)} does not contain. "
                "Add it to offload=."
            )
    return tuple((kind, os.fspath(folder)) for kind, folder in folders.items())


def _parse_dimension_names(option: str, value: str | Sequence[str]) -> tuple[str, ...]:
    """Return unique names of mesh dimensions, given as "a+b" or as a sequence."""
    names = value.split("+") if isinstance(value, str) else value
    if (
        not isinstance(names, Sequence)
        or not all(isinstance(name, str) for name in names)
        or len({*names}) < len(names)
    ):
        raise InvalidValueError(
            f"{option} must name mesh dimensions, each once, such as 'data' or 'node+data', got {value!r}."
        )
    return tuple(names)


def _check_minimum(name: str, value: object, minimum: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        raise InvalidValueError(f"{name} must be an integer of at least {minimum}, got {value!r}.")


def _check_choice(name: str, value: object, allowed: Sequence[object], more: str = "") -> None:
    if isinstance(value, bool) or value not in allowed:
        known = ", ".join(map(repr, allowed))
        raise InvalidValueError(
            f"{name} must be one of {known}{' ' + more if more else ''}, got {value!r}."
        )
