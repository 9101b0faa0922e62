"""Models with composite tensors, trained with `fit` and in loops, and programs that use these types.

`generate_composite_models.py` runs them with TensorFlow, and tests/keras/test_composite_models.py with Meshflow.
Each function returns numbers and text for JSON.
"""

import contextlib

import numpy as np

CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def set_weights(model):
    """Assign the same small weights in TensorFlow and Meshflow."""
    for number, weight in enumerate(model.weights):
        values = np.sin(np.arange(weight.shape.num_elements()) * 1.7 + number) * 0.4
        weight.assign(values.reshape(weight.shape).astype("float32"))
    return model


def show(tf, value):
    if isinstance(value, dict):
        return {key: show(tf, item) for key, item in sorted(value.items())}
    if isinstance(value, list | tuple):
        return [show(tf, item) for item in value]
    if isinstance(value, tf.RaggedTensor):
        return value.to_list()
    if isinstance(value, tf.SparseTensor):
        return [show(tf, part) for part in (value.indices, value.values, value.dense_shape)]
    if isinstance(value, str):
        return value
    items = np.asarray(value).tolist()
    return items if not isinstance(items, bytes) else items.decode()


def fit_and_use(tf, model, data, epochs=3):
    losses = model.fit(data, epochs=epochs, verbose=0).history["loss"]
    return show(tf, [losses, model.evaluate(data, verbose=0), model.predict(data, verbose=0)])


def train_in_loop(tf, model, data, signature, rate, epochs=3):
    optimizer = tf.keras.optimizers.SGD(rate)
    if hasattr(optimizer, "build"):
        optimizer.build(model.trainable_variables)

    @tf.function(input_signature=signature)
    def step(inputs, targets):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(inputs, training=True) - targets) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    return [float(step(*batch)) for _ in range(epochs) for batch in data]


def make_rows(seed, count, limit, longest):
    """Return lists of numbers of different lengths, some of them empty."""
    random = np.random.RandomState(seed)
    return [random.randint(0, limit, random.randint(0, longest)).tolist() for _ in range(count)]


@case
def text_classifier(tf):
    """Classify texts as rows of words of different lengths."""
    words = np.array(["sun", "rain", "wind", "snow", "fog", "hail"])
    texts = [" ".join(words[row]) for row in make_rows(0, 18, 6, 7)]
    labels = np.array([[float("rain" in text)] for text in texts], "float32")
    vectorize = tf.keras.layers.TextVectorization(ragged=True, vocabulary=words.tolist())
    data = tf.data.Dataset.from_tensor_slices((texts, labels)).batch(4)
    data = data.map(lambda text, label: (vectorize(text), label))
    ids = tf.keras.Input([None], ragged=True, dtype="int64")
    hidden = tf.keras.layers.Embedding(9, 4)(ids)
    hidden = tf.keras.layers.GRU(3)(hidden)
    model = tf.keras.Model(ids, tf.keras.layers.Dense(1, "sigmoid")(hidden))
    set_weights(model).compile(tf.keras.optimizers.Adam(0.05), "binary_crossentropy")
    return fit_and_use(tf, model, data)


def make_recommender(tf):
    class Lookup(tf.keras.layers.Layer):
        def build(self, shape):
            self.table = self.add_weight(name="table", shape=(30, 4))

        def call(self, inputs):
            ids, weights = inputs
            mean = tf.nn.safe_embedding_lookup_sparse(self.table, ids, weights)
            filled = tf.sparse.fill_empty_rows(ids, tf.constant(0, tf.int64))[0]
            total = tf.nn.embedding_lookup_sparse(self.table, filled, None, combiner="sqrtn")
            return mean + total

    profile = tf.keras.Input([40], sparse=True, name="profile")
    items = tf.keras.Input([None], sparse=True, dtype="int64", name="items")
    ratings = tf.keras.Input([None], sparse=True, name="ratings")
    hidden = tf.keras.layers.Dense(4, "relu")(profile)
    hidden = tf.keras.layers.Concatenate()([hidden, Lookup()([items, ratings])])
    model = tf.keras.Model([profile, items, ratings], tf.keras.layers.Dense(1)(hidden))
    set_weights(model).compile(tf.keras.optimizers.SGD(0.05), "mse")
    return model


def make_purchases(tf, count=14):
    random = np.random.RandomState(3)
    profile = random.rand(count, 40) * (random.rand(count, 40) > 0.9)
    rows = make_rows(4, count, 30, 6)
    indices = [[i, k] for i, row in enumerate(rows) for k in range(len(row))]
    ids = np.array([item for row in rows for item in row], "int64")
    items = tf.SparseTensor(indices, ids, [count, 5])
    ratings = tf.SparseTensor(indices, (ids % 3).astype("float32") - 0.5, [count, 5])
    targets = random.rand(count, 1).astype("float32")
    return profile.astype("float32"), items, ratings, targets


@case
def recommender(tf):
    """Predict ratings from sparse profiles, and from the items that a user has bought."""
    profile, items, ratings, targets = make_purchases(tf)
    features = {"profile": tf.sparse.from_dense(profile), "items": items, "ratings": ratings}
    data = tf.data.Dataset.from_tensor_slices((features, targets)).batch(4)
    return fit_and_use(tf, make_recommender(tf), data)


@case
def recommender_loop(tf):
    """Train it in a function for batches of any size."""
    profile, items, ratings, targets = make_purchases(tf)
    features = (tf.sparse.from_dense(profile), items, ratings)
    data = tf.data.Dataset.from_tensor_slices((features, targets)).batch(4)
    signature = [
        (
            tf.SparseTensorSpec([None, 40]),
            tf.SparseTensorSpec([None, 5], tf.int64),
            tf.SparseTensorSpec([None, 5]),
        ),
        tf.TensorSpec([None, 1]),
    ]
    return train_in_loop(tf, make_recommender(tf), data, signature, 0.05)


@case
def linear_on_matrix(tf):
    """Pass a matrix of SciPy, and a sparse tensor, to the methods of a model."""
    profile, _, _, targets = make_purchases(tf)
    inputs = [tf.sparse.from_dense(profile)] * 2
    with contextlib.suppress(ImportError):  # The environment of TensorFlow lacks SciPy.
        from scipy.sparse import csr_matrix

        inputs[1] = csr_matrix(profile)
    results = []
    for x in inputs:
        layers = [
            tf.keras.Input([40], sparse=True),
            tf.keras.layers.Dense(3, "tanh"),
            tf.keras.layers.Dense(1),
        ]
        model = set_weights(tf.keras.Sequential(layers))
        model.compile("sgd", "mse")
        history = model.fit(x, targets, batch_size=14, epochs=2, shuffle=False, verbose=0)
        found = [history.history["loss"], model.evaluate(x, targets, batch_size=14, verbose=0)]
        results.append(show(tf, [*found, model.predict(x, batch_size=14, verbose=0)]))
    return results


def make_graph_types(tf):
    class Graph(tf.experimental.BatchableExtensionType):
        """Graphs with different numbers of nodes and edges."""

        nodes: tf.RaggedTensor
        senders: tf.RaggedTensor
        receivers: tf.RaggedTensor
        shape = property(lambda self: self.nodes.shape[:1])

        class Spec:
            shape = property(lambda self: self.nodes.shape[:1])
            dtype = property(lambda self: self.nodes.dtype)

    class Messages(tf.keras.layers.Layer):
        """Add the transformed features of the senders of edges to their receivers."""

        def __init__(self, units):
            super().__init__()
            self.dense = tf.keras.layers.Dense(units, "tanh")

        def build(self, shape):
            self.dense.build([None, 3])

        def call(self, graph):
            starts = graph.nodes.row_starts()
            edges = graph.senders.value_rowids()
            offsets = tf.gather(starts, edges)
            hidden = self.dense(graph.nodes.flat_values)
            sent = tf.gather(hidden, graph.senders.flat_values + offsets)
            count = tf.shape(hidden)[0]
            total = tf.math.unsorted_segment_sum(sent, graph.receivers.flat_values + offsets, count)
            nodes = graph.nodes.with_flat_values(hidden + total)
            return Graph(nodes, graph.senders, graph.receivers)

    class Classifier(tf.keras.Model):
        def __init__(self):
            super().__init__()
            self.layers_of_messages = [Messages(3), Messages(3)]
            self.head = tf.keras.layers.Dense(1)

        def call(self, graph):
            for layer in self.layers_of_messages:
                graph = layer(graph)
            return self.head(tf.reduce_mean(graph.nodes, axis=1))

    return Graph, Classifier


def make_graphs(tf, graph_class, count=13):
    random = np.random.RandomState(5)
    num_nodes = random.randint(1, 7, count)
    num_edges = random.randint(1, 9, count)
    ends = [[random.randint(0, n, e) for n, e in zip(num_nodes, num_edges)] for _ in range(2)]
    nodes = random.randn(num_nodes.sum(), 3).astype("float32")
    graphs = graph_class(
        tf.RaggedTensor.from_row_lengths(nodes, num_nodes),
        *[
            tf.RaggedTensor.from_row_lengths(np.concatenate(e).astype("int64"), num_edges)
            for e in ends
        ],
    )
    targets = random.rand(count, 1).astype("float32")
    return tf.data.Dataset.from_tensor_slices((graphs, targets)).batch(4)


@case
def graph_network(tf):
    """Train a graph network on batches of an extension type."""
    graph_class, model_class = make_graph_types(tf)
    data = make_graphs(tf, graph_class)
    model = model_class()
    model(next(iter(data))[0])
    set_weights(model).compile(tf.keras.optimizers.SGD(0.002), "mse")
    return fit_and_use(tf, model, data)


@case
def graph_network_loop(tf):
    """Train it in a function for batches of any size."""
    graph_class, model_class = make_graph_types(tf)
    data = make_graphs(tf, graph_class)
    model = model_class()
    model(next(iter(data))[0])
    ids = tf.RaggedTensorSpec([None, None], tf.int64, 1)
    nodes = tf.RaggedTensorSpec([None, None, 3], tf.float32, 1)
    signature = [graph_class.Spec(nodes, ids, ids), tf.TensorSpec([None, 1])]
    return train_in_loop(tf, set_weights(model), data, signature, 0.002)
