"""Python lists that grow in loops over tensors, compared with the same function without `tf.function`."""

import numpy as np
import pytest

import meshflow as tf

X = [1.0, 2.0, 3.0, 4.0]


def append(x):
    out = []
    for v in x:
        out.append(v * 2)
    return tf.stack(out), len(out), out[0] + out[-1], out[1:]


def append_to_items(x):
    out = [x[0] * 10, 7.0]
    for v in x:
        out.append(v)
    return tf.stack(out), len(out)


def append_structures(x):
    first, second = [], []
    for i, v in enumerate(x):
        first.append(v)
        second.append((v * 2, {"index": i, "name": "row", "one": 1}))
    return first, [pair[0] + 1.0 for pair in second], [pair[1]["index"] for pair in second]


def extend(x):
    out = []
    for v in x:
        out.extend([v, -v])
    return tf.concat([out, out], 0), out.pop(), len(out)


def recurrent(x):
    state, states = tf.zeros([2]), []
    for v in x:
        state = tf.tanh(state + v)
        states.append(state)
    return tf.stack(states, axis=1), state


def nested(x):
    rows, flat = [], []
    for v in x:
        row = []
        for w in x:
            row.append(v * w)
            flat.append(w)
        rows.append(tf.stack(row))
    return tf.stack(rows), sum(flat), len(flat)


def both_branches(x):
    out = []
    for v in x:
        if v > 2:
            out.append(v)
        else:
            out.append(-v)
    return tf.stack(out)


def iterate_afterwards(x):
    out, total = [], 0.0
    for v in x:
        out.append(v)
    for v in out:
        total += v
    return total + tf.add_n(out)


def helper(x):
    out = []

    def double(v):
        return v * 2

    for v in x:
        out.append(double(v))
    return [double(v) for v in out]


# These read the list in the loop, so the loop is unrolled.
def read_last(x):
    out = [x[0]]
    for v in x[1:]:
        out.append(out[-1] + v)
    return tf.stack(out)


def read_length(x):
    out = []
    for v in x:
        out.append(v * len(out))
    return tf.stack(out)


def add_in_place(x):
    out = []
    for v in x:
        out += [v]
    return tf.stack(out)


def attribute(x):
    class Box:
        pass

    box = Box()
    box.items = []
    for v in x:
        box.items.append(v)
    return tf.stack(box.items)


def remove(x):
    out = [x[0], x[1]]
    for v in x:
        out.append(v)
        out.pop(0)
    return tf.stack(out)


COMPILED = [
    *(append, append_to_items, append_structures, extend, recurrent, nested, both_branches),
    *(iterate_afterwards, helper, read_last, read_length, add_in_place, attribute, remove),
]


def to_lists(value):
    return [np.asarray(leaf).tolist() for leaf in tf.nest.flatten(value)]


@pytest.mark.parametrize("function", COMPILED, ids=lambda f: f.__name__)
def test_known_number_of_iterations(function):
    # `jit_compile` excludes that the function runs op by op.
    compiled = tf.function(function, jit_compile=True)
    np.testing.assert_allclose(
        np.hstack([np.ravel(leaf) for leaf in to_lists(compiled(tf.constant(X)))]),
        np.hstack([np.ravel(leaf) for leaf in to_lists(function(tf.constant(X)))]),
        rtol=1e-6,
    )


def condition(x):
    out = []
    for v in x:
        if v > 2:
            out.append(v)
    return out


def condition_without_loop(x):
    out = []
    if x[0] > 2:
        out.append(x[1])
    else:
        x = x + 1
    out.append(x[0])
    return out


def leave_early(x):
    out = []
    for v in x:
        if v > 2.5:
            break
        out.append(v)
    return out


def skip_elements(x):
    out = []
    for v in x:
        if v < 2.5:
            continue
        out.append(v)
    return tf.stack(out)


def count_up(x):
    out = []
    while len(out) < tf.cast(x[2], tf.int32):
        out.append(tf.reduce_sum(x))
    return tf.stack(out)


def unknown_range(x):
    out = []
    for i in tf.range(tf.cast(x[1], tf.int32)):
        out.append(i)
    return tf.stack(out)


@pytest.mark.parametrize(
    "function",
    [condition, condition_without_loop, leave_early, skip_elements, count_up, unknown_range],
    ids=lambda f: f.__name__,
)
def test_unknown_number_of_elements(function, caplog):
    compiled = tf.function(function)
    for factor in (1.0, 2.0):
        x = factor * tf.constant(X)
        assert to_lists(compiled(x)) == to_lists(function(x))
    assert len(caplog.records) == 1 and "runs op by op" in caplog.text


@pytest.mark.parametrize("function", [recurrent, nested, read_last, condition])
def test_gradients(function):
    def loss(x):
        return tf.add_n(
            [tf.reduce_sum(tf.cast(v, tf.float32) ** 2) for v in tf.nest.flatten(function(x))]
        )

    gradients = []
    for run in (loss, tf.function(loss)):
        x = tf.Variable(X)
        with tf.GradientTape() as outer:
            with tf.GradientTape() as tape:
                value = run(x)
            gradient = tape.gradient(value, x)
        gradients.append((gradient, outer.gradient(gradient, x)))
    for first, second in zip(*gradients, strict=True):
        np.testing.assert_allclose(first, second, rtol=1e-4, atol=1e-5)


def test_side_effects_happen_while_tracing():
    names = []

    @tf.function
    def run(x):
        for v in x:
            names.append("iteration")
            if v > 0:
                names.append("branch")
        return tf.reduce_sum(x)

    run(tf.constant(X))
    assert names == ["iteration", "branch"]


def test_list_before_an_error_keeps_its_items():
    items = [1]

    @tf.function
    def run(x):
        for v in x:
            items.append(v)
            raise KeyError("stop")

    with pytest.raises(KeyError):
        run(tf.constant(X))
    assert items == [1]


@pytest.mark.parametrize("rows", [1, 3])
def test_layers_and_datasets(rows):
    class Sums(tf.keras.layers.Layer):
        def call(self, x):
            total, totals = x[:, 0] * 0, []
            for t in tf.range(tf.shape(x)[1]):
                total += x[:, t]
                totals.append(total)
            return tf.stack(totals, axis=1)

    inputs = tf.keras.Input((3, 2))
    model = tf.keras.Model(inputs, Sums()(inputs))
    x = np.arange(6 * rows, dtype="float32").reshape(rows, 3, 2)
    np.testing.assert_array_equal(model.predict(x, verbose=0), x.cumsum(1))

    @tf.function
    def collect(dataset):
        out = []
        for v in dataset:
            out.append(v + 1)
        return tf.concat(out, 0)

    dataset = tf.data.Dataset.range(5)
    assert collect(dataset.batch(2)).numpy().tolist() == [1, 2, 3, 4, 5]
    assert collect(dataset.batch(1)).numpy().tolist() == [1, 2, 3, 4, 5]
