"""Tests of operations of version 1 graphs: shapes, names, values in sessions, gradients and control flow."""

import threading

import numpy as np
import pytest

import meshflow as tf

v1 = tf.compat.v1


@pytest.fixture(name="graph", autouse=True)
def make_graph():
    with tf.Graph().as_default() as graph:
        yield graph


def run(fetches, feeds=None):
    with v1.Session() as session:
        session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
        return session.run(fetches, feeds)


def test_shapes_of_symbolic_tensors():
    x = v1.placeholder(tf.float32, [None, 3, 4])
    assert tf.reshape(x, [-1, 12]).shape.as_list() == [None, 12]
    assert tf.reshape(x, [tf.shape(x)[0], 2, 6]).shape.as_list() == [None, 2, 6]
    assert tf.transpose(x, [1, 0, 2]).shape.as_list() == [3, None, 4]
    assert x[..., 1:3].shape.as_list() == [None, 3, 2] and tf.argmax(x, -1).shape == [None, 3]
    anything = v1.placeholder(tf.float32)
    assert (anything + 1.0).shape.rank is None and (anything + 1.0).dtype == tf.float32
    anything.set_shape([2, None])
    assert anything.get_shape().as_list() == [2, None]
    np.testing.assert_array_equal(run(x[:, 0, 0], {x: np.ones([2, 3, 4])}), [1, 1])


@pytest.mark.parametrize(
    "build, error",
    [
        (lambda x: tf.matmul(x, x), ValueError),
        (lambda x: x + tf.ones([4]), ValueError),
        (bool, TypeError),
        (lambda x: tf.concat([x, tf.ones([2])], 0), ValueError),
        (lambda x: x.set_shape([5, 5]), ValueError),
        (lambda x: v1.Session().run(None), TypeError),
        (lambda x: v1.Session().run("missing:0"), ValueError),
        (lambda x: v1.Session().run(x), tf.errors.InvalidArgumentError),
        (lambda x: v1.Session().run(x, {x: np.ones([3, 3])}), ValueError),
        (lambda x: list(v1.placeholder(tf.float32, [None])), TypeError),
        (lambda x: x.eval(), ValueError),
        (lambda x: v1.Session(graph=tf.Graph()).run(x), ValueError),
    ],
)
def test_errors(build, error):
    with pytest.raises(error):
        build(v1.placeholder(tf.float32, [2, 3]))


def test_names(graph):
    a = tf.constant(1.0, name="a")
    with tf.name_scope("scope"):
        b = tf.add(a, 2, name="sum")
    with tf.name_scope("scope"):
        assert tf.identity(b, name="c").name == "scope_1/c:0"
    assert not tf.executing_eagerly() and b.op.type == "AddV2"
    assert graph.get_tensor_by_name("scope/sum:0") is b is b.op.outputs[0]
    assert graph.get_operation_by_name("a") is a.op is b.op.inputs[0].op
    assert a.consumers() == [b.op] and a.op in graph.get_operations()
    assert run("scope/sum:0") == 3 and run({"x": [b.op, (a,)]}) == {"x": [None, (1,)]}
    with pytest.raises(KeyError):
        graph.get_tensor_by_name("scope/sum:1")


# Names of TensorFlow 2.15.
@pytest.mark.parametrize(
    "build,name,kind",
    [
        (lambda x: 1 + x, "add", "AddV2"),
        (lambda x: x / 2, "truediv", "RealDiv"),
        (lambda x: x % 2, "mod", "FloorMod"),
        (lambda x: x @ x, "matmul", "MatMul"),
        (lambda x: -x, "Neg", "Neg"),
        (lambda x: x[0], "strided_slice", "StridedSlice"),
        (lambda x: tf.add(x, 1), "Add", "AddV2"),
        (lambda x: tf.concat([x, x], 0), "concat", "ConcatV2"),
        (lambda x: tf.linalg.inv(x), "MatrixInverse", "MatrixInverse"),
    ],
)
def test_default_names(build, name, kind):
    x = v1.placeholder(tf.float32, [2, 2], name="x")
    assert build(x).name == f"{name}:0" and build(x).name == f"{name}_1:0"
    assert build(x).op.type == kind


def test_feeds_replace_any_tensor():
    constant = tf.constant(2.0)
    middle = constant * 3
    result = middle + 1
    gradient = tf.gradients(result * result, constant)[0]
    with v1.Session() as session:
        assert session.run([result, gradient]) == [7, 42]
        assert session.run([result, gradient], {constant: 1.0}) == [4, 24]
        assert session.run(result, {middle: 0.0}) == 1
        assert result.eval({result: 5.0}) == 5


def test_gradients():
    x = v1.placeholder(tf.float32, [2])
    y = tf.reduce_sum(x**3)
    first = tf.gradients(y, x)[0]
    fetches = [first, tf.gradients(first, x)[0], tf.hessians(y, x)[0]]
    fetches += [
        tf.gradients(tf.stop_gradient(x) * x, x)[0],
        tf.gradients(y, x, tf.constant(2.0))[0],
    ]
    middle = x * 2
    fetches += tf.gradients(middle * x, [x], stop_gradients=[middle])
    with tf.GradientTape() as tape:
        tape.watch(x)
        z = x * x
    fetches.append(tape.gradient(z, x))
    found = run(fetches, {x: [1.0, 2.0]})
    expected = [[3, 12], [6, 12], [[6, 0], [0, 12]], [1, 2], [6, 24], [2, 4], [2, 4]]
    for value, reference in zip(found, expected, strict=True):
        np.testing.assert_allclose(value, reference)
    assert tf.gradients(tf.constant(1.0), x) == [None]
    assert (
        run(tf.gradients(tf.constant(1.0), x, unconnected_gradients="zero"), {x: [1, 2]})[0][1] == 0
    )
    table = tf.Variable(np.arange(6.0).reshape(3, 2))
    rows = tf.convert_to_tensor(tf.gradients(tf.nn.embedding_lookup(table, [0, 2]), table)[0])
    np.testing.assert_array_equal(run(rows), [[1, 1], [0, 0], [1, 1]])


def test_branches_and_loops():
    flag, x, v = v1.placeholder(tf.bool, []), v1.placeholder(tf.float32, []), tf.Variable(1.0)
    y = tf.cond(flag, lambda: x * 2, lambda: x - v)
    fetches = [y, *tf.gradients(y, [x, v])]
    assert run(fetches, {flag: True, x: 3.0}) == [6, 2, 0]
    assert run(fetches, {flag: False, x: 3.0}) == [2, 1, -1]
    n = v1.placeholder(tf.int32, [])
    _, power = tf.while_loop(lambda i, p: i < n, lambda i, p: (i + 1, p * x), [0, 1.0])
    assert run([power, tf.gradients(power, x)[0]], {n: 4, x: 2.0}) == [16, 32]
    rows = v1.placeholder(tf.float32, [None])
    mapped = tf.map_fn(lambda row: row * x + rows[0], rows)
    np.testing.assert_array_equal(run(mapped, {rows: [1, 2], x: 3.0}), [4, 7])
    steps = tf.Variable(0)
    step = tf.cond(flag, lambda: steps.assign_add(1), lambda: steps.assign_add(10))
    assert run(step, {flag: False}) == 10


def test_functions_are_called_by_operations():
    v, x = tf.Variable(2.0), v1.placeholder(tf.float32, [None])

    @tf.custom_gradient
    def scaled(a):
        return a * 1.0, lambda d: d * 10.0

    product = tf.function(lambda a: a * v)(x)
    doubled = v1.py_func(lambda a: a * 2 + 1, [x], tf.float32)
    doubled.set_shape([None])
    found = run(
        [*tf.gradients(product, [x, v]), *tf.gradients(scaled(x), x), doubled], {x: [1.0, 2.0]}
    )
    for value, expected in zip(found, [[2, 2], 3, [10, 10], [3, 5]], strict=True):
        np.testing.assert_array_equal(value, expected)


def test_functions_read_graph_tensors_in_each_run():
    x = v1.placeholder(tf.float32, [None])
    count = tf.cast(tf.shape(x)[0], tf.float32)
    inner = tf.function(lambda a: a + x)
    product = tf.function(lambda a: inner(a) * count)(tf.constant(1.0))
    gradient = tf.gradients(product, x)[0]

    class Scaling(tf.keras.layers.Layer):
        @tf.function
        def call(self, a):
            return a * x

    scaled = Scaling()(tf.ones([1]))
    with v1.Session() as session:
        for value, results in ([3.0], [[4], [1], [3]]), ([2.0, 5.0], [[6, 12], [2, 2], [2, 5]]):
            found = session.run([product, gradient, scaled], {x: value})
            assert [array.tolist() for array in found] == results


def test_tensors_of_other_graphs():
    x = v1.placeholder(tf.float32, [])
    add = tf.function(lambda a: a + x)
    with tf.Graph().as_default(), pytest.raises(ValueError, match="same graph"):
        tf.constant(1.0) + x
    calls = []

    def call():  # Another thread has no graph.
        try:
            add(tf.constant(1.0))
        except ValueError as error:
            calls.append(str(error))

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert len(calls) == 1 and "belongs to a version 1 graph" in calls[0]


def test_control_dependencies_order_operations():
    v = tf.Variable(0)
    with tf.control_dependencies([v.assign_add(5)]):
        y = tf.identity(v)
    with tf.control_dependencies([y]):
        nothing = tf.no_op()
    both = tf.group(v.assign_add(1), v.assign_add(1))
    with v1.Session() as session:
        session.run(v.initializer)
        assert [session.run(f) for f in (y, nothing, v, both, v)] == [5, None, 10, None, 12]
        both.run()
        assert v.eval() == 14
    x = v1.placeholder(tf.int32, [])
    with tf.control_dependencies([v1.assert_equal(x, 3)]):
        checked = tf.identity(x)
    assert run(checked, {x: 3}) == 3
    with pytest.raises(tf.errors.InvalidArgumentError):
        run(checked, {x: 4})


def test_random_operations_draw_in_each_run():
    r = tf.random.normal([3], seed=1)
    with v1.Session() as session:
        first, same, second = *session.run([r, r]), session.run(r)
    assert r.shape == [3] and (first == same).all() and (first != second).any()


def test_strings_tables_and_sparse_tensors():
    words = v1.placeholder(tf.string, [None])
    initializer = tf.lookup.KeyValueTensorInitializer(["a", "b"], [1, 2])
    ids = tf.lookup.StaticHashTable(initializer, -1).lookup(words)
    with v1.Session() as session:
        session.run(v1.tables_initializer())
        joined_words = tf.strings.join([words, words])
        joined, found = session.run([joined_words, ids], {words: ["b", "c"]})
        with pytest.raises(tf.errors.InvalidArgumentError, match="string"):
            session.run(joined_words, {words: [1, 2]})
    assert joined.tolist() == [b"bb", b"cc"] and found.tolist() == [2, -1]
    sparse = v1.sparse_placeholder(tf.float32, [2, 3])
    value = v1.SparseTensorValue([[0, 1]], [5.0], [2, 3])
    dense = tf.sparse.to_dense(sparse)
    assert dense.shape == [2, 3]
    doubled = tf.sparse.from_dense(dense * 2)
    assert run(doubled, {sparse: value}).values.tolist() == [10]


def test_graph_of_all_code():
    modes = []

    def list_modes():  # The mode belongs to the thread.
        v1.disable_eager_execution()
        x = v1.placeholder(tf.float32, [])
        modes.append((tf.executing_eagerly(), float(v1.Session().run(x + 1, {x: 1.0}))))
        v1.enable_eager_execution()
        modes.append((tf.executing_eagerly(), float(tf.constant(1.0) + 1)))

    thread = threading.Thread(target=list_modes)
    thread.start()
    thread.join()
    assert modes == [(False, 2), (True, 2)]


def test_finalized_graphs(graph):
    graph.finalize()
    with pytest.raises(RuntimeError, match="finalized"):
        tf.constant(1.0) + v1.placeholder(tf.float32, [])


def test_gradients_of_sources_that_depend_on_other_sources():
    x = tf.constant(3.0)
    y = x * x
    z = y * y
    assert run(v1.gradients(z, [x, y])) == [108.0, 18.0]


def test_jacobians_of_tapes():
    x, rows = tf.constant([[1.0, 2.0], [3.0, 4.0]]), v1.placeholder(tf.float32, [None, 2])
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([x, rows])
        cubes, sums = x**3, tf.reduce_sum(rows**2, 1, keepdims=True)
    jacobian, batch = tape.jacobian(cubes, x), tape.batch_jacobian(cubes, x)
    of_rows = tape.batch_jacobian(sums, rows)
    assert jacobian.shape == [2, 2, 2, 2] and of_rows.shape.as_list() == [None, 1, 2]
    values = run([jacobian, batch, of_rows], {rows: [[1, 2], [5, 6], [7, 8]]})
    np.testing.assert_allclose(values[0].reshape(4, 4), np.diag([3.0, 12.0, 27.0, 48.0]))
    np.testing.assert_allclose(values[1], [np.diag([3.0, 12.0]), np.diag([27.0, 48.0])])
    np.testing.assert_allclose(values[2], [[[2, 4]], [[10, 12]], [[14, 16]]])
    with pytest.raises(ValueError, match="must be known in a graph"):
        tape.jacobian(rows, rows)


def test_reads_of_parts_of_variables():
    variable = tf.Variable(np.arange(12).reshape(4, 3))
    rows, values = variable.sparse_read([2, 0]), variable.gather_nd([[1, 2], [3, 0]])
    assert rows.shape == [2, 3] and values.shape == [2]
    found = run([rows, values])
    assert found[0].tolist() == [[6, 7, 8], [0, 1, 2]] and found[1].tolist() == [5, 9]


def test_random_operations_continue_their_own_numbers_in_each_session():
    # The numbers of the seeded operations are those of TensorFlow 2.15.1.
    v1.set_random_seed(7)
    first, second = (tf.random.normal([2], seed=345) for _ in range(2))
    uniform, *unseeded = tf.random.uniform([2], seed=3), *(tf.random.uniform([2]) for _ in range(2))
    runs = []
    for _ in range(2):
        with v1.Session() as session:
            values = session.run([first, second, uniform, *unseeded])
            np.testing.assert_allclose(values[0], [-0.34377253, -0.19078623], rtol=1e-5)
            np.testing.assert_array_equal(values[0], values[1])
            np.testing.assert_allclose(values[2], [0.40108788, 0.37683892], rtol=1e-5)
            np.testing.assert_allclose(session.run(second), [1.1536726, 0.9046934], rtol=1e-5)
            np.testing.assert_allclose(session.run(second), [1.2632608, -0.72432935], rtol=1e-5)
            runs.append(values)
    np.testing.assert_array_equal(*runs)
    assert (runs[0][3] != runs[0][4]).all()


def test_tapes_differentiate_watched_sources_only():
    first, second, constant = tf.Variable(1.0), tf.Variable(2.0), tf.constant(3.0)
    frozen = tf.Variable(4.0, trainable=False)
    with tf.GradientTape(persistent=True, watch_accessed_variables=False) as tape:
        tape.watch(second)
        square = second**2
        cube = square * second + first + frozen + constant
    found = tape.gradient(cube, [first, second, square, constant])
    assert found[0] is None and found[3] is None
    assert run([found[1], found[2]]) == [12.0, 2.0]
    zeros = tape.gradient(cube, {"a": frozen, "b": second}, unconnected_gradients="zero")
    assert run(zeros) == {"a": 0.0, "b": 12.0}
    with tf.GradientTape() as tape:
        total = first + frozen
    found = tape.gradient(total, [first, frozen])
    assert run(found[0]) == 1.0 and found[1] is None


def test_sessions_report_invalid_values_of_constants():
    sums = tf.math.segment_sum(tf.constant([1.0, 2.0]), tf.constant([1, 0]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="segment ids are not increasing"):
        run(sums)
    with pytest.raises(ValueError, match="reshape"):
        tf.reshape(tf.constant([1.0, 2.0, 3.0]), [2, 2])
    with pytest.raises(ValueError, match="incompatible"):
        tf.matmul(tf.ones([2, 3]), tf.ones([2, 3]))


def test_seeds_of_graphs_do_not_depend_on_other_graphs():
    drawn = []
    for _ in range(2):
        with tf.Graph().as_default() as graph, v1.Session() as session:
            v1.set_random_seed(3)
            x = tf.random.uniform([2])
            assert [o.name for o in graph.get_operations()] == [x.op.name]
            drawn.append([*session.run(x), *session.run(x)])
    assert drawn[0] == drawn[1] and len(set(drawn[0])) == 4
