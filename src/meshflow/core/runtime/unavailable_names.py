"""Public names of TensorFlow 2.15 that Meshflow does not have, with the reasons."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from meshflow.core.runtime.errors import NotAvailableError

_GRAPHS = (
    "it belongs to a part of TensorFlow 1's graph mode that does not exist here. Use TensorFlow 2's API (eager execution, "
    "tf.function, tf.Variable, Keras)."
)
_QUEUES = "queues of input files belong to TensorFlow 1's graph mode; use tf.data."
# Names by the reason. A name covers the names below it, and those of `tf.compat.v1` with the same path.
_NAMES_BY_REASON: dict[str, str] = {
    "estimators are gone from TensorFlow, too; use tf.keras.": "estimator keras.estimator",
    "there are no graphs; see tf.function(...).get_concrete_function().graph.": (
        "__internal__.graph_util compat.v1.graph_util.must_run_on_cpu "
        "compat.v1.graph_util.tensor_shape_from_node_def_name"
    ),
    "write custom ops with jax.ffi or jax.experimental.pallas.": (
        "load_library load_op_library compat.v1.load_file_system_library compat.v1.user_ops "
        "compat.v1.resource_loader sysconfig.get_compile_flags sysconfig.get_link_flags"
    ),
    "use tf.RaggedTensor.to_tensor, whose rows may be empty.": "ragged_fill_empty_rows ragged_fill_empty_rows_grad",
    "use tf.experimental.dispatch_for_api and its relatives.": (
        "__internal__.dispatch.GlobalOpDispatcher"
    ),
    "see the MLIR of jax.jit(...).lower(...).": "mlir",
    "it places the variables of version 1's graphs. Variables created in the scope of a "
    "tf.distribute.ParameterServerStrategy are distributed over the parameter servers in turn, or placed by "
    "tf.device('/job:ps/task:0').": "train.replica_device_setter",
    "use keras-tuner's JAX support or TensorFlow Probability on JAX (tensorflow_probability.substrates.jax).": (
        "compat.v1.distributions"
    ),
    "use tf.profiler.experimental.": (
        "compat.v1.profiler.AdviceProto compat.v1.profiler.GraphNodeProto compat.v1.profiler.MultiGraphNodeProto "
        "compat.v1.profiler.OpLogProto compat.v1.profiler.ProfileOptionBuilder compat.v1.profiler.Profiler "
        "compat.v1.profiler.advise compat.v1.profiler.profile compat.v1.profiler.write_op_log"
    ),
    "use tf.debugging.enable_check_numerics, tf.print or tf.profiler.": "debugging.experimental",
    "file systems of fsspec are used directly: pass a URL.": "experimental.register_filesystem_plugin",
    "XLA compiles float operations; convert the model to LiteRT with tf.lite for integers.": (
        "quantization.experimental quantization.quantized_concat compat.v1.quantized_concat "
        "compat.v1.nn.quantized_avg_pool compat.v1.nn.quantized_conv2d compat.v1.nn.quantized_max_pool "
        "compat.v1.nn.quantized_relu_x compat.v1.train.do_quantize_training_on_graphdef"
    ),
    "use tf.distribute.ParameterServerStrategy, or Ray.": "distribute.experimental.rpc",
    "restart the job from its last checkpoint; tf.keras.callbacks.BackupAndRestore saves it on preemption.": (
        "distribute.experimental.PreemptionWatcher"
    ),
    "it tests TensorFlow's own strategies; start processes with meshflow launch.": (
        "__internal__.distribute.multi_process_runner __internal__.test.ParameterizedBenchmark "
        "test.create_local_cluster "
        + " ".join(
            f"__internal__.distribute.combinations.{name}"
            for name in (
                *("env", "in_main_process", "central_storage_strategy_with_gpu_and_cpu"),
                *("central_storage_strategy_with_two_gpus", "mirrored_strategy_with_two_cpus"),
                "mirrored_strategy_with_two_gpus_no_merge_call",
                *("multi_worker_mirrored_2x1_cpu", "multi_worker_mirrored_2x1_gpu"),
                *("multi_worker_mirrored_2x1_gpu_noshare", "multi_worker_mirrored_2x2_gpu"),
                "multi_worker_mirrored_2x2_gpu_no_merge_call",
                *(
                    f"parameter_server_strategy_{n}"
                    for n in ("1worker_2ps_1gpu", "1worker_2ps_cpu")
                ),
                *(
                    f"parameter_server_strategy_{n}"
                    for n in ("3worker_2ps_1gpu", "3worker_2ps_cpu")
                ),
                *("tpu_strategy_one_core", "tpu_strategy_packed_var"),
            )
        )
    ),
    "call its replacement: tf.nn.convolution(dilations=).": "nn.with_space_to_batch",
    "XLA has no quantized types; use the fake quantization of tf.quantization.": (
        "quantization.quantize quantization.dequantize compat.v1.quantize compat.v1.quantize_v2 compat.v1.dequantize"
    ),
    "Keras defines the variables of version 1's layers.": "compat.v1.layers.experimental",
    "batches of requests are formed by `meshflow serve`.": "nondifferentiable_batch_function",
    "serialized functions and objects of SavedModels are not public; use tf.saved_model.": (
        "__internal__.saved_model __internal__.tracking.CheckpointInitialValue "
        "__internal__.tracking.CheckpointInitialValueCallable __internal__.tracking.DelegatingTrackableMixin "
        "__internal__.tracking.ObjectGraphView __internal__.tracking.TrackableDataStructure "
        "__internal__.tracking.register_session_provider __internal__.tracking.saveable_objects_from_trackable "
        "__internal__.tracking.streaming_restore compat.v1.saved_model.signature_def_utils.MethodNameUpdater"
    ),
    "gradients are recorded by tf.GradientTape; use tf.custom_gradient.": "__internal__.record_gradient",
    "columns are computed by tf.keras.layers.DenseFeatures.": (
        "__internal__.feature_column.FeatureTransformationCache __internal__.feature_column.SequenceDenseColumn "
        "__internal__.feature_column.StateManager __internal__.feature_column.deserialize_feature_column"
    ),
    "no metric of Keras computes it in this form; use tf.keras.metrics.": " ".join(
        f"compat.v1.metrics.{n}"
        for n in (
            "average_precision_at_k",
            "mean_cosine_distance",
            "mean_per_class_accuracy",
            "percentage_below",
        )
        + ("precision_at_k", "precision_at_top_k", "recall_at_k", "recall_at_top_k")
        + ("sparse_average_precision_at_k", "sparse_precision_at_k")
    ),
    "converters of graphs with hints are gone; use tf.lite.TFLiteConverter.": (
        "compat.v1.lite.OpHint compat.v1.lite.toco_convert compat.v1.lite.experimental.convert_op_hints_to_stubs"
    ),
    "hooks of version 1's graphs.": "compat.v1.experimental.output_all_intermediates",
    "messages of graphs are read by tf.compat.v1.GraphDef and tf.io.": (
        "compat.v1.LogMessage compat.v1.NameAttrList"
    ),
    "no op of Meshflow computes it.": (
        "image.generate_bounding_box_proposals "
        "random.learned_unigram_candidate_sampler nn.learned_unigram_candidate_sampler "
        "compat.v1.sparse_matmul"
    ),
    "messages of other packages are parsed by their own Python classes, in tf.py_function.": (
        "io.decode_proto io.encode_proto"
    ),
    "it needs an estimator; save iterators with tf.train.Checkpoint(iterator=iterator).": (
        "data.experimental.CheckpointInputPipelineHook"
    ),
    "graphs are not compared; compare the results of functions.": "test.assert_equal_graph_def",
    "the number of steps is passed as compile(steps_per_execution=).": "keras.utils.StepsPerExecutionTuner",
    "TPUs are used through jit-compiled functions: tf.distribute.TPUStrategy.": " ".join(
        f"compat.v1.tpu.{n}"
        for n in ("CrossShardOptimizer", "PaddingSpec", "batch_parallel", "bfloat16_scope", "core")
        + ("cross_replica_sum", "initialize_system", "outside_compilation", "replicate", "rewrite")
        + ("shard", "shutdown_system", "experimental.embedding_column")
        + ("experimental.shared_embedding_columns", "experimental.AdagradParameters")
        + ("experimental.AdamParameters", "experimental.FtrlParameters")
        + ("experimental.StochasticGradientDescentParameters",)
    ),
}


def _expand(package: str, names: str) -> str:
    """Return paths below a package."""
    return " ".join(f"{package}.{name}" for name in names.split())


_NAMES_BY_REASON[_GRAPHS] = " ".join(
    (
        _expand(
            "compat.v1",
            "container delete_session_tensor get_session_handle get_session_tensor "
            "op_scope variable_op_scope "
            "create_partitioned_variables "
            "add_check_numerics_ops "
            "ConditionalAccumulator ConditionalAccumulatorBase "
            "SparseConditionalAccumulator sparse.SparseConditionalAccumulator "
            "errors.raise_exception_on_not_ok_status "
            "saved_model.signature_def_utils.MethodNameUpdater test.compute_gradient_error "
            "test.StubOutForTesting test.test_src_dir_path distribute.get_loss_reduction nn.raw_rnn "
            "nn.static_state_saving_rnn feature_column.input_layer feature_column.linear_model "
            "feature_column.shared_embedding_columns "
            "summary.SummaryDescription summary.TaggedRunMetadata summary.all_v2_summary_ops "
            "summary.get_summary_description summary.initialize "
            "summary.tensor_summary "
            "train.experimental.MixedPrecisionLossScaleOptimizer",
        ),
        _expand(
            "compat.v1.train",
            "Supervisor SessionManager QueueRunner warm_start LooperThread "
            "ProfilerHook SaverDef Server SyncReplicasOptimizer VocabInfo "
            "sdca_fprint sdca_optimizer sdca_shrink_l1",
        ),
        "__internal__.create_c_op __internal__.lift_to_graph",
    )
)
_NAMES_BY_REASON[_QUEUES] = _expand(
    "compat.v1",
    " ".join(
        f"train.{n}"
        for n in ("add_queue_runner", "batch", "batch_join", "input_producer", "limit_epochs")
        + ("match_filenames_once", "maybe_batch", "maybe_batch_join", "maybe_shuffle_batch")
        + ("maybe_shuffle_batch_join", "queue_runner", "range_input_producer", "shuffle_batch")
        + ("shuffle_batch_join", "slice_input_producer", "string_input_producer")
    ),
)
REASONS: dict[str, str] = {
    name: reason for reason, names in _NAMES_BY_REASON.items() for name in names.split()
}


def raise_if_unavailable(name: str, package: str = "tf") -> None:
    """Raise an error if a name of TensorFlow is not available; do nothing for any other name.

    Args:
      name: The name.
      package: Public path of its namespace.

    Raises:
      NotAvailableError: If the name is not available; the message describes a replacement. It is an
        `AttributeError`, too.
    """
    path = f"{package}.{name}".removeprefix("tf.")
    reason = REASONS.get(path) or REASONS.get(path.removeprefix("compat.v1."))
    if reason is not None:
        raise NotAvailableError(f"{package}.{name}: {reason}")


def explain_names(
    package: str, lazy_names: Mapping[str, str] = MappingProxyType({})
) -> Callable[[str], Any]:
    """Return the `__getattr__` of a namespace, which explains names that are not available.

    Args:
      package: Public path of the namespace, such as "tf.image".
      lazy_names: Modules by the names that are loaded from them on first use; a module that does not have the name
        is the value itself. A name in a module may follow a colon.
    """

    def load(name: str) -> Any:
        if name in lazy_names:
            path, _, attribute = lazy_names[name].partition(":")
            module = importlib.import_module(path)
            return getattr(module, attribute or name, module)
        raise_if_unavailable(name, package)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return load
