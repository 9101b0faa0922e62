"""`MeshStrategy`: training on a mesh of named dimensions, controlled by sharding rules and options."""

from __future__ import annotations

import math
import re
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import jax

from meshflow.core.runtime.context import context
from meshflow.core.runtime.errors import InvalidValueError
from meshflow.core.runtime.import_paths import get_public_package
from meshflow.core.variables.variable import Variable, get_value_shape
from meshflow.distribute.parallel.options import ParallelOptions
from meshflow.distribute.parallel.pipeline import PipelinedStep, check_pipeline
from meshflow.distribute.parallel.program import LossProgram, RegionResult
from meshflow.distribute.parallel.region import (
    PartitionedBatch,
    compute_region_gradients,
    partition_batch,
)
from meshflow.distribute.parallel.report import StepReport
from meshflow.distribute.parallel.rules import ShardingRules
from meshflow.distribute.parallel.step_region import run_step_in_shares
from meshflow.distribute.parallel.zero import shard_layout
from meshflow.distribute.replicas.variables import MirroredVariable
from meshflow.distribute.strategy import Strategy, _check_variable_options
from meshflow.environment.types import PyTree
from meshflow.placement.activation_files import ActivationFiles
from meshflow.placement.batches import BatchPlacer
from meshflow.placement.file_store import FileStore
from meshflow.placement.layout import Layout, list_spec_dimensions
from meshflow.placement.mesh import Mesh, create_1d_mesh, find_jax_device

if TYPE_CHECKING:
    from meshflow.distribute.parallel.planner.hardware import Hardware

# Types that `rules=` accepts; a `LayoutMap` is a class of Keras, which is a higher layer.
_RuleSource: TypeAlias = "str | Mapping[str, str | Sequence[str]] | ShardingRules | Any"


# Weights of fewer bytes that ZeRO cannot shard are not worth a warning.
_WARNED_BYTES = 1 << 20
# Planners by name. They are in a higher layer than strategies, so they register themselves here.
planners: dict[str, Callable[..., None]] = {}
# Models that have steps under a strategy, the latest last, each with the strategy and the thread
# that made the step.
training_models: weakref.WeakKeyDictionary[Any, tuple[weakref.ref[MeshStrategy], int]] = (
    weakref.WeakKeyDictionary()
)


class MeshStrategy(Strategy):
    """Strategy that trains one model on all devices of a mesh, sharded by rules and options.

    The script is the same as for one device: `fit` receives the global batch, and variables appear
    unsharded to code that reads, saves or restores them. There is one replica, which all devices
    compute together.

    Args:
      mesh: A mesh of `tf.experimental.dtensor.create_mesh`. Default: the first device, with the
        dimension "data".
      rules: Mesh dimensions that the named dimensions of tensors are split over, as text
        ("batch:data, hidden:model"), as a dictionary, or as a
        `tf.keras.dtensor.experimental.LayoutMap`; with a layout map, the mesh dimension "batch" or
        "data" splits the batch. Layers name the axes of their weights.
      options: A `ParallelOptions`.
      plan: "auto" finds the mesh, rules and options at the first training step, for its model and
        batch. Before it, all variables are sharded over this process's devices.
      hardware: `tf.distribute.Hardware` to plan for with `plan="auto"`. By default this process's
        devices are measured.
      **choices: Fields of `ParallelOptions`, instead of `options`.

    Raises:
      ValueError: If rules or options do not fit the mesh.
      TypeError: If an option is unknown.

    Example:
      >>> mesh = tf.experimental.dtensor.create_mesh({"data": 2}, devices=["CPU:0", "CPU:1"])
      >>> strategy = tf.distribute.MeshStrategy(mesh, rules="batch:data", zero=3)
      >>> with strategy.scope():
      ...     model = tf.keras.Sequential([tf.keras.Input([4]), tf.keras.layers.Dense(2)])
      >>> tf.experimental.dtensor.fetch_layout(model.layers[0].kernel).sharding_specs
      ['data', 'unsharded']
    """

    # Whether layers that normalize micro-batches by their own statistics warn about it, which they do once.
    warns_about_statistics = True

    def __init__(
        self,
        mesh: Mesh | None = None,
        rules: _RuleSource = "",
        options: ParallelOptions | None = None,
        plan: str | None = None,
        hardware: Hardware | None = None,
        **choices: Any,
    ) -> None:
        # The planner runs at the first training step and is None afterwards.
        self._planner: Callable[[Any, PyTree], None] | None = None
        # The plan that was chosen.
        self.plan: Any = None
        if plan is not None:
            if plan != "auto" or mesh is not None or rules or options is not None or choices:
                raise InvalidValueError(
                    f'MeshStrategy: plan={plan!r} must be "auto", and only hardware= can be passed with it; it chooses '
                    "the mesh, the rules and the options."
                )
            self._defer_planning(hardware)
            return
        if hardware is not None:
            raise InvalidValueError('MeshStrategy: hardware= is for plan="auto"; pass both.')
        if mesh is None:
            mesh = create_1d_mesh((jax.local_devices()[0],), "data")
        if not isinstance(mesh, Mesh):
            raise InvalidValueError(
                f"MeshStrategy: expected a mesh of tf.experimental.dtensor.create_mesh, got {mesh!r}."
            )
        if options is not None and choices:
            raise InvalidValueError(
                f"MeshStrategy: pass options=, or its fields {sorted(choices)}, not both."
            )
        options = ParallelOptions.from_kwargs(choices) if options is None else options
        if not isinstance(options, ParallelOptions):
            raise InvalidValueError(
                f"MeshStrategy: options must be a tf.distribute.ParallelOptions, got {options!r}."
            )
        self.configure(mesh, rules, options)

    def _defer_planning(self, hardware: Hardware | None) -> None:
        """Shard all variables over all devices until the first training step chooses a plan."""
        devices = tuple(jax.local_devices())
        self.configure(
            create_1d_mesh(devices, "data"),
            "batch:data",
            ParallelOptions(zero=3 if len(devices) > 1 else 0),
        )
        self._planner = lambda model, batch: planners["auto"](self, model, batch, hardware)

    def run_planner(self, model: Any, batch: PyTree) -> None:
        """Choose the best plan for a model if this strategy has `plan="auto"` and no plan yet.

        Args:
          model: A compiled model.
          batch: Its first batch.
        """
        if self._planner is not None:
            planner, self._planner = self._planner, None
            planner(model, batch)

    def configure(self, mesh: Mesh, rules: _RuleSource, options: ParallelOptions) -> None:
        """Set the mesh, the rules and the options.

        Args:
          mesh: The mesh.
          rules: The rules, an argument of `ShardingRules`, or a `LayoutMap`.
          options: The options.
        """
        shown = mesh.is_printed
        self._initialize([find_jax_device(d) for d in mesh.local_devices()], mesh)
        mesh.is_printed = shown
        self.needs_placement = True
        self.options = options
        self.layout_map: Any = rules if hasattr(rules, "get_weight_layout") else None
        if not isinstance(rules, ShardingRules):
            rules = ShardingRules(
                _make_batch_rule(mesh) if self.layout_map is not None else rules, mesh
            )
        self.rules: ShardingRules = rules
        self.batch_dimensions = self.rules.dimensions("batch")
        over = {name: self.rules.dimensions(name) for name in (*self.rules.targets, "sequence")}
        self.options.check_mesh(mesh, self.batch_dimensions, over)
        if self.options.pipeline is not None:
            check_pipeline(self.options, self.mesh)
        self._placer = BatchPlacer(mesh, "+".join(self.batch_dimensions) or None)
        self._requested_layout: Layout | None = None
        # Mesh dimensions, other than those of the batch and the pipeline, over which weights have
        # been split.
        self.rule_dimensions: set[str] = set()
        if self.options.sequence is not None:
            self.rule_dimensions |= {*self.rules.dimensions("sequence")}
        folders = self.options.offload_folders
        stores = {folder: FileStore(folder, mesh) for folder in folders.values()}
        # The files of each kind of offloaded value; they count the bytes that steps read and write.
        self.files = {kind: stores[folder] for kind, folder in folders.items()}
        activation_files = self.files.get("activations")
        # Offloaded activations wait in these files for the backward pass.
        self.scratch = None if activation_files is None else ActivationFiles(activation_files)
        # Names of the weights that were made under this strategy.
        self._trained_names: list[str] = []
        # Bytes of the trained weights, and bytes and names of those that ZeRO cannot shard.
        self._trained_bytes = 0
        self._whole_weights: list[tuple[int, str]] = []
        # Whether a batch has been partitioned; the first batch has the size of all others but the last.
        self.has_divided = False
        # The pipeline of the step that was traced last.
        self.pipelined: PipelinedStep | None = None

    @property
    def _num_replicas(self) -> int:
        return 1

    # ---- variables -------------------------------------------------------------------------

    @property
    def zero_dimensions(self) -> tuple[str, ...]:
        """Return the mesh dimensions that ZeRO shards over; empty with `zero=0`."""
        if not self.options.zero:
            return ()
        return tuple(self.options.zero_over or self.batch_dimensions)

    def resolve_weight_layout(
        self, dims: Sequence[Sequence[str]] | None, shape: Sequence[int], description: str
    ) -> Layout:
        """Return the layout of a weight by the rules, without the dimensions that ZeRO adds.

        Args:
          dims: Names of each axis; None if the axes have no names.
          shape: Shape of the weight.
          description: Description of the weight for error messages.

        Returns:
          The layout.
        """
        if dims is None:
            return self.get_replicated_layout(len(shape))
        return self.rules.resolve_layout(dims, shape, description)

    @contextmanager
    def variable_layout_scope(self, layout: Layout | None) -> Iterator[None]:
        """Create variables with this layout while the context is open; ZeRO shards them further.

        Args:
          layout: The layout, or None for replicated variables.
        """
        saved, self._requested_layout = self._requested_layout, layout
        try:
            yield
        finally:
            self._requested_layout = saved

    def _create_variable(self, next_creator: Callable[..., Variable], **kwargs: Any) -> Variable:
        _check_variable_options(kwargs)
        saved, context.variable_creators = context.variable_creators, []
        try:
            variable = MirroredVariable(**kwargs)
            if variable.dtype.name != "string":
                self.assign_layout(variable, self._requested_layout)
        finally:
            context.variable_creators = saved
        variable._distribute_strategy = self  # type: ignore[attr-defined]
        return variable

    def assign_layout(self, variable: Variable, layout: Layout | None) -> None:
        """Set the layouts of a variable and of its slots, and offload them if the options request it.

        Args:
          variable: The variable.
          layout: Its layout by the rules, or None for a replicated variable.
        """
        layout = layout or self.get_replicated_layout(variable.ndim)
        variable._ruled_layout = layout  # type: ignore[attr-defined]
        used = {d for spec in layout.sharding_specs for d in list_spec_dimensions(spec, self.mesh)}
        pipeline = self.options.pipeline
        taken = {
            *self.batch_dimensions,
            *([] if pipeline is None else [self.options.pipeline_options.over]),
        }
        self.rule_dimensions |= used - taken
        shape = get_value_shape(variable)
        is_trained = variable.trainable and variable.dtype.is_floating
        if is_trained:
            self._trained_names.append(variable.name)
        if is_trained and self.options.pipeline is not None:
            # A step gathers the weights of a stage on the devices of this stage.
            layout = shard_layout(layout, shape, (self.options.pipeline_options.over,))
        zero_layout = shard_layout(layout, shape, self.zero_dimensions)
        own_layout = zero_layout if is_trained and self.options.zero == 3 else layout
        if is_trained and self._count_zero_devices() > 1:
            size = math.prod(shape) * variable.dtype.size
            self._trained_bytes += size
            if zero_layout is layout and used.isdisjoint(self.zero_dimensions):
                self._whole_weights.append((size, variable.name))

        def find_memory(kind: str) -> tuple[str, FileStore | None]:
            if not (is_trained and self.options.is_offloaded(kind, variable.name)):
                return "device", None
            store = self.files.get(kind)
            return ("host", None) if store is None else ("device", store)

        memory, store = find_memory("parameters")
        variable.layout = own_layout.with_memory(memory)
        if store is not None:
            variable._move_to_file(store)
        if is_trained:
            memory, store = find_memory("optimizer")
            variable._slot_layout = zero_layout.with_memory(memory)  # type: ignore[attr-defined]
            variable._slot_store = store  # type: ignore[attr-defined]

    # ---- steps -----------------------------------------------------------------------------

    @property
    def computes_gradients(self) -> bool:
        """Whether this strategy, instead of Keras, differentiates the loss."""
        return self.options.uses_region

    @property
    def divides_batches(self) -> bool:
        """Whether devices have different examples, so that gradients of shares exist."""
        return bool(self.batch_dimensions)

    def compute_gradients(
        self, program: LossProgram, x: PyTree, y: PyTree, sample_weight: PyTree
    ) -> RegionResult:
        """Compute loss and gradients of a global batch while a step is traced.

        Args:
          program: Forward pass and loss of the model.
          x: Inputs.
          y: Targets, or None.
          sample_weight: Weights of the examples, or None.

        Returns:
          The gradients, the values for metrics, and the predictions.
        """
        if self.options.pipeline is not None:
            self.pipelined = PipelinedStep(self, program, self._partition((x, y, sample_weight)))
            return self.pipelined.apply()
        return compute_region_gradients(self, program, x, y, sample_weight)

    def run_step(
        self,
        step: Callable[[PyTree], PyTree],
        batch: PyTree,
        list_layer_states: Callable[[], Sequence[Variable]],
        model: Any,
        find_programs: Callable[[Sequence[Variable]], Sequence[LossProgram]],
    ) -> tuple[PyTree, str | None]:
        """Run a training step that computes gradients itself; see `run_step_in_shares`."""
        return run_step_in_shares(self, step, batch, list_layer_states, model, find_programs)

    @property
    def computes_predictions(self) -> bool:
        """Whether Keras leaves the forward pass of evaluation and prediction to this strategy, too."""
        return self.options.pipeline is not None

    def compute_predictions(
        self, program: LossProgram, x: PyTree, y: PyTree, sample_weight: PyTree
    ) -> RegionResult:
        """Compute predictions and values for metrics of a global batch, without gradients.

        Args:
          program: Forward pass and loss of the model.
          x: Inputs.
          y: Targets, or None.
          sample_weight: Weights of the examples, or None.

        Returns:
          The values for metrics and the predictions.
        """
        batch = self._partition((x, y, sample_weight))
        return PipelinedStep(self, program, batch, trains=False).apply()

    def _partition(self, batch: PyTree) -> PartitionedBatch:
        devices = math.prod(self.mesh.dim_size(a) for a in self.batch_dimensions)
        return partition_batch(batch, devices, self.options.micro_batches)

    def explain(self, model: Any, *batch: PyTree) -> StepReport:
        """Describe a model's training step and the bytes that it sends; nothing is run.

        Args:
          model: A compiled model of this strategy.
          *batch: One batch (x, y, sample_weight).

        Returns:
          A `StepReport`, which can be printed; its attributes `pipeline` and `step` have the
          details.

        Example:
          >>> mesh = tf.experimental.dtensor.create_mesh({"stage": 2}, devices=["CPU:0", "CPU:1"])
          >>> strategy = tf.distribute.MeshStrategy(mesh, pipeline="stage", micro_batches=2)
          >>> with strategy.scope():
          ...     model = tf.keras.Sequential([tf.keras.Input([4]), tf.keras.layers.Dense(4), tf.keras.layers.Dense(1)])
          ...     model.compile("sgd", "mse")
          >>> report = strategy.explain(model, tf.ones([4, 4]), tf.ones([4, 1]))
          >>> report.pipeline.ticks, report.step.sent("collective-permute")
          (4, 128)
        """
        # The module that explains compiled steps is in a higher layer, so it is reached through the
        # public package.
        step = get_public_package().experimental.dtensor.explain(model, *batch)
        pipeline = self.pipelined
        return StepReport(None if pipeline is None else pipeline.make_report(), step)

    def register_training(self, model: Any) -> None:
        """Register that this thread makes a training step of a model; Keras calls this method.

        Args:
          model: The model.
        """
        training_models.pop(model, None)
        training_models[model] = weakref.ref(self), threading.get_ident()

    def _count_zero_devices(self) -> int:
        return math.prod(self.mesh.dim_size(d) for d in self.zero_dimensions)

    def _warn_of_whole_weights(self) -> None:
        """Warn if many weights have no axis that ZeRO can shard."""
        total, whole = self._trained_bytes, sum(size for size, _ in self._whole_weights)
        if whole >= _WARNED_BYTES and whole > total // 10:
            devices = self._count_zero_devices()
            _, largest = max(self._whole_weights)
            warnings.warn(
                f"MeshStrategy: zero={self.options.zero} does not shard {whole:,} of {total:,} bytes of weights, the largest of "
                f"which is {largest}: no axis of them has a size that is divisible by {devices}, the number of devices. "
                f"Use sizes that {devices} divides, or another number of devices.",
                stacklevel=3,
            )
        self._trained_bytes = 0
        self._whole_weights.clear()

    def warn_of_unused(self) -> None:
        """Warn about unused rules, offload patterns and sharding; Keras calls this for built models."""
        self._warn_of_whole_weights()
        (self.rules if self.layout_map is None else self.layout_map).warn_of_unused()
        unused = [
            f"{kind!r}: {pattern!r}"
            for kind, patterns in self.options.offload_patterns.items()
            for pattern in patterns
            if kind != "activations"
            and not any(re.match(pattern, name) for name in self._trained_names)
        ]
        if unused and self._trained_names:
            warnings.warn(
                f"MeshStrategy: no weight of a model has a name that begins with the patterns of offload={{"
                f"{', '.join(unused)}}}, so its states remain on the devices.",
                stacklevel=2,
            )
            self._trained_names.clear()

    def __repr__(self) -> str:
        sizes = dict(zip(self.mesh.dim_names, self.mesh.shape(), strict=True))
        return f"<MeshStrategy on {sizes}, rules {str(self.rules)!r}, {self.options.get_non_defaults()}>"


def _make_batch_rule(mesh: Mesh) -> dict[str, str]:
    name = next((n for n in mesh.dim_names if n in ("batch", "data", "replica")), None)
    return {} if name is None else {"batch": name}
