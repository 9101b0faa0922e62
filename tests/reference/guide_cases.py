"""Tours of ragged tensors and extension types, in the order of topics of TensorFlow's guides.

`generate_guides.py` runs them with TensorFlow, and tests/ops/test_guides.py with Meshflow. Each function returns
numbers and text for JSON. tests/ops/test_sparse_guide.py is the tour of sparse tensors.
"""

import functools
import tempfile
import typing

import composite_model_cases

CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


def show(tf, value):
    """Convert results to numbers and text."""
    if isinstance(value, list | tuple):
        return [show(tf, item) for item in value]
    if isinstance(value, bytes):
        return value.decode()
    shown = composite_model_cases.show(tf, value)
    return show(tf, shown) if isinstance(shown, list) else shown


def find_error(action):
    """Check whether a call raises an exception; other tests compare its class."""
    try:
        action()
    except Exception:
        return "error"
    return "no error"


def make_rivers(tf):
    """Return the lengths of the sections of some rivers."""
    return tf.ragged.constant([[3.0, 1.5], [], [2.0, 4.0, 8.0], [5.0]])


@case
def ragged_construction(tf):
    make, values = tf.RaggedTensor, tf.constant([7, 2, 9, 4, 1])
    rows = [
        make.from_value_rowids(values, [0, 0, 2, 2, 3], nrows=5),
        make.from_row_lengths(values, [1, 0, 4]),
        make.from_row_splits(values, [0, 2, 2, 5]),
        make.from_row_starts(values, [0, 3]),
        make.from_row_limits(values, [2, 5, 5]),
        make.from_uniform_row_length(values[:4], 2),
        make.from_nested_row_splits(values, [[0, 1, 3], [0, 2, 4, 5]]),
        make.from_nested_row_lengths(values, [[2, 1], [3, 0, 2]]),
        make.from_nested_value_rowids(values, [[0, 0, 1], [0, 1, 1, 2, 2]]),
        tf.ragged.constant([[["a"], []], [], [["b", "c"]]]),
        tf.ragged.constant([[(1, 2)], [(3, 4), (5, 6)]], inner_shape=(2,)),
        tf.ragged.range([2, 0, 3]),
        tf.ragged.stack([[1, 2], [3]]),
    ]
    errors = [
        find_error(lambda: tf.ragged.constant([[1], 2])),
        find_error(lambda: tf.ragged.constant([["x"], [1.0]])),
        find_error(lambda: make.from_row_splits(values, [0, 9])),
    ]
    return [*[[show(tf, r), str(r.shape), r.dtype.name] for r in rows], errors]


@case
def ragged_ops(tf):
    rivers, more = make_rivers(tf), tf.ragged.constant([[1.0], [2.0], [3.0], [4.0]])
    names = tf.ragged.constant([["Elbe", "Oder"], ["Spree"], []])
    results = [
        tf.reduce_sum(rivers, axis=1), tf.reduce_max(rivers, axis=0), tf.reduce_mean(more, axis=1),
        tf.concat([rivers, more], axis=1), tf.concat([rivers, more], axis=0), tf.tile(rivers, [1, 2]),
        tf.strings.substr(names, 0, 2), tf.strings.length(names), tf.ragged.map_flat_values(tf.square, rivers),
        tf.math.sqrt(rivers), tf.stack([rivers, more], axis=0), tf.gather(rivers, [2, 0]), tf.reverse(rivers, [1]),
        tf.ragged.boolean_mask(rivers, rivers > 2.0), tf.where(rivers > 2.0, rivers, -rivers), tf.one_hot(tf.cast(more, tf.int32), 5),
        tf.expand_dims(rivers, 1), tf.strings.reduce_join(names, axis=1, separator="-"),
        tf.strings.split(tf.constant(["high water", "ebb"])), tf.strings.ngrams(names, 2),
        tf.map_fn(tf.reduce_sum, rivers, fn_output_signature=tf.float32), tf.ragged.cross([names, names]),
    ]  # fmt: skip
    return show(tf, results)


@case
def ragged_operators(tf):
    x = make_rivers(tf)
    offsets = tf.constant([[10.0], [20.0], [30.0], [40.0]])
    dense = tf.ragged.constant([[1, 2, 3], [4, 5, 6]])
    results = [
        x + x, x - 1.0, 2.0 * x, x / 2.0, x**2, -x, abs(-x), x // 2.0, x % 2.0, x > 2.0, x == x, x != 2.0,
        x + offsets, x * tf.reduce_sum(x, 1, keepdims=True), dense + tf.constant([[1], [10]]), ~(x > 2.0),
        (x > 2.0) & (x < 5.0),
    ]  # fmt: skip
    errors = [
        find_error(lambda: x + tf.ones([4, 7])),
        find_error(lambda: x + tf.ragged.constant([[1.0]] * 4)),
    ]
    return [show(tf, results), errors]


@case
def ragged_indexing(tf):
    x = make_rivers(tf)
    deep = tf.ragged.constant([[[1, 2, 3], [4]], [[5], [], [6]], [[7]], [[8, 9], [10]]])
    results = [
        x[0], x[-1, 0], x[1:], x[:, :1], x[:, -2:], x[::2], x[:, ::-1], deep[1], deep[3, 0], deep[:, 1:3],
        deep[:, :, 1:], deep[..., :1], x[:, tf.newaxis], x[tf.constant(2)],
    ]  # fmt: skip
    return [show(tf, results), find_error(lambda: x[:, 0]), find_error(lambda: x[9])]


@case
def ragged_conversions(tf):
    x = make_rivers(tf)
    sparse = tf.SparseTensor([[0, 0], [2, 0], [2, 1]], ["a", "b", "c"], [3, 3])
    table = [[1, -1, -1], [2, 3, -1], [4, 5, 6]]
    results = [
        x.to_tensor(), x.to_tensor(-1.0, shape=[None, 2]), x.to_tensor(shape=[5, 4]), x.to_sparse(),
        tf.RaggedTensor.from_tensor(table, padding=-1), tf.RaggedTensor.from_tensor(table, lengths=[0, 1, 2]),
        tf.RaggedTensor.from_sparse(sparse), x.to_list(), [row.tolist() for row in x.numpy()], str(x),
    ]  # fmt: skip
    return show(tf, results)


@case
def ragged_encoding(tf):
    x = tf.ragged.constant([[[1, 2], []], [], [[3]], [[4, 5, 6]]])
    uniform = tf.RaggedTensor.from_uniform_row_length(
        tf.RaggedTensor.from_row_splits([1, 2, 3, 4, 5], [0, 2, 3, 5, 5]), 2
    )
    results = [
        x.values, x.flat_values, x.row_splits, list(x.nested_row_splits), x.row_lengths(), x.row_starts(), x.row_limits(),
        x.value_rowids(), x.nrows(), list(x.nested_row_lengths()), x.bounding_shape(), x.ragged_rank, tf.rank(x),
        x.row_lengths(axis=2), x.merge_dims(0, 1), x.with_flat_values(x.flat_values * 2),
        x.with_row_splits_dtype(tf.int32).row_splits.dtype.name, uniform, uniform.uniform_row_length, str(uniform.shape),
        str(x.shape),
    ]  # fmt: skip
    return show(tf, results)


@case
def ragged_shapes(tf):
    shape = tf.shape(make_rivers(tf))
    make = tf.experimental.DynamicRaggedShape
    grid = make.from_lengths([2, (1, 2), 2])
    lengths = tf.broadcast_to(tf.constant([[1.0], [2.0], [3.0], [4.0]]), shape)
    reshaped = tf.reshape(tf.range(6), grid)
    spec = tf.RaggedTensorSpec([None, None], tf.float32)
    return show(tf, [
        shape.rank, shape[0], shape.num_row_partitions, shape.is_uniform(0), shape.is_uniform(1), lengths, reshaped,
        make.from_tensor(reshaped).static_lengths(), spec.is_compatible_with(make_rivers(tf)), tf.size(make_rivers(tf)),
        tf.zeros(grid, tf.int32), tf.ones(shape),
    ])  # fmt: skip


@case
def ragged_datasets(tf):
    x = make_rivers(tf)
    data = tf.data.Dataset.from_tensor_slices(x)
    ranges = tf.data.Dataset.range(5).map(tf.range)
    example = lambda days: tf.train.Example(
        features=tf.train.Features(
            feature={"days": tf.train.Feature(int64_list=tf.train.Int64List(value=days))}
        )
    ).SerializeToString()
    feature = tf.io.RaggedFeature(tf.int64, row_splits_dtype=tf.int64)
    parsed = tf.io.parse_example([example([1, 2]), example([]), example([3])], {"days": feature})
    return show(tf, [
        list(data), list(data.batch(3)), list(data.batch(3).unbatch()), list(ranges.ragged_batch(2)),
        list(data.map(lambda row: tf.reduce_sum(row))), list(data.batch(2).map(lambda rows: rows[:, :1])),
        parsed["days"], str(data.batch(2).element_spec),
        list(tf.data.Dataset.from_tensors(x).flat_map(tf.data.Dataset.from_tensor_slices).take(2)),
    ])  # fmt: skip


@case
def ragged_functions(tf):
    x = make_rivers(tf)
    spec = tf.RaggedTensorSpec([None, None], tf.float32)
    double = tf.function(lambda rows: tf.concat([rows, rows], axis=1))

    @tf.function(input_signature=[spec])
    def find_longest(rows):
        total = tf.zeros([])
        for i in tf.range(rows.nrows()):
            if tf.size(rows[i]) > 0:
                total += tf.reduce_max(rows[i])
        return total, tf.reduce_sum(rows, 1)

    @tf.function
    def grow(rows):
        return tf.while_loop(
            lambda r: r.nrows() < 9, lambda r: (tf.concat([r, r], 0),), [rows], [spec]
        )[0]

    concrete = double.get_concrete_function(x)
    module = tf.Module()
    module.total = find_longest
    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(module, folder)
        saved = tf.saved_model.load(folder).total(x[:2])
    with tf.GradientTape() as tape:
        tape.watch(x.flat_values)
        loss = tf.reduce_sum(tf.reduce_mean(tf.exp(x[2:] * 0.1), 1))
    return show(tf, [
        double(x), grow(x), list(find_longest(x)), list(find_longest(x[:1])), concrete(x), list(saved),
        tape.gradient(loss, x.flat_values),
    ])  # fmt: skip


@case
def ragged_bigrams(tf):
    """Average the vectors of the words of queries, and of their neighbors."""
    queries = tf.ragged.constant([["where", "is", "north"], ["tide"], ["low", "tide"]])
    table = tf.reshape(tf.range(48.0), [16, 3])
    find = lambda words: tf.nn.embedding_lookup(table, tf.strings.to_hash_bucket_fast(words, 16))
    marker = tf.fill([queries.nrows(), 1], "#")
    padded = tf.concat([marker, queries, marker], axis=1)
    pairs = tf.strings.join([padded[:, :-1], padded[:, 1:]], separator="+")
    joined = tf.concat([find(queries), find(pairs)], axis=1)
    return show(tf, [pairs, tf.reduce_mean(joined, axis=1)])


class _Types(typing.NamedTuple):
    Span: type
    Masked: type


@functools.cache
def make_types(tf):
    class Span(tf.experimental.ExtensionType):
        """An interval of numbers."""

        low: tf.Tensor
        high: tf.Tensor
        unit: str = "m"

        def __validate__(self):
            self.low.shape.assert_is_compatible_with(self.high.shape)

        def width(self):
            return self.high - self.low

    class Masked(tf.experimental.BatchableExtensionType):
        """Values of which some are missing."""

        __name__ = "guides.Masked"
        values: tf.Tensor
        mask: tf.Tensor
        shape = property(lambda self: self.values.shape)
        dtype = property(lambda self: self.values.dtype)

        def filled(self, value):
            return tf.where(self.mask, self.values, value)

        def __add__(self, other):
            return tf.add(self, other)

        def __getitem__(self, key):
            return Masked(self.values[key], self.mask[key])

        class Spec:
            def __init__(self, shape, dtype=tf.float32):
                self.values = tf.TensorSpec(shape, dtype)
                self.mask = tf.TensorSpec(shape, tf.bool)

            shape = property(lambda self: self.values.shape)
            dtype = property(lambda self: self.values.dtype)

    return _Types(Span, Masked)


@case
def extension_definition(tf):
    span_class, masked = make_types(tf)

    class Route(tf.experimental.ExtensionType):
        """A field of each kind."""

        spans: typing.Tuple[span_class, ...]  # noqa: UP006 - as programs for TensorFlow have it
        stops: typing.Mapping[str, tf.Tensor]
        rows: tf.RaggedTensor
        weight: typing.Union[int, float] = 1  # noqa: UP007
        sparse: typing.Optional[tf.SparseTensor] = None  # noqa: UP045

    span = span_class(low=[1.0, 2.0], high=[3.0, 7.0])
    route = Route([span], {"a": [1, 2]}, tf.ragged.constant([[1], []]))
    spec = tf.type_spec_from_value(span)
    parts = [show(tf, part) for part in tf.nest.flatten(route, expand_composites=True)]
    errors = [
        find_error(lambda: setattr(span, "low", 3)), find_error(lambda: span_class([1.0], [1.0, 2.0])),
        find_error(lambda: span_class(low=["x"], high=1)), find_error(lambda: span_class([1.0])),
        find_error(lambda: span_class([1.0], [2.0], unit=3)), find_error(lambda: route.stops.update(b=1)),
    ]  # fmt: skip
    equal = [
        bool(span == span),
        bool(span == span_class([1.0, 2.0], [3.0, 8.0])),
        bool(span != span),
    ]
    values = [span.width(), route.spans[0].unit, route.stops["a"], route.weight, str(route.sparse)]
    return show(
        tf, [values, str(spec.low), spec.unit, parts, errors, equal, str(masked.Spec([2]).shape)]
    )


@case
def extension_functions(tf):
    span_class, masked = make_types(tf)
    span = span_class([1.0, 2.0], [3.0, 7.0])

    @tf.function
    def widen(s, times):
        for _ in tf.range(times):
            s = span_class(s.low - 1.0, s.high + 1.0, s.unit)
        return s

    @tf.function(input_signature=[masked.Spec([None])])
    def fill(m):
        return tf.cond(tf.reduce_any(m.mask), lambda: m.filled(0.0), lambda: m.values * 0.0 - 1.0)

    wide = widen(span, tf.constant(2))
    looped = tf.while_loop(
        lambda i, s: i < 3, lambda i, s: (i + 1, span_class(s.low, s.high * 2.0, s.unit)), [0, span]
    )[1]
    module = tf.Module()
    module.fill, values = fill, masked([1.0, 2.0], [True, False])
    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(module, folder)
        saved = tf.saved_model.load(folder).fill(values)
    with tf.GradientTape() as tape:
        tape.watch(span.low)
        loss = tf.reduce_sum(widen(span, tf.constant(1)).width() ** 2)
    return show(tf, [
        wide.low, wide.high, looped.high, fill(values), fill(masked([4.0], [False])), saved,
        widen.get_concrete_function(span, tf.constant(1))(span, tf.constant(1)).width(), tape.gradient(loss, span.low),
    ])  # fmt: skip


@case
def extension_datasets(tf):
    _, masked = make_types(tf)
    table = masked(
        [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], [[True, False], [True, True], [False, False]]
    )
    data = tf.data.Dataset.from_tensor_slices(table)
    batches = [[b.values, b.mask] for b in data.batch(2)]
    again = [row.filled(-1.0) for row in data.batch(2).unbatch()]
    mapped = [list(data.map(lambda m: m.filled(9.0))), str(data.batch(2).element_spec.shape)]
    rows = tf.map_fn(lambda m: masked(m.values * 2.0, m.mask), table)
    return show(tf, [batches, again, mapped, rows.values])


@case
def extension_dispatch(tf):
    _, masked = make_types(tf)
    registered = []

    def register(decorator):
        def add(function):
            registered.append(function)
            return decorator(function)

        return add

    api = tf.experimental

    @register(api.dispatch_for_unary_elementwise_apis(masked))
    def apply(function, x):
        return masked(function(x.values), x.mask)

    @register(api.dispatch_for_binary_elementwise_apis(masked, masked))
    def combine(function, x, y):
        return masked(function(x.values, y.values), x.mask & y.mask)

    @register(api.dispatch_for_api(tf.reduce_sum, {"input_tensor": masked}))
    def total(input_tensor, axis=None, keepdims=False, name=None):
        return tf.reduce_sum(input_tensor.filled(0.0), axis, keepdims)

    @register(api.dispatch_for_api(tf.concat, {"values": typing.List[masked]}))  # noqa: UP006
    def join(values, axis, name="concat"):
        return masked(
            tf.concat([v.values for v in values], axis), tf.concat([v.mask for v in values], axis)
        )

    @register(api.dispatch_for_api(tf.shape, {"input": masked}))
    def find_shape(input, out_type=tf.int32, name=None):
        return tf.shape(input.values, out_type)

    try:
        x, y = (
            masked([1.0, -2.0, 3.0], [True, True, False]),
            masked([5.0, 6.0, 7.0], [False, True, True]),
        )
        found = [
            tf.abs(x),
            tf.cast(x, tf.int32),
            tf.math.sigmoid(x),
            x + y,
            tf.maximum(x, y),
            tf.concat([x, y], 0),
        ]
        traced = tf.function(lambda a, b: tf.reduce_sum(tf.multiply(tf.square(a), b)))(x, y)
        errors = [find_error(lambda: tf.reduce_max(x)), find_error(lambda: tf.add(x, 1.0))]
        parts = [[m.values, m.mask] for m in [*found, x[1:]]]
        return show(tf, [parts, traced, tf.reduce_sum(x, 0), tf.shape(x), errors])
    finally:
        for function in registered:
            api.unregister_dispatch_for(function)


@case
def extension_models(tf):
    _, masked = make_types(tf)
    inputs = tf.keras.Input(type_spec=masked.Spec([None, 3]))
    layer = tf.keras.layers.Lambda(lambda m: m.filled(0.0))
    outputs = tf.keras.layers.Dense(1, kernel_initializer="ones")(layer(inputs))
    model = tf.keras.Model(inputs, outputs)
    table = masked([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], [[True, False, True], [False, False, True]])
    data = tf.data.Dataset.from_tensor_slices((table, [[1.0], [2.0]])).batch(2)
    model.compile("sgd", "mse")
    losses = model.fit(data, epochs=2, verbose=0).history["loss"]
    return show(tf, [model(table), losses, model.predict(data, verbose=0)])
