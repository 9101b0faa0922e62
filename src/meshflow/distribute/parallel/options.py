"""How a model is trained on a mesh beyond layouts: what is split, kept, computed again, and when."""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from meshflow.core.runtime.errors import InvalidValueError
from meshflow.placement.layout import check_memory
from meshflow.placement.mesh import Mesh

__all__ = ["ParallelOptions", "Pipeline"]

_RECOMPUTE = ("layer", "gathers")
_SEQUENCE = ("ring", "ulysses", "split")
_OFFLOAD = ("optimizer", "parameters", "activations")
_COMPRESS = ("int8", "1bit")


@dataclasses.dataclass(frozen=True)
class Pipeline:
    """A model cut into stages, each on its part of a mesh dimension, with batches in flight between them.

    Args:
      over: the mesh dimension; its size is the number of stages.
      schedule: which micro-batch a stage works on and when: "1f1b", "gpipe", "interleaved:2" (stages a device),
        "zero_bubble", or a table of your own: its text, such as "0F0,0B0\\n1F0,1B0", or the path of a .csv file.
      balance: how layers are shared out: "auto", or a number of layers for each stage.

    Example:
      >>> import meshflow as tf
      >>> tf.distribute.Pipeline("stage").schedule
      '1f1b'
    """

    over: str = "stage"
    schedule: Any = "1f1b"
    balance: str | Sequence[int] = "auto"


@dataclasses.dataclass(frozen=True)
class ParallelOptions:
    """Choices of a `MeshStrategy`; each is also a keyword argument of it.

    Args:
      zero: what each device holds only its part of: 0 nothing, 1 the optimizer's slots, 2 gradients too, 3 weights too.
      zero_over: the mesh dimension or dimensions ("node+data") that they are split over; default those of the batch.
      micro_batches: into how many parts a device's rows are divided, one after the other.
      recompute: what the backward pass computes again instead of keeping it: "layer" all inside of layers, "gathers"
        weights brought together, or a policy of `jax.checkpoint_policies`.
      stack: whether four or more equal layers in a row that are computed again become one loop over their stacked
        weights: a program that does not grow with them. Default: not on CPUs, where it takes more memory.
      pipeline: a `Pipeline`, or the mesh dimension of its stages.
      sequence: how sequences are split in attention: "ring", "ulysses" or "split".
      offload: what is to lie in the host's memory: some of "optimizer" (the slots), "parameters" (weights), both
        between steps, and "activations", what the backward pass needs of each layer; with `recompute="layer"` that
        is the layer's inputs. A dictionary says of which: `{"optimizer": "decoder/.*"}` has a pattern, or several,
        that names of variables, or of layers for activations, begin with.
      offload_to: a folder, on a fast local disk: what is offloaded lies in files there instead of the host's memory.
        Slots are read when their variable is updated, one after the other; activations when the gradients arrive that
        they are for. A dictionary says of which: `{"optimizer": folder}` leaves the others to the host's memory.
        Each of several processes has its own files, so that the folder may be another in each.
      compress: how gradients are sent over the devices that share a batch: "int8" or "1bit", with what rounding took
        away added to the next step's.
      compress_after: after how many updates gradients are sent like that; before it whole, and nothing is lost.
        `tf.keras.optimizers.OneBitAdam` says it itself, and has its momentum sent in their place.

    Raises:
      ValueError: for a value that none of them takes.

    Example:
      >>> import meshflow as tf
      >>> tf.distribute.ParallelOptions(zero=3, micro_batches=4).zero
      3
    """

    zero: int = 0
    zero_over: str | Sequence[str] | None = None
    micro_batches: int = 1
    recompute: str | Callable[..., Any] | None = None
    stack: bool | None = None
    pipeline: Pipeline | str | None = None
    sequence: str | None = None
    offload: str | Sequence[str] | Mapping[str, str | Sequence[str]] = ()
    offload_to: str | os.PathLike[str] | Mapping[str, str | os.PathLike[str]] | None = None
    compress: str | None = None
    compress_after: int = 0

    def __post_init__(self) -> None:
        _one_of("zero", self.zero, (0, 1, 2, 3))
        _at_least("micro_batches", self.micro_batches, 1)
        _at_least("compress_after", self.compress_after, 0)
        if self.compress_after and self.compress is None:
            raise InvalidValueError(
                f"compress_after={self.compress_after} says from when on gradients are sent in few bits, but "
                "compress=None never does. Pass compress='int8' or '1bit'."
            )
        if not callable(self.recompute):
            _one_of(
                "recompute",
                self.recompute,
                (None, *_RECOMPUTE),
                "or a policy of jax.checkpoint_policies",
            )
        if self.stack not in (None, True, False) or (self.stack and not self.recompute):
            raise InvalidValueError(
                f"stack={self.stack!r}: it must be None, True or False, and what is stacked are layers that recompute= "
                f"has computed again, of which recompute={self.recompute!r} has none."
            )
        _one_of("sequence", self.sequence, (None, *_SEQUENCE))
        _one_of("compress", self.compress, (None, *_COMPRESS))
        object.__setattr__(self, "offload", _offloaded(self.offload))
        object.__setattr__(self, "offload_to", _folders(self.offload_to, self.offloaded))
        if self.zero_over is not None:
            if not self.zero:
                raise InvalidValueError(
                    f"zero_over={self.zero_over!r} says where states are split, but zero=0 splits none. Pass "
                    "zero=1, 2 or 3."
                )
            object.__setattr__(self, "zero_over", _names("zero_over", self.zero_over))
        if isinstance(self.pipeline, str):
            object.__setattr__(self, "pipeline", Pipeline(self.pipeline))
        elif not isinstance(self.pipeline, (Pipeline, type(None))):
            raise InvalidValueError(
                f"pipeline must be a tf.distribute.Pipeline or the name of a mesh dimension, got {self.pipeline!r}."
            )

    @classmethod
    def of(cls, choices: Mapping[str, Any]) -> ParallelOptions:
        """The options of keyword arguments.

        Args:
          choices: their names and values.

        Raises:
          TypeError: for a name that is none.
        """
        known = [field.name for field in dataclasses.fields(cls)]
        for name in choices:
            if name not in known:
                close = difflib.get_close_matches(name, known, n=1)
                meant = f" (did you mean {close[0]!r}?)" if close else ""
                raise TypeError(
                    f"MeshStrategy: {name!r} is no option{meant}; the options are {', '.join(known)}."
                )
        return cls(**choices)

    def check(self, mesh: Mesh, batch: Sequence[str], rules: Mapping[str, Sequence[str]]) -> None:
        """Checks them against a mesh.

        Args:
          mesh: the mesh.
          batch: the mesh dimensions that batches are split over.
          rules: by named dimension the mesh dimensions that it is split over.

        Raises:
          ValueError: for a dimension that the mesh has not or that something else takes, and for states that are
            to be split where nothing is.
        """
        if self.offload:
            check_memory("host", mesh, f"offload={sorted(self.offloaded)}")
        if self.compress and (not batch or self.pipeline is not None):
            why = "with a pipeline" if batch else "where no rule splits the batch"
            raise InvalidValueError(
                f"compress={self.compress!r} is about gradients that devices sum for a batch, and does nothing {why}."
            )
        for name in self.zero_over or ():
            known_dimension(name, mesh, "zero_over")
            if name not in batch:
                raise InvalidValueError(
                    f"zero_over={'+'.join(self.zero_over or ())!r}: batches are split over {list(batch)}, not over "
                    f"{name!r}. States can be split over dimensions of the batch only; add it to the rule of 'batch'."
                )
        if self.zero and not batch:
            raise InvalidValueError(
                f"zero={self.zero} splits states over the devices that share a batch, but no rule splits the batch. "
                "Pass rules='batch:data', with the name of a mesh dimension."
            )
        if self.sequence is not None and not rules.get("sequence"):
            raise InvalidValueError(
                f"sequence={self.sequence!r} needs a rule that splits sequences, such as rules='batch:data, "
                "sequence:model'."
            )
        if self.pipeline is not None:
            over = self.stages.over
            known_dimension(over, mesh, "pipeline")
            if over in batch:
                raise InvalidValueError(
                    f"pipeline: the stages are to lie along {over!r}, which batches are split over already "
                    f"({list(batch)}). Give each a dimension of its own."
                )
            for name, dimensions in rules.items():
                if over in dimensions:
                    raise InvalidValueError(
                        f"pipeline: the stages are to lie along {over!r}, over which a rule splits {name!r}. Give the "
                        "stages a dimension of their own."
                    )

    @property
    def stages(self) -> Pipeline:
        """The pipeline, where there is one."""
        assert isinstance(self.pipeline, Pipeline)
        return self.pipeline

    @property
    def offloaded(self) -> dict[str, tuple[str, ...]]:
        """What is offloaded, each with the patterns of names of which it is."""
        return dict(self.offload)  # type: ignore[arg-type]

    @property
    def folders(self) -> dict[str, str]:
        """The folder in which each of what is offloaded lies in files; the others lie in the host's memory."""
        return dict(self.offload_to or ())  # type: ignore[arg-type]

    def offloads(self, what: str, name: str) -> bool:
        """Whether something lies in the host's memory, or in files.

        Args:
          what: "optimizer", "parameters" or "activations".
          name: the variable's or layer's name.
        """
        return any(re.match(p, name) for p in self.offloaded.get(what, ()))

    @property
    def in_region(self) -> bool:
        """Whether loss and gradients are computed device by device instead of by layouts alone."""
        return bool(
            self.zero
            or self.micro_batches > 1
            or self.recompute
            or self.pipeline
            or self.compress
            or "activations" in self.offloaded
        )

    def chosen(self) -> dict[str, Any]:
        """Those that differ from the defaults."""
        pairs = ((f.name, getattr(self, f.name), f.default) for f in dataclasses.fields(self))
        return {name: value for name, value, default in pairs if value != default}


def known_dimension(name: str, mesh: Mesh, where: str) -> None:
    """Checks that a mesh has a dimension.

    Args:
      name: the dimension.
      mesh: the mesh.
      where: what the error names.

    Raises:
      ValueError: when it has not.
    """
    if name not in mesh:
        raise InvalidValueError(
            f"{where}: the mesh has no dimension {name!r}; its dimensions are "
            f"{dict(zip(mesh.dim_names, mesh.shape(), strict=True))}."
        )


def _offloaded(given: Any) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """What is offloaded, each with the patterns of names of which it is."""
    if isinstance(given, str):
        given = (given,)
    if not isinstance(given, (Mapping, Sequence, set, frozenset)):
        raise InvalidValueError(
            f"offload must name some of {_OFFLOAD}, or be a dictionary from these to patterns of names, got {given!r}."
        )
    if not isinstance(given, Mapping):
        # As an object of this class has it already, or names of kinds.
        pairs = [(what, ".*") if isinstance(what, str) else tuple(what) for what in given]
        given = dict(pairs)
    found = []
    for what, patterns in given.items():
        _one_of("offload", what, _OFFLOAD)
        patterns = (patterns,) if isinstance(patterns, str) else tuple(patterns)
        for pattern in patterns:
            try:
                re.compile(pattern)
            except (re.error, TypeError) as error:
                raise InvalidValueError(
                    f"offload: {pattern!r} for {what!r} is no regular expression of names: {error}."
                ) from None
        found.append((what, patterns))
    return tuple(found)


def _folders(given: Any, offloaded: Mapping[str, Any]) -> tuple[tuple[str, str], ...] | None:
    """What lies in files, each with its folder."""
    if given is None:
        return None
    if isinstance(given, (str, os.PathLike)):
        if not offloaded:
            raise InvalidValueError(
                f"offload_to={os.fspath(given)!r} is where what is offloaded goes, but offload=() says of nothing that "
                "it is. Pass offload= some of 'optimizer', 'parameters' and 'activations'."
            )
        given = dict.fromkeys(offloaded, given)
    found = dict(given)
    for what in found:
        _one_of("offload_to", what, _OFFLOAD)
        if what not in offloaded:
            raise InvalidValueError(
                f"offload_to={found} has a folder for {what!r}, which offload={sorted(offloaded)} does not have. Add it "
                "there."
            )
    return tuple((what, os.fspath(folder)) for what, folder in found.items())


def _names(option: str, given: Any) -> tuple[str, ...]:
    """Names of mesh dimensions, once each."""
    names = given.split("+") if isinstance(given, str) else given
    if (
        not isinstance(names, Sequence)
        or not all(isinstance(name, str) for name in names)
        or len({*names}) < len(names)
    ):
        raise InvalidValueError(
            f"{option} must name mesh dimensions, each once, such as 'data' or 'node+data', got {given!r}."
        )
    return tuple(names)


def _at_least(name: str, value: Any, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InvalidValueError(f"{name} must be an integer of at least {least}, got {value!r}.")


def _one_of(name: str, value: Any, allowed: Sequence[Any], more: str = "") -> None:
    if isinstance(value, bool) or value not in allowed:
        known = ", ".join(map(repr, allowed))
        raise InvalidValueError(
            f"{name} must be one of {known}{' ' + more if more else ''}, got {value!r}."
        )
