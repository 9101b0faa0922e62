"""Programs with names of TensorFlow 1, queues and utilities; api_values.json has TensorFlow's results."""

import numpy as np

LABELS = np.array([[0.0, 1.0, 0.5], [1.0, 0.0, 0.25]], np.float32)
VALUES = np.array([[0.2, 0.7, 0.1], [0.9, 0.4, 0.3]], np.float32)
WEIGHTS = np.array([[1.0, 0.0, 2.0]], np.float32)
LOSSES = (
    "absolute_difference",
    "mean_squared_error",
    "hinge_loss",
    "huber_loss",
    "log_loss",
    "sigmoid_cross_entropy",
)
OPTIMIZERS = {
    "GradientDescentOptimizer": {},
    "MomentumOptimizer": {"momentum": 0.9, "use_nesterov": True},
    "AdamOptimizer": {"beta1": 0.8},
    "AdagradOptimizer": {},
    "AdadeltaOptimizer": {"rho": 0.9, "epsilon": 1e-3},
    "RMSPropOptimizer": {"momentum": 0.5, "centered": True},
    "FtrlOptimizer": {
        "l1_regularization_strength": 0.1,
        "l2_regularization_strength": 0.2,
        "beta": 0.1,
    },
    "ProximalAdagradOptimizer": {"l1_regularization_strength": 0.1},
    "ProximalGradientDescentOptimizer": {
        "l1_regularization_strength": 0.1,
        "l2_regularization_strength": 0.3,
    },
    "AdagradDAOptimizer": {"l1_regularization_strength": 0.01},
}


def losses(tf, name):
    module = tf.compat.v1.losses
    return [
        getattr(module, name)(LABELS, VALUES, weights, reduction=reduction)
        for weights in (1.0, WEIGHTS)
        for reduction in module.Reduction.all()
    ]


def other_losses(tf):
    module = tf.compat.v1.losses
    return [
        module.cosine_distance(LABELS, VALUES, axis=1),
        module.softmax_cross_entropy(LABELS, VALUES, label_smoothing=0.1),
        module.sparse_softmax_cross_entropy([1, 2], VALUES, [0.5, 2.0]),
        module.mean_pairwise_squared_error(LABELS, VALUES, [[1.0], [3.0]]),
        module.get_losses(),
        module.get_regularization_loss(),
    ]


def optimizers(tf, name):
    options = dict(OPTIMIZERS[name])
    step = tf.Variable(0, dtype=tf.int64)
    if name == "AdagradDAOptimizer":
        options["global_step"] = step
    optimizer = getattr(tf.compat.v1.train, name)(0.1, **options)
    x, table = tf.Variable([1.0, -2.0]), tf.Variable([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])

    def loss():
        rows = tf.gather(table, [0, 2, 0])
        return tf.reduce_sum(x * x) + tf.reduce_sum(rows * rows * [[1.0], [0.5], [2.0]])

    for _ in range(3):
        optimizer.minimize(loss, global_step=step, var_list=[x, table])
    slots = [optimizer.get_slot(x, slot) for slot in optimizer.get_slot_names()]
    return [
        x,
        table,
        step,
        *slots,
        optimizer.get_slot_names(),
        [v.shape.as_list() for v in optimizer.variables()],
    ]


def learning_rates(tf):
    train, steps = tf.compat.v1.train, (0, 3, 7, 12)
    schedules = [
        lambda s: train.exponential_decay(0.5, s, 4, 0.5, staircase=True),
        lambda s: train.natural_exp_decay(0.5, s, 4, 0.5),
        lambda s: train.inverse_time_decay(0.5, s, 4, 0.5),
        lambda s: train.polynomial_decay(0.5, s, 5, 0.1, power=2.0, cycle=True),
        lambda s: train.piecewise_constant(s, [2, 7], [1.0, 0.5, 0.1]),
        lambda s: train.cosine_decay(0.5, s, 10, 0.1),
        lambda s: train.cosine_decay_restarts(0.5, s, 4),
        lambda s: train.linear_cosine_decay(0.5, s, 10),
    ]
    return [make(tf.Variable(step))() for make in schedules for step in steps]


def queues(tf):
    fifo = tf.queue.FIFOQueue(9, [tf.int32, tf.float32], shapes=[[], [2]], names=["a", "b"])
    fifo.enqueue({"a": 1, "b": [1.0, 2.0]})
    fifo.enqueue_many({"a": [2, 3], "b": [[3.0, 4.0], [5.0, 6.0]]})
    first = fifo.dequeue()
    rest = fifo.dequeue_many(2)
    padded = tf.queue.PaddingFIFOQueue(9, [tf.int32], [[None]])
    padded.enqueue([[1, 2, 3]])
    padded.enqueue([[4]])
    padded.close()
    priority = tf.queue.PriorityQueue(9, [tf.string], [[]])
    for key, value in ((5, "e"), (1, "a"), (3, "c")):
        priority.enqueue((np.int64(key), value))
    shuffled = tf.queue.RandomShuffleQueue(9, 0, tf.int32, shapes=[[]], seed=1)
    shuffled.enqueue_many([[3, 1, 2]])
    return [
        *(first[k] for k in "ab"), *(rest[k] for k in "ab"), fifo.size(), padded.dequeue_up_to(5), padded.is_closed(),
        *priority.dequeue(), tf.sort(shuffled.dequeue_many(3)),
    ]  # fmt: skip


def variables_of_version_1(tf):
    v1, ref = tf.compat.v1, tf.Variable([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    for name in ("add", "sub", "mul", "div", "max", "min", "update"):
        getattr(v1, f"scatter_{name}")(ref, [0, 2], [[2.0, 3.0], [4.0, 5.0]])
    v1.scatter_nd_add(ref, [[1, 0]], [9.0])
    with v1.variable_scope("outer", initializer=v1.ones_initializer()):
        with v1.variable_scope("inner"):
            made = v1.get_variable("w", [2])
        zeros = v1.get_variable("z", initializer=tf.zeros([2]))
    split = v1.variable_axis_size_partitioner(64)(tf.TensorShape([10, 4]), dtype=tf.float32)
    counts = [
        split,
        v1.min_max_variable_partitioner(4, min_slice_size=16)(
            tf.TensorShape([10, 4]), dtype=tf.float32
        ),
    ]
    return [
        ref,
        made,
        made.name,
        zeros,
        counts,
        v1.fixed_size_partitioner(3)(tf.TensorShape([10, 4]), dtype=tf.float32),
    ]


def functions_of_version_1(tf):
    v1, x = tf.compat.v1, tf.constant([[1.0, 3.0], [2.0, 0.0]])
    sparse = tf.SparseTensor([[0, 1], [1, 0]], [5.0, 6.0], [2, 2])
    return [
        v1.setdiff1d([3, 1, 2], [1]),
        v1.to_complex64(x),
        v1.nn.xw_plus_b(x, x, [1.0, 2.0]),
        v1.nn.relu_layer(x, x, [-7.0, 2.0]),
        v1.nn.softmax_cross_entropy_with_logits(labels=x, logits=x),
        v1.nn.dropout(x, keep_prob=1.0),
        v1.nn.max_pool(
            value=tf.reshape(x, [1, 2, 2, 1]),
            ksize=[1, 2, 2, 1],
            strides=[1, 1, 1, 1],
            padding="VALID",
        ),
        v1.nn.conv2d(
            tf.reshape(x, [1, 2, 2, 1]),
            filter=tf.ones([1, 2, 1, 1]),
            strides=[1, 1, 1, 1],
            padding="SAME",
        ),
        v1.sparse_reduce_sum_sparse(sparse, reduction_axes=1).values,
        v1.sparse_reduce_sum(sparse, axis=0, keep_dims=True),
        v1.string_split(["a b", "c"]).values,
        v1.norm(x, keep_dims=True),
        v1.transpose(x, [1, 0], "name"),
        v1.pad(x, [[0, 1], [0, 0]], "CONSTANT", None, 7.0),
        v1.manip.roll(x, 1, 0),
        v1.spectral.dct(x),
        v1.Dimension(3) == 3,
        v1.verify_tensor_all_finite(x, "finite"),
        v1.get_collection(v1.GraphKeys.GLOBAL_VARIABLES),
        v1.nn.fused_batch_norm(tf.reshape(x, [1, 2, 2, 1]), [2.0], [1.0]),
    ]


def recurrent_cells(tf):
    cells, x = tf.compat.v1.nn.rnn_cell, np.linspace(-1, 1, 12).reshape(2, 2, 3).astype(np.float32)
    results = []
    for make in (
        lambda: cells.BasicRNNCell(2),
        lambda: cells.GRUCell(2),
        lambda: cells.BasicLSTMCell(2),
        lambda: cells.LSTMCell(2, use_peepholes=True, num_proj=3, cell_clip=0.3),
        lambda: cells.MultiRNNCell([cells.GRUCell(3), cells.BasicRNNCell(3)]),
        lambda: cells.DropoutWrapper(cells.BasicRNNCell(2)),
    ):
        cell = make()
        state = cell.zero_state(2, tf.float32)
        cell(x[:, 0], state)
        for weight in getattr(cell, "cell", cell).weights:
            weight.assign(np.linspace(-1, 1, weight.shape.num_elements()).reshape(weight.shape))
        for step in range(2):
            output, state = cell(x[:, step], state)
        results += [output, *tf.nest.flatten(state)]
    return results


def utilities(tf):
    return [
        tf.image.extract_glimpse(np.arange(32, dtype=np.float32).reshape(1, 4, 4, 2), [3, 2], [[0.5, -0.4]], noise="zero"),
        tf.image.extract_glimpse(
            np.arange(16, dtype=np.float32).reshape(1, 4, 4, 1), [2, 3], [[1.0, 2.0]], False, False, noise="zero"
        ),
        tf.image.extract_glimpse(
            np.arange(16, dtype=np.float32).reshape(1, 4, 4, 1), [2, 2], [[0.25, 0.5]], False, True, noise="zero"
        ),
        tf.image.extract_glimpse(
            np.arange(16, dtype=np.float32).reshape(1, 4, 4, 1), [2, 2], [[1.0, -2.0]], True, False, noise="zero"
        ),
        tf.io.deserialize_many_sparse(
            tf.io.serialize_many_sparse(tf.SparseTensor([[0, 1], [1, 2]], [5, 6], [2, 3])), tf.int32
        ).indices,
        tf.io.serialize_sparse(tf.SparseTensor([[0, 1]], [5], [2, 3])),
        tf.nn.isotonic_regression([[3.0, 1.0, 2.0, 4.0], [1.0, 2.0, 2.0, 0.0]]),
        tf.nn.isotonic_regression([[3.0, 1.0, 2.0, 4.0]], decreasing=False)[0],
        tf.math.approx_max_k([1.0, 4.0, 3.0], 2),
        tf.linalg.logm(np.array([[4, 1], [0, 2]], np.complex64)),
        tf.linalg.experimental.conjugate_gradient(
            tf.linalg.LinearOperatorFullMatrix([[4.0, 1.0], [1.0, 3.0]], is_self_adjoint=True, is_positive_definite=True),
            tf.constant([1.0, 2.0]),
        ).x,
        tf.quantization.quantize_and_dequantize([0.3, 0.7], -1.0, 1.0, range_given=True),
        tf.keras.backend.local_conv1d(
            tf.reshape(tf.range(8.0), [1, 4, 2]), tf.reshape(tf.range(12.0), [3, 4, 1]), (2,), (1,), "channels_last"
        ),
        tf.keras.backend.local_conv2d(
            tf.reshape(tf.range(18.0), [1, 3, 2, 3]), tf.reshape(tf.range(24.0), [2, 12, 1]), (2, 2), (1, 1), (1, 2),
            "channels_first",
        ),
        tf.data.experimental.index_table_from_dataset(tf.data.Dataset.from_tensor_slices(["a", "b"]), 1).lookup(tf.constant(["b", "z"])),
        tf.xla.experimental.compile(lambda x: x * 2, [tf.constant(3)])[0],
        tf.__internal__.nest.map_structure_up_to({"a": 0, "b": [0]}, lambda v: str(v), {"a": [1, 2], "b": [3]}),
        list(tf.__internal__.nest.yield_flat_paths({"b": [1, 2], "a": 3})),
        tf.__internal__.nest.list_to_tuple([1, {"a": [2]}]),
        tf.keras.datasets.reuters.get_label_names()[-2:],
        [error.__name__ for error in map(tf.compat.v1.errors.exception_type_from_error_code, (3, 11))],
    ]  # fmt: skip


CASES = {
    **{f"losses.{name}": lambda tf, n=name: losses(tf, n) for name in LOSSES},
    **{f"optimizers.{name}": lambda tf, n=name: optimizers(tf, n) for name in OPTIMIZERS},
    "other_losses": other_losses,
    "learning_rates": learning_rates,
    "queues": queues,
    "variables_of_version_1": variables_of_version_1,
    "functions_of_version_1": functions_of_version_1,
    "recurrent_cells": recurrent_cells,
    "utilities": utilities,
}
