"""Raw ops, compared with TensorFlow's results."""

import functools
import inspect
import json
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

import meshflow as tf
from meshflow.raw_ops import operations

REFERENCE = Path(__file__).parent / "reference"
SCRIPT = Path(__file__).parents[1] / "scripts" / "prune_tensorflow_api.py"
sys.path.insert(0, str(REFERENCE))
from raw_op_cases import CALLS, VALUES, run_update
from raw_op_values import flatten

STORED = json.loads((REFERENCE / "raw_ops.json").read_text())
UPDATES = [name for name in STORED if "(" not in name]


def assert_equal(found, expected):
    """Compare nested lists, with a tolerance for floats."""
    if isinstance(expected, list):
        assert isinstance(found, list), (found, expected)
        assert len(found) == len(expected), (found, expected)
        if expected and all(isinstance(x, float) for x in expected):
            np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-5)
        else:
            for a, b in zip(found, expected, strict=True):
                assert_equal(a, b)
    else:
        assert found == expected


@pytest.mark.parametrize("call", CALLS)
def test_values_are_those_of_tensorflow(call):
    names = {
        **VALUES,
        "tf": tf,
        call.partition("(")[0]: getattr(tf.raw_ops, call.partition("(")[0]),
    }
    assert_equal(flatten(eval(call, names)), STORED[call])


@pytest.mark.parametrize("name", UPDATES)
def test_updates_of_variables(name):
    parameters = inspect.signature(getattr(tf.raw_ops, name)).parameters
    assert_equal(run_update(tf, name, parameters), STORED[name])


def test_clustering_draws_the_random_numbers_of_tensorflow():
    def sample(points, count, retries=2):
        return tf.raw_ops.KmeansPlusPlusInitialization(
            points=points, num_to_sample=count, seed=1, num_retries_per_sample=retries
        )

    points = tf.reshape(tf.range(20.0), [10, 2])
    expected = [[8, 9], [14, 15], [0, 1]]
    np.testing.assert_array_equal(sample(points, 3), expected)
    traced = tf.function(lambda x: sample(x, 3)).get_concrete_function(points)
    np.testing.assert_array_equal(traced(points), expected)
    assert traced.structured_outputs.shape == [3, 2]
    # All distances are zero.
    np.testing.assert_array_equal(sample([[1.0, 2.0]] * 2, 2, -1), [[1, 2]] * 2)
    with pytest.raises(tf.errors.InvalidArgumentError, match="Expected num_to_sample <= points"):
        sample([[1.0, 2.0]] * 2, 3)
    assert tf.raw_ops.KMC2ChainInitialization(distances=[1.0, 2.0, 3.0], seed=1).numpy() == 2
    indices, distances = tf.raw_ops.NearestNeighbors(
        points=[[1.0, 2.0], [5.0, 5.0]], centers=[[0.0, 0.0], [4.0, 4.0]], k=3
    )
    np.testing.assert_array_equal(indices, [[0, 1], [1, 0]])
    np.testing.assert_array_equal(distances, [[5, 13], [2, 50]])


def test_ops_are_differentiable_and_traced():
    x = tf.constant([[1.0, -2.0]])

    @tf.function
    def compute(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.raw_ops.LeakyRelu(
                features=tf.raw_ops.MatMul(a=x, b=x, transpose_b=True), alpha=0.5
            )
            y = y + tf.raw_ops.SoftmaxCrossEntropyWithLogits(features=x, labels=[[1.0, 0.0]]).loss
        return tape.gradient(y, x)

    np.testing.assert_allclose(compute(x), [[1.9526, -3.9526]], atol=1e-4)


def test_unique_slices():
    # The values are those of TensorFlow 2.15.
    x = tf.constant([[3, 1], [0, 2], [3, 1], [0, 2], [5, 5]])
    find = tf.raw_ops.UniqueWithCountsV2
    for run in (find, tf.function(find)):
        found = [r.numpy().tolist() for r in run(x=x, axis=[0])]
        assert found == [[[3, 1], [0, 2], [5, 5]], [0, 1, 0, 1, 2], [2, 2, 1]]
        assert [r.shape for r in run(x=x, axis=[-1])] == [[5, 2], [2], [2]]
    words = [["b", "a"], ["c", "d"], ["b", "a"]]
    found = tf.raw_ops.UniqueV2(x=words, axis=[0], out_idx=tf.int64)
    assert found.y.numpy().tolist() == [[b"b", b"a"], [b"c", b"d"]] and found.idx.dtype == tf.int64
    assert tf.raw_ops.UniqueV2(x=[4, 1, 4], axis=np.zeros(0, "int32")).idx.numpy().tolist() == [
        0,
        1,
        0,
    ]


def list_values(result):
    if isinstance(result, (list, tuple)):
        return [list_values(part) for part in result]
    return result.numpy().tolist()


def test_lists_of_tensors_as_inputs_and_outputs():
    # The values are those of TensorFlow 2.15.
    raw, int64 = tf.raw_ops, tf.int64
    places, shape = tf.constant([[0, 0], [0, 3], [2, 1]], int64), tf.constant([3, 4], int64)
    values = tf.constant([1.0, 2.0, 5.0])
    parts = {"indices": places, "values": values, "shape": shape, "num_split": 2}
    split = raw.SparseSplit(split_dim=tf.constant(1, int64), **parts)
    expected = [[[0, 0], [2, 1]], [[0, 1]]], [[1, 5], [2]], [[3, 2], [3, 2]]
    assert list_values(split) == list(expected)
    splits = [tf.constant([0, 1, 3], int64), tf.constant([0, 2, 2, 3], int64)]
    rows = raw.RaggedTensorToVariant(
        rt_nested_splits=splits, rt_dense_values=values, batched_input=True
    )
    ranks = {"input_ragged_rank": 1, "output_ragged_rank": 2}
    decode = raw.RaggedTensorFromVariant
    found = decode(encoded_ragged=rows, Tvalues=tf.float32, **ranks)
    assert list_values(found) == [[[0, 1, 3], [0, 2, 2, 3]], [1, 2, 5]]
    with pytest.raises(tf.errors.InvalidArgumentError, match="dtype int32"):
        decode(encoded_ragged=rows, Tvalues=tf.int32, **ranks)
    with pytest.raises(tf.errors.InvalidArgumentError, match="row splits must be ascending"):
        raw.RaggedTensorToVariant(
            rt_nested_splits=[[0, 9]], rt_dense_values=values, batched_input=True
        )
    sparse = [tf.constant([[0, 0], [1, 0]], int64)], [tf.constant([5, 6], int64)], [[2, 2]]
    texts = tf.constant(["a", "b", "c"])
    cross = functools.partial(
        raw.RaggedCross,
        ragged_values=[texts], ragged_row_splits=[tf.constant([0, 1, 3], int64)],
        sparse_indices=sparse[0], sparse_values=sparse[1], sparse_shape=sparse[2],
        dense_inputs=[], hash_key=1, num_buckets=0, out_row_splits_type=int64,
    )  # fmt: skip
    found = cross(input_order="SR", hashed_output=False, out_values_type=tf.string)
    assert list_values(found) == [[b"5_X_a", b"6_X_b", b"6_X_c"], [0, 1, 3]]
    with pytest.raises(tf.errors.InvalidArgumentError, match="input_order"):
        cross(input_order="SRD", hashed_output=False, out_values_type=tf.string)
    found = raw.SparseCrossV2(
        indices=sparse[0],
        values=sparse[1],
        shapes=sparse[2],
        dense_inputs=[[["d"], ["e"]]],
        sep="-",
    )
    assert list_values(found) == [[[0, 0], [1, 0]], [b"5-d", b"6-e"], [2, 1]]


def test_counts_in_sparse_form():
    # The values are those of TensorFlow 2.15.
    count = tf.raw_ops.DenseCountSparseOutput
    options = {"values": [1, 2, 2], "binary_output": False, "maxlength": 9}
    for dtype in (tf.int64, tf.float32):
        found = count(weights=tf.constant([], dtype), **options)
        assert list_values(found) == [[[1], [2]], [1, 2], [9]]
        assert found.output_values.dtype == dtype
    splits = {"splits": tf.constant([0, 3, 1], tf.int64), "values": [1, 1, 3]}
    with pytest.raises(tf.errors.InvalidArgumentError, match="must ascend"):
        tf.raw_ops.RaggedCountSparseOutput(
            **splits, weights=tf.constant([], tf.int64), binary_output=False
        )


@pytest.mark.parametrize("is_text", [False, True])
def test_lists_of_tensors(is_text):
    # The values are those of TensorFlow 2.15.
    raw, invalid = tf.raw_ops, tf.errors.InvalidArgumentError
    x = [["a", "b"], ["c", "d"]] if is_text else [[1.0, 2.0], [3.0, 4.0]]
    dtype, zero = (tf.string, b"") if is_text else (tf.float32, 0.0)
    first, second = tf.constant(x).numpy().tolist()
    stack = lambda items: list_values(
        raw.TensorListStack(input_handle=items, element_shape=[2], element_dtype=dtype)
    )
    items = raw.TensorListFromTensor(tensor=x, element_shape=[2])
    options = {"element_shape": [2], "element_dtype": dtype}
    rest, last = raw.TensorListPopBack(input_handle=items, **options)
    assert stack(rest) == [first] and list_values(last) == second
    empty = raw.EmptyTensorList(element_shape=[2], max_num_elements=-1, element_dtype=dtype)
    with pytest.raises(invalid, match="of 0 tensors"):
        raw.TensorListPopBack(input_handle=empty, **options)
    assert stack(raw.TensorListPushBack(input_handle=empty, tensor=x[0])) == [first]
    assert stack(raw.TensorListResize(input_handle=items, size=3)) == [first, second, [zero] * 2]
    with pytest.raises(invalid, match="-1 tensors"):
        raw.TensorListResize(input_handle=items, size=-1)
    gather = functools.partial(raw.TensorListGather, input_handle=items, **options)
    assert list_values(gather(indices=[1, 0])) == [second, first]
    with pytest.raises(invalid, match="of 2 tensors"):
        gather(indices=[2])
    found = raw.TensorListConcatV2(input_handle=items, leading_dims=[], **options)
    assert list_values(found) == [first + second, [2, 2]]
    scatter = functools.partial(raw.TensorListScatterV2, tensor=x, element_shape=[2])
    assert stack(scatter(indices=[2, 0], num_elements=-1)) == [second, [zero] * 2, first]
    for indices, count in (([2, 0], 2), ([0, -1], -1)):
        with pytest.raises(invalid, match="no position"):
            scatter(indices=indices, num_elements=count)
    longer = raw.TensorListScatterIntoExistingList(input_handle=items, tensor=x, indices=[2, 0])
    assert stack(longer) == [second, second, first]
    change = functools.partial(raw.TensorListSetItem, input_handle=items, item=x[0])
    assert stack(change(index=2, resize_if_index_out_of_bounds=True)) == [first, second, first]
    for index, resizes in ((2, False), (-1, True)):
        with pytest.raises(invalid, match="no position"):
            change(index=index, resize_if_index_out_of_bounds=resizes)


def test_indices_out_of_range():
    raw, invalid = tf.raw_ops, tf.errors.InvalidArgumentError
    gradient = {"grad": [[1.0, 2.0], [3.0, 4.0]], "output_dim0": 4}
    found = raw.SparseSegmentMeanGrad(indices=[0, 2, 2], segment_ids=[0, 0, 1], **gradient)
    assert list_values(found) == [[0.5, 1], [0, 0], [3.5, 5], [0, 0]]
    for indices, ids in (([0, 9], [0, 1]), ([-1, 0], [0, 1]), ([0, 1], [0, 7])):
        with pytest.raises(invalid):
            raw.SparseSegmentSumGrad(indices=indices, segment_ids=ids, **gradient)
    divide = functools.partial(raw.SparseDenseCwiseDiv, sp_shape=[2, 2], sp_values=[-7, 7])
    assert list_values(divide(sp_indices=[[0, 0], [1, 1]], dense=[[2, 0], [0, -2]])) == [-3, -3]
    with pytest.raises(invalid):
        divide(sp_indices=[[0, 0], [5, 1]], dense=[[2, 0], [0, -2]])
    with pytest.raises(invalid, match="single number"):
        raw.UniqueV2(x=[[1, 2]], axis=[0, 1])


def test_errors():
    with pytest.raises(TypeError, match=r"only takes keyword args .possible keys: ..a., .b."):
        tf.raw_ops.MatMul([[1.0]], [[1.0]])
    with pytest.raises(TypeError, match="missing a required argument: 'b'"):
        tf.raw_ops.MatMul(a=[[1.0]])
    with pytest.raises(
        NotImplementedError, match=r"tf\.raw_ops\.BoostedTreesPredict: no code of Meshflow"
    ):
        _ = tf.raw_ops.BoostedTreesPredict
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = tf.raw_ops.Nothing
    assert len(dir(tf.raw_ops)) > 480
    assert str(inspect.signature(tf.raw_ops.Relu)) == "(*, features, name=None)"
    assert all(callable(getattr(tf.raw_ops, name)) for name in dir(tf.raw_ops))


def test_table_has_the_arguments_of_all_computed_ops():
    texts = operations._read_lines()
    assert (
        runpy.run_path(str(SCRIPT))["prune_ops"](texts) == operations.FILE.read_text().splitlines()
    )
    assert [name for name in operations.list_ops() if "(" not in texts[name]] == []


def _make_lstm_weights(units, x):
    bias = tf.keras.initializers.RandomNormal(seed=1)
    layer = tf.keras.layers.LSTM(units, return_sequences=True, bias_initializer=bias)
    layer.build(x.shape)
    return layer, [weight.numpy() for weight in layer.weights]


@pytest.mark.parametrize("version", [1, 2])
def test_block_lstms_equal_the_layer_of_keras(version):
    x = tf.random.stateless_normal([2, 4, 3], [1, version])
    layer, (kernel, recurrent, bias) = _make_lstm_weights(2, x)
    w = np.concatenate([kernel, recurrent])
    if version == 1:
        # Version 1 orders the gates as input, cell, forget, output, and adds 1 to the bias of the forget gate.
        swap = lambda a: np.concatenate([a[..., :2], a[..., 4:6], a[..., 2:4], a[..., 6:]], -1)
        w, bias = swap(w), swap(bias)
    op = tf.raw_ops.BlockLSTM if version == 1 else tf.raw_ops.BlockLSTMV2
    options = {"forget_bias": 0.0} if version == 1 else {}
    zeros = np.zeros(2, np.float32)
    run = lambda steps, **kwargs: op(
        seq_len_max=tf.constant(steps, tf.int64), x=tf.transpose(x, [1, 0, 2]), cs_prev=tf.zeros([2, 2]),
        h_prev=tf.zeros([2, 2]), w=w, wci=zeros, wcf=zeros, wco=zeros, b=bias, **options, **kwargs
    )  # fmt: skip
    np.testing.assert_allclose(
        np.swapaxes(run(4).h.numpy(), 0, 1), layer(x).numpy(), rtol=1e-5, atol=1e-6
    )
    assert not np.any(run(2).h[2:])
    assert np.max(np.abs(run(4, cell_clip=0.01).cs)) <= 0.01


def test_peepholes_reach_the_gates_of_a_cell():
    ones, x, cell = tf.ones([1, 1]), tf.zeros([1, 1]), tf.constant([[0.5]])
    i, cs, f, o, _, _, h = tf.raw_ops.LSTMBlockCell(
        x=x, cs_prev=cell, h_prev=x, w=tf.zeros([2, 4]), wci=ones[0], wcf=2 * ones[0], wco=3 * ones[0], b=tf.zeros(4),
        use_peephole=True,
    )  # fmt: skip
    sigmoid = lambda a: 1 / (1 + np.exp(-a))
    expected = 0.5 * sigmoid(1.0 + 2 * 0.5)
    found = [float(part) for part in (i, cs, f, o, h)]
    output = sigmoid(3 * expected)
    np.testing.assert_allclose(
        found, [sigmoid(0.5), expected, sigmoid(2.0), output, output * np.tanh(expected)], rtol=1e-6
    )


@pytest.mark.parametrize("time_major", [True, False])
def test_cudnn_recurrence_equals_the_layers_of_keras(time_major):
    x = tf.random.stateless_normal([2, 5, 3], [3, 4])
    _, forward = _make_lstm_weights(2, x)
    _, backward = _make_lstm_weights(2, x)
    parts = [forward[0].T, forward[1].T, backward[0].T, backward[1].T]
    biases = [forward[2], np.zeros(8), backward[2], np.zeros(8)]
    params = np.concatenate([p.ravel() for p in [*parts, *biases]]).astype("float32")
    order = [1, 0, 2] if time_major else [0, 1, 2]
    state = tf.zeros([2, 2, 2])
    found = tf.raw_ops.CudnnRNNV3(
        input=tf.transpose(x, order), input_h=state, input_c=state, params=params, sequence_lengths=[3, 5],
        direction="bidirectional", time_major=time_major,
    )  # fmt: skip
    layer = tf.keras.layers.Bidirectional(tf.keras.layers.LSTM(2, return_sequences=True))
    layer.build(x.shape)
    layer.set_weights([*forward, *backward])
    expected = layer(x, mask=tf.sequence_mask([3, 5])).numpy()
    # cuDNN's outputs are zero after the end of a sequence.
    expected[0, 3:] = 0
    np.testing.assert_allclose(tf.transpose(found.output, order), expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(tf.errors.InvalidArgumentError, match="have 3 values"):
        tf.raw_ops.CudnnRNN(input=x, input_h=state[:1], input_c=state[:1], params=[0.0] * 3)


def test_random_ops_of_keys_equal_those_of_seeds():
    raw, seed = tf.raw_ops, [3, 4]
    key, counter = raw.StatelessRandomGetKeyCounter(seed=seed)
    assert (key.dtype, key.shape, counter.shape) == (tf.uint64, (1,), (2,))
    state = {"key": key, "counter": counter, "alg": raw.StatelessRandomGetAlg(), "shape": [5]}
    same = lambda a, b: np.testing.assert_array_equal(a.numpy(), b.numpy())
    same(raw.StatelessRandomNormalV2(**state), tf.random.stateless_normal([5], seed))
    same(raw.StatelessRandomUniformV2(**state), tf.random.stateless_uniform([5], seed))
    same(raw.StatelessTruncatedNormalV2(**state), tf.random.stateless_truncated_normal([5], seed))
    same(
        raw.StatelessRandomUniformIntV2(**state, minval=3, maxval=90),
        tf.random.stateless_uniform([5], seed, 3, 90, tf.int32),
    )
    same(
        raw.StatelessRandomUniformFullIntV2(**state, dtype=tf.int64),
        raw.StatelessRandomUniformFullInt(shape=[5], seed=seed, dtype=tf.int64),
    )
