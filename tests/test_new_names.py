"""Queues, embedding tables, elements of datasets, and members that subclasses use."""

import threading

import numpy as np
import pytest

import meshflow as tf

embedding = tf.tpu.experimental.embedding


def test_transforms_over_any_axes():
    x = np.arange(12.0).reshape(2, 3, 2)
    np.testing.assert_allclose(
        tf.signal.fftnd(x + 0j, [2, 4], [0, 1]), np.fft.fftn(x, [2, 4], [0, 1]), atol=1e-6
    )
    np.testing.assert_allclose(
        tf.signal.ifftnd(x + 0j, axes=[2]), np.fft.ifftn(x, axes=[2]), atol=1e-6
    )
    spectrum = tf.signal.rfftnd(x, axes=[0, 1], norm="ortho")
    np.testing.assert_allclose(spectrum, np.fft.rfftn(x, axes=[0, 1], norm="ortho"), atol=1e-6)
    np.testing.assert_allclose(tf.signal.irfftnd(spectrum, [2, 3], [0, 1], "ortho"), x, atol=1e-6)
    with pytest.raises(ValueError, match="one size in fft_length for each axis"):
        tf.signal.fftnd(x + 0j, [2], [0, 1])


def test_random_numbers_between_bounds():
    options = {"means": 5.0, "stddevs": 2.0, "minvals": 9.0, "maxvals": 12.0}
    x = tf.random.stateless_parameterized_truncated_normal([20000], [1, 2], **options).numpy()
    assert 9 <= x.min() <= x.max() <= 12
    # The mean of a normal distribution that is cut at 2 and 3.5 standard deviations.
    np.testing.assert_allclose(x.mean(), 5 + 2 * 2.3586, atol=0.02)


def test_examples_in_json_and_their_errors():
    text = tf.io.decode_json_example(
        ['{"features": {"feature": {"a": {"floatList": {"value": [1.5]}}}}}']
    )
    parsed = tf.io.parse_example(text, {"a": tf.io.FixedLenFeature([], tf.float32)})
    assert parsed["a"].numpy().tolist() == [1.5]
    with pytest.raises(tf.errors.InvalidArgumentError, match="Error while parsing JSON"):
        tf.io.decode_json_example("{")
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"expected strings of shape \[batch, 3\]"
    ):
        tf.io.deserialize_many_sparse(["a"], tf.int32)


def test_gradients_of_fake_quantization():
    quantization = tf.quantization
    assert quantization.fake_quant_with_min_max_args_gradient(
        [1.0, 2.0], [0.0, 9.0], -6, 6
    ).numpy().tolist() == [1, 0]
    gradients = quantization.fake_quant_with_min_max_vars_gradient(
        [1.0, 2.0, 3.0], [0.0, 9.0, -9.0], -6.0, 6.0
    )
    assert [g.numpy().tolist() for g in gradients] == [[1, 0, 0], 3, 2]
    gradients = quantization.fake_quant_with_min_max_vars_per_channel_gradient(
        [[1.0, 2.0]], [[0.0, 9.0]], [-6.0] * 2, [6.0] * 2
    )
    assert [g.numpy().tolist() for g in gradients] == [[[1, 0]], [0, 0], [0, 2]]


def test_symbolic_tensors():
    seen = []

    @tf.function
    def record(x):
        seen.append(tf.is_symbolic_tensor(x))
        return x

    record(tf.constant(1.0))
    assert seen == [True]
    assert not tf.is_symbolic_tensor(tf.constant(1.0))


def test_elements_with_tensor_arrays_and_optionals():
    arrays = tf.data.Dataset.range(3).map(
        lambda x: tf.TensorArray(tf.int64, 2).write(0, x).write(1, 2 * x)
    )
    spec = arrays.element_spec
    assert spec == tf.TensorArraySpec([], tf.int64)
    assert hash(spec) == hash(tf.TensorArraySpec([], tf.int64))
    assert spec != tf.TensorArraySpec([2], tf.int64)
    assert spec.is_compatible_with(next(iter(arrays)))
    assert not spec.is_compatible_with(tf.TensorArraySpec([], tf.float32))
    assert tf.TensorArraySpec.from_value(tf.TensorArray(tf.float32, 1)).dtype == tf.float32
    assert [a.stack().numpy().tolist() for a in arrays] == [[0, 0], [1, 2], [2, 4]]
    assert [x.numpy().tolist() for x in arrays.map(lambda a: a.stack())] == [[0, 0], [1, 2], [2, 4]]
    optional = tf.experimental.Optional
    values = tf.data.Dataset.range(3).map(lambda x: (x, optional.from_value(3 * x)))
    assert isinstance(values.element_spec[1], tf.OptionalSpec)
    assert [int(o.get_value()) for _, o in values] == [0, 3, 6]
    assert [int(x) for x in values.map(lambda x, o: x + o.get_value())] == [0, 4, 8]


def test_queues_of_threads_and_functions():
    queue = tf.queue.FIFOQueue(1, tf.int32, shapes=[[]])
    results = []
    consumer = threading.Thread(
        target=lambda: results.extend(int(queue.dequeue()) for _ in range(3))
    )
    consumer.start()
    for value in range(3):
        queue.enqueue(value)
    consumer.join(10)
    assert results == [0, 1, 2]

    @tf.function
    def exchange(x):
        queue.enqueue(x)
        return queue.dequeue(), queue.size()

    assert [int(v) for v in exchange(tf.constant(7))] == [7, 0]
    queue.close()
    with pytest.raises(
        tf.errors.OutOfRangeError, match=r"insufficient elements \(requested 1, current size 0\)"
    ):
        queue.dequeue()
    with pytest.raises(tf.errors.CancelledError, match="closed"):
        queue.enqueue(1)
    with pytest.raises(ValueError, match="to have specified shapes"):
        tf.queue.FIFOQueue(1, tf.int32).dequeue_many(1)
    with pytest.raises(ValueError, match="same length as dtypes"):
        tf.queue.FIFOQueue(1, [tf.int32, tf.int32], shapes=[[]])
    with pytest.raises(ValueError, match="expected a component of shape"):
        tf.queue.FIFOQueue(1, tf.int32, shapes=[[]]).enqueue([[1, 2]])


def test_queues_do_not_wait_forever(monkeypatch):
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    queue = tf.queue.FIFOQueue(1, tf.int32)
    with pytest.raises(
        tf.errors.FailedPreconditionError, match="has 0 elements of 1, and no other thread"
    ):
        queue.dequeue()
    queue.enqueue(1)
    with pytest.raises(tf.errors.FailedPreconditionError, match=r"is full \(1\)"):
        queue.enqueue(2)


def make_embedding(optimizer, **options):
    table = embedding.TableConfig(
        5, 2, lambda shape, dtype: tf.reshape(tf.range(10.0), shape), combiner="sum", **options
    )
    return embedding.TPUEmbedding(
        {"a": embedding.FeatureConfig(table), "b": embedding.FeatureConfig(table)}, optimizer
    )


# Rows 0 and 1 after a step with gradient 1 for row 0, and for row 1 the sum of two gradients.
STEPS = [
    (embedding.SGD(0.1), [-0.1, 0.9, 1.8, 2.8]),
    (embedding.SGD(0.1, clip_weight_min=0.5), [0.5, 0.9, 1.8, 2.8]),
    (embedding.Adagrad(0.1, 0.2), [-0.0913, 0.9087, 1.9024, 2.9024]),
    (embedding.Adam(0.1), [-0.1, 0.9, 1.9, 2.9]),
    (embedding.AdagradMomentum(0.1, momentum=0.5, use_nesterov=True), [-0.15, 0.85, 1.85, 2.85]),
]


@pytest.mark.parametrize(("optimizer", "expected"), STEPS)
def test_steps_of_embedding_tables(optimizer, expected):
    model = make_embedding(optimizer)
    sparse = tf.SparseTensor([[0, 0], [0, 1]], [0, 1], [1, 2])
    model.enqueue({"a": sparse, "b": tf.constant([1])})
    activations = model.dequeue()
    assert activations["a"].numpy().tolist() == [[2, 4]]
    model.apply_gradients({name: tf.ones_like(value) for name, value in activations.items()})
    (table,) = model.embedding_tables.values()
    np.testing.assert_allclose(table[:2].numpy().ravel(), expected, atol=2e-4)
    np.testing.assert_array_equal(table[2:].numpy().ravel(), np.arange(4, 10))


def test_embedding_sequences_and_errors(tmp_path):
    table = embedding.TableConfig(3, 1, lambda shape, dtype: tf.reshape(tf.range(3.0), shape))
    config = embedding.FeatureConfig(table, max_sequence_length=2)
    layer = embedding.TPUEmbeddingForServing(config, embedding.SGD(0.1))
    ids = tf.SparseTensor([[0, 0], [0, 1], [0, 2], [1, 0]], [2, 1, 2, 1], [2, 3])
    assert layer(ids).numpy().tolist() == [[[2], [1]], [[1], [0]]]
    path = tf.train.Checkpoint(layer=layer).write(str(tmp_path / "embedding"))
    layer.embedding_tables[table].assign(tf.zeros([3, 1]))
    tf.train.Checkpoint(layer=layer).read(path).assert_consumed()
    assert float(layer.embedding_tables[table][2, 0]) == 2
    for make, message in [
        (lambda: embedding.TableConfig(0, 1), "vocabulary_size"),
        (lambda: embedding.TableConfig(1, 1, combiner="max"), "combiner"),
        (lambda: embedding.SGD(-1.0), "learning_rate must be positive"),
        (lambda: embedding.QuantizationConfig(1, 0.0, 1.0), "must be at least 2"),
    ]:
        with pytest.raises(ValueError, match=message):
            make()
    with pytest.raises(tf.errors.FailedPreconditionError, match="call enqueue first"):
        make_embedding(embedding.SGD(0.1)).dequeue()


def test_members_for_subclasses_of_layers():
    class Doubled(tf.keras.layers.Conv2D):
        def convolution_op(self, inputs, kernel):
            return super().convolution_op(inputs, 2 * kernel)

    layer = Doubled(1, 2, kernel_initializer="ones")
    assert layer(tf.ones([1, 2, 2, 1])).numpy().ravel().tolist() == [8]
    assert (layer._get_channel_axis(), layer._is_causal, layer._tf_data_format) == (
        -1,
        False,
        "NHWC",
    )
    store = {}
    layer.save_own_variables(store)
    layer.kernel.assign(tf.zeros([2, 2, 1, 1]))
    layer.load_own_variables(store)
    assert layer.kernel.numpy().ravel().tolist() == [1] * 4
    with pytest.raises(ValueError, match="expected 2 variables, but received 1"):
        layer.load_own_variables({"0": 1})
    model = tf.keras.Sequential([layer, tf.keras.layers.Flatten()])
    state = model._get_trainable_state()
    model.trainable = False
    model._set_trainable_state(state)
    assert layer.trainable
    assert layer._call_fn_args == ["inputs"]
    assert tf.keras.layers.Dropout(0.1)._expects_training_arg
    layer._set_dtype_policy("mixed_bfloat16")
    assert layer.compute_dtype == "bfloat16"
    assert layer._track_trackable(model, "other") is model
    cell = tf.keras.layers.GRUCell(2, dropout=0.5, recurrent_dropout=0.5)
    assert cell.get_dropout_mask_for_cell(tf.ones([2, 3]), True).shape == [2, 3]
    assert len(cell.get_recurrent_dropout_mask_for_cell(tf.ones([2, 3]), True, 3)) == 3
    assert cell.get_dropout_mask_for_cell(tf.ones([2, 3]), False) is None


def test_spectra_iterators_and_signatures():
    operator = tf.linalg.LinearOperatorCirculant(tf.constant([6.0 + 0j, 4, 2, 4]))
    operator.assert_hermitian_spectrum()
    assert operator.block_shape_tensor().numpy().tolist() == [4]
    with pytest.raises(tf.errors.InvalidArgumentError, match="not Hermitian"):
        tf.linalg.LinearOperatorCirculant(
            tf.constant([6.0 + 0j, 4, 2, 3])
        ).assert_hermitian_spectrum()
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    batches = strategy.make_dataset_iterator(tf.data.Dataset.range(4).batch(2))
    assert [x.numpy().tolist() for x in batches] == [[0, 1], [2, 3]]
    batches = strategy.make_input_fn_iterator(lambda context: tf.data.Dataset.range(2).batch(2))
    assert [x.numpy().tolist() for x in batches] == [[0, 1]]
    attention = tf.keras.layers.MultiHeadAttention(2, 3)
    attention._build_from_signature(tf.TensorSpec([None, 4, 8]), [None, 5, 8])
    assert attention(tf.ones([1, 4, 8]), tf.ones([1, 5, 8])).shape == [1, 4, 8]


def test_attention_with_steps_of_a_subclass():
    class Custom(tf.keras.layers.MultiHeadAttention):
        def _build_from_signature(self, query, value, key=None):
            super()._build_from_signature(query=query, value=value, key=key)
            settings = self._get_common_kwargs_for_sublayer()
            self.extra = self._make_output_dense(self._query_shape.rank - 1, settings, name="extra")

        def _build_attention(self, rank):
            super()._build_attention(rank)
            self.scale = self.add_weight("scale", [self._num_heads, 1, 1], initializer="zeros")

        def _masked_softmax(self, scores, attention_mask=None):
            return super()._masked_softmax(scores * self.scale, attention_mask)

    x = tf.random.normal([2, 3, 8])
    layer = Custom(2, 4, kernel_initializer="ones")
    weights = layer(x, x, return_attention_scores=True, use_causal_mask=True)[1]
    expected = np.tril(np.ones([3, 3])) / np.arange(1.0, 4)[:, None]
    np.testing.assert_allclose(weights, np.broadcast_to(expected, [2, 2, 3, 3]), rtol=1e-6)
    assert len(layer.weights) == 11 and layer._key_dim == layer._value_dim == 4
    inputs = tf.keras.Input([3, 8])
    assert tf.keras.Model(inputs, Custom(2, 4)(inputs, inputs))(x).shape == [2, 3, 8]
    # Keys may have another rank if a subclass computes the scores.
    layer._build_from_signature(query=[2, 3, 8], value=[2, 4, 3, 5])
    assert layer._key_dense(tf.ones([2, 4, 3, 5])).shape == [2, 4, 3, 2, 4]

    class Wrapped(tf.keras.layers.Wrapper):
        def build(self, input_shape):
            super().build(input_shape)
            assert self.layer.kernel.shape == [8, 2]
            super().build()

        def call(self, x):
            return self.layer(x)

    assert Wrapped(tf.keras.layers.Dense(2))(x).shape == [2, 3, 2]


def test_private_members_of_tensors_graphs_and_strategies():
    x = tf.ones([1, 2])
    shapes = x._rank(), x._shape_as_list(), x._shape_tuple(), x._num_elements()
    assert shapes == (2, [1, 2], (1, 2), 2)
    dense = tf.keras.layers.Dense(1, name="b")
    model = tf.keras.Sequential([tf.keras.layers.Dense(2, input_shape=[3], name="a"), dense])
    names = {k: [n.layer.name for n in v] for k, v in model._nodes_by_depth.items()}
    assert names == {2: ["a_input"], 1: ["a"], 0: ["b"]}
    (node,) = model._nodes_by_depth[0]
    assert [item[0] for item in node.iterate_inbound()] == [node.parent_nodes[0].layer]
    assert model._output_layers == [dense] and dense._updates == []
    assert model._input_layers[0].name == "a_input"
    assert model._nested_outputs is model.output and model._nested_inputs is model.input
    assert model._run_internal_graph(tf.ones([2, 3])).shape == [2, 1]
    module, variable = tf.Module(), tf.Variable(1.0)
    assert module._track_trackable(variable, "v") is module.v
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    for current, total in ((tf.distribute.get_strategy(), 1), (strategy, 2)):
        reduce = lambda e=current.extended: e._replica_ctx_all_reduce("SUM", [tf.ones([])])[0]
        results = current.experimental_local_results(current.run(reduce))
        assert [float(v) for v in results] == [total] * total


def test_calling_the_nodes_of_a_model_one_by_one():
    # Libraries that clip the gradients of single examples follow a graph in this way.
    a, b = tf.keras.Input([2]), tf.keras.Input([2])
    shared = tf.keras.layers.Dense(2)(a)
    total = tf.keras.layers.Add()([shared, shared, b])
    model = tf.keras.Model({"a": a, "b": b}, [total, tf.keras.layers.Dot(1)([shared, total])])
    values: dict[str, list[tf.Tensor]] = {}
    counts = model._tensor_usage_count
    assert [counts[str(id(t))] for t in (a, b, shared, total)] == [1, 1, 3, 2]
    given = {"b": np.ones([3, 2]), "a": tf.ones([3, 2])}
    for reference, value in zip(model.inputs, model._flatten_to_reference_inputs(given)):
        value = model._conform_to_reference_input(tf.constant(value), ref_input=reference)
        assert value.dtype == tf.float32
        values[str(id(reference))] = [value] * counts[str(id(reference))]
    for _, nodes in sorted(model._nodes_by_depth.items(), reverse=True):
        for node in nodes:
            if not node.is_input:
                assert all(key in values for key in node.flat_input_ids)
                args, kwargs = node.map_arguments(values)
                assert len(node.call_args) == len(args) and node.call_kwargs.keys() == kwargs.keys()
                for key, value in zip(node.flat_output_ids, tf.nest.flatten(node.layer(*args))):
                    values[key] = [value] * counts[key]
    outputs = [values[str(id(t))].pop() for t in model.outputs]
    assert not any(values.values())
    for value, expected in zip(outputs, model(given)):
        np.testing.assert_array_equal(value, expected)


def test_subclasses_of_variables():
    class Quantized(tf.Variable):
        pass

    Quantized._OverloadAllOperators()
    assert float(Quantized(1.0) + 2) == 3
    with pytest.raises(ValueError, match="is no operator"):
        Quantized._OverloadOperator("__nothing__")
    assert {"__add__", "__getitem__"} <= tf.Tensor.OVERLOADABLE_OPERATORS


def test_wide_and_sharp_models():
    x = np.linspace(-1, 1, 32, dtype=np.float32).reshape(16, 2)
    y = x.sum(1, keepdims=True)
    experimental = tf.keras.experimental
    wide = experimental.WideDeepModel(
        experimental.LinearModel(), tf.keras.Sequential([tf.keras.layers.Dense(1)])
    )
    wide.compile([tf.keras.optimizers.SGD(0.1), "adam"], "mse")
    losses = wide.fit([x, x], y, epochs=8, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    sharp = tf.keras.models.experimental.SharpnessAwareMinimization(
        tf.keras.Sequential([tf.keras.layers.Dense(1, kernel_initializer="ones")]),
        num_batch_splits=2,
    )
    sharp.compile(tf.keras.optimizers.SGD(0.1), "mse")
    sharp.fit(x, 2 * y, epochs=8, batch_size=8, verbose=0)
    assert float(sharp.model.weights[0][0, 0]) > 1.2


def test_enqueuers_report_errors():
    class Broken(tf.keras.utils.Sequence):
        def __len__(self):
            return 2

        def __getitem__(self, index):
            if index:
                raise RuntimeError("batch 1 is broken")
            return index

    enqueuer = tf.keras.utils.OrderedEnqueuer(Broken())
    enqueuer.start()
    batches = enqueuer.get()
    assert next(batches) == 0
    with pytest.raises(RuntimeError, match="batch 1 is broken"):
        next(batches)
    generator = tf.keras.utils.GeneratorEnqueuer(iter(range(3)))
    generator.start()
    assert list(generator.get()) == [0, 1, 2]
    generator.stop()


def test_metrics_of_version_1_need_functions():
    with pytest.raises(RuntimeError, match="not supported when eager execution is enabled"):
        tf.compat.v1.metrics.mean([1.0])
    compute = tf.function(tf.compat.v1.metrics.accuracy)
    assert [float(v) for v in compute(tf.constant([1, 2]), tf.constant([1, 3]))] == [0, 0.5]
    with pytest.raises(RuntimeError, match="should be a function when eager"):
        tf.compat.v1.train.AdamOptimizer().minimize(tf.constant(1.0))
    optimizer, x = tf.compat.v1.train.GradientDescentOptimizer(0.5), tf.Variable(2.0)

    @tf.function
    def step():
        optimizer.minimize(x * x, var_list=[x])

    step()
    assert float(x) == 0
