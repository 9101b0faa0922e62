"""Random programs, training steps and symbolic dimensions, next to XLA."""

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import export, lax

import meshflow as tf
from interpreter.comparison import check, check_memory, find_difference
from meshflow.core.runtime import philox
from meshflow.interpreter import CostEstimate, build_plan

RANDOM = np.random.RandomState(2)
SHAPES = [(4, 6), (6, 4), (2, 2, 6), (24,)]

# Each function maps arrays [4, 6] to such an array.
OPERATIONS = [
    *(jnp.add, jnp.subtract, jnp.multiply, jnp.maximum, lambda a, b: a / (1 + jnp.abs(b))),
    *(lambda a, b: jnp.tanh(a), lambda a, b: jax.nn.sigmoid(a), lambda a, b: -a),
    lambda a, b: jnp.where(a > b, a, b * 2),
    lambda a, b: a.T.reshape(4, 6) + b,
    lambda a, b: jnp.tanh(a.T @ b @ a.T).T,
    lambda a, b: jnp.broadcast_to(a.sum(1, keepdims=True), (4, 6)) - b.max(0),
    lambda a, b: lax.dynamic_update_slice(a, b[:2, 1:3], (1, 2)),
    lambda a, b: jnp.concatenate([a[1:], b[:1]]),
    lambda a, b: a.at[jnp.array([0, 2, 0])].add(b[:3]),
    lambda a, b: a[jnp.array([3, 1, 1, 0])] * b[:, ::-1],
    lambda a, b: lax.scan(lambda c, r: (jnp.tanh(c + r), c * r), a[0], b)[1],
    lambda a, b: lax.fori_loop(0, 3, lambda i, c: c * 0.5 + b, a),
    lambda a, b: lax.cond(a[0, 0] > 0, lambda: a + b, lambda: a - b),
    lambda a, b: jnp.sort(a, 1) + jnp.cumsum(b, 0) / 4,
    lambda a, b: jax.grad(lambda x: jnp.sum(jnp.sin(x) * b))(a),
    lambda a, b: a.astype(jnp.bfloat16).astype(np.float32) + b,
    lambda a, b: jnp.pad(a, ((1, 0), (0, 2)))[:4, 2:] + b,
]


@given(
    st.lists(st.tuples(*[st.integers(0, 99)] * 3), min_size=1, max_size=12),
    st.lists(st.integers(0, 99), min_size=1, max_size=4),
    st.sets(st.integers(0, 1)),
)
@settings(max_examples=40, deadline=None, derandomize=True)
def test_random_programs(steps, results, donated):
    def run(a, b):
        values = [a, b]
        for operation, i, j in steps:
            f = OPERATIONS[operation % len(OPERATIONS)]
            values.append(f(values[i % len(values)], values[j % len(values)]))
        return [values[-1 - i % len(values)] for i in results]

    arrays = [RANDOM.randn(4, 6).astype(np.float32) for _ in range(2)]
    check(run, *arrays, rtol=1e-4, atol=1e-4, donated=tuple(donated))


def test_donated_memory():
    closed = jax.make_jaxpr(lambda w, m, x: (w - m * 0.1, m * 0.9 + x, (x * 2).T))(
        *[jax.ShapeDtypeStruct((64, 32), np.float32)] * 3
    )
    arrays = [RANDOM.randn(64, 32).astype(np.float32) for _ in range(3)]
    w, m, x = (a.copy() for a in arrays)
    results = build_plan(closed, donated=(0, 1)).run(arrays)
    assert np.shares_memory(results[1], arrays[1]) or np.shares_memory(results[1], arrays[0])
    np.testing.assert_allclose(results[0], w - m * np.float32(0.1), rtol=1e-6)
    np.testing.assert_allclose(results[1], m * np.float32(0.9) + x, rtol=1e-6)
    np.testing.assert_array_equal(results[2], (x * 2).T)
    np.testing.assert_array_equal(arrays[2], x)
    check_memory(results, arrays[2:])
    check_memory(build_plan(closed).run([w, m, x]), [w, m, x])
    # Read-only arrays are copied even if they are donated.
    m.flags.writeable = w.flags.writeable = False
    check_memory(build_plan(closed, donated=(0, 1)).run([w, m, x]), [w, m, x])


def test_checks_of_indices_fail_with_the_error_of_compiled_programs():
    gather = tf.function(lambda i: tf.gather(tf.constant([1.0, 2.0, 3.0]), i))
    concrete = gather.get_concrete_function(tf.constant([0, 1]))
    captured = [np.asarray(c) for c in concrete.captured_inputs]
    plan = build_plan(concrete.closed_jaxpr)
    np.testing.assert_array_equal(plan.run([np.array([2, 0], np.int32), *captured])[0], [3, 1])
    with pytest.raises(tf.errors.InvalidArgumentError, match="is not in"):
        plan.run([np.array([2, 3], np.int32), *captured])


L = tf.keras.layers


def make_transformer():
    ids = tf.keras.Input((None,), dtype="int32")
    x = L.Embedding(30, 8)(ids)
    x = L.LayerNormalization()(x + L.MultiHeadAttention(2, 4)(x, x, use_causal_mask=True))
    x = x + L.Dense(8)(L.Dropout(0.2, seed=1)(L.Dense(16, "gelu")(x)))
    return tf.keras.Model(ids, L.Dense(3)(L.GlobalAveragePooling1D()(x)))


MODELS = {
    "mlp": lambda: tf.keras.Sequential([L.Dense(16, "relu"), L.BatchNormalization(), L.Dense(3)]),
    "cnn": lambda: tf.keras.Sequential(
        [L.Reshape((6, 5, 1)), L.Conv2D(4, 3, padding="same", activation="relu")]
        + [L.MaxPooling2D(3, 2, padding="same"), L.DepthwiseConv2D(2), L.Flatten(), L.Dense(3)]
    ),
    "lstm": lambda: tf.keras.Sequential(
        [L.Embedding(30, 8, mask_zero=True), L.Bidirectional(L.LSTM(4)), L.Dense(3)]
    ),
    "gru": lambda: tf.keras.Sequential([L.Embedding(30, 8), L.GRU(4), L.Dense(3)]),
    "transformer": make_transformer,
}


@pytest.mark.parametrize("name", MODELS)
def test_training_steps(name):
    tf.keras.utils.set_random_seed(3)
    model = MODELS[name]()
    x = RANDOM.randint(0, 30, (8, 30)) if name not in ("mlp", "cnn") else RANDOM.rand(8, 30)
    y = RANDOM.randint(0, 3, 8)
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = tf.keras.optimizers.Adam(0.01, epsilon=0.01)
    model(x[:1])
    optimizer.build(model.trainable_variables)

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            value = loss(y, model(x, training=True))
        optimizer.apply_gradients(
            zip(tape.gradient(value, model.trainable_variables), model.trainable_variables)
        )
        return value

    concrete = step.get_concrete_function(tf.constant(x), tf.constant(y))
    closed = concrete.closed_jaxpr
    arrays = [np.asarray(a) for a in (x, y)]
    arrays += [np.array(c.numpy()) for c in concrete.captured_inputs]
    arrays = [a.astype(v.dtype).reshape(v.shape) for a, v in zip(arrays, closed.in_avals)]
    expected = jax.jit(jax.extend.core.jaxpr_as_fun(closed))(*arrays)
    results = build_plan(closed).run(arrays)
    check_memory(results, arrays)
    for result, value in zip(results, expected, strict=True):
        assert find_difference(result, np.asarray(value), rtol=1e-3, atol=1e-5) is None


def test_symbolic_dimensions():
    (batch, length) = export.symbolic_shape("b, t")
    w = RANDOM.randn(8, 8).astype(np.float32)
    table = RANDOM.randn(20, 8).astype(np.float32)

    def loss(w, table, ids):
        x = table[ids] @ w
        mask = jnp.tril(jnp.ones((ids.shape[1], ids.shape[1]), np.float32))
        scores = jnp.einsum("bid,bjd->bij", x, x) - 1e9 * (1 - mask)
        x = jax.nn.softmax(scores) @ x
        x = lax.conv_general_dilated(
            x, w[None, :, :], (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")
        )
        (last, _) = lax.scan(lambda c, r: (jnp.tanh(c @ w + r), None), x[:, 0], x.swapaxes(0, 1))
        tail = jnp.concatenate([last[:, None], x[:, 1:]], 1).reshape(-1, 8)
        return jnp.mean(tail**2) + x.shape[1]

    step = lambda *xs: jax.value_and_grad(loss, (0, 1))(*xs)
    spec = jax.ShapeDtypeStruct((batch, length), np.int32)
    closed = jax.make_jaxpr(step)(w, table, spec)
    plan, estimate = build_plan(closed), CostEstimate(closed)
    seconds = []
    for shape in [(2, 5), (3, 9), (2, 5), (1, 1), (4, 30)]:
        ids = RANDOM.randint(0, 20, shape).astype(np.int32)
        expected = jax.tree.leaves(jax.jit(step)(w, table, ids))
        results = plan.run([w, table, ids])
        check_memory(results, [w, table, ids])
        for result, value in zip(results, expected, strict=True):
            assert find_difference(result, np.asarray(value), rtol=1e-3, atol=1e-4) is None
        seconds.append(estimate.bind([w.shape, table.shape, ids.shape]).run_seconds)
    assert seconds[3] < seconds[0] == seconds[2] < seconds[1] < seconds[4]
    (k,) = export.symbolic_shape("k")
    specs = [jax.ShapeDtypeStruct((2 * k,), np.float32)] * 2
    two = jax.make_jaxpr(lambda a, b: a.sum() + b.sum())(*specs)
    with pytest.raises(ValueError, match="size"):
        build_plan(two).run([np.ones(4, np.float32), np.ones(6, np.float32)])


def test_costs_count_loops_and_products():
    x = np.zeros((10, 10), np.float32)
    product = CostEstimate(jax.make_jaxpr(lambda a: a @ a)(x)).bind([x.shape])
    assert (product.flops, product.bytes, product.equations) == (2000, 1200, 1)
    body = lambda a: lax.scan(lambda c, _: (c @ c, None), a, None, length=7)[0]
    loop = CostEstimate(jax.make_jaxpr(body)(x)).bind([x.shape])
    assert (loop.flops, loop.equations, loop.static_equations) == (14000, 8, 2)
    assert loop.run_seconds > product.run_seconds
    assert loop.compile_seconds > product.compile_seconds


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("draw", [philox.philox_uniform, philox.philox_normal])
@pytest.mark.parametrize("shape, dtype", [((), "float32"), ((2, 5), "float32"), ((3,), "float64")])
def test_random_numbers_of_many_states(axis, draw, shape, dtype):
    states = np.arange(12, dtype=np.int64).reshape(4, 3)
    states = states if axis == 0 else states.T.copy()
    function = jax.vmap(lambda state: draw(state, shape, dtype), in_axes=axis)
    (found,) = build_plan(jax.make_jaxpr(function)(states)).run([states])
    np.testing.assert_allclose(found, function(states), rtol=1e-5, atol=1e-6)


def test_elementwise_equations_read_the_sources_of_broadcasts():
    (rows,) = export.symbolic_shape("rows")
    row, column = RANDOM.randn(3).astype(np.float32), RANDOM.randn(3).astype(np.float32)

    def run(x, row, column):
        # A row, columns, scalars, operands that are all repeated, and rows of the other operand.
        y = jnp.maximum(x * row + 0.5, column[: x.shape[0], None] if x.shape[0] == 3 else 0.0)
        y = jnp.where(y > 0.7, row, y) - x[:1]
        z = jnp.where(jnp.broadcast_to(row > 0, x.shape), jnp.nan, jnp.broadcast_to(row, x.shape))
        return y, z, jnp.clip(x, -0.5, 0.5).astype(np.int32) + 1, y.sum(1, keepdims=True) * x

    specs = [jax.ShapeDtypeStruct((rows, 3), np.float32), row, column]
    plan = build_plan(jax.make_jaxpr(run)(*specs))
    for count in (1, 2, 7):
        arrays = [RANDOM.randn(count, 3).astype(np.float32), row, column]
        results = plan.run(arrays)
        check_memory(results, arrays)
        for result, value in zip(results, jax.jit(run)(*arrays), strict=True):
            assert find_difference(result, np.asarray(value), rtol=1e-6) is None
    # Two operands are both repeated. The other equations need no view for each number of rows.
    broadcasts = [
        n for n in plan._program._nodes if n.name == "broadcast_in_dim" and not n.is_static
    ]
    assert len(broadcasts) <= 2
    check(run, RANDOM.randn(3, 3).astype(np.float32), row, column, rtol=1e-6)


def test_results_are_written_to_allocated_arrays():
    """Results of fixed shapes are in arrays of the caller; later equations do not change them."""
    made = []

    def allocate(shape, dtype):
        made.append(np.full(shape, 7, dtype))
        return made[-1]

    (n,) = export.symbolic_shape("n")
    rows = jax.ShapeDtypeStruct((n, 3), np.float32)
    weights = jax.ShapeDtypeStruct((3,), np.float32)

    def run(x, w):
        change = w * 2
        new = w - change
        return new, new + 1, x * 2, change.sum()

    plan = build_plan(jax.make_jaxpr(run)(rows, weights), allocate=allocate)
    x, w = np.ones((4, 3), np.float32), np.arange(3, dtype=np.float32)
    for _ in range(2):
        made.clear()
        results = plan.run([x, w])
        assert [any(r is m for m in made) for r in results[:2]] == [True, True]
        for result, expected in zip(results, run(x, w), strict=True):
            np.testing.assert_array_equal(result, expected)


def test_transposes_of_products_exchange_operands():
    x, y = (RANDOM.randn(*s).astype(np.float32) for s in [(2, 3, 4, 5), (2, 6, 4)])
    numbers = ((2,), (2,)), ((0,), (0,))

    def run(x, y):
        product = lax.dot_general(x, y, numbers)
        both = lax.dot_general(y, x, (((2,), (2,)), ((0,), (0,))))
        return product.transpose(0, 3, 1, 2) + 1, both, both.transpose(0, 2, 3, 1) * 2

    check(run, x, y, rtol=1e-5, atol=1e-5)
    names = [node.name for node in build_plan(jax.make_jaxpr(run)(x, y))._program._nodes]
    # The second product is also a result.
    assert names.count("dot_general") == 2 and names.count("transpose") == 1


def test_equal_numbers_are_computed_once():
    def run(x, y, step):
        rates = [0.1 / (1 - 0.9 ** (step + 1).astype(np.float32)) for _ in range(2)]
        return x * rates[0], y * rates[1], rates[0], rates[1], x * 0.9

    arrays = np.ones(3, np.float32), np.ones(4, np.float32), np.int32(4)
    plan = build_plan(jax.make_jaxpr(run)(*arrays))
    names = [node.name for node in plan._program._nodes]
    assert names.count("pow") == names.count("div") == 1 and names.count("mul") == 3
    results = plan.run([np.asarray(a) for a in arrays])
    check_memory(results, arrays)
    check(run, *arrays, rtol=1e-6)
