"""Test ragged tensors, sparse tensors and extension types in batches that are split over replicas."""

import contextlib
import itertools
import signal
import threading

import numpy as np
import pytest

import meshflow as tf
from meshflow.distribute.multi_worker.worker_dataset import WorkerDataset

RAGGED = tf.ragged.constant([[1.0, 2.0], [], [3.0], [4.0, 5.0, 6.0]])
SPARSE = tf.sparse.from_dense(np.arange(12.0).reshape(4, 3))
SUM = tf.VariableAggregation.SUM
TARGETS = np.array([0.0, 1.0, 0.0, 1.0], np.float32)


class Graph(tf.experimental.BatchableExtensionType):
    weights: tf.Tensor
    nodes: tf.RaggedTensor


GRAPHS = Graph(tf.reshape(tf.range(8.0), [4, 2]), RAGGED)
VALUES = {"ragged": RAGGED, "sparse": SPARSE, "extension": GRAPHS}


def create_strategy(count=2):
    return tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(count)])


def to_lists(value):
    """Convert a tensor or composite tensor to nested lists, with the sizes of the rows."""
    if isinstance(value, Graph):
        return [to_lists(value.weights), to_lists(value.nodes)]
    if isinstance(value, tf.SparseTensor):
        return [value.shape.as_list(), to_lists(tf.sparse.to_dense(value))]
    return value.to_list() if isinstance(value, tf.RaggedTensor) else value.numpy().tolist()


def list_replicas(strategy, value):
    return list(map(to_lists, strategy.experimental_local_results(value)))


def slice_value(value, start, stop):
    if isinstance(value, Graph):
        return Graph(value.weights[start:stop], value.nodes[start:stop])
    if isinstance(value, tf.SparseTensor):
        return tf.sparse.slice(value, [start, 0], [stop - start, 3])
    return value[start:stop]


def make_batches(value, size):
    return tf.data.Dataset.from_tensor_slices((value, TARGETS)).batch(size)


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("count", [2, 3])
def test_batches_are_split_by_rows(kind, count):
    strategy, value = create_strategy(count), VALUES[kind]
    data = strategy.experimental_distribute_dataset(make_batches(value, 3))
    # The first replicas have more rows; the last ones may have none.
    parts = {2: [(0, 2, 3), (3, 4, 4)], 3: [(0, 1, 2, 3), (3, 4, 4, 4)]}[count]
    for (element, targets), ends in zip(data, parts, strict=True):
        expected = [slice_value(value, a, b) for a, b in itertools.pairwise(ends)]
        assert list_replicas(strategy, element) == list(map(to_lists, expected))
        rows = [TARGETS[a:b].tolist() for a, b in itertools.pairwise(ends)]
        assert list_replicas(strategy, targets) == rows
        assert data.element_spec[0].is_compatible_with(element)


@pytest.mark.parametrize("kind", VALUES)
def test_batches_of_replicas_are_not_split(kind):
    strategy, value = create_strategy(), VALUES[kind]
    data = strategy.distribute_datasets_from_function(
        lambda context: make_batches(value, 2).take(1)
    )
    ((element, _),) = data
    expected = [slice_value(value, 0, 2), slice_value(value, 0, 0)]
    assert list_replicas(strategy, element) == list(map(to_lists, expected))


def compute_outputs(variable, x):
    if isinstance(x, tf.RaggedTensor):
        rows = tf.nn.embedding_lookup(variable, tf.cast(x, tf.int32))
        return tf.reduce_sum(tf.reduce_sum(rows, axis=1), axis=1)
    if isinstance(x, tf.SparseTensor):
        return tf.sparse.sparse_dense_matmul(tf.cast(x, tf.float32), variable[:3])[:, 0]
    sums = tf.reduce_sum(x.nodes, axis=1) * variable[2, 0]
    return tf.reduce_sum(x.weights, 1) * variable[1, 0] + sums


def train(strategy, value, loops=False):
    """Return the losses of two epochs with batches of three rows, and the variable."""
    with strategy.scope():
        variable = tf.Variable(np.arange(14.0, dtype=np.float32).reshape(7, 2) / 14)
        optimizer = tf.keras.optimizers.SGD(0.001)

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((compute_outputs(variable, x) - y) ** 2) / 3.0
        optimizer.apply_gradients([(tape.gradient(loss, variable), variable)])
        return loss

    def run(x, y):
        return strategy.reduce("SUM", strategy.run(step, args=(x, y)), axis=None)

    @tf.function
    def run_epoch(batches):
        total = 0.0
        for x, y in batches:
            total += run(x, y)
        return total

    run_one = tf.function(run)
    data = strategy.experimental_distribute_dataset(make_batches(value, 3))
    if loops:
        return [float(run_epoch(data)) for _ in range(2)], variable.numpy()
    return [sum(float(run_one(x, y)) for x, y in data) for _ in range(2)], variable.numpy()


@pytest.mark.parametrize("kind", VALUES)
def test_training_equals_one_replica(kind):
    expected = train(create_strategy(1), VALUES[kind])
    for loops in (False, True):
        losses, variable = train(create_strategy(2), VALUES[kind], loops)
        np.testing.assert_allclose(losses, expected[0], rtol=1e-5)
        np.testing.assert_allclose(variable, expected[1], rtol=1e-5)


def test_losses_of_ragged_training_equal_tensorflow():
    strategy = create_strategy()
    with strategy.scope():
        table, optimizer = tf.Variable(tf.ones([7, 2])), tf.keras.optimizers.SGD(0.001)

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((compute_outputs(table, x) - y) ** 2) / 3.0
        optimizer.apply_gradients([(tape.gradient(loss, table), table)])
        return loss

    data = strategy.experimental_distribute_dataset(make_batches(RAGGED, 3))
    losses = [
        [float(strategy.reduce("SUM", strategy.run(step, args=pair), axis=None)) for pair in data]
        for _ in range(2)
    ]
    # Results of TensorFlow 2.21 with two logical CPUs.
    np.testing.assert_allclose(losses, [[7.0, 8.333334], [6.968040, 8.266800]], rtol=1e-6)
    expected = [1.0, 0.9946738, 0.9946738, 0.9973351, 0.9933467, 0.9933467, 0.9933467]
    np.testing.assert_allclose(table[:, 0], expected, rtol=1e-6)


def distribute(strategy, make):
    return strategy.experimental_distribute_values_from_function(
        lambda context: make(context.replica_id_in_sync_group)
    )


@pytest.mark.parametrize("compiles", [False, True])
def test_sizes_may_depend_on_values(compiles):
    strategy = create_strategy()
    ragged = distribute(strategy, lambda i: RAGGED[2 * i : 2 * i + 2])
    dense = distribute(strategy, lambda i: tf.constant([[1.0, -1.0, 2.0], [3.0, -4.0, -5.0]][i]))

    def run():
        padded = strategy.run(lambda x: x.to_tensor(), args=(ragged,))
        return padded, strategy.run(lambda x: tf.boolean_mask(x, x > 0), args=(dense,))

    padded, positive = (tf.function(run) if compiles else run)()
    expected = [[[1.0, 2.0], [0.0, 0.0]], [[3.0, 0.0, 0.0], [4.0, 5.0, 6.0]]]
    assert list_replicas(strategy, padded) == expected
    assert list_replicas(strategy, positive) == [[1.0, 2.0], [3.0]]


def test_functions_with_sizes_that_depend_on_values_are_traced_once():
    strategy, traces = create_strategy(), []

    @tf.function
    def select(x):
        traces.append(1)
        return tf.boolean_mask(x, x > 0)

    for sign in (1.0, -1.0):
        dense = distribute(
            strategy, lambda i, s=sign: s * tf.constant([[1.0, -1.0], [3.0, 4.0]][i])
        )
        count = len(traces)
        results = list_replicas(strategy, strategy.run(select, args=(dense,)))
        assert results == ([[1.0], [3.0, 4.0]] if sign > 0 else [[1.0], []])
    assert len(traces) == count


@pytest.mark.parametrize("kind", VALUES)
def test_results_and_shared_arguments_may_be_composite(kind):
    strategy, value = create_strategy(), VALUES[kind]
    results = strategy.run(lambda x: x, args=(value,))
    assert list_replicas(strategy, results) == [to_lists(value)] * 2


def test_strings_may_differ_between_replicas():
    strategy = create_strategy()
    rows = distribute(strategy, lambda i: tf.ragged.constant([["a"], ["b", "c"]])[: i + 1])
    words = distribute(strategy, lambda i: tf.constant(["x", "y"][i]))
    joined = strategy.run(lambda x, y: tf.strings.join([x.flat_values, y]), args=(rows, words))
    assert list_replicas(strategy, joined) == [[b"ax"], [b"ay", b"by", b"cy"]]


def test_slices_are_reduced_to_slices():
    strategy = create_strategy()
    slices = distribute(
        strategy, lambda i: tf.IndexedSlices(tf.ones([1, 2]), tf.constant([i]), tf.constant([3, 2]))
    )
    total = strategy.reduce("MEAN", slices, axis=None)
    assert isinstance(total, tf.IndexedSlices)
    assert total.values.numpy().tolist() == [[0.5, 0.5]] * 2
    assert total.indices.numpy().tolist() == [0, 1]


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("compiles", [False, True])
def test_merge_call_of_composite_values(kind, compiles):
    strategy, value = create_strategy(), VALUES[kind]
    parts = distribute(strategy, lambda i: slice_value(value, 3 * i, 3 + i))

    def swap(strategy, x, options):
        assert isinstance(options["y"], tf.distribute.DistributedValues)
        first, second = strategy.experimental_local_results(x)
        return {"first": first, "second": second, "own": x}

    def exchange(x):
        context = tf.distribute.get_replica_context()
        return context.merge_call(swap, (x,), {"options": {"y": x}})

    def run():
        return strategy.run(exchange, args=(parts,))

    results = (tf.function(run) if compiles else run)()
    expected = [to_lists(slice_value(value, 0, 3)), to_lists(slice_value(value, 3, 4))]
    assert list_replicas(strategy, results["own"]) == expected
    assert list_replicas(strategy, results["first"]) == [expected[0]] * 2
    assert list_replicas(strategy, results["second"]) == [expected[1]] * 2


@pytest.mark.parametrize("kind", VALUES)
def test_reductions_refuse_composite_values(kind):
    strategy, value = create_strategy(), VALUES[kind]
    values = distribute(strategy, lambda i: value)
    for combine in (lambda: strategy.reduce("SUM", values), lambda: strategy.gather(values, 0)):
        with pytest.raises(TypeError, match="does not support values of type"):
            combine()
    get_context = tf.distribute.get_replica_context
    for method in (
        lambda x: get_context().all_reduce("SUM", x),
        lambda x: get_context().all_gather(x, 0),
    ):
        with pytest.raises(TypeError, match="does not support values of type"):
            strategy.run(method, args=(values,))


def select_positive(x):
    x = x.flat_values if isinstance(x, tf.RaggedTensor) else x.values
    return tf.boolean_mask(x, x > 2.0)


@pytest.mark.parametrize("compiles", [False, True])
@pytest.mark.parametrize("kind", ["ragged", "sparse"])
def test_steps_with_sizes_that_depend_on_values_write_variables(kind, compiles):
    """Losses, gradients and variables equal those of one replica; the last batch has an empty replica."""

    def train(strategy):
        with strategy.scope():
            table = tf.Variable(tf.ones([12, 2]))
            total = tf.Variable(0.0, aggregation=tf.VariableAggregation.SUM)
            count = tf.Variable(
                0,
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.SUM,
            )
            optimizer = tf.keras.optimizers.SGD(0.1, momentum=0.9)

        def step(x):
            with tf.GradientTape() as tape:
                selected = select_positive(x)
                loss = tf.reduce_sum(tf.gather(table, tf.cast(selected, tf.int32)) ** 2)
            optimizer.apply_gradients([(tape.gradient(loss, table), table)])
            total.assign_add(tf.cast(tf.reduce_sum(selected), tf.float32))
            count.assign_add(tf.size(selected))
            return loss

        def run(x):
            return strategy.reduce("SUM", strategy.run(step, args=(x,)), axis=None)

        data = tf.data.Dataset.from_tensor_slices(VALUES[kind]).batch(3)
        run = tf.function(run) if compiles else run
        losses = [float(run(x)) for x in strategy.experimental_distribute_dataset(data)]
        return [losses, table.numpy(), float(total), int(count)]

    for found, expected in zip(train(create_strategy()), train(create_strategy(1)), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_replicas_that_run_as_python_exchange_values():
    strategy = create_strategy()
    numbers = distribute(strategy, lambda i: tf.constant([[1.0, -1.0, 2.0], [3.0, 4.0, 5.0]][i]))
    with strategy.scope():
        equal, chosen = tf.Variable(0.0), tf.Variable(0.0, aggregation=tf.VariableAggregation.MEAN)

    def step(x):
        context = tf.distribute.get_replica_context()
        context.merge_call(lambda strategy, y: None, (tf.RaggedTensor.from_row_lengths(x, [3]),))
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            rows = x[x > 0]
            gathered = tf.reduce_sum(context.all_gather(rows, 0) ** 2)
            mean = context.all_reduce("MEAN", tf.reduce_sum(rows)) ** 2
        equal.assign(gathered)
        chosen.assign(float(len(rows)))
        created = [tf.Variable(float(len(rows))) for _ in range(1 if step.created is None else 0)]
        step.created = step.created or created
        return tape.gradient(gathered, x), tape.gradient(mean, x), context.replica_id_in_sync_group

    step.created = None
    gathered, mean, ids = strategy.run(step, args=(numbers,))
    # Each replica's loss counts the values of both.
    assert list_replicas(strategy, gathered) == [[4.0, 0.0, 8.0], [12.0, 16.0, 20.0]]
    assert list_replicas(strategy, mean) == [[15.0, 0.0, 15.0], [15.0] * 3]
    assert list_replicas(strategy, ids) == [0, 1]
    assert (float(equal), float(chosen)) == (55.0, 2.5)
    assert [float(variable) for variable in step.created] == [2.0]


def test_errors_of_replicas_that_run_as_python():
    strategy = create_strategy()
    numbers = distribute(strategy, lambda i: tf.constant([[1.0, -1.0], [3.0, 4.0]][i]))
    with strategy.scope():
        variable = tf.Variable(0.0)

    def share(x):
        rows = tf.RaggedTensor.from_row_lengths(x, [len(x)])
        return tf.distribute.get_replica_context().merge_call(lambda strategy, y: y, (rows,))

    def write(x):
        share(x)
        variable.assign(x[1])

    def raise_in_one(x):
        share(x)
        if x[1] > 0:
            raise KeyError("from a replica")
        return share(x)

    def stop_early(x):
        shared = share(x)
        return share(x) if x[1] < 0 else shared

    cases = [
        (write, ValueError, "write different values"),
        (raise_in_one, KeyError, "from a replica"),
        (stop_early, tf.errors.InvalidArgumentError, "different collectives"),
    ]
    for step, error, message in cases:
        with pytest.raises(error, match=message):
            strategy.run(step, args=(numbers,))
    assert not [t for t in threading.enumerate() if t.name.startswith("replica ")]


def run_as_python(step, strategy=None):
    """Run a function of a replica's row in two replicas that run as Python; list the results of each output."""
    strategy = strategy or create_strategy()
    numbers = distribute(strategy, lambda i: tf.constant([[1.0, -1.0, 2.0], [3.0, 4.0, 5.0]][i]))

    def run(x):
        rows = tf.RaggedTensor.from_row_lengths(x, [3])
        tf.distribute.get_replica_context().merge_call(lambda strategy, y: None, (rows,))
        return step(x)

    results = strategy.run(run, args=(numbers,))
    return [strategy.experimental_local_results(result) for result in results]


def test_numbers_of_replicas_that_run_as_python():
    def step(x):
        count, total = len(x[x > 0]), x.numpy().sum()
        context = tf.distribute.get_replica_context()
        add = lambda strategy, n: sum(strategy.experimental_local_results(n))
        return count, total, context.merge_call(add, (count,)), "same"

    counts, totals, sums, texts = run_as_python(step)
    assert [*counts, *totals, *sums, *texts] == [2, 3, 2.0, 12.0, 5, "same"]


def test_variables_that_some_replicas_write():
    strategy = create_strategy()
    options = {"synchronization": tf.VariableSynchronization.ON_READ, "aggregation": SUM}
    with strategy.scope():
        variables = [tf.Variable(0.0, **options) for _ in range(2)]
        name = tf.Variable("")

    def step(x):
        variables[int(x[1] > 0)].assign_add(x[0])
        name.assign(tf.strings.as_string(tf.constant(12)))
        context = tf.distribute.get_replica_context()
        merged = context.merge_call(lambda strategy: sum(v.read_value() for v in variables))
        variables[0].assign_add(1.0)
        return (merged,)

    ((first, second),) = run_as_python(step, strategy)
    assert (float(first), float(second)) == (4.0, 4.0)
    assert [float(v) for v in variables] == [3.0, 3.0]
    assert name.numpy() == b"12"


def test_state_of_threads_of_replicas(tmp_path):
    strategy, created = create_strategy(), []
    with strategy.scope():
        weight = tf.Variable([1.0])
        optimizer = tf.keras.mixed_precision.LossScaleOptimizer(tf.keras.optimizers.SGD(0.1))

    def step(x):
        with tf.name_scope("outer"):
            created.append(tf.Variable(1.0, name="inner"))
        with tf.GradientTape() as tape:
            z = tf.complex(weight * x[0], 0.0)
            total = tf.distribute.get_replica_context().all_reduce("SUM", z)
            loss = optimizer.get_scaled_loss(tf.reduce_sum(tf.math.real(total)))
        gradients = optimizer.get_unscaled_gradients(tape.gradient(loss, [weight]))
        optimizer.apply_gradients(zip(gradients, [weight], strict=True))
        return (tf.summary.scalar("written", x[0], step=0),)

    with tf.summary.create_file_writer(str(tmp_path)).as_default():
        ((is_written, _),) = run_as_python(step, strategy)
    assert is_written
    assert {v.name for v in created} == {"outer/inner:0"}
    # The gradient is 2 * 1 on the first replica, and 2 * 3 on the second one.
    np.testing.assert_allclose(weight.numpy(), [0.2], rtol=1e-5)


@pytest.fixture
def _interruptible():
    """Handle SIGINT as in a foreground process; shells let background processes ignore it."""
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, handler)


@pytest.mark.usefixtures("_interruptible")
@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt])
def test_replicas_that_catch_errors_end(error):
    main = threading.get_ident()

    def step(x):
        context = tf.distribute.get_replica_context()
        try:
            if x[1] < 0 and error is KeyboardInterrupt:
                signal.pthread_kill(main, signal.SIGINT)
            if x[1] < 0 and error is KeyError:
                raise KeyError
            context.all_reduce("SUM", x)
        finally:
            context.all_reduce("SUM", x)

    with pytest.raises(error):
        run_as_python(step)
    assert not [t for t in threading.enumerate() if t.name.startswith("replica ")]


@pytest.mark.parametrize("source", ["dataset", "distributed dataset"])
def test_fit_equals_one_device(source):
    def fit(strategy):
        tf.keras.utils.set_random_seed(1)
        with strategy.scope() if strategy else contextlib.nullcontext():
            words = tf.keras.Input([None], ragged=True, dtype="int64")
            profile = tf.keras.Input([3], sparse=True)
            embedded = tf.keras.layers.Embedding(7, 3)(words)
            pooled = tf.keras.layers.GlobalAveragePooling1D()(embedded)
            hidden = pooled + tf.keras.layers.Dense(3)(profile)
            model = tf.keras.Model([words, profile], tf.keras.layers.Dense(1)(hidden))
            model.compile(tf.keras.optimizers.SGD(0.01), "mse")
        ids = tf.ragged.constant([[1, 2], [0], [3], [4, 5, 6]], dtype="int64")
        data = make_batches((ids, tf.cast(SPARSE, tf.float32)), 3)
        if strategy and source == "distributed dataset":
            data = strategy.experimental_distribute_dataset(data)
        losses = model.fit(data, epochs=2, verbose=0).history["loss"]
        return losses, model.predict(make_batches((ids, tf.cast(SPARSE, tf.float32)), 4), verbose=0)

    expected, found = fit(None), fit(create_strategy())
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-5)


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("policy", ["DATA", "OFF"])
def test_datasets_of_several_workers(kind, policy):
    """Test the dataset of a strategy for several workers with the replicas of one worker."""
    strategy, value = tf.distribute.MultiWorkerMirroredStrategy(), VALUES[kind]
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy[policy]
    data = WorkerDataset(strategy, make_batches(value, 3).with_options(options), split=True)
    ends = [[0, 1, 2, 3, 3], [3, 4, 4, 4, 4]]
    for (element, _), row, batch in zip(data, ends, data.iterate_global_batches(), strict=True):
        expected = [slice_value(value, a, b) for a, b in itertools.pairwise(row)]
        assert list_replicas(strategy, element) == list(map(to_lists, expected))
        assert to_lists(batch[0]) == to_lists(slice_value(value, row[0], row[-1]))


def test_example_of_a_worker_without_data():
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    for value in VALUES.values():
        data = WorkerDataset(strategy, make_batches(value, 3).skip(2), split=True)
        ((element, targets), *_) = data._make_example()
        assert type(element) is type(value)
        assert isinstance(targets, np.ndarray)
