"""Functions with sizes that depend on values: they are traced once, and run op by op.

The expected values in data_dependent_sizes.json are those of TensorFlow 2.21.
"""

import json
import logging
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import meshflow as tf
from meshflow.core.dispatch.tiers import TierSettings
from meshflow.core.values.unknown_sizes import compute_on_host, compute_size

VECTORS = [
    np.array(v, np.float32)
    for v in (
        [1, -2, 3, 0, 5, -6],
        [-1, -2, 3, 3, 5, 6],
        [-1, -2, -3, -4, -5, -6],
        [1, 2, 3, 1, 2, 3],
    )
]
BOXES = np.array(
    [[0, 0, 1, 1], [0, 0, 1.05, 1], [2, 2, 3, 3], [2, 2, 3, 3.1], [5, 5, 6, 6], [0, 0, 0.2, 0.2]],
    np.float32,
)

# Functions of a vector `x` of 6 numbers.
EXPRESSIONS = """
tf.boolean_mask(x, x > 0) * 2
tf.boolean_mask(tf.stack([x, x], 1), x > 0)
x[x > 0]
tf.where(tf.reshape(x, [2, 3]) > 0)
tf.gather(x, tf.where(x > 0)[:, 0])
tf.boolean_mask(x, x > 0) - tf.boolean_mask(x * 2, x * 3 > 0)
tf.concat([tf.boolean_mask(x, x > 0), tf.boolean_mask(x, x < 0)], 0)
tf.boolean_mask(x, x > -9) + tf.boolean_mask(x, x == tf.reduce_max(x))[:1]
tuple(tf.unique(x))
tuple(tf.unique_with_counts(x))
tf.range(count(x))
tf.repeat(x, tf.cast(tf.maximum(x, 0), tf.int32))
tf.sequence_mask(tf.cast(tf.maximum(x, 0), tf.int32))
tf.zeros([count(x), 2]) + 1
tf.fill([count(x)], x[0])
tf.one_hot([0, 1, 2], count(x))
tf.eye(count(x))
tf.linspace(0.0, 1.0, 1 + count(x))
tf.math.unsorted_segment_mean(x, tf.constant([0, 1, 0, 1, 2, 2]), count(x) + 3)
tf.math.segment_max(x, tf.sort(tf.cast(tf.abs(x), tf.int32)))
tf.dynamic_partition(x, tf.cast(x > 0, tf.int32), 2)
tf.dynamic_stitch(tf.dynamic_partition(tf.range(6), tf.cast(x > 0, tf.int32), 2), tf.dynamic_partition(x, tf.cast(x > 0, tf.int32), 2))
tf.split(x, [count(x), 6 - count(x)])
tuple(tf.math.top_k(x, count(x)))
x[:count(x)]
x[count(x):]
x[-2 - count(x):-1]
tf.boolean_mask(x, x > -9)[1::2]
tf.boolean_mask(x, x > 0)[::-1]
tf.reshape(tf.zeros([count(x) * 2]) + x[0], [count(x), 2])
tf.tile(x, [count(x)])
tf.pad(x, [[0, count(x)]])
tf.broadcast_to(x[0], [tf.size(tf.boolean_mask(x, x > 0)), 2])
tf.math.bincount(tf.cast(tf.maximum(x, 0), tf.int32))
tf.math.confusion_matrix(tf.cast(tf.maximum(x, 0), tf.int32), tf.cast(tf.abs(x), tf.int32))
tf.image.non_max_suppression(BOXES, x, 5, 0.5, score_threshold=0.0)
tf.gather(tf.constant(BOXES), tf.image.non_max_suppression(BOXES, x, 5, 0.5))
tf.squeeze(tf.where(x > 2))
tf.squeeze(tf.where(x > 2), -1)
tf.scatter_nd(tf.where(x > 0), tf.boolean_mask(x, x > 0) * 2, tf.shape(x, out_type=tf.int64))
tf.tensor_scatter_nd_update(x, tf.where(x > 0), tf.boolean_mask(x, x > 0) * 2)
tf.matmul(tf.boolean_mask(tf.stack([x, x], 1), x > 0), tf.ones([2, 3]))
(tf.sort(tf.boolean_mask(x, x > 0)), tf.cumsum(tf.boolean_mask(x, x > 0), exclusive=True))
tf.searchsorted(tf.sort(tf.boolean_mask(x, x > 0)), x)
(tf.reduce_max(tf.boolean_mask(x, x > 0)), tf.reduce_prod(tf.boolean_mask(x, x > 0)))
tf.shape(tf.boolean_mask(x, x > 0))[0] * 2
tf.einsum("i,j->ij", tf.boolean_mask(x, x > 0), tf.boolean_mask(x, x < 0))
tf.ensure_shape(tf.boolean_mask(x, x > -9), [6])
tf.map_fn(lambda v: v * 2, tf.boolean_mask(x, x > 0))
tf.map_fn(lambda v: tf.reduce_sum(tf.boolean_mask(x, x > v)), x)
tf.vectorized_map(lambda v: v * 2, tf.boolean_mask(x, x > 0))
tf.cond(tf.reduce_sum(x) > 0, lambda: tf.boolean_mask(x, x > 0), lambda: x * 2)
tf.nn.conv1d(tf.boolean_mask(x, x > -9)[None, :, None], tf.ones([3, 1, 1]), 1, "SAME")
tf.sparse.from_dense(tf.reshape(x, [2, 3])).indices
tf.nn.ctc_greedy_decoder(tf.reshape(tf.stack([x, -x, x * x]), [3, 2, 3]), [3, 2])[0][0].values
""".strip().splitlines()


def count(x):
    return tf.reduce_sum(tf.cast(x > 0, tf.int32))


def select_in_branch(x):
    if tf.reduce_sum(x) > 0:
        y = tf.boolean_mask(x, x > 0)
    else:
        y = x * 3
    return tf.reduce_sum(y**2)


def select_in_loop(x):
    total = tf.constant(0.0)
    for i in tf.range(3):
        total += tf.reduce_sum(tf.boolean_mask(x, x > tf.cast(i, tf.float32)) ** 2)
    return total


def select_in_while(x):
    total, i = tf.constant(0.0), tf.constant(0)
    while i < 3:
        total += tf.reduce_sum(tf.boolean_mask(x, x > tf.cast(i, tf.float32)) ** 2)
        i += 1
    return total


def iterate_over_selection(x):
    total = tf.constant(1.0)
    for v in tf.boolean_mask(x, x > 0):
        total = total * 2 + tf.reduce_sum(tf.boolean_mask(x, x < v)) * v
    return total


def shrink(x):
    y, steps = tf.boolean_mask(x, x > -9), tf.constant(0)
    while tf.size(y) > 1:
        y = tf.boolean_mask(y, y < tf.reduce_max(y))
        steps += 1
    return tf.reduce_sum(y) + tf.cast(steps, tf.float32)


def grow(x):
    y = x[:1]
    while tf.size(y) < 2 * count(x):
        tf.autograph.experimental.set_loop_options(shape_invariants=[(y, tf.TensorShape([None]))])
        y = tf.concat([y, y + 1], 0)
    return tf.reduce_sum(y)


def grow_in_while_loop(x):
    _, y = tf.while_loop(
        lambda i, _: i < count(x),
        lambda i, y: (i + 1, tf.concat([y, [tf.cast(i, tf.float32)]], 0)),
        [tf.constant(0), x[:1]],
        shape_invariants=[tf.TensorShape([]), tf.TensorShape([None])],
    )
    return tf.reduce_sum(y) + tf.cast(tf.size(y), tf.float32)


def write_some(x):
    array = tf.TensorArray(tf.float32, size=0, dynamic_size=True)
    for v in x:
        if v > 0:
            array = array.write(array.size(), v * v)
    return tf.reduce_sum(array.stack()) + tf.cast(array.size(), tf.float32)


def branch_on_array_size(x):
    array = tf.TensorArray(tf.float32, size=0, dynamic_size=True)
    for i in tf.range(count(x)):
        array = array.write(i, x[i] * 2)
    if array.size() > 3:
        return tf.reduce_sum(array.stack())
    else:
        return tf.cast(array.size(), tf.float32)


def call_twice(x):
    select = tf.function(lambda x: tf.boolean_mask(x * x, x > 0))
    return tf.reduce_sum(select(x)) + tf.reduce_sum(select(-x) ** 2)


def normalize_selection(x):
    y = tf.boolean_mask(x, x != 0)
    mean, variance = tf.nn.moments(y, [0])
    normalized = tf.nn.batch_normalization(y, mean, variance, None, None, 1e-3)
    return tf.reduce_mean(normalized**3) + tf.reduce_sum(tf.nn.softmax(y) ** 2)


def compute_loss_of_selection(x):
    labels = np.array([0, 1, 2, 0, 1, -1])
    logits, is_used = tf.stack([x, x * 2, x * x], 1), tf.constant(labels) >= 0
    return tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(
            tf.boolean_mask(labels, is_used), tf.boolean_mask(logits, is_used)
        )
    )


def repeat_and_slice(x):
    parts = tf.dynamic_partition(x, tf.cast(x > 0, tf.int32), 2)
    repeated = tf.repeat(x, tf.cast(tf.maximum(x, 0), tf.int32))
    return tf.reduce_sum(repeated**2) + tf.reduce_sum(x[: count(x)] ** 3) + tf.reduce_sum(parts[1])


def sum_unique_in_function(x):
    find = tf.function(lambda x: tf.math.unsorted_segment_sum(x * x, tf.unique(x)[1], 6))
    return tf.reduce_sum(find(x) ** 2)


# Scalar functions; they are also differentiated.
SCALARS = [
    select_in_branch,
    select_in_loop,
    select_in_while,
    iterate_over_selection,
    shrink,
    grow,
    grow_in_while_loop,
    write_some,
    branch_on_array_size,
    call_twice,
    normalize_selection,
    compute_loss_of_selection,
    repeat_and_slice,
    sum_unique_in_function,
]
# The gradients of loops that change shapes need the shapes in all iterations, so these functions run as Python.
RUN_AS_PYTHON = (grow, grow_in_while_loop, write_some, branch_on_array_size, shrink)


def differentiate(function):
    def run(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        return y, tape.gradient(y, x, unconnected_gradients="zero")

    return run


def list_cases():
    for text in EXPRESSIONS:
        yield text, eval(f"lambda x: {text}", globals())
    for function in SCALARS:
        yield function.__name__, function
        yield f"gradient of {function.__name__}", differentiate(function)


EXPECTED = json.loads(Path(__file__).with_name("data_dependent_sizes.json").read_text())


def encode(result):
    return [
        [str(a.dtype), list(a.shape), a.ravel().tolist()]
        for a in map(np.asarray, tf.nest.flatten(result))
    ]


@pytest.mark.parametrize(("name", "function"), [*list_cases()])
def test_values_are_those_of_tensorflow(name, function, caplog):
    traced = tf.function(function)
    with caplog.at_level(logging.WARNING, logger="meshflow"):
        results = [traced(tf.constant(x)) for x in VECTORS]
    for result, expected in zip(results, EXPECTED[name], strict=True):
        result = encode(result)
        assert [r[:2] for r in result] == [e[:2] for e in expected]
        for (_, _, actual), (_, _, value) in zip(result, expected, strict=True):
            np.testing.assert_allclose(actual, value, rtol=1e-5, atol=1e-6)
    runs_as_python = any(name == f"gradient of {f.__name__}" for f in RUN_AS_PYTHON)
    assert bool(caplog.records) == runs_as_python
    if not runs_as_python:
        # A decision about a size, such as whether it is 1, may need another trace.
        assert 1 <= traced.experimental_get_tracing_count() <= 3


@pytest.mark.parametrize("name", EXPRESSIONS[::6])
def test_bits_are_those_of_plain_python(name):
    function = eval(f"lambda x: {name}", globals())
    for x in map(tf.constant, VECTORS):
        actual, expected = tf.nest.flatten(tf.function(function)(x)), tf.nest.flatten(function(x))
        for a, e in zip(actual, expected, strict=True):
            np.testing.assert_array_equal(a, e)


def test_python_runs_once_and_variables_are_written():
    runs, total = [], tf.Variable(0.0)

    @tf.function
    def add_positive(x):
        runs.append(x.shape)
        positive = tf.boolean_mask(x, x > 0)
        total.assign_add(tf.reduce_sum(positive))
        return positive

    sizes = [add_positive(tf.constant(x)).shape[0] for x in VECTORS]
    assert (sizes, len(runs), total.numpy()) == ([3, 4, 0, 6], 1, 9 + 17 + 12)


def test_shapes_have_unknown_sizes():
    shapes = []

    @tf.function
    def select(x):
        y = tf.boolean_mask(tf.stack([x, x], 1), x > 0)
        shapes.append(str(y.shape))
        y.set_shape([None, 2])
        return {"y": y, "n": tf.size(y)}

    concrete = select.get_concrete_function(tf.TensorSpec([6], tf.float32))
    assert shapes == ["(None, 2)"]
    assert concrete.structured_outputs["y"].shape.as_list() == [None, 2]
    assert concrete.structured_outputs["n"].shape == ()


def test_decisions_about_sizes_are_guarded():
    runs = []

    @tf.function
    def compare(x, y):
        runs.append(1)
        a, b = tf.boolean_mask(x, x > 0), tf.boolean_mask(y, y > 0)
        return a + b

    results = [
        compare(tf.constant(x), tf.constant(y)).shape[0]
        for x, y in zip(VECTORS, VECTORS, strict=True)
    ]
    assert (results, len(runs)) == ([3, 4, 0, 6], 1)
    # One size is 1, so the operand is broadcast, which requires another trace.
    one = tf.constant([-1.0, -1.0, 2.0, -1.0, -1.0, -1.0])
    assert compare(tf.constant(VECTORS[0]), one).numpy().tolist() == [3, 5, 7]
    assert len(runs) == 2
    with pytest.raises(tf.errors.InvalidArgumentError):
        compare(tf.constant(VECTORS[0]), tf.constant(VECTORS[1]))
    assert compare(tf.constant(VECTORS[3]), tf.constant(VECTORS[3])).shape == (6,)


def test_errors_are_those_of_tensorflow():
    @tf.function
    def run(x):
        tf.debugging.assert_greater(tf.size(tf.boolean_mask(x, x > 0)), 2, message="too few")
        return tf.gather(tf.boolean_mask(x, x > 0), [2])

    assert run(tf.constant(VECTORS[0])).numpy().tolist() == [5]
    with pytest.raises(tf.errors.InvalidArgumentError, match="too few"):
        run(tf.constant(VECTORS[2]))


def test_sizes_of_arguments_and_values_are_unknown():
    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
    def select(x):
        return tf.boolean_mask(x, x > 0)

    results = [select(tf.constant(x[:n])).shape[0] for x in VECTORS for n in (3, 4, 5, 6)]
    assert results == [2, 2, 3, 3, 1, 2, 3, 4, 0, 0, 0, 0, 3, 4, 5, 6]
    assert select.experimental_get_tracing_count() <= 3


def test_outer_tapes_and_compiled_programs(monkeypatch):
    select = tf.function(lambda x: tf.boolean_mask(x * x, x > 0))
    for x in VECTORS[:2]:
        x = tf.constant(x)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(select(x))
        np.testing.assert_array_equal(tape.gradient(y, x), tf.maximum(2 * x, 0))
    with pytest.raises(tf.errors.OperatorNotAllowedInGraphError, match="depends"):
        tf.function(select, jit_compile=True)(x)
    monkeypatch.setattr(TierSettings, "tier", "compile")
    assert tf.function(lambda x: tf.boolean_mask(x, x > 0))(x).shape == (4,)


class MaskedModel(tf.keras.Model):
    """A model that trains on the examples with a positive first feature."""

    def __init__(self):
        super().__init__()
        self.dense = tf.keras.layers.Dense(1, kernel_initializer="ones")

    def call(self, x):
        return self.dense(tf.boolean_mask(x, x[:, 0] > 0))

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x) - tf.boolean_mask(y, x[:, 0] > 0)) ** 2)
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return {"loss": loss}


def compute_masked_loss(y, prediction):
    is_used = y[:, 0] > 0
    return tf.reduce_mean((tf.boolean_mask(y, is_used) - tf.boolean_mask(prediction, is_used)) ** 2)


def fit(make_model, **options):
    model = make_model()
    model.compile(tf.keras.optimizers.SGD(0.1), **options)
    random = np.random.RandomState(0)
    x, y = random.randn(60, 2).astype("float32"), random.randn(60, 1).astype("float32")
    return model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0).history["loss"]


def make_dense_model():
    dense = tf.keras.layers.Dense(1, input_shape=(2,), kernel_initializer="ones")
    return tf.keras.Sequential([dense])


@pytest.mark.parametrize(
    ("make_model", "options", "expected"),
    [
        (MaskedModel, {}, "custom step"),
        (make_dense_model, {"loss": compute_masked_loss}, "loss"),
        (make_dense_model, {"loss": compute_masked_loss, "steps_per_execution": 2}, "loss"),
    ],
)
def test_fit_with_masked_examples(make_model, options, expected, caplog):
    with caplog.at_level(logging.WARNING, logger="meshflow"):
        losses = fit(make_model, **options)
    assert not caplog.records
    np.testing.assert_allclose(losses, EXPECTED[expected], rtol=1e-5)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: tf.boolean_mask(x, x > 1),
        lambda x: tf.gather(x, tf.where(x > 1)[:, 0]),
        lambda x: tf.sparse.retain(tf.sparse.from_dense(x), tf.sparse.from_dense(x).values > 1),
    ],
)
def test_arguments_without_rows_stay_traced(function, caplog):
    compiled = tf.function(function, input_signature=[tf.TensorSpec([None])])
    for numbers in ([1.0, 2.0, 3.0], [], [2.0, 0.0]):
        expected, result = function(tf.constant(numbers)), compiled(tf.constant(numbers))
        tf.nest.map_structure(
            np.testing.assert_array_equal, *(tf.nest.flatten(v, True) for v in (result, expected))
        )
    assert not caplog.records


@pytest.mark.parametrize(
    "function",
    [
        lambda x: tf.map_fn(tf.reduce_sum, x, fn_output_signature=tf.float32),
        lambda x: tf.stack([tf.boolean_mask(x.values, x.values > 1)] * 2),
        lambda x: tf.stack([tf.boolean_mask(v, x.values > 1) for v in (x.values, -x.values)]),
    ],
)
def test_empty_rows_and_masks_need_no_trace(function, caplog):
    traces = []

    @tf.function(input_signature=[tf.RaggedTensorSpec([None, None])])
    def compiled(x):
        traces.append(x)
        return function(x)

    # Lengths that are equal by chance need another trace.
    batches = (
        [[1.0, 2.0], [3.0, 4, 5, 6, 7], []],
        [[0.5], [], [0.7, 0.0, 0.0, 1.0], [0.3]],
        [[], [2.0] * 9, []],
    )
    for rows in batches:
        x = tf.ragged.constant(rows, ragged_rank=1)
        np.testing.assert_array_equal(compiled(x), function(x))
    assert len(traces) == 1 and not caplog.records


def test_few_programs_are_compiled_for_many_sizes(monkeypatch):
    compiled = []
    compile_program = jax.stages.Lowered.compile
    monkeypatch.setattr(
        jax.stages.Lowered,
        "compile",
        lambda *a, **k: compiled.append(1) or compile_program(*a, **k),
    )
    weights, optimizer = tf.Variable(tf.ones([8, 1])), tf.keras.optimizers.Adam()
    random = np.random.RandomState(0)

    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            selected = tf.boolean_mask(x, x[:, 0] > 0)
            groups, ids = tf.unique(tf.cast(selected[:, 1] * 2, tf.int32))
            means = tf.math.unsorted_segment_mean(
                tf.matmul(selected, weights), ids, tf.size(groups)
            )
            loss = tf.reduce_sum(means**2)
        optimizer.apply_gradients([(tape.gradient(loss, weights), weights)])
        return loss

    for i in range(40):
        x = random.randn(40, 8).astype("float32")
        x[:, 0] = np.where(np.arange(40) < i + 1, 1, -1)
        assert np.isfinite(step(tf.constant(x)).numpy())
    assert step.experimental_get_tracing_count() <= 4
    assert len(compiled) <= 10


def test_results_of_host_functions():
    @tf.function
    def split(x):
        find = lambda x: [np.flatnonzero(x > 0), np.flatnonzero(x > 0) + 1]
        a, b = compute_on_host(find, [x], [(("n",), np.int64), (("n",), np.int64)], "x")
        size = compute_size(lambda x: (x > 0).sum() + 1, [x], "x")
        return a + b, tf.ones([size])

    a, b = split(tf.constant(VECTORS[0]))
    assert (a.numpy().tolist(), b.shape) == ([1, 5, 9], (4,))


FIVE_BOXES = [[0.0, 0, 1, 1], [0, 0, 0.9, 0.9], [2, 2, 3, 3], [2, 2, 3.1, 3], [5, 5, 6, 6]]
SCORES = [0.9, 0.8, 0.3, 0.75, 0.6]


@pytest.mark.parametrize(
    ("select", "expected"),
    [
        (
            lambda boxes, scores: tf.image.non_max_suppression(
                boxes, scores, 9, tf.reduce_max(scores), tf.reduce_mean(scores)
            ),
            [[0, 1], [0]],
        ),
        (
            lambda boxes, scores: tf.map_fn(
                lambda pair: pair[0] + pair[1][0], (scores, boxes), fn_output_signature=tf.float32
            ),
            [[0.9, 0.8, 2.75, 5.6], [0.45, 0.4, 2.375, 5.3]],
        ),
        (
            lambda boxes, scores: tf.RaggedTensor.from_row_lengths(
                scores, [1, tf.size(scores) - 1]
            ).row_lengths(),
            [[1, 3], [1, 3]],
        ),
    ],
)
def test_selected_boxes_stay_in_one_trace(select, expected, caplog):
    traces = []

    @tf.function
    def run(boxes, scores, factor):
        traces.append(1)
        is_selected = scores > 0.5
        return select(
            tf.boolean_mask(boxes, is_selected), tf.boolean_mask(scores, is_selected) * factor
        )

    with caplog.at_level(logging.WARNING, logger="meshflow"):
        found = [
            run(tf.constant(FIVE_BOXES), tf.constant(SCORES), tf.constant(factor))
            for factor in (1.0, 0.5)
        ]
    assert not caplog.records
    assert len(traces) == 1
    for values, others in zip(found, expected, strict=True):
        np.testing.assert_allclose(values, others, rtol=1e-6)


@pytest.mark.parametrize(
    "make", [lambda: tf.keras.optimizers.SGD(0.1, 0.9), tf.keras.optimizers.Adam]
)
def test_sparse_updates_of_any_number_of_rows_stay_traced(make, caplog):
    table, optimizer = tf.Variable(tf.ones([10, 2])), make()

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int32)])
    def step(ids):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(table, tf.unique(ids)[0]) ** 2)
        optimizer.apply_gradients([(tape.gradient(loss, table), table)])
        return loss

    with caplog.at_level(logging.WARNING, logger="meshflow"):
        for count in (4, 40, 3, 30, 20, 5):
            step(tf.constant(np.arange(count) % 10, tf.int32))
    assert not caplog.records
    assert step.experimental_get_tracing_count() <= 2


@pytest.mark.parametrize("autograph", [True, False])
def test_users_code_reads_none_for_unknown_sizes(autograph):
    seen = []

    @tf.function(autograph=autograph, input_signature=[tf.TensorSpec([None, 3])])
    def function(x):
        kept = tf.boolean_mask(x, x[:, 0] > 1.0)
        for shape in (x.shape, x.get_shape(), kept.shape):
            seen.append((shape[0], shape.as_list(), list(shape), shape.is_fully_defined()))
            seen[-1] += (shape.num_elements(), shape[:1][0], shape[1:] == [3], shape.dims[0].value)
        size = tf.shape(kept)[0] if kept.shape[0] is None else kept.shape[0]
        # Ops still know the sizes of the shape.
        return tf.reshape(kept, [size, 3, 1]), tf.zeros(kept.shape)

    for rows in (2, 3):
        values = np.arange(3.0 * rows, dtype="float32").reshape(rows, 3)
        reshaped, zeros = function(values)
        assert reshaped.shape == [rows - 1, 3, 1] and zeros.shape == [rows - 1, 3]
    assert seen[-1] == (None, [None, 3], [None, 3], False, None, None, True, None)


def test_users_code_compares_shapes_with_unknown_sizes():
    seen = []
    array = SimpleNamespace(shape=SimpleNamespace(_dims=np.ones(2)))

    @tf.function(input_signature=[tf.TensorSpec([None, 3]), tf.TensorSpec([None, 2])])
    def function(x, y):
        shape = x.shape
        equal = shape == [None, 3], tf.TensorShape([None, 3]) == shape, shape == (x * 2).shape
        different = shape == [4, 3], shape == y.shape, shape == 3, shape != (None, 3)
        seen.append((all(equal), any(different), hash(shape) == hash((x * 2).shape)))
        return x + tf.cast(array.shape._dims[0], x.dtype)

    function(tf.ones([4, 3]), tf.ones([4, 2]))
    assert seen[-1] == (True, False, True)


def test_loop_options_in_a_with_block():
    @tf.function
    def grow(count, values):
        for i in tf.range(count):
            with tf.name_scope("step"):
                tf.autograph.experimental.set_loop_options(
                    shape_invariants=[(values, tf.TensorShape([None]))]
                )
                values = tf.concat([values, [i]], 0)
        return values

    assert grow(tf.constant(3), tf.zeros([0], tf.int32)).numpy().tolist() == [0, 1, 2]
