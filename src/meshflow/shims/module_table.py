"""Table from TensorFlow's private modules to the equivalent public names.

An entry describes the module and all modules below it. It lists namespaces, which are searched in
order, and explicit names as `name=object`, which apply to this module only. `tf.nn` is a public
module of Meshflow, and other names contain the full name of a Python module. Private names often have a public
namesake in TensorFlow, so a namespace suffices for most modules; the ending of `DatasetV2` or
`softmax_v2` is ignored.
"""

from __future__ import annotations

__all__ = [
    "CLASS_MODULES",
    "EMPTY_MODULES",
    "MODULES",
    "PACKAGES",
    "PRIVATE_PREFIXES",
    "REMOVED_MODULES",
    "RENAMED_PREFIXES",
]

# Modules below these names may have any name.
PRIVATE_PREFIXES = (
    "keras.src.",
    "tensorflow.compat.v1.python.",
    "tensorflow.compat.v2.python.",
    "tensorflow.compiler.",
    "tensorflow.core.",
    "tensorflow.lite.python.",
    "tensorflow.python.",
    "tensorflow.tools.",
    "tensorflow_estimator.",
    "tf_keras.src.",
)
# Copies of modules under other names, and their names in `MODULES`; the first matching prefix counts.
RENAMED_PREFIXES = {
    "tensorflow.python.keras": "keras.src",
    "tensorflow.compat.v1.python.keras": "keras.src",
    "tensorflow.compat.v2.python.keras": "keras.src",
    "tensorflow.python.training.tracking": "python.trackable",
    "tensorflow.python": "python",
    "tensorflow.compat.v1.python": "python",
    "tensorflow.compat.v2.python": "python",
    "tensorflow.core": "core",
    "tensorflow.lite.python": "lite.python",
    "tensorflow.tools": "tools",
    "tensorflow.compiler": "compiler",
    "tensorflow_estimator.python": "estimator",
    "tensorflow_estimator": "estimator",
    "tensorflow": "tf",
    "tf_keras.src": "keras.src",
    "tf_keras": "keras.src",
    "keras.src": "keras.src",
    "keras": "keras.src",
}
# Modules of TensorFlow 1 that TensorFlow 2 does not have.
REMOVED_MODULES = {
    "tensorflow.contrib": "TensorFlow 2 does not have tf.contrib. See tf.keras, tf.data, tf.distribute and "
    "packages such as tf-slim for its replacements.",
    "tensorflow.examples": "TensorFlow's examples are not part of its package. Load datasets from "
    "tf.keras.datasets.",
}
# Modules without names, because programs check by them for TensorFlow 1.
EMPTY_MODULES = frozenset({"python.pywrap_tensorflow", "python.pywrap_tensorflow_internal"})
# Modules with modules as attributes.
PACKAGES = frozenset(
    """
    python python.autograph python.autograph.core python.autograph.impl python.autograph.converters
    python.autograph.pyct python.autograph.pyct.common_transformers python.autograph.pyct.static_analysis python.checkpoint python.client
    python.compat python.compiler python.data python.data.experimental python.data.experimental.ops python.data.ops
    python.data.util python.debug python.distribute python.distribute.cluster_resolver python.eager
    python.eager.polymorphic_function python.feature_column python.framework python.grappler python.layers
    python.lib python.lib.core python.lib.io python.module python.ops python.ops.distributions
    python.ops.linalg python.ops.losses python.ops.numpy_ops python.ops.parallel_for python.ops.ragged
    python.ops.signal python.ops.structured python.platform python.profiler python.saved_model
    python.saved_model.model_utils python.summary python.summary.writer python.tools python.tpu python.trackable python.training
    python.training.experimental python.training.saving python.types python.user_ops python.util
    core core.example core.framework core.protobuf core.util core.protobuf.tpu core.profiler
    lite.python compiler compiler.tf2xla compiler.tf2xla.python compiler.xla compiler.tf2tensorrt
    tools tools.docs tools.compatibility estimator
    keras.src keras.src.applications keras.src.distribute keras.src.engine keras.src.layers
    keras.src.layers.preprocessing keras.src.legacy_tf_layers keras.src.mixed_precision keras.src.optimizer_v2
    keras.src.optimizers keras.src.premade_models keras.src.saving keras.src.saving.legacy
    keras.src.saving.saved_model keras.src.saving.legacy.saved_model keras.src.testing_infra keras.src.utils
    keras.src.optimizers.schedules keras.src.optimizers.legacy
    """.split()  # noqa: SIM905 - the list would have seventy lines
)

_HELPERS = "meshflow.shims.private_helpers"
_TESTS = "meshflow.shims.framework_tests"
_SESSION_MODELS = "meshflow.legacy.compat.saved_model_sessions"
_STRUCTURES = "meshflow.saved_model.graph.format.structured_values"
_STRATEGIES = "meshflow.shims.strategy_combinations"
_STRATEGY_HELPERS = "meshflow.legacy.private_strategies"
_CHECKPOINTS = "meshflow.legacy.private_checkpoints"
_DATA = "meshflow.legacy.private_data"
_COMBINATIONS = "meshflow.shims.test_combinations"
_INSTANCES = "meshflow.keras.engine.graph.instance_layers"
_TEST_NAMES = f"tf.test tf.compat.v1.test {_TESTS} main=tf.test.main mock=unittest.mock"
_KERAS_DECORATORS = "meshflow.shims.keras_test_decorators"
_KERAS_TESTS = "meshflow.shims.keras_test_helpers"
_KERAS_HELPERS = "meshflow.legacy.private_keras"
_CELL_DROPOUT = "DropoutRNNCellMixin=meshflow.keras.layers.cell_dropout:DropoutRNNCellMixin"
_FANS = "_compute_fans=meshflow.keras.initializers:compute_fans compute_fans=meshflow.keras.initializers:compute_fans"
# Modules of `keras` in its earlier versions that `MODULES` does not list.
_KERAS_MODULES = """
    engine.functional engine.input_layer engine.input_spec engine.node engine.sequential engine.topology
    engine.training engine.training_utils engine.training_v1 engine.base_layer_v1 layers.advanced_activations
    layers.convolutional layers.core layers.embeddings layers.local layers.merge layers.noise
    layers.normalization layers.pooling layers.recurrent layers.rnn layers.wrappers metrics.base_metric metrics.metrics
    mixed_precision.loss_scale_optimizer mixed_precision.policy optimizers.optimizer
    optimizers.schedules.learning_rate_schedule saving.hdf5_format saving.model_config
    saving.object_registration saving.save saving.saving_utils saving.legacy.hdf5_format saving.legacy.save
    saving.saving_api saving.saving_lib utils.control_flow_util utils.conv_utils utils.data_utils
    utils.generic_utils utils.io_utils utils.layer_utils utils.metrics_utils utils.multi_gpu_utils
    utils.np_utils utils.tf_utils utils.version_utils utils.vis_utils
""".split()  # noqa: SIM905 - the list would have fifty lines
MODULES = {
    **dict.fromkeys((f"keras.src.{name}" for name in _KERAS_MODULES), ""),
    # TensorFlow.
    "python": "tf tf.compat.v1",
    "python.autograph": "tf.autograph tf.autograph.experimental",
    "python.autograph.core.converter": "Base=ast:NodeTransformer",
    "python.autograph.pyct.transformer": "Base=ast:NodeTransformer",
    "python.checkpoint": f"{_CHECKPOINTS} tf.train tf.train.experimental tf.compat.v1.train",
    "python.client": "tf.compat.v1",
    "python.client.device_lib": f"list_local_devices={_HELPERS}:list_local_devices",
    "python.compat.compat": "tf.compat",
    "python.compat.v2_compat": "tf.compat.v1",
    "python.data": "tf.data tf.data.experimental",
    "python.data.experimental.ops.cardinality": "UNKNOWN=tf.data.UNKNOWN_CARDINALITY "
    "INFINITE=tf.data.INFINITE_CARDINALITY",
    "python.data.experimental.ops.distribute": _DATA,
    "python.data.experimental.ops.io": "tf.data.experimental",
    "python.data.experimental.ops.snapshot": _DATA,
    "python.data.ops.dataset_ops": f"{_DATA} "
    "UNKNOWN=tf.data.UNKNOWN_CARDINALITY INFINITE=tf.data.INFINITE_CARDINALITY "
    "make_one_shot_iterator=tf.compat.v1.data.make_one_shot_iterator "
    "make_initializable_iterator=tf.compat.v1.data.make_initializable_iterator "
    "get_legacy_output_types=tf.compat.v1.data.get_output_types "
    "get_legacy_output_shapes=tf.compat.v1.data.get_output_shapes "
    "get_legacy_output_classes=tf.compat.v1.data.get_output_classes",
    "python.data.ops.iterator_ops": "Iterator=tf.compat.v1.data.Iterator IteratorBase=tf.data.Iterator OwnedIterator=tf.data.Iterator",
    "python.data.ops.debug_mode": _DATA,
    "python.data.ops.optional_ops": "_OptionalImpl=tf.experimental.Optional",
    "python.data.ops.readers": "_TFRecordDataset=tf.data.TFRecordDataset",
    "python.data.ops.test_mode": _DATA,
    "python.data.util": f"{_DATA} tf.nest",
    "python.data.util.random_seed": _DATA,
    "python.data.util.sparse": _DATA,
    "python.data.util.nest": f"{_DATA} tf.nest {_HELPERS}",
    "python.data.util.structure": "type_spec_from_value=tf.type_spec_from_value",
    "python.distribute": "tf.distribute tf.distribute.experimental",
    "python.distribute.cluster_resolver": "tf.distribute.cluster_resolver",
    "python.distribute.distribute_lib": _STRATEGY_HELPERS,
    "python.distribute.distribute_utils": _STRATEGY_HELPERS,
    "python.distribute.combinations": f"{_STRATEGIES} {_COMBINATIONS}",
    "python.distribute.strategy_combinations": f"{_STRATEGIES} {_COMBINATIONS} {_HELPERS}",
    "python.distribute.test_util": f"{_STRATEGIES} {_HELPERS}",
    "python.distribute.values": f"{_STRATEGY_HELPERS} meshflow.distribute.replicas.values",
    "python.eager": "tf tf.compat.v1",
    "python.eager.backprop": "tf tf.autodiff meshflow.shims.gradient_functions",
    "python.eager.context": f"{_HELPERS} tf.config tf.config.experimental "
    f"num_gpus={_HELPERS}:count_gpus global_seed=meshflow.core.variables.random_streams:get_global_seed "
    "in_eager_mode=tf.executing_eagerly",
    "python.eager.def_function": "Function=tf.types.experimental.GenericFunction",
    "python.eager.function": "defun=tf.function ConcreteFunction=tf.types.experimental.ConcreteFunction",
    "python.eager.test": _TEST_NAMES,
    "python.eager.monitoring": f"{_HELPERS}",
    "python.feature_column": "tf.feature_column",
    "python.feature_column.dense_features": "DenseFeatures=tf.keras.layers.DenseFeatures",
    "python.framework": "tf tf.dtypes tf.errors tf.compat.v1",
    "python.framework.combinations": _COMBINATIONS,
    "python.framework.composite_tensor": "CompositeTensor=meshflow.core.values.composite:CompositeTensor",
    "python.framework.composite_tensor_gradient": _HELPERS,
    "python.framework.config": "tf.config tf.config.experimental "
    "disable_op_determinism=meshflow.core.runtime.determinism:disable "
    "is_op_determinism_enabled=meshflow.core.runtime.determinism:is_enabled",
    "python.framework.dtypes": "bool=tf.bool",
    "python.framework.errors": "tf.errors",
    "python.framework.errors_impl": "tf.errors",
    "python.framework.func_graph": "FuncGraph=tf.__internal__.FuncGraph",
    "python.framework.graph_util": "tf.compat.v1.graph_util",
    "python.framework.convert_to_constants": "meshflow.saved_model.graph.writing.frozen_graphs",
    "python.framework.importer": "tf.graph_util",
    "python.framework.ops": "enable_eager_execution_internal=tf.compat.v1.enable_eager_execution EagerTensor=tf.Tensor _EagerTensorBase=tf.Tensor Tensor=tf.Tensor "
    f"RegisterStatistics={_HELPERS}:ignore_decorator numpy_text={_HELPERS}:numpy_text "
    f"register_dense_tensor_like_type={_HELPERS}:ignore_decorator "
    f"convert_to_tensor_or_composite={_HELPERS}:convert_to_tensor_or_composite "
    "convert_to_tensor_v2_with_dispatch=tf.convert_to_tensor internal_convert_to_tensor=tf.convert_to_tensor "
    "executing_eagerly_outside_functions=tf.compat.v1.executing_eagerly_outside_functions "
    "name_scope=tf.compat.v1.name_scope name_scope_v1=tf.compat.v1.name_scope name_scope_v2=tf.name_scope "
    "inside_function=tf.inside_function is_dense_tensor_like=tf.is_tensor",
    "python.framework.extension_type": "meshflow.experimental.extension_types",
    "python.framework.extension_type_field": "meshflow.experimental.extension_fields "
    "_convert_value=meshflow.experimental.extension_fields:convert_value "
    "_ConversionContext=meshflow.experimental.extension_fields:ConversionContext",
    "python.framework.immutable_dict": "ImmutableDict=meshflow.experimental.extension_fields:ImmutableDict",
    "python.framework.indexed_slices": "IndexedSlicesValue=meshflow.test.case:IndexedSlicesValue",
    "python.framework.random_seed": "tf.random tf.compat.v1.random",
    "python.framework.smart_cond": f"{_HELPERS}",
    "python.framework.sparse_tensor": f"is_sparse={_HELPERS}:is_sparse",
    "python.framework.tensor_shape": f"tf.compat tf.compat.v1 as_shape=tf.TensorShape as_dimension=tf.compat.v1.Dimension unknown_shape={_HELPERS}:unknown_shape",
    "python.framework.tensor_spec": f"DenseSpec=tf.TensorSpec {_HELPERS}",
    "python.framework.type_spec": f"BatchableTypeSpec=meshflow.core.values.composite:BatchableSpec {_HELPERS} "
    "register_type_spec_from_value_converter="
    "meshflow.core.values.specs:register_type_spec_from_value_converter",
    "python.framework.type_spec_registry": f"{_HELPERS}",
    "python.framework.test_combinations": _COMBINATIONS,
    "python.framework.tensor_util": "constant_value=tf.get_static_value is_tensor=tf.is_tensor "
    "is_tf_type=tf.is_tensor MakeNdarray=tf.make_ndarray "
    f"constant_value_as_shape={_HELPERS}:constant_value_as_shape try_evaluate_constant=tf.get_static_value",
    "python.framework.test_util": f"TensorFlowTestCase=tf.test.TestCase {_TESTS} {_HELPERS} {_COMBINATIONS} tf.test",
    "python.framework.versions": "VERSION=tf.__version__ __version__=tf.__version__ "
    "__git_version__=tf.version.GIT_VERSION __compiler_version__=tf.version.COMPILER_VERSION",
    "python.keras": "tf.keras",
    "python.layers": "tf.compat.v1.layers tf.keras.layers",
    "python.layers.convolutional": " ".join(
        f"{name.replace('Conv', 'Convolution')}=tf.compat.v1.layers.{name}"
        for name in (
            *("Conv1D", "Conv2D", "Conv2DTranspose", "Conv3D", "Conv3DTranspose"),
            *("SeparableConv1D", "SeparableConv2D"),
        )
    ),
    "python.layers.utils": f"{_KERAS_HELPERS} {_HELPERS}",
    "python.lib": "tf.io",
    "python.lib.io.file_io": "tf.io.gfile FileIO=tf.io.gfile.GFile file_exists=tf.io.gfile.exists "
    "is_directory=tf.io.gfile.isdir recursive_create_dir=tf.io.gfile.makedirs "
    "create_dir=tf.io.gfile.mkdir delete_file=tf.io.gfile.remove delete_recursively=tf.io.gfile.rmtree "
    f"list_directory=tf.io.gfile.listdir get_matching_files=tf.io.gfile.glob {_HELPERS}",
    "python.lib.io.tf_record": "tf.compat.v1.python_io",
    "python.lib.io.python_io": "tf.compat.v1.python_io",
    "python.module": "tf",
    "python.module.module": f"_is_variable={_HELPERS}:is_variable",
    "python.ops": "tf tf.math tf.nn tf.linalg tf.image tf.strings tf.random tf.sparse tf.io tf.bitwise tf.signal "
    "tf.sets tf.lookup tf.debugging tf.compat.v1 tf.compat.v1.nn tf.raw_ops",
    "python.ops.array_ops": "diag=tf.linalg.tensor_diag diag_part=tf.linalg.tensor_diag_part "
    "shape_internal=tf.shape size_internal=tf.size rank_internal=tf.rank "
    "shape_v2=tf.shape where_v2=tf.where",
    "python.ops.check_ops": "tf.debugging tf.compat.v1.debugging",
    "python.ops.control_flow_ops": f"tf tf.compat.v1 with_dependencies={_HELPERS}:with_dependencies",
    "python.ops.confusion_matrix": f"{_HELPERS}",
    "python.ops.control_flow_util": f"{_HELPERS}",
    "python.ops.control_flow_util_v2": f"{_HELPERS}",
    "python.ops.data_flow_ops": "tf.queue",
    "python.ops.distributions": "tf.compat.v1.distributions",
    "python.ops.gradient_checker": "meshflow.shims.gradient_checker",
    "python.ops.gradient_checker_v2": "compute_gradient=meshflow.shims.gradient_checker:compute_function_gradient "
    "tf.test max_error=meshflow.test.gradients:find_max_error",
    "python.ops.image_ops": "resize_images=tf.compat.v1.image.resize_images tf.image tf.compat.v1.image",
    "python.ops.image_ops_impl": "tf.image tf.compat.v1.image",
    "python.ops.init_ops": f"tf.compat.v1.initializers tf.compat.v1 {_FANS}",
    "python.ops.init_ops_v2": f"tf.keras.initializers {_FANS}",
    "python.ops.io_ops": "tf.io",
    "python.ops.linalg": "tf.linalg",
    "python.ops.linalg.linear_operator": f"tf.linalg {_HELPERS}",
    "python.ops.linalg_ops": "tf.linalg",
    "python.ops.lookup_ops": "tf.lookup tf.lookup.experimental HashTable=tf.compat.v1.lookup.StaticHashTable",
    "python.ops.losses": "tf.compat.v1.losses",
    "python.ops.map_fn": "map_fn=tf.map_fn",
    "python.ops.math_ops": "tf tf.math tf.compat.v1 range=tf.range sum=tf.reduce_sum "
    "reduce_sum_v1=tf.compat.v1.reduce_sum reduce_mean_v1=tf.compat.v1.reduce_mean "
    "reduce_max_v1=tf.compat.v1.reduce_max mul=tf.multiply div=tf.compat.v1.div "
    "argmax=tf.compat.v1.argmax argmin=tf.compat.v1.argmin count_nonzero=tf.compat.v1.count_nonzero",
    # Names without a version, such as `pool`, are functions of version 1 in these modules.
    "python.ops.nn": "tf.compat.v1.nn tf.nn",
    "python.ops.nn_impl": "tf.compat.v1.nn tf.nn",
    "python.ops.nn_ops": f"tf.compat.v1.nn tf.nn {_HELPERS}",
    "python.ops.numpy_ops": "tf.experimental.numpy",
    "python.ops.numpy_ops.np_config": "enable_numpy_behavior=tf.experimental.numpy.experimental_enable_numpy_behavior",
    "python.ops.parallel_for": "tf.experimental",
    "python.ops.parallel_for.control_flow_ops": f"vectorized_map=tf.vectorized_map pfor={_HELPERS}:pfor for_loop={_HELPERS}:for_loop",
    "python.ops.parsing_ops": "tf.io",
    "python.ops.ragged": "tf.ragged meshflow.ops.ragged.arrays meshflow.ops.ragged tf.experimental tf",
    "python.ops.ragged.ragged_array_ops": "bitcast=tf.bitcast ones=tf.ones ragged_one_hot=tf.one_hot "
    "ragged_reshape=tf.reshape rank=tf.rank zeros=tf.zeros",
    "python.ops.ragged.ragged_batch_gather_ops": "batch_gather=tf.compat.v1.batch_gather",
    "python.ops.ragged.ragged_conversion_ops": "from_tensor=tf.RaggedTensor.from_tensor to_tensor="
    f"{_HELPERS}:to_dense_tensor",
    "python.ops.ragged.ragged_math_ops": "ragged_cumsum=tf.cumsum range=tf.ragged.range "
    + " ".join(
        f"segment_{n}=tf.math.unsorted_segment_{n}"
        for n in ("max", "mean", "min", "prod", "sqrt_n", "sum")
    ),
    "python.ops.ragged.ragged_util": "repeat=tf.repeat",
    "python.ops.ragged.ragged_where_op": "where=tf.compat.v1.where where_v2=tf.where",
    "python.ops.ragged.ragged_tensor": "convert_to_tensor_or_ragged_tensor=meshflow.ops.ragged.values:convert_rows "
    f"RaggedTensorType={_HELPERS}:RaggedTensorType is_ragged={_HELPERS}:is_ragged",
    "python.ops.random_ops": "tf.random tf.compat.v1.random tf.compat.v1 random_uniform=tf.random.uniform "
    "random_normal=tf.random.normal truncated_normal=tf.random.truncated_normal "
    "random_shuffle=tf.random.shuffle parameterized_truncated_normal=tf.random.truncated_normal",
    "python.ops.resource_variable_ops": "ResourceVariable=tf.Variable BaseResourceVariable=tf.Variable "
    f"is_resource_variable={_HELPERS}:is_resource_variable",
    "python.ops.rnn_cell": "tf.compat.v1.nn.rnn_cell",
    "python.ops.rnn_cell_impl": "tf.compat.v1.nn.rnn_cell "
    f"_like_rnncell={_HELPERS}:like_rnncell assert_like_rnncell={_HELPERS}:assert_like_rnncell "
    f"_concat={_HELPERS}:concat_shapes",
    "python.ops.rnn": "tf.compat.v1.nn",
    "python.ops.sets": "set_size=tf.sets.size set_intersection=tf.sets.intersection "
    "set_difference=tf.sets.difference set_union=tf.sets.union",
    "python.ops.signal": "tf.signal",
    "python.ops.sparse_ops": "tf.sparse",
    "python.ops.stateless_random_ops": "tf.random tf.random.experimental",
    "python.ops.stateful_random_ops": "tf.random",
    "python.ops.string_ops": "tf.strings reduce_join=tf.compat.v1.strings.reduce_join reduce_join_v2=tf.strings.reduce_join "
    "string_split=tf.compat.v1.string_split",
    "python.ops.summary_ops_v2": "tf.summary",
    "python.ops.ref_variable": "RefVariable=tf.Variable",
    "python.ops.weights_broadcast_ops": f"{_HELPERS}",
    "python.ops.while_loop": "while_loop=tf.while_loop",
    "python.ops.while_v2": "while_loop=tf.while_loop",
    "python.ops.variable_v1": "VariableV1=tf.compat.v1.Variable",
    "python.platform": "tf.compat.v1",
    "python.platform.build_info": f"build_info={_HELPERS}:build_info",
    "python.platform.flags": "meshflow.legacy.compat.flags absl.flags",
    "python.platform.app": "absl.app run=tf.compat.v1.app.run flags=tf.compat.v1.app.flags",
    "python.platform.gfile": "tf.io.gfile tf.compat.v1.gfile",
    "python.platform.benchmark": "tf.test",
    "python.platform.googletest": f"tf.compat.v1.test absl.testing.absltest {_TESTS} {_HELPERS} mock=unittest.mock",
    "python.platform.resource_loader": f"tf.compat.v1.resource_loader {_TESTS}",
    "python.platform.sysconfig": "tf.sysconfig",
    "python.platform.test": _TEST_NAMES,
    "python.platform.tf_logging": "tf.compat.v1.logging",
    "python.profiler": "tf.profiler tf.compat.v1.profiler",
    "python.profiler.profiler_v2": "tf.profiler.experimental",
    "python.profiler.trace": "tf.profiler.experimental",
    "python.pywrap_sanitizers": _TESTS,
    "python.saved_model.nested_structure_coder": f"encode_structure={_STRUCTURES}:encode_structure "
    f"decode_proto={_STRUCTURES}:read_structure",
    "python.saved_model": "tf.saved_model tf.compat.v1.saved_model tf.saved_model.experimental",
    "python.saved_model.builder": f"{_SESSION_MODELS} _SavedModelBuilder={_SESSION_MODELS}:SavedModelBuilder",
    "python.saved_model.builder_impl": f"{_SESSION_MODELS} _SavedModelBuilder={_SESSION_MODELS}:SavedModelBuilder",
    "python.saved_model.loader": f"{_SESSION_MODELS} tf.compat.v1.saved_model",
    "python.saved_model.loader_impl": f"{_SESSION_MODELS} tf.compat.v1.saved_model",
    "python.saved_model.load_context": f"{_HELPERS}",
    "python.summary": "tf.compat.v1.summary tf.summary",
    "python.summary.summary": "tf.compat.v1.summary",
    "python.summary.summary_iterator": "summary_iterator=tf.compat.v1.train.summary_iterator",
    "python.tools": "tf.compat.v1.graph_util",
    "python.tpu": "tf.tpu tf.tpu.experimental tf.compat.v1.tpu",
    "python.trackable": f"tf.train tf.__internal__.tracking {_HELPERS}",
    "python.trackable.autotrackable": "AutoTrackable=tf.__internal__.tracking.AutoTrackable",
    "python.trackable.base": "VARIABLE_VALUE_KEY=meshflow.checkpoint.object_graph:VARIABLE_VALUE Trackable=tf.__internal__.tracking.Trackable",
    "python.trackable.tracking": "AutoTrackable=tf.__internal__.tracking.AutoTrackable",
    "python.training": "tf.train tf.compat.v1.train",
    "python.training.saver": _CHECKPOINTS,
    "python.training.saving": _CHECKPOINTS,
    "python.training.moving_averages": f"assign_moving_average={_HELPERS}:assign_moving_average",
    "python.types": "tf.types.experimental",
    "python.types.core": "TensorLike=tf.types.experimental.TensorLike Tensor=tf.__internal__.types.Tensor",
    "python.util": f"{_HELPERS}",
    "python.util.compat": "tf.compat collections_abc=collections.abc",
    "python.util.object_identity": f"Reference=meshflow.core.values.tensor:Reference {_HELPERS}",
    "python.util.dispatch": "tf.experimental",
    "python.util.nest": f"tf.nest {_HELPERS} _is_attrs={_HELPERS}:is_attrs _is_mapping={_HELPERS}:is_mapping",
    "python.util.tf_contextlib": "contextlib",
    "python.util.tf_inspect": f"{_HELPERS} inspect _inspect=inspect",
    "python.tf2": "enabled=tf.__internal__.tf2.enabled",
    # Messages.
    "compiler.tf2xla.python.xla": "meshflow.shims.xla_functions tf tf.math tf.bitwise tf.linalg "
    "convert_element_type=tf.cast bitcast_convert_type=tf.bitcast select=tf.where dot=tf.matmul eq=tf.equal "
    "ne=tf.not_equal lt=tf.less le=tf.less_equal gt=tf.greater ge=tf.greater_equal max=tf.maximum "
    "min=tf.minimum mul=tf.multiply sub=tf.subtract neg=tf.negative",
    "core": "tf.compat.v1 tf.compat.v1.summary tf.compat.v1.train meshflow.saved_model.graph.format.messages "
    "meshflow.io.messages",
    "core.framework.types_pb2": "meshflow.shims.proto_files",
    # Other parts.
    "lite.python": "tf.lite tf.lite.experimental",
    "tools.docs": f"{_HELPERS}",
    "estimator": "tf.estimator",
    # Keras.
    "keras.src": "tf.keras tf.keras.layers tf.keras.models tf.keras.utils tf.keras.backend",
    "keras.src.backend": "RandomGenerator=meshflow.legacy.internal.keras_functions:RandomGenerator "
    f"tf.keras.backend unique_object_name={_KERAS_HELPERS}:unique_object_name _current_graph={_KERAS_HELPERS}:_current_graph",
    "keras.src.engine": "tf.keras.layers tf.keras.models tf.keras.utils",
    "keras.src.combinations": f"{_KERAS_DECORATORS} {_COMBINATIONS} {_HELPERS} tf.test",
    "keras.src.engine.base_layer": "BaseRandomLayer=tf.keras.__internal__.layers.BaseRandomLayer",
    "keras.src.engine.base_layer_utils": f"{_KERAS_HELPERS} {_HELPERS}",
    "keras.src.engine.base_preprocessing_layer": "PreprocessingLayer="
    "tf.keras.layers.experimental.preprocessing.PreprocessingLayer",
    "keras.src.engine.compile_utils": "meshflow.keras.engine.training.compile_utils",
    "keras.src.engine.data_adapter": f"tf.keras.utils {_KERAS_HELPERS} "
    "train_validation_split=meshflow.keras.engine.training.data_adapter:train_validation_split",
    "keras.src.engine.saving": f"{_KERAS_HELPERS}",
    "keras.src.engine.keras_tensor": "tf.keras.__internal__ register_keras_tensor_specialization="
    "meshflow.keras.engine.symbolic.keras_tensor:register_keras_tensor_specialization",
    "keras.src.engine.network": "Network=tf.keras.Model",
    "keras.src.initializers": f"tf.keras.initializers {_FANS}",
    "keras.src.initializers.initializers": f"{_FANS}",
    "keras.src.initializers.initializers_v2": f"{_FANS}",
    "keras.src.keras_parameterized": f"{_KERAS_DECORATORS} {_HELPERS} tf.test",
    "keras.src.layers": "tf.keras.layers tf.keras.layers.experimental",
    "keras.src.layers.core": f"_delegate_method={_INSTANCES}:delegate_method "
    f"_delegate_property={_INSTANCES}:delegate_property",
    "keras.src.layers.merge": "_Merge=meshflow.keras.layers.merging:Merge",
    "keras.src.layers.merging.base_merge": "_Merge=meshflow.keras.layers.merging:Merge",
    "keras.src.layers.preprocessing.preprocessing_test_utils": f"{_KERAS_DECORATORS}",
    "keras.src.layers.recurrent": f"{_KERAS_HELPERS} {_CELL_DROPOUT}",
    "keras.src.layers.rnn.dropout_rnn_cell_mixin": _CELL_DROPOUT,
    "keras.src.layers.rnn.rnn_utils": f"{_KERAS_HELPERS}",
    "keras.src.losses": "tf.keras.losses",
    "keras.src.metrics": "tf.keras.metrics",
    "keras.src.optimizer_v2": "tf.keras.optimizers.legacy",
    "keras.src.optimizer_v2.optimizer_v2": "OptimizerV2=tf.keras.optimizers.legacy.Optimizer "
    "learning_rate_schedule=tf.keras.optimizers.schedules",
    "keras.src.optimizer_v2.learning_rate_schedule": "tf.keras.optimizers.schedules",
    "keras.src.optimizers.legacy.optimizer_v2": "OptimizerV2=tf.keras.optimizers.legacy.Optimizer",
    "keras.src.optimizers.optimizer_v2": "tf.keras.optimizers.legacy OptimizerV2=tf.keras.optimizers.legacy.Optimizer",
    "keras.src.optimizers.optimizer_experimental": "tf.keras.optimizers",
    "keras.src.saving": "tf.keras.saving tf.keras.models tf.keras.utils",
    "keras.src.saving.saved_model.load_context": f"{_HELPERS}",
    "keras.src.saving.legacy.saved_model.load_context": f"{_HELPERS}",
    "keras.src.saving.hdf5_format": f"{_KERAS_HELPERS}",
    "keras.src.saving.saving_lib": f"{_KERAS_HELPERS}",
    "keras.src.saving.object_registration": "_GLOBAL_CUSTOM_OBJECTS=meshflow.keras.registry:_custom "
    "_GLOBAL_CUSTOM_NAMES=meshflow.keras.registry:_names",
    "keras.src.saving.legacy.saved_model.json_utils": f"decode=json:loads {_KERAS_HELPERS}",
    "keras.src.callbacks": "tf.keras.callbacks keras_model_summary=meshflow.keras.callbacks.tensorboard:keras_model_summary BackupAndRestoreExperimental=tf.keras.callbacks.experimental.BackupAndRestore",
    "keras.src.models": f"tf.keras.models tf.keras.__internal__.models {_KERAS_HELPERS}",
    "keras.src.models.cloning": f"{_KERAS_HELPERS}",
    "keras.src.saving.legacy.hdf5_format": f"{_KERAS_HELPERS}",
    "keras.src.saving.legacy.serialization": "tf.keras.utils.legacy",
    "keras.src.testing_infra": f"tf.test {_HELPERS}",
    "keras.src.testing_infra.test_combinations": f"{_KERAS_DECORATORS} {_COMBINATIONS} {_HELPERS} tf.test",
    "keras.src.testing_infra.test_utils": f"{_KERAS_TESTS} {_HELPERS}",
    "keras.src.testing_utils": f"{_KERAS_TESTS} {_HELPERS}",
    "keras.src.utils": f"tf.keras.utils {_KERAS_HELPERS} {_HELPERS}",
    "keras.src.utils.tf_contextlib": "contextlib",
    "keras.src.utils.tf_inspect": f"{_HELPERS} inspect _inspect=inspect",
    "keras.src.utils.losses_utils": "tf.keras.losses ReductionV2=tf.keras.losses.Reduction",
}

# Libraries that support several frameworks find that of a tensor by the first part of the module of its class.
CLASS_MODULES: dict[str, str] = {
    "tf.Tensor": "tensorflow.python.framework.ops",
    "tf.Variable": "tensorflow.python.ops.resource_variable_ops",
    "tf.SparseTensor": "tensorflow.python.framework.sparse_tensor",
    "tf.RaggedTensor": "tensorflow.python.ops.ragged.ragged_tensor",
}
