"""`MeshStrategy`: models on a mesh of named dimensions, by rules and options."""

from __future__ import annotations

import re
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax

from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.runtime.import_paths import public_face
from meshflow.core.variables.variable import Variable
from meshflow.distribute.parallel.options import ParallelOptions
from meshflow.distribute.parallel.pipeline import (
    PipelinedStep,
    check_pipeline,
    pipeline_gradients,
    pipeline_predictions,
)
from meshflow.distribute.parallel.program import Gradients, LossProgram
from meshflow.distribute.parallel.region import region_gradients
from meshflow.distribute.parallel.report import StepReport
from meshflow.distribute.parallel.rules import Rules
from meshflow.distribute.parallel.zero import split
from meshflow.distribute.replicas.variables import MirroredVariable
from meshflow.distribute.strategy import Strategy, _check_roles
from meshflow.placement.batches import BatchPlacer
from meshflow.placement.file_store import FileStore
from meshflow.placement.layout import Layout, dimensions_of
from meshflow.placement.mesh import Mesh, jax_device, line
from meshflow.placement.scratch import Scratch

__all__ = ["MeshStrategy"]


# What finds plans, by name; planners stand on strategies and put themselves here.
planners: dict[str, Callable[..., None]] = {}
# The models that have steps under a strategy, the latest last, each with the strategy and the thread that made the step.
in_training: weakref.WeakKeyDictionary[Any, tuple[weakref.ref[MeshStrategy], int]] = (
    weakref.WeakKeyDictionary()
)


class MeshStrategy(Strategy):
    """Trains one model on all devices of a mesh, split as rules and options say.

    The script stays that of one device: `fit` sees the global batch, and variables are whole to who reads, saves
    or restores them. There is one replica, which all devices compute together.

    Args:
      mesh: a mesh of `tf.experimental.dtensor.create_mesh`; default the first device alone, as its dimension "data".
      rules: which mesh dimension the named dimensions of tensors are split over, as text ("batch:data, hidden:model"),
        a dictionary, or a `tf.keras.dtensor.experimental.LayoutMap`, whose mesh dimension "batch" or "data" then
        splits the batch. Layers name the axes of their weights.
      options: a `ParallelOptions`.
      plan: "auto" has mesh, rules and options found when training begins, for the model and batch that it begins with;
        until then everything is divided over this process's devices.
      hardware: for `plan="auto"`, the `tf.distribute.Hardware` to plan for; default this process's, measured.
      **choices: its fields, in its place.

    Raises:
      ValueError: for rules and options that the mesh does not fit.
      TypeError: for an unknown option.

    Example:
      >>> import meshflow as tf
      >>> mesh = tf.experimental.dtensor.create_mesh({"data": 2}, devices=["CPU:0", "CPU:1"])
      >>> strategy = tf.distribute.MeshStrategy(mesh, rules="batch:data", zero=3)
      >>> with strategy.scope():
      ...     model = tf.keras.Sequential([tf.keras.Input([4]), tf.keras.layers.Dense(2)])
      >>> tf.experimental.dtensor.fetch_layout(model.layers[0].kernel).sharding_specs
      ['data', 'unsharded']
    """

    def __init__(
        self,
        mesh: Mesh | None = None,
        rules: Any = "",
        options: ParallelOptions | None = None,
        plan: str | None = None,
        hardware: Any = None,
        **choices: Any,
    ) -> None:
        # What decides at the first training step, while nothing is decided.
        self._planner: Callable[[Any, Any], None] | None = None
        # The plan that was taken.
        self.plan: Any = None
        if plan is not None:
            if plan != "auto" or mesh is not None or rules or options is not None or choices:
                raise InvalidValueError(
                    f'MeshStrategy: plan={plan!r} must be "auto" and stand alone, or beside hardware=; it finds the mesh, '
                    "the rules and the options."
                )
            self._wait(hardware)
            return
        if hardware is not None:
            raise InvalidValueError('MeshStrategy: hardware= is for plan="auto".')
        if mesh is None:
            mesh = line((jax.local_devices()[0],), "data")
        if not isinstance(mesh, Mesh):
            raise InvalidValueError(
                f"MeshStrategy: expected a mesh of tf.experimental.dtensor.create_mesh, got {mesh!r}."
            )
        if options is not None and choices:
            raise InvalidValueError(
                f"MeshStrategy: pass options=, or its fields {sorted(choices)}, not both."
            )
        options = ParallelOptions.of(choices) if options is None else options
        if not isinstance(options, ParallelOptions):
            raise InvalidValueError(
                f"MeshStrategy: options must be a tf.distribute.ParallelOptions, got {options!r}."
            )
        self._begin(mesh, rules, options)

    def _wait(self, hardware: Any) -> None:
        """Divides everything over all devices, until the first training step tells what is best."""
        devices = tuple(jax.local_devices())
        self._begin(
            line(devices, "data"), "batch:data", ParallelOptions(zero=3 if len(devices) > 1 else 0)
        )
        self._planner = lambda model, batch: planners["auto"](self, model, batch, hardware)

    def decide(self, model: Any, batch: Any) -> None:
        """Takes the best plan for a model, if it is this strategy's to find one and none is taken yet.

        Args:
          model: a compiled model.
          batch: its first batch.
        """
        if self._planner is not None:
            planner, self._planner = self._planner, None
            planner(model, batch)

    def _begin(self, mesh: Mesh, rules: Any, options: ParallelOptions) -> None:
        shown = mesh.shown
        self._start([jax_device(d) for d in mesh.local_devices()], mesh)
        mesh.shown = shown
        self.places = True
        self.options = options
        self.layout_map = rules if hasattr(rules, "of_weight") else None
        if not isinstance(rules, Rules):
            rules = Rules(_batch_of(mesh) if self.layout_map is not None else rules, mesh)
        self.rules = rules
        self.batch_dimensions = self.rules.dimensions("batch")
        over = {name: self.rules.dimensions(name) for name in (*self.rules.over, "sequence")}
        self.options.check(mesh, self.batch_dimensions, over)
        if self.options.pipeline is not None:
            check_pipeline(self)
        self._placer = BatchPlacer(mesh, "+".join(self.batch_dimensions) or None)
        self._wanted: Layout | None = None
        # The mesh dimensions, beside those of batch and pipeline, over which weights have been split.
        self.rule_dimensions: set[str] = set()
        if self.options.sequence is not None:
            self.rule_dimensions |= {*self.rules.dimensions("sequence")}
        folders = self.options.folders
        stores = {folder: FileStore(folder, mesh) for folder in folders.values()}
        # What lies in files, and where; they count the bytes that steps read and write.
        self.files = {what: stores[folder] for what, folder in folders.items()}
        kept = self.files.get("activations")
        # Where activations wait that wait in files.
        self.scratch = None if kept is None else Scratch(kept)
        # The names of the weights that were made under it.
        self._trained: list[str] = []
        # Whether a batch has been divided; the first is as large as others.
        self.has_divided = False
        # The pipeline of the step that was traced last.
        self.pipelined: PipelinedStep | None = None

    @property
    def _replicas(self) -> int:
        return 1

    # ---- variables -------------------------------------------------------------------------

    @property
    def zero_dimensions(self) -> tuple[str, ...]:
        """The mesh dimensions that states, gradients and weights are split over; empty with zero=0."""
        if not self.options.zero:
            return ()
        return tuple(self.options.zero_over or self.batch_dimensions)

    def weight_layout(
        self, dims: Sequence[Sequence[str]] | None, shape: Sequence[int], what: str
    ) -> Layout:
        """How a weight lies by the rules, without what `zero` adds.

        Args:
          dims: for each axis the names that it goes by; None when it has none.
          shape: its shape.
          what: what errors call it.
        """
        if dims is None:
            return self.replicated(len(shape))
        return self.rules.layout(dims, shape, what)

    @contextmanager
    def laying(self, layout: Layout | None) -> Iterator[None]:
        """The variable made inside lies like this, and is split further by `zero`."""
        saved, self._wanted = self._wanted, layout
        try:
            yield
        finally:
            self._wanted = saved

    def _create_variable(self, next_creator: Callable[..., Variable], **kwargs: Any) -> Variable:
        _check_roles(kwargs)
        saved, context.variable_creators = context.variable_creators, []
        try:
            variable = MirroredVariable(**kwargs)
            if variable.dtype.name != "string":
                self._lay(variable, self._wanted)
        finally:
            context.variable_creators = saved
        variable._distribute_strategy = self  # type: ignore[attr-defined]
        return variable

    def _lay(self, variable: Variable, layout: Layout | None) -> None:
        layout = layout or self.replicated(variable.ndim)
        variable._ruled_layout = layout  # type: ignore[attr-defined]
        named = {d for spec in layout.sharding_specs for d in dimensions_of(spec, self.mesh)}
        pipeline = self.options.pipeline
        taken = {*self.batch_dimensions, *([] if pipeline is None else [self.options.stages.over])}
        self.rule_dimensions |= named - taken
        trained = variable.trainable and variable.dtype.is_floating
        if trained:
            self._trained.append(variable.name)
        if trained and self.options.pipeline is not None:
            # A step brings a stage's weights together on its devices.
            layout = split(layout, variable._shape, (self.options.stages.over,))
        parts = split(layout, variable._shape, self.zero_dimensions)
        own = parts if trained and self.options.zero == 3 else layout

        def place(what: str) -> tuple[str, FileStore | None]:
            if not (trained and self.options.offloads(what, variable.name)):
                return "device", None
            store = self.files.get(what)
            return ("host", None) if store is None else ("device", store)

        memory, store = place("parameters")
        variable._layout = own.in_memory(memory)
        if store is not None:
            variable._hold(store)
        if trained:
            memory, store = place("optimizer")
            variable._slot_layout = parts.in_memory(memory)  # type: ignore[attr-defined]
            variable._slot_store = store  # type: ignore[attr-defined]

    # ---- steps -----------------------------------------------------------------------------

    @property
    def computes_gradients(self) -> bool:
        """Whether Keras hands it the loss to differentiate, instead of differentiating the whole batch's."""
        return self.options.in_region

    @property
    def divides_batches(self) -> bool:
        """Whether devices have different rows, and could compute the gradients of these."""
        return bool(self.batch_dimensions)

    def gradients(self, program: LossProgram, x: Any, y: Any, sample_weight: Any) -> Gradients:
        """Loss and gradients of a global batch, while a step is traced.

        Args:
          program: the model's forward pass and loss.
          x: the inputs.
          y: the targets, or None.
          sample_weight: weights of the examples, or None.
        """
        if self.options.pipeline is not None:
            return pipeline_gradients(self, program, x, y, sample_weight)
        return region_gradients(self, program, x, y, sample_weight)

    @property
    def computes_predictions(self) -> bool:
        """Whether Keras hands it the forward pass of evaluation and prediction, too."""
        return self.options.pipeline is not None

    def predictions(self, program: LossProgram, x: Any, y: Any, sample_weight: Any) -> Gradients:
        """What a program notes and predicts for a global batch, without gradients; arguments as of `gradients`."""
        return pipeline_predictions(self, program, x, y, sample_weight)

    def explain(self, model: Any, *batch: Any) -> StepReport:
        """What a model's training step is and sends; nothing is run.

        Args:
          model: a compiled model of this strategy.
          *batch: one batch (x, y, sample_weight).

        Returns:
          A `StepReport`; print it, or look at its `pipeline` and `step`.

        Example:
          >>> import meshflow as tf
          >>> mesh = tf.experimental.dtensor.create_mesh({"stage": 2}, devices=["CPU:0", "CPU:1"])
          >>> strategy = tf.distribute.MeshStrategy(mesh, pipeline="stage", micro_batches=2)
          >>> with strategy.scope():
          ...     model = tf.keras.Sequential([tf.keras.Input([4]), tf.keras.layers.Dense(4), tf.keras.layers.Dense(1)])
          ...     model.compile("sgd", "mse")
          >>> report = strategy.explain(model, tf.ones([4, 4]), tf.ones([4, 1]))
          >>> report.pipeline.ticks, report.step.sent("collective-permute")
          (4, 256)
        """
        # What explains compiled steps stands on strategies; it is there for whoever gets here.
        step = public_face().experimental.dtensor.explain(model, *batch)
        made = self.pipelined
        return StepReport(None if made is None else made.report(), step)

    def trains(self, model: Any) -> None:
        """Keras calls it when it makes a step of a model.

        Args:
          model: the model.
        """
        in_training.pop(model, None)
        in_training[model] = weakref.ref(self), threading.get_ident()

    def warn_of_unused(self) -> None:
        """Warns of rules and patterns that no weight used; Keras calls it when a built model's step is made."""
        (self.rules if self.layout_map is None else self.layout_map).warn_of_unused()
        unused = [
            f"{what!r}: {pattern!r}"
            for what, patterns in self.options.offloaded.items()
            for pattern in patterns
            if what != "activations" and not any(re.match(pattern, name) for name in self._trained)
        ]
        if unused and self._trained:
            warnings.warn(
                f"MeshStrategy: no weight of a model has a name that begins with the patterns of offload={{"
                f"{', '.join(unused)}}}; its states stay on the devices.",
                stacklevel=2,
            )
            self._trained.clear()

    def __repr__(self) -> str:
        sizes = dict(zip(self.mesh.dim_names, self.mesh.shape(), strict=True))
        return f"<MeshStrategy on {sizes}, rules {str(self.rules)!r}, {self.options.chosen()}>"


def _batch_of(mesh: Mesh) -> dict[str, str]:
    name = next((n for n in mesh.dim_names if n in ("batch", "data", "replica")), None)
    return {} if name is None else {"batch": name}
