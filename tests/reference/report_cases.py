"""Define programs of the classes of public bug reports, which run on TensorFlow with tf-keras and
on Meshflow.

Each function `case_...(tf, folder)` returns nested lists of numbers and strings. `fails` returns
the classes of an exception; the stored value of TensorFlow names only its class.
"""

import numpy as np

X = (np.arange(24, dtype="float32").reshape(6, 4) % 7 - 3) / 3
Y = np.array([[0.5], [-1.0], [2.0], [0.0], [1.5], [-0.5]], "float32")
LABELS = np.array([0, 2, 1, 1, 0, 2])
STEPS = (np.arange(60, dtype="float32").reshape(5, 4, 3) % 11 - 5) / 5
MASK = np.array([[1, 1, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0], [1, 0, 1, 0], [0, 1, 1, 1]], bool)


def as_list(value):
    return np.asarray(value).astype("float64").tolist()


def fill(model):
    """Set the weights of a model or layer to fixed numbers."""
    model.set_weights(
        [(((np.arange(w.size) * 5) % 11 - 5) * 0.08).reshape(w.shape) for w in model.get_weights()]
    )
    return model


def fails(f):
    """Return the name of the class of an exception and of its base classes; empty without exception."""
    try:
        f()
    except Exception as error:
        return [c.__name__ for c in type(error).__mro__]
    return []


def differentiate(tf, f, x, count):
    """Return the value of a function and its derivatives up to an order."""
    if not count:
        return [f(x)]
    with tf.GradientTape() as tape:
        tape.watch(x)
        values = differentiate(tf, f, x, count - 1)
    return [*values, tape.gradient(values[-1], x)]


def history(model, *args, **kwargs):
    found = model.fit(*args, verbose=0, shuffle=False, **kwargs).history
    return {name: as_list(values) for name, values in sorted(found.items())}


# ---- 1: masked losses ---------------------------------------------------------------------------


def make_masked(tf, outputs=1, activation=None, units=1):
    inputs = tf.keras.Input((4, 3))
    x = tf.keras.layers.Masking()(inputs)
    layers = [tf.keras.layers.Dense(units, activation, name=f"o{i}") for i in range(outputs)]
    return tf.keras.Model(inputs, [layer(x) for layer in layers])


PADDED = np.where(MASK[..., None], STEPS, 0)
TARGETS = np.cos(np.arange(20, dtype="float32")).reshape(5, 4, 1)


def case_1_losses_and_weights(tf, folder):
    results = []
    for loss in ("mae", "mse", "huber", "log_cosh"):
        for weights in (None, np.arange(5.0), np.arange(20.0).reshape(5, 4)):
            model = fill(make_masked(tf))
            mode = "temporal" if weights is not None and weights.ndim == 2 else None
            model.compile("sgd", loss, weighted_metrics=["mae"], sample_weight_mode=mode)
            results.append(
                as_list(model.evaluate(PADDED, TARGETS, 5, sample_weight=weights, verbose=0))
            )
    return results


def case_1_reductions(tf, folder):
    results = []
    for reduction in ("sum", "sum_over_batch_size", "none", "auto"):
        loss = tf.keras.losses.MeanAbsoluteError(reduction=reduction)
        predictions = tf.constant(STEPS[..., :1])
        predictions._keras_mask = tf.constant(MASK)
        results.append(as_list(loss(TARGETS, predictions)))
        predictions = tf.constant(STEPS[..., :1])
        predictions._keras_mask = tf.constant(MASK)
        results.append(as_list(loss(TARGETS, predictions, np.arange(5.0, dtype="float32"))))
    return results


def case_1_two_outputs(tf, folder):
    model = fill(make_masked(tf, 2))
    model.compile(tf.keras.optimizers.SGD(0.1), ["mse", "mae"], loss_weights=[1.0, 0.3])
    return [history(model, PADDED, [TARGETS, -TARGETS], batch_size=3, epochs=2)]


def case_1_classes(tf, folder):
    model = fill(make_masked(tf, 1, "softmax", 4))
    model.compile(
        tf.keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy", weighted_metrics=["acc"]
    )
    labels = np.arange(20).reshape(5, 4) % 4
    return [history(model, PADDED, labels, batch_size=2, epochs=2)]


def case_1_names_of_weighted_metrics(tf, folder):
    layers = tf.keras.layers
    results = []
    for count in (1, 2):
        inputs = tf.keras.Input((4,))
        outputs = [layers.Dense(3, "softmax", name=f"o{i}")(inputs) for i in range(count)]
        model = fill(tf.keras.Model(inputs, outputs))
        model.compile(
            tf.keras.optimizers.SGD(0.1),
            "sparse_categorical_crossentropy",
            metrics=[["acc"]] * count,
            weighted_metrics=[["acc"]] * count,
        )
        results.append(
            history(model, X, [LABELS] * count, batch_size=3, sample_weight=np.arange(6.0))
            if count > 1
            else history(model, X, LABELS, batch_size=3, class_weight={0: 1.0, 1: 2.0, 2: 0.5})
        )
    return results


def case_1_recurrent(tf, folder):
    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [
            tf.keras.Input((4,), dtype="int32"),
            layers.Embedding(7, 3, mask_zero=True),
            layers.GRU(3, return_sequences=True),
            layers.TimeDistributed(layers.Dense(1)),
        ]
    )
    fill(model).compile(tf.keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
    return [history(model, np.arange(20).reshape(5, 4) % 7 * MASK, TARGETS, epochs=2, batch_size=5)]


# ---- 2: losses and metrics of tensors -----------------------------------------------------------


def make_variational(tf):
    layers = tf.keras.layers
    inputs = tf.keras.Input((4,))
    mean, variance = layers.Dense(2, name="mean")(inputs), layers.Dense(2, name="var")(inputs)
    outputs = layers.Dense(4, name="out")(mean + 0.1 * variance)
    model = tf.keras.Model(inputs, outputs)
    divergence = -0.5 * tf.reduce_mean(1 + variance - tf.square(mean) - tf.exp(variance))
    model.add_loss(0.2 * divergence)
    model.add_metric(divergence, name="kl", aggregation="mean")
    fill(model).compile(tf.keras.optimizers.SGD(0.1), "mse")
    return model


def case_2_clone(tf, folder):
    model = make_variational(tf)
    copy = tf.keras.models.clone_model(model)
    copy.set_weights(model.get_weights())
    copy.compile(tf.keras.optimizers.SGD(0.1), "mse")
    return [history(m, X, X, batch_size=3, epochs=2) for m in (model, copy)]


def case_2_files(tf, folder):
    model = make_variational(tf)
    results = []
    for name in ("model.keras", "model.h5"):
        model.save(folder / name)
        loaded = tf.keras.models.load_model(folder / name)
        results.append(as_list(loaded.evaluate(X, X, verbose=0)))
        results.append(as_list(loaded.train_on_batch(X, X)))
    return results


def case_2_configuration(tf, folder):
    model = make_variational(tf)
    copy = type(model).from_config(model.get_config())
    copy.set_weights(model.get_weights())
    copy.compile("sgd")
    return [as_list(copy.evaluate(X, verbose=0)), [m.name for m in copy.metrics], len(copy.losses)]


# ---- 5: custom gradients ------------------------------------------------------------------------


def case_5_named_arguments(tf, folder):
    @tf.custom_gradient
    def scale(x, factor, offset=0.0):
        def grad(upstream):
            return upstream * factor * 2, tf.reduce_sum(upstream * x), upstream * 0 + 7

        return x * factor + offset, grad

    x, factor = tf.constant([1.0, 2.0]), tf.constant(3.0)
    calls = (lambda: scale(x, factor, x), lambda: scale(x, factor, x * factor))
    results = []
    for call in calls:
        with tf.GradientTape() as tape:
            tape.watch([x, factor])
            y = call()
        results.append([as_list(v) for v in (y, *tape.gradient(y, [x, factor]))])
    return results


def case_5_layers(tf, folder):
    @tf.custom_gradient
    def reverse(x):
        return tf.identity(x), lambda g: -g

    inputs = tf.keras.Input((4,))
    hidden = tf.keras.layers.Lambda(reverse)(tf.keras.layers.Dense(3)(inputs))
    outputs = tf.keras.layers.Dense(1)(hidden)
    model = fill(tf.keras.Model(inputs, outputs))
    model.compile(tf.keras.optimizers.SGD(0.1), "mse")
    found = history(model, X, Y, epochs=2, batch_size=6)
    return [found, *map(as_list, model.get_weights())]


def case_5_variables(tf, folder):
    v = tf.Variable([2.0, 3.0])

    @tf.custom_gradient
    def multiply(x):
        def grad(upstream, variables=None):
            return upstream * 10, [upstream * x * 100 for _ in variables]

        return x * v, grad

    with tf.GradientTape() as tape:
        x = tf.constant([1.0, -1.0])
        tape.watch(x)
        y = multiply(x)
    return [as_list(g) for g in tape.gradient(y, [x, v])]


def case_5_second_order(tf, folder):
    @tf.custom_gradient
    def cube(x):
        return x**3, lambda g: g * 4 * x**2

    _, *derivatives = differentiate(tf, cube, tf.constant(2.0), 2)
    return [as_list(v) for v in derivatives]


# ---- 7: the best weights ------------------------------------------------------------------------


def train_until(tf, rates, epochs=6, **options):
    model = tf.keras.Sequential([tf.keras.Input((1,)), tf.keras.layers.Dense(1, use_bias=False)])
    model.set_weights([np.zeros((1, 1))])
    model.compile(tf.keras.optimizers.SGD(0.1), "mse")
    schedule = tf.keras.callbacks.LearningRateScheduler(lambda epoch: rates[epoch])
    stop = tf.keras.callbacks.EarlyStopping(restore_best_weights=True, **options)
    x = np.array([[1.0], [2.0]], "float32")
    found = model.fit(
        x, 2 * x, verbose=0, epochs=epochs, callbacks=[schedule, stop], validation_data=(x, 3 * x)
    )
    return [as_list(model.get_weights()[0]), stop.stopped_epoch, len(found.history["loss"])]


def case_7_not_stopped(tf, folder):
    return [
        train_until(tf, [0.1, 0.1, 0.1, 0.1, 0.5, 0.5], monitor=monitor, patience=10)
        for monitor in ("val_loss", "loss")
    ]


def case_7_stopped(tf, folder):
    return [
        train_until(tf, [0.1, 0.1, 0.5, 0.5, 0.5, 0.5], monitor="loss", patience=patience)
        for patience in (0, 1, 2)
    ]


def case_7_baselines_and_late_starts(tf, folder):
    rates = [0.1, 0.1, 0.1, 0.6, 0.01, 0.01]
    return [
        train_until(tf, rates, monitor="loss", patience=9, **options)
        for options in (
            {"baseline": 0.001},
            {"start_from_epoch": 4},
            {"mode": "max"},
            {"min_delta": 5.0},
        )
    ]


# ---- 8: one-dimensional data --------------------------------------------------------------------


def case_8_shapes_in_steps(tf, folder):
    shapes = []

    class Model(tf.keras.Model):
        def __init__(self):
            super().__init__()
            self.table = tf.keras.layers.Embedding(5, 2)

        def call(self, x):
            return self.table(x)

        def train_step(self, data):
            shapes.append([list(part.shape) for part in data])
            return {"loss": tf.reduce_sum(self(data[0]))}

        def test_step(self, data):
            shapes.append([list(part.shape) for part in data])
            return {"loss": tf.reduce_sum(self(data[0]))}

    x, y = np.arange(4), np.arange(4.0)
    for data in ((x, y), (tf.data.Dataset.from_tensor_slices((x, y)).batch(4),)):
        model = Model()
        model.compile(run_eagerly=True)
        model.fit(*data, verbose=0, epochs=1)
        model.evaluate(*data, verbose=0)
    for method in ("train_on_batch", "test_on_batch"):
        getattr(model, method)(x, y)
    return [*shapes, list(model.predict(x, verbose=0).shape), list(model.predict_on_batch(x).shape)]


def case_8_metrics(tf, folder):
    class Model(tf.keras.Sequential):
        def test_step(self, data):
            x, y = data
            equal = tf.equal(tf.argmax(self(x), 1), y)
            return {"equal": tf.reduce_sum(tf.cast(equal, tf.int32)), "count": tf.size(equal)}

    model = Model([tf.keras.Input((4,)), tf.keras.layers.Dense(3)])
    fill(model).compile()
    return [as_list(model.evaluate(X, LABELS, 6, verbose=0))]


def case_8_default_steps(tf, folder):
    model = tf.keras.Sequential([tf.keras.layers.Dense(3, "softmax")])
    model.build((None, 1))
    fill(model).compile(
        tf.keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    x = X[:, 0]
    found = history(model, x, LABELS, epochs=2, batch_size=3)
    return [
        found,
        list(model.predict(x, verbose=0).shape),
        as_list(model.evaluate(x, LABELS, verbose=0)),
    ]


# ---- 9: recursion -------------------------------------------------------------------------------


def case_9_functions(tf, folder):
    @tf.function
    def factorial(n):
        return 1 if n <= 1 else n * factorial(n - 1)

    @tf.function
    def is_even(n):
        return True if n == 0 else is_odd(n - 1)

    @tf.function
    def is_odd(n):
        return False if n == 0 else is_even(n - 1)

    return [int(factorial(6)), bool(is_even(5)), bool(is_even(6))]


def case_9_gradients(tf, folder):
    @tf.function
    def power(x, n):
        return tf.ones_like(x) if n == 0 else x * power(x, n - 1)

    x = tf.constant([1.0, 2.0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = power(x, 3)
    return [as_list(y), as_list(tape.gradient(y, x))]


def case_9_methods_and_structures(tf, folder):
    class Tree(tf.Module):
        @tf.function
        def total(self, tree):
            if isinstance(tree, (list, tuple)):
                return tf.add_n([self.total(branch) for branch in tree])
            return tree * 2.0

    def polynomial(x, coefficients):
        if not coefficients:
            return tf.zeros_like(x)
        return coefficients[0] + x * polynomial(x, coefficients[1:])

    tree = Tree()
    leaves = [tf.constant(1.0), [tf.constant(2.0), [tf.constant(3.0)]]]
    return [
        as_list(tree.total(leaves)),
        as_list(tf.function(lambda x: polynomial(x, [1.0, 2.0, 3.0]))(tf.constant([2.0]))),
    ]


# ---- 10: inputs and outputs of layers -----------------------------------------------------------


def case_10_features(tf, folder):
    layers = tf.keras.layers
    base = tf.keras.Sequential(
        [tf.keras.Input((4,)), layers.Dense(3, "tanh", name="a"), layers.Dense(2, name="b")]
    )
    fill(base)
    other = tf.keras.Input((4,))
    base(other * 2.0)
    features = tf.keras.Model(base.input, base.get_layer("a").output)
    both = tf.keras.Model(base.inputs, [base.get_layer("a").output, base.output])
    return [as_list(features(X)), *map(as_list, both(X)), list(base.get_layer("b").input.shape)]


def case_10_shared_layers(tf, folder):
    shared = tf.keras.layers.Dense(2)
    a, b = tf.keras.Input((4,)), tf.keras.Input((4,))
    first, second = shared(a), shared(b)
    names = [shared.output is first, shared.input is a, shared.get_output_at(1) is second]
    other = tf.keras.layers.Conv1D(2, 1)
    other(tf.keras.Input((5, 3)))
    other(tf.keras.Input((7, 3)))
    return [
        *names,
        list(shared.output_shape),
        fails(lambda: other.output_shape),
        fails(lambda: tf.keras.layers.Dense(1).output),
    ]


def case_10_gradients_of_features(tf, folder):
    layers = tf.keras.layers
    inputs = tf.keras.Input((6, 4))
    x = layers.Conv1D(3, 2, activation="relu", name="last")(inputs)
    model = fill(tf.keras.Model(inputs, layers.Dense(2)(layers.GlobalAveragePooling1D()(x))))
    model(model.input)
    grad_model = tf.keras.Model(model.inputs, [model.get_layer("last").output, model.output])
    with tf.GradientTape() as tape:
        maps, scores = grad_model(X[None])
        score = scores[:, 1]
    return [as_list(tape.gradient(score, maps)), as_list(scores)]


# ---- 11: gradients of high order ----------------------------------------------------------------


def case_11_loops(tf, folder):
    def loop(x):
        return tf.while_loop(lambda i, y: i < 4, lambda i, y: (i + 1, y * x + tf.sin(y)), (0, x))[1]

    def sequence(x):
        y = tf.zeros_like(x)
        for i in tf.range(3):
            y += x ** tf.cast(i + 2, tf.float32) / (1.0 + tf.cast(i, tf.float32))
        return y

    results = []
    for f, x in ((loop, [0.7, 1.1]), (sequence, [0.5, 2.0])):
        orders = differentiate(tf, tf.function(f), tf.constant(x), 3)
        results.append([as_list(v) for v in orders])
    return results


def case_11_differential_equation(tf, folder):
    layers = tf.keras.layers
    model = tf.keras.Sequential([tf.keras.Input((1,)), layers.Dense(4, "tanh"), layers.Dense(1)])
    fill(model)

    @tf.function
    def residual(t):
        u, du, _, third = differentiate(tf, model, t, 3)
        return third + u * du

    t = tf.constant([[0.1], [0.7]])
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(residual(t) ** 2)
    return [as_list(loss), *map(as_list, tape.gradient(loss, model.trainable_variables))]


def case_11_gradient_penalty(tf, folder):
    model = fill(
        tf.keras.Sequential(
            [tf.keras.Input((4, 3)), tf.keras.layers.GRU(2), tf.keras.layers.Dense(1)]
        )
    )

    @tf.function
    def penalty(x):
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = model(x)
            norms = tf.sqrt(tf.reduce_sum(inner.gradient(y, x) ** 2, [1, 2]))
            loss = tf.reduce_mean((norms - 1.0) ** 2)
        return loss, outer.gradient(loss, model.trainable_variables)

    loss, gradients = penalty(tf.constant(STEPS))
    return [as_list(loss), *[as_list(g) for g in gradients if g is not None]]


def case_11_hessians(tf, folder):
    @tf.function
    def hessian(x):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = tf.reduce_sum(tf.math.cumprod(x) ** 2)
            gradient = inner.gradient(y, x)
        return outer.jacobian(gradient, x)

    return [as_list(hessian(tf.constant([1.0, 2.0, 0.5])))]


# ---- 13: metrics of replicas --------------------------------------------------------------------


def make_measuring_layer(tf):
    class Measuring(tf.keras.layers.Layer):
        def __init__(self, **kwargs):
            super().__init__(**kwargs)
            self.scale = self.add_weight(name="scale", shape=(), initializer="ones")

        def call(self, x):
            self.add_metric(tf.reduce_mean(x), name="mean_input", aggregation="mean")
            self.add_loss(0.01 * tf.reduce_sum(self.scale**2))
            return x * self.scale

    return Measuring


def case_13_saved_models(tf, folder):
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        inputs = tf.keras.Input((4,))
        x = make_measuring_layer(tf)(name="measuring")(tf.keras.layers.Dense(3)(inputs))
        model = fill(tf.keras.Model(inputs, tf.keras.layers.Dense(1)(x)))
        model.compile(tf.keras.optimizers.SGD(0.1), "mse")
    found = history(model, X, Y, epochs=2, batch_size=3)
    model.save(folder / "saved")
    loaded = tf.saved_model.load(str(folder / "saved"))
    restored = tf.keras.models.load_model(folder / "saved")
    serve = loaded.signatures["serving_default"](tf.constant(X))
    return [
        found,
        *[as_list(v) for v in serve.values()],
        as_list(restored.predict(X, verbose=0)),
        as_list(restored.evaluate(X, Y, verbose=0)),
    ]


# ---- 14: shapes after Python functions ----------------------------------------------------------


def case_14_pipelines(tf, folder):
    data = tf.data.Dataset.range(6)
    make = lambda i: np.full((2, 3), i, np.float32)

    def shaped(i):
        x = tf.numpy_function(make, [i], tf.float32)
        x.set_shape([2, 3])
        return x

    def ensured(i):
        return tf.ensure_shape(tf.py_function(make, [i], tf.float32), [2, None])

    def reshaped(i):
        return tf.reshape(tf.numpy_function(make, [i], tf.float32), [3, 2])

    def stacked(i):
        return tf.stack([shaped(i), tf.ones([2, 3])])

    functions = (shaped, ensured, reshaped, stacked, lambda i: (shaped(i)[0], {"a": ensured(i)}))
    specs = [str(data.map(f).batch(2).element_spec) for f in functions]
    sums = [float(tf.reduce_sum(next(iter(data.skip(2).map(f))))) for f in functions[:4]]
    wrong = data.map(lambda i: tf.numpy_function(lambda n: float(n), [i], tf.int32))
    return [specs, sums, fails(lambda: list(wrong))]


def case_14_wrong_shapes(tf, folder):
    def wrong_shape(i):
        x = tf.numpy_function(lambda n: np.zeros(int(n), np.float32), [i], tf.float32)
        return tf.ensure_shape(x, [2])

    def wrong_size(i):
        x = tf.numpy_function(lambda n: np.zeros(int(n), np.float32), [i], tf.float32)
        return tf.reshape(x, [2, 1])

    data = tf.data.Dataset.from_tensor_slices(np.array([2, 3]))
    return [
        fails(lambda f=f: [np.asarray(v) for v in data.map(f)]) for f in (wrong_shape, wrong_size)
    ]


# ---- 15: others ---------------------------------------------------------------------------------


def case_15_empty_batches(tf, folder):
    results = []
    for f in (lambda x: x**2, lambda x: tf.reduce_sum(x, 1), lambda x: x @ tf.ones([3, 2])):
        x = tf.zeros([0, 3])
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = f(x)
        jacobian = tape.jacobian(y, x)
        results.append(None if jacobian is None else list(jacobian.shape))
    return results


def case_15_string_arrays(tf, folder):
    @tf.function
    def join(n):
        array = tf.TensorArray(tf.string, 0, dynamic_size=True)
        for i in tf.range(n):
            array = array.write(i, tf.strings.join(["item", tf.strings.as_string(i)], "-"))
        size = array.size()
        if size > 2:
            array = array.write(size, "end")
        return array.stack(), array.size()

    results = []
    for n in (1, 3):
        words, size = join(tf.constant(n))
        results.append([[w.decode() for w in words.numpy().tolist()], int(size)])
    return results


def case_15_sizes_in_branches(tf, folder):
    @tf.function
    def collect(x):
        array = tf.TensorArray(tf.float32, 0, dynamic_size=True, clear_after_read=False)
        for value in x:
            if value > 0:
                array = array.write(array.size(), value)
        return tf.cond(
            array.size() > 1, lambda: array.stack() * 2, lambda: array.stack()
        ), array.size()

    return [
        [as_list(values), int(size)]
        for values, size in (collect(tf.constant(x)) for x in ([1.0, -1.0, 2.0], [-1.0, 3.0]))
    ]


# ---- 16: messages about shapes ------------------------------------------------------------------


def case_16_errors(tf, folder):
    layers, Input = tf.keras.layers, tf.keras.Input
    results = []
    for make in (
        lambda: layers.Dense(2)(Input((None,))),
        lambda: layers.Dot(1)([Input((3,)), Input((5,))]),
        lambda: layers.Conv2D(2, 5)(Input((3, 3, 1))),
        lambda: layers.Reshape((5,))(Input((3,))),
        lambda: layers.Concatenate()([Input((3, 2)), Input((4, 2))]),
        lambda: layers.LSTM(2)(Input((3,))),
        lambda: tf.matmul(Input((3,)), tf.ones([5, 2])),
        lambda: layers.Multiply()([Input((2,)), Input((3,))]),
        lambda: layers.BatchNormalization(axis=3)(Input((3,))),
        lambda: layers.Conv1D(2, 3, input_shape=(5, 3))(Input((5, 4, 3))[0, 0]),
        lambda: layers.Embedding(3, 2)(Input((2,))) @ tf.ones([3, 3]),
    ):
        results.append(fails(make))
    return results


def case_16_training(tf, folder):
    model = tf.keras.Sequential([tf.keras.layers.Dense(3, input_shape=(4,))])
    model.compile("sgd", "mse")
    categorical = tf.keras.Sequential([tf.keras.layers.Dense(3, input_shape=(4,))])
    categorical.compile("sgd", "categorical_crossentropy")
    return [
        fails(lambda: model.fit(X[:, :3], Y, verbose=0)),
        fails(lambda: model.predict(X[:, :2], verbose=0)),
        fails(lambda: categorical.fit(X, LABELS, verbose=0)),
        fails(lambda: model.fit(X, Y[:4], verbose=0)),
        fails(lambda: model.fit(X.reshape(6, 2, 2), Y, verbose=0)),
    ]


# ---- 4, 6, 12 -----------------------------------------------------------------------------------


def case_4_zero_weights(tf, folder):
    x = STEPS[None].copy()
    x[0, 2, 1, 0] = np.nan
    layers = tf.keras.layers
    outputs = [
        layers.UpSampling2D((2, 1), interpolation="bilinear")(x),
        layers.AveragePooling2D(2)(x),
        layers.Resizing(3, 3, interpolation="area")(x),
        tf.image.resize(x, (9, 9), "lanczos3"),
        tf.image.crop_and_resize(x, [[0.1, 0.2, 0.8, 0.9]], [0], [4, 4]),
        tf.nn.embedding_lookup(x[0, :, 1], [0, 1]),
        tf.one_hot([0, 1], 5) @ tf.where(np.isnan(x[0, :, 1]), 0.0, x[0, :, 1]),
    ]
    return [np.isnan(np.asarray(v)).astype(int).tolist() for v in outputs]


def case_6_overflow(tf, folder):
    functions = (
        lambda x: tf.math.log(tf.exp(tf.maximum(x, 1.0))),
        lambda x: tf.sqrt(x * x * 1e38),
        lambda x: tf.exp(tf.abs(x)) / tf.exp(tf.abs(x)),
        lambda x: tf.abs(tf.cast(x, tf.int8) * tf.constant(3, tf.int8)),
        lambda x: tf.cast(x * 1e10, tf.float16) * 0,
        lambda x: tf.math.softplus(x) - x,
        lambda x: tf.reduce_logsumexp(tf.stack([x, x]), 0),
        lambda x: x * tf.math.reciprocal(x * 1e-36) * 1e-36,
    )
    return [
        [f"{v:.5g}" for v in as_list(tf.function(f)(tf.constant([89.0, -89.0, 43.0])))]
        for f in functions
    ]


def case_12_sparse_training(tf, folder):
    indices = np.argwhere(X > 0.4)
    sparse = tf.SparseTensor(indices, X[tuple(indices.T)], X.shape)
    inputs = tf.keras.Input((4,), sparse=True)
    hidden = tf.keras.layers.Dense(3, activation="tanh")(inputs)
    model = fill(tf.keras.Model(inputs, tf.keras.layers.Dense(1)(hidden)))
    model.compile(tf.keras.optimizers.Adam(0.05), "mse", metrics=["mae"])
    found = history(model, sparse, Y, epochs=3, batch_size=6)
    return [
        found,
        as_list(model(sparse)),
        as_list(model.evaluate(sparse, Y, batch_size=6, verbose=0)),
    ]


def case_12_sparse_gradients(tf, folder):
    values = tf.constant([1.0, -2.0, 3.0])
    dense = tf.constant(X[:3, :2])

    @tf.function
    def compute(values, dense):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch([values, dense])
            s = tf.SparseTensor([[0, 1], [1, 0], [2, 2]], values, [3, 3])
            y = tf.sparse.sparse_dense_matmul(s, dense, adjoint_a=True) ** 2
            z = tf.sparse.reduce_sum(tf.sparse.softmax(s) * tf.ones([3, 3]), 1)
            return [tape.gradient(y, [values, dense]), tape.gradient(z, values)]

    return [[as_list(g) for g in tf.nest.flatten(v)] for v in compute(values, dense)]


# ---- programs of the classes in ../shared/cases -------------------------------------------------


def case_p_jacobian_corners(tf, folder):
    x = tf.constant([[1.0, 2.0], [3.0, -1.0]])
    results = []
    for options in ({}, {"experimental_use_pfor": False}):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = tf.stack([tf.reduce_prod(x, 1), tf.sort(x, 1)[:, 0]], 1)
            unused = tf.constant([1.0])
        results.append(as_list(tape.jacobian(y, x, **options)))
        results.append(as_list(tape.batch_jacobian(y, x, **options)))
        results.append(tape.jacobian(unused, x, **options) is None)
        zero = tape.jacobian(unused, x, unconnected_gradients="zero", **options)
        results.append(list(zero.shape))
    return results


def case_p_recurrent_masks(tf, folder):
    layers = tf.keras.layers
    results = []
    for layer in (
        layers.LSTM(2, return_sequences=True, return_state=True),
        layers.GRU(2, go_backwards=True, return_sequences=True),
        layers.Bidirectional(layers.SimpleRNN(2, return_sequences=True), merge_mode="ave"),
        layers.RNN(
            [layers.LSTMCell(2), layers.GRUCell(2)],
            zero_output_for_mask=True,
            return_sequences=True,
        ),
        layers.LSTM(2, stateful=True, unroll=True),
    ):
        layer(STEPS)
        fill(layer)
        if getattr(layer, "stateful", False):
            layer.reset_states()
        outputs = layer(STEPS, mask=tf.constant(MASK))
        results.append([as_list(v) for v in tf.nest.flatten(outputs)])
    return results


def case_p_attention_masks(tf, folder):
    layers = tf.keras.layers
    query, value = tf.constant(STEPS[:, :2]), tf.constant(STEPS)
    results = []
    for layer in (
        layers.Attention(),
        layers.AdditiveAttention(use_scale=False),
        layers.Attention(score_mode="concat"),
    ):
        results.append(
            as_list(layer([query, value], mask=[tf.constant(MASK[:, :2]), tf.constant(MASK)]))
        )
    heads = layers.MultiHeadAttention(2, 2)
    heads(query, value)
    fill(heads)
    results.append(as_list(heads(query, value, attention_mask=tf.constant(MASK[:, None, :]))))
    results.append(as_list(heads(value, value, use_causal_mask=True)))
    return results


def case_p_ragged_layers(tf, folder):
    ragged = tf.ragged.constant([[1, 2, 3], [4], [], [5, 6]])
    table = tf.keras.layers.Embedding(8, 2)
    table.build(None)
    fill(table)
    rows = table(ragged)
    dense = tf.keras.layers.Dense(1)
    dense.build((None, None, 2))
    fill(dense)
    outputs = tf.keras.layers.TimeDistributed(dense)(rows)
    return [
        as_list(rows.to_tensor()),
        as_list(outputs.to_tensor()),
        as_list(tf.reduce_mean(rows, 1)[:2]),
        as_list(tf.ragged.boolean_mask(ragged, ragged > 2).to_tensor(-1)),
        as_list(tf.concat([ragged, ragged], 1).row_lengths()),
        as_list(ragged.to_sparse().indices),
        as_list(tf.gather(ragged, [3, 0]).flat_values),
        as_list(ragged.bounding_shape()),
    ]


def case_p_text_vectorization(tf, folder):
    layers = tf.keras.layers
    texts = np.array(["the cat sat", "The CAT, the dog!", "", "dog dog cat"])
    results = []
    for options in (
        {"output_sequence_length": 4},
        {"max_tokens": 4},
        {"output_mode": "multi_hot", "max_tokens": 6, "pad_to_max_tokens": True},
        {"output_mode": "count"},
        {"output_mode": "tf_idf"},
        {"ngrams": 2, "max_tokens": 9},
        {"split": "character", "output_sequence_length": 3},
        {"standardize": None},
    ):
        layer = layers.TextVectorization(**options)
        layer.adapt(texts)
        results.append([[str(w) for w in layer.get_vocabulary()], as_list(layer(texts))])
    return results


def case_p_lookup_layers(tf, folder):
    layers = tf.keras.layers
    words = layers.StringLookup(vocabulary=["a", "b"], num_oov_indices=2, mask_token="")
    numbers = layers.IntegerLookup(vocabulary=[10, 20], output_mode="one_hot")
    inverse = layers.StringLookup(vocabulary=["a", "b"], invert=True)
    results = [
        as_list(words(tf.constant([["a", "", "z"], ["b", "q", "a"]]))),
        as_list(numbers(tf.constant([10, 30, 20]))),
        [w.decode() for w in np.asarray(inverse(tf.constant([0, 1, 2]))).tolist()],
        as_list(layers.CategoryEncoding(4, "multi_hot")(tf.constant([[0, 3], [1, 1]]))),
        as_list(layers.Discretization([0.0, 1.0])(tf.constant([-1.0, 0.0, 0.5, 1.0, 9.0]))),
        as_list(layers.HashedCrossing(5)((tf.constant(["a", "b"]), tf.constant(["x", "y"])))),
        fails(lambda: layers.CategoryEncoding(2)(tf.constant([[3]]))),
        fails(lambda: layers.StringLookup(vocabulary=["a", "a"])),
    ]
    table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(tf.constant(["x", "y"]), tf.constant([1, 2])), -1
    )
    mutable = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -5)
    mutable.insert(tf.constant(["k", "l"]), tf.constant([7, 8], tf.int64))
    mutable.remove(tf.constant(["k"]))
    lookup = tf.function(lambda w: (table.lookup(w), mutable.lookup(w)))
    results += [as_list(v) for v in lookup(tf.constant(["x", "l", "k"]))]
    return [*results, int(table.size()), int(mutable.size())]


def case_p_strings(tf, folder):
    s = tf.constant(["héllo wörld", "a,b,,c", "  x  "])
    decode = lambda v: [
        w.decode() if isinstance(w, bytes) else w for w in np.asarray(v).ravel().tolist()
    ]
    return [
        as_list(tf.strings.length(s)),
        as_list(tf.strings.length(s, "UTF8_CHAR")),
        decode(tf.strings.substr(s, 1, 3, "UTF8_CHAR")),
        decode(tf.strings.upper(s, "utf-8")),
        decode(tf.strings.split(s, ",").flat_values),
        decode(tf.strings.regex_replace(s, r"(\w)(\w)", r"\2\1")),
        decode(tf.strings.strip(s)),
        as_list(tf.strings.to_number(["1e3", "-0.5", "inf"])),
        decode(tf.strings.format("{} and {}", (tf.constant([1.5, 2]), tf.constant(True)))),
        as_list(tf.strings.unicode_decode(s[:1], "UTF-8").flat_values),
        decode(tf.strings.unicode_split(s[0], "UTF-8")),
        decode(
            tf.strings.ngrams(
                tf.constant(["a", "b", "c"]),
                [1, 2],
                separator="+",
                pad_values=("<", ">"),
                padding_width=1,
            )
        ),
        as_list(tf.strings.to_hash_bucket_fast(s, 97)),
        as_list(tf.strings.to_hash_bucket_strong(s, 97, [1, 2])),
        decode(tf.strings.reduce_join([["a", "b"], ["c", "d"]], axis=0, separator="/")),
        as_list(tf.strings.regex_full_match(s, ".*,.*")),
        decode(tf.strings.as_string([1.23456, 1e10], precision=2, scientific=True)),
        decode(tf.io.encode_base64(s)),
        as_list(tf.io.decode_raw(["ab", "cd"], tf.uint8)),
        fails(lambda: tf.strings.to_number(["x"])),
        fails(lambda: tf.strings.substr("abc", 9, 1)),
    ]


def case_p_examples(tf, folder):
    def make(**features):
        return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()

    ints = lambda *v: tf.train.Feature(int64_list=tf.train.Int64List(value=v))
    floats = lambda *v: tf.train.Feature(float_list=tf.train.FloatList(value=v))
    words = lambda *v: tf.train.Feature(bytes_list=tf.train.BytesList(value=v))
    examples = [
        make(a=ints(1, 2), b=floats(0.5), c=words(b"x", b"y"), e=ints(5)),
        make(a=ints(3, 4), c=words(), e=ints(1, 2)),
    ]
    found = tf.io.parse_example(
        examples,
        {
            "a": tf.io.FixedLenFeature([2], tf.int64),
            "b": tf.io.FixedLenFeature([], tf.float32, -1.0),
            "c": tf.io.VarLenFeature(tf.string),
            "d": tf.io.FixedLenSequenceFeature([], tf.float32, allow_missing=True),
            "e": tf.io.RaggedFeature(tf.int64),
        },
    )
    return [
        as_list(found["a"]),
        as_list(found["b"]),
        as_list(found["c"].indices),
        list(found["d"].shape),
        as_list(found["e"].row_lengths()),
        fails(lambda: tf.io.parse_example(examples, {"b": tf.io.FixedLenFeature([], tf.float32)})),
        fails(lambda: tf.io.parse_example(examples, {"a": tf.io.FixedLenFeature([3], tf.int64)})),
        fails(lambda: tf.io.parse_example(examples, {"a": tf.io.FixedLenFeature([2], tf.float32)})),
    ]


def case_p_autograph(tf, folder):
    @tf.function
    def breaks(x):
        total = tf.constant(0)
        for i in tf.range(10):
            if i == 7:
                break
            if x[i % 3] < 0:
                continue
            total += i
        return total

    @tf.function
    def nested(n):
        found = tf.constant(0)
        i = tf.constant(2)
        while i < n:
            prime = True
            for j in tf.range(2, i):
                if i % j == 0:
                    prime = False
                    break
            found += tf.cast(prime, tf.int32)
            i += 1
        return found

    @tf.function
    def chained(x):
        y = x if x > 2 else x * 10
        try:
            z = {"a": y, "b": [y + 1]}
        finally:
            y = y + 1
        is_outside = not (x > 0 and x < 5) and x != 7
        return y, z, is_outside

    @tf.function
    def add_weighted(x):
        total = 0.0
        for i in tf.range(len(x)):
            total += tf.cast(i, tf.float32) * x[i]
        return total

    return [
        [int(breaks(tf.constant(v))) for v in ([1, 1, 1], [1, -1, 1], [-1, -1, -1])],
        int(nested(tf.constant(20))),
        [as_list(v) for x in (3, -1, 1, 7) for v in tf.nest.flatten(chained(tf.constant(x)))],
        as_list(add_weighted(tf.constant([1.0, 2.0, 3.0]))),
    ]


def case_p_special_functions(tf, folder):
    m = tf.math
    x = tf.constant([-2.5, -1.0, -0.0, 0.0, 0.3, 1.0, 4.0, 40.0, np.inf, np.nan])
    functions = (
        m.lgamma, m.digamma, m.erf, m.erfc, m.erfinv, m.ndtri, m.expm1, m.log1p, m.bessel_i0e, m.bessel_i1e,
        m.sinh, m.asinh, m.acosh, m.atanh, m.rsqrt, m.log_sigmoid, m.softsign, m.sigmoid, m.special.dawsn,
        m.special.expint, m.special.fresnel_cos, m.special.spence, m.special.bessel_j0, m.special.bessel_k1,
        m.round, m.rint, m.sign, m.reciprocal_no_nan, tf.nn.gelu, tf.nn.selu, tf.nn.elu, tf.nn.silu,
    )  # fmt: skip
    pairs = (
        m.igamma,
        m.igammac,
        m.zeta,
        m.polygamma,
        m.xlogy,
        m.xlog1py,
        m.floormod,
        m.atan2,
        m.pow,
        m.nextafter,
    )
    a = tf.constant([0.0, 1.0, 2.0, 5.0, 0.5])
    b = tf.constant([1.5, 0.0, 2.5, -1.0, 3.0])
    return [
        *[as_list(f(x)) for f in functions],
        *[as_list(f(a, b)) for f in pairs],
        as_list(m.betainc([0.5, 2.0], [1.0, 3.0], [0.3, 1.0])),
    ]


def case_p_integers(tf, folder):
    a, b = tf.constant([7, -7, 7, -7]), tf.constant([3, 3, -3, -3])
    i8 = tf.constant([127, -128], tf.int8)
    f = tf.function(
        lambda: (
            a // b, a % b, tf.truncatediv(a, b), tf.truncatemod(a, b), i8 + i8, -i8, tf.abs(i8),
            tf.bitwise.left_shift(i8, tf.constant([1, 1], tf.int8)),
            tf.cast(tf.constant([300.7, -1.5, 2.9]), tf.int32),
            tf.cast(tf.constant([300, -1], tf.int32), tf.uint8),
            tf.reduce_sum(tf.constant([200, 100], tf.uint8)),
            tf.reduce_prod(tf.constant([100000, 100000])),
            tf.math.cumsum(tf.constant([100, 100], tf.int8)),
            tf.round(tf.constant([0.5, 1.5, -2.5])),
            tf.argmax(tf.constant([1, 3, 3])),
        )
    )  # fmt: skip
    return [as_list(v) for v in f()]


def case_p_datasets(tf, folder):
    tf.random.set_seed(5)
    data = tf.data.Dataset.range(7)
    flatten = lambda d: [as_list(v) for v in d]
    return [
        flatten(data.window(3, 2, drop_remainder=True).flat_map(lambda w: w.batch(3))),
        flatten(data.padded_batch(4, padding_values=tf.constant(-1, tf.int64))),
        flatten(data.interleave(lambda i: tf.data.Dataset.from_tensors(i).repeat(2), 2, 1)),
        flatten(data.scan(tf.constant(0, tf.int64), lambda s, x: (s + x, s * x))),
        flatten(data.filter(lambda i: i % 3 == 0).enumerate(5).map(lambda i, x: i * 10 + x)),
        flatten(data.group_by_window(lambda i: i % 2, lambda k, w: w.batch(5), 5)),
        flatten(data.bucket_by_sequence_length(lambda i: tf.cast(i, tf.int32), [3], [2, 9])),
        flatten(data.take_while(lambda i: i < 3).concatenate(data.skip(5)).batch(2)),
        flatten(data.shard(3, 1).prefetch(1).cache().repeat(2)),
        as_list(data.reduce(tf.constant(1, tf.int64), lambda s, x: s + x)),
        [
            int(data.batch(2).cardinality()),
            int(data.filter(lambda i: True).cardinality()),
            int(data.repeat().cardinality()),
        ],
        flatten(data.unique().shuffle(3, seed=1, reshuffle_each_iteration=False)),
        flatten(tf.data.Dataset.zip((data, data.skip(1))).map(lambda a, b: a * b)),
        flatten(
            data.rejection_resample(
                lambda x: tf.cast(x > 9, tf.int32), [1.0, 0.0], [1.0, 0.0], seed=1
            ).map(lambda c, x: x)
        ),
    ]


def case_p_optimizers(tf, folder):
    results = []
    for make in (
        lambda o: o.Adam(0.1, amsgrad=True, clipvalue=0.3),
        lambda o: o.SGD(
            o.schedules.CosineDecay(0.1, 4, warmup_steps=2, warmup_target=0.3),
            momentum=0.9,
            nesterov=True,
        ),
        lambda o: o.AdamW(0.1, weight_decay=0.2),
        lambda o: o.RMSprop(0.1, centered=True, momentum=0.5),
        lambda o: o.Adafactor(0.1),
        lambda o: o.Lion(0.1),
        lambda o: o.Adagrad(0.1, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=2),
        lambda o: o.Ftrl(0.1, l1_regularization_strength=0.1, beta=0.2),
        lambda o: o.Nadam(0.1, global_clipnorm=0.5),
    ):
        v, w = tf.Variable(X[:2]), tf.Variable([1.0, -2.0])
        optimizer = make(tf.keras.optimizers)
        for step in range(3):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.gather(v, [0, 0]) ** 2) * (step + 1) + tf.reduce_sum(w**3)
            optimizer.apply_gradients(zip(tape.gradient(loss, [v, w]), [v, w], strict=True))
        results.append([as_list(v), as_list(w)])
    return results


def case_p_metrics(tf, folder):
    K = tf.keras.metrics
    truth, scores = np.array([0, 1, 1, 0, 1]), np.array([0.1, 0.4, 0.35, 0.8, np.float32(0.5)])
    weights = np.array([1.0, 0.0, 2.0, 1.0, 1.0], "float32")
    results = []
    for metric in (
        K.AUC(num_thresholds=5), K.AUC(curve="PR", num_thresholds=9), K.Precision(0.3), K.Recall([0.3, 0.6]),
        K.PrecisionAtRecall(0.5), K.SensitivityAtSpecificity(0.5), K.BinaryAccuracy(), K.FalsePositives(),
        K.F1Score(threshold=0.4), K.FBetaScore(beta=2.0, threshold=0.4), K.R2Score(),
        K.LogCoshError(), K.KLDivergence(), K.CosineSimilarity(), K.RootMeanSquaredError(), K.Poisson(),
    ):  # fmt: skip
        y, p = truth.astype("float32"), scores.astype("float32")
        if not isinstance(
            metric, (K.AUC, K.Precision, K.Recall, K.PrecisionAtRecall, K.SensitivityAtSpecificity)
        ):
            y, p = y[:, None], p[:, None]
        for w in (None, weights):
            metric.update_state(y, p, sample_weight=w)
        results.append(as_list(metric.result()))
    return results


def case_p_callbacks(tf, folder):
    model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
    fill(model).compile(tf.keras.optimizers.SGD(0.2), "mse")
    calls = []
    K = tf.keras.callbacks
    callbacks = [
        K.LambdaCallback(
            on_epoch_begin=lambda e, l: calls.append(["begin", e]),
            on_train_batch_end=lambda b, l: calls.append(["batch", b, sorted(l)]),
            on_test_begin=lambda l: calls.append(["test"]),
            on_epoch_end=lambda e, l: calls.append(["end", e, sorted(l)]),
        ),
        K.ReduceLROnPlateau("val_loss", 0.5, 1, min_delta=10.0),
        K.CSVLogger(str(folder / "log.csv")),
        K.TerminateOnNaN(),
        K.ModelCheckpoint(
            str(folder / "w{epoch:02d}.weights.h5"), save_weights_only=True, save_best_only=True
        ),
    ]
    found = history(model, X, Y, batch_size=4, epochs=3, validation_split=0.34, callbacks=callbacks)
    header = (folder / "log.csv").read_text().splitlines()[0]
    return [calls, found, header, sorted(p.name for p in folder.glob("w*"))]


def case_p_subclassing(tf, folder):
    class Residual(tf.keras.layers.Layer):
        def __init__(self, units, **kwargs):
            super().__init__(**kwargs)
            self.units, self.blocks = units, [tf.keras.layers.Dense(units) for _ in range(2)]
            self.by_name = {"norm": tf.keras.layers.LayerNormalization()}

        def call(self, x, training=None, scale=1.0):
            for block in self.blocks:
                x = x + tf.nn.relu(block(x)) * scale
            return self.by_name["norm"](x) + (1.0 if training else 0.0)

    class Model(tf.keras.Model):
        def __init__(self):
            super().__init__()
            self.body, self.head = Residual(4), tf.keras.layers.Dense(1)

        def call(self, inputs, training=False):
            x = inputs["x"] if isinstance(inputs, dict) else inputs
            return {"y": self.head(self.body(x, scale=0.5)), "sum": tf.reduce_sum(x, -1)}

    model = Model()
    model({"x": X})
    fill(model).compile(
        tf.keras.optimizers.SGD(0.05),
        {"y": "mse", "sum": "mae"},
        loss_weights={"y": 2.0, "sum": 0.1},
    )
    found = history(model, {"x": X}, {"y": Y, "sum": Y[:, 0]}, batch_size=3, epochs=2)
    model.save_weights(folder / "w.weights.h5")
    other = Model()
    other({"x": X})
    other.load_weights(folder / "w.weights.h5")
    return [
        found,
        as_list(other({"x": X})["y"]),
        len(model.weights),
        [w.shape.as_list() for w in model.weights],
    ]


def case_p_variables(tf, folder):
    v = tf.Variable([[1.0, 2.0], [3.0, 4.0]])

    @tf.function
    def update(i):
        v[i].assign([9.0, 9.0])
        v[:, 1].assign(v[:, 0] + 1.0)
        v.scatter_nd_add([[0, 0]], [0.5])
        v.scatter_max(tf.IndexedSlices([[2.0, 20.0]], [1 - i]))
        return v.read_value()

    results = [as_list(update(tf.constant(1))), as_list(update(tf.constant(0)))]
    w = tf.Variable([1, 2, 3], shape=tf.TensorShape([None]))
    w.assign([4, 5])
    return [
        *results,
        as_list(w),
        as_list(v.gather_nd([[0, 1]])),
        as_list(v.sparse_read([1])),
        fails(lambda: v.assign([1.0])),
        fails(lambda: v.assign(["a"])),
        fails(lambda: tf.Variable(lambda: tf.ones([2]), shape=[3])),
        fails(lambda: tf.function(lambda: tf.Variable(1.0) + tf.Variable(2.0))() and None),
    ]


def case_p_control_flow(tf, folder):
    @tf.function
    def switch(i, x):
        return tf.switch_case(i, [lambda: x, lambda: x * x, lambda: -x], default=lambda: x * 0)

    @tf.function
    def case(x):
        return tf.case([(x < 1, lambda: x + 10), (x < 5, lambda: x + 20)], default=lambda: x)

    @tf.function
    def grow(n):
        shape = lambda *s: tf.TensorShape(s)
        return tf.while_loop(
            lambda i, x: i < n,
            lambda i, x: (i + 1, tf.concat([x, [i]], 0)),
            [tf.constant(0), tf.zeros([0], tf.int32)],
            shape_invariants=[shape(), shape(None)],
        )[1]

    @tf.function
    def grow_in_a_loop(n):
        x = tf.zeros([0], tf.int32)
        for i in tf.range(n):
            tf.autograph.experimental.set_loop_options(
                shape_invariants=[(x, tf.TensorShape([None]))]
            )
            x = tf.concat([x, [i * i]], 0)
        return x

    x = tf.constant([1.0, 3.0])
    results = [as_list(grow_in_a_loop(tf.constant(n))) for n in (0, 3)]
    results += [as_list(switch(tf.constant(i), x)) for i in (0, 1, 2, 5)]
    results += [as_list(case(tf.constant(v))) for v in (0, 3, 9)]
    results += [
        as_list(grow(tf.constant(3))),
        as_list(tf.scan(lambda a, b: a * b, tf.constant([1, 2, 3, 4]))),
    ]
    results += [
        as_list(
            tf.map_fn(
                lambda r: tf.reduce_sum(r),
                tf.ragged.constant([[1, 2], [3]]),
                fn_output_signature=tf.int32,
            )
        )
    ]
    results += [
        as_list(tf.foldr(lambda a, b: a - b, tf.constant([1, 2, 3]))),
        as_list(tf.vectorized_map(lambda t: t @ tf.transpose(t), tf.ones([2, 1, 2]))),
    ]
    return results


def case_p_signal_and_linalg(tf, folder):
    a = tf.constant([[4.0, 1.0], [1.0, 3.0]])
    wave = tf.sin(tf.range(16.0))
    return [
        as_list(tf.linalg.cholesky(a)),
        as_list(tf.linalg.inv(a)),
        as_list(tf.linalg.eigvalsh(a)),
        as_list(tf.linalg.expm(a * 0.1)),
        as_list(tf.linalg.lstsq(tf.ones([3, 1]), tf.constant([[1.0], [2.0], [6.0]]))),
        as_list(tf.linalg.band_part(tf.ones([3, 3]), 1, 0)),
        as_list(tf.linalg.diag_part(a, k=(-1, 0))),
        as_list(tf.abs(tf.signal.stft(wave, 8, 4))),
        as_list(tf.signal.inverse_stft(tf.signal.stft(wave, 8, 4), 8, 4)),
        as_list(tf.signal.mfccs_from_log_mel_spectrograms(tf.ones([1, 4]))),
        as_list(tf.signal.frame(wave, 6, 5, pad_end=True)),
        as_list(tf.einsum("ij,kj->ik", a, a)),
        as_list(tf.tensordot(a, a, [[0], [1]])),
        fails(lambda: tf.linalg.cholesky(-a)),
        fails(lambda: tf.linalg.inv(tf.zeros([2, 2]))),
    ]


def case_p_mixed_precision(tf, folder):
    policy = tf.keras.mixed_precision.Policy("mixed_float16")
    layer = tf.keras.layers.Dense(2, dtype=policy)
    y = layer(X)
    optimizer = tf.keras.mixed_precision.LossScaleOptimizer(
        tf.keras.optimizers.SGD(1.0), initial_scale=4.0, dynamic_growth_steps=2
    )
    v = tf.Variable([1.0])
    scales = []
    for gradient in (0.5, np.inf, 0.25, 0.25, np.nan):
        optimizer.apply_gradients([(tf.constant([gradient]), v)])
        scales.append([float(optimizer.loss_scale), as_list(v)])
    return [str(y.dtype), str(layer.kernel.dtype), scales]


def case_p_generators_and_adapters(tf, folder):
    model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
    fill(model).compile(tf.keras.optimizers.SGD(0.1), "mse")

    class Batches(tf.keras.utils.Sequence):
        def __len__(self):
            return 3

        def __getitem__(self, i):
            return X[2 * i : 2 * i + 2], Y[2 * i : 2 * i + 2], np.array([1.0, i])

    def generate():
        for i in range(3):
            yield X[2 * i : 2 * i + 2], Y[2 * i : 2 * i + 2]

    weights = model.get_weights()
    results = [as_list(model.fit(Batches(), verbose=0, shuffle=False).history["loss"])]
    results.append(as_list(model.evaluate(generate(), verbose=0)))
    model.set_weights(weights)
    results.append(history(model, X, Y, batch_size=4, steps_per_epoch=1, epochs=2))

    results.append(fails(lambda: model.fit(X, np.ones([5, 1]))))
    results.append(fails(lambda: model.fit(Batches(), Y)))
    results.append(list(model.predict(generate(), verbose=0).shape))
    return results


def case_p_gradient_corners(tf, folder):
    zero, one = (lambda x: x * 0), tf.constant([1.0, 0.0, 1.0])
    functions = (
        lambda x: tf.norm(x - x),
        lambda x: tf.sqrt(x - x),
        lambda x: tf.where(x > 0, tf.math.log(x), 0.0),
        lambda x: tf.math.reduce_std(zero(x)),
        lambda x: tf.math.divide_no_nan(x, zero(x)),
        lambda x: tf.math.xlogy(zero(x), zero(x)),
        lambda x: x**0,
        lambda x: tf.abs(zero(x)),
        lambda x: tf.reduce_prod(x * one),
        lambda x: tf.math.cumprod(x * one),
        lambda x: tf.nn.softmax(x * 1e5),
        lambda x: tf.nn.l2_normalize(zero(x)),
        lambda x: tf.clip_by_norm(zero(x), 1.0),
        lambda x: tf.atan2(zero(x), zero(x)),
        lambda x: tf.sort(x)[0],
        lambda x: tf.floor(x),
        lambda x: x % 0.7,
        lambda x: tf.math.acos(tf.clip_by_value(x, -1, 1)),
        lambda x: tf.math.pow(x, [0.0, 2.0, 0.5]),
        lambda x: tf.reduce_logsumexp(x * 1e3),
        lambda x: tf.maximum(x, x),
        lambda x: tf.reduce_min(tf.stack([x, x]), 0),
    )
    results = []
    for f in functions:
        y, gradient = differentiate(tf, f, tf.constant([-1.0, 1.0, 2.0]), 1)
        results.append([as_list(y), None if gradient is None else as_list(gradient)])
    return results


def case_p_convolutions(tf, folder):
    layers = tf.keras.layers
    x = tf.constant(np.arange(2 * 5 * 6 * 2, dtype="float32").reshape(2, 5, 6, 2) / 50)
    results = []
    for layer, data in (
        (layers.Conv2D(3, 3, strides=2, padding="same"), x),
        (layers.Conv2D(4, 2, groups=2), x),
        (layers.Conv2DTranspose(2, 3, strides=2, output_padding=1, padding="same"), x),
        (layers.DepthwiseConv2D(2, depth_multiplier=2, dilation_rate=2), x),
        (layers.SeparableConv2D(2, 2, padding="same"), x),
        (layers.LocallyConnected2D(2, 2), x),
        (layers.Conv1D(2, 2, padding="causal", dilation_rate=2), x[:, 0]),
        (layers.Conv1DTranspose(2, 3, strides=2), x[:, 0]),
        (layers.MaxPooling2D(3, 2, "same"), x),
        (layers.AveragePooling2D(2, padding="same"), x),
    ):
        layer.build(data.shape)
        fill(layer)
        results.append(as_list(layer(data)))
    return results


def case_p_argument_errors(tf, folder):
    x = tf.constant(X)
    calls = (
        lambda: tf.reduce_sum(x, 2),
        lambda: tf.concat([x, x[:, :1]], 0),
        lambda: tf.reshape(x, [5, 5]),
        lambda: tf.transpose(x, [0, 0]),
        lambda: tf.expand_dims(x, 5),
        lambda: tf.squeeze(x, 0),
        lambda: tf.stack([x, x[0]]),
        lambda: tf.split(x, 5, 1),
        lambda: tf.tile(x, [1]),
        lambda: tf.pad(x, [[1, 1]]),
        lambda: tf.one_hot(1.5, 3),
        lambda: x + tf.constant(1),
        lambda: tf.matmul(x, x),
        lambda: tf.argmax(x, 7),
        lambda: tf.range(0, 5, 0),
        lambda: tf.constant([1, [2]]),
        lambda: tf.convert_to_tensor({"a": 1}),
        lambda: tf.strings.join([1, 2]),
        lambda: tf.nn.top_k(x, 9),
        lambda: tf.boolean_mask(x, [True]),
        lambda: tf.ensure_shape(x, [1, 2]),
        lambda: tf.unstack(x, 3),
        lambda: tf.repeat(x, [1, 2], 0),
        lambda: tf.reverse(x, [4]),
        lambda: tf.sequence_mask([1.5]),
        lambda: tf.scatter_nd([[0]], [1.0, 2.0], [3]),
        lambda: tf.function(lambda v: v, input_signature=[tf.TensorSpec([2])])(tf.ones([3])),
    )
    return [fails(call) for call in calls]


CASES = {
    name.removeprefix("case_"): f for name, f in list(globals().items()) if name.startswith("case_")
}
