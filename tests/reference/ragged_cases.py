"""Expressions with ragged tensors, generated systematically: function x dtype x structure.

`generate_ragged.py` evaluates them with TensorFlow, and tests/ops/test_ragged_against_tensorflow.py with
Meshflow. `evaluate` returns a value for JSON: the content, shape, dtype and gradient, or an error class.
"""

import math

import numpy as np

# Nested lists by name: several ranks, empty rows, no rows, inner and uniform dimensions.
STRUCTURES = {
    "r2": "R([[1, 2, 3], [], [4, 5]], {t})",
    "e2": "R([[], []], {t})",
    "o2": "R([[7]], {t})",
    "u2": "RT.from_uniform_row_length(C([1, 2, 3, 4, 5, 6], {t}), 2)",
    "n2": "RT.from_row_splits(Z([0], {t}), [0])",
    "r3": "R([[[1, 2], [3]], [[4]], []], {t})",
    "f3": "R([[[], [1]], [], [[2, 3, 4], []]], {t})",
    "i3": "R([[[1, 2], [3, 4]], [[5, 6]], []], {t}, ragged_rank=1)",
    "u3": "RT.from_uniform_row_length(R([[1, 2], [], [3], [4, 5, 6]], {t}), 2)",
    "v3": "RT.from_row_lengths(RT.from_uniform_row_length(C([1, 2, 3, 4, 5, 6], {t}), 2), [2, 0, 1])",
    "r4": "R([[[[1], [2, 3]], []], [], [[[4, 5, 6]]]], {t})",
}
STRINGS = {
    "s2": "R([['a', 'bb ', 'Cc'], [], ['d e f']])",
    "s3": "R([[['a', 'b'], []], [['xyz']]])",
}
RANK = {
    "r2": 2,
    "e2": 2,
    "o2": 2,
    "u2": 2,
    "n2": 2,
    "r3": 3,
    "f3": 3,
    "i3": 3,
    "u3": 3,
    "v3": 3,
    "r4": 4,
}
UNARY = [
    *(
        "abs",
        "acos",
        "acosh",
        "asin",
        "asinh",
        "atan",
        "atanh",
        "ceil",
        "conj",
        "cos",
        "cosh",
        "digamma",
    ),
    *(
        "erf",
        "erfc",
        "erfinv",
        "exp",
        "expm1",
        "floor",
        "imag",
        "is_finite",
        "is_inf",
        "is_nan",
        "lgamma",
    ),
    *(
        "log",
        "log1p",
        "log_sigmoid",
        "ndtri",
        "negative",
        "real",
        "reciprocal",
        "rint",
        "round",
        "rsqrt",
    ),
    *(
        "sigmoid",
        "sign",
        "sin",
        "sinh",
        "softplus",
        "sqrt",
        "square",
        "tan",
        "tanh",
        "angle",
        "erfcinv",
    ),
    *(
        "reciprocal_no_nan",
        "special.dawsn",
        "special.expint",
        "special.fresnel_cos",
        "special.spence",
    ),
    *("special.bessel_i0", "special.bessel_i1", "special.bessel_k0e", "special.bessel_j0"),
    *("bessel_i0e", "special.fresnel_sin"),
]
NN = [
    "relu",
    "relu6",
    "elu",
    "selu",
    "gelu",
    "leaky_relu",
    "silu",
    "softsign",
    "softmax",
    "log_softmax",
]
BINARY = [
    *("add", "subtract", "multiply", "divide", "truediv", "floordiv", "floormod", "pow", "maximum"),
    *("minimum", "squared_difference", "equal", "not_equal", "less", "less_equal", "greater"),
    *(
        "greater_equal",
        "divide_no_nan",
        "multiply_no_nan",
        "atan2",
        "xlogy",
        "xdivy",
        "nextafter",
        "mod",
    ),
    *("truncatediv", "truncatemod", "polygamma", "zeta", "igamma", "xlog1py"),
]
REDUCTIONS = ["sum", "prod", "min", "max", "mean", "any", "all", "variance", "std", "logsumexp"]
KEYS = {
    2: ["0", "-1", "2", "5", "-4", "1:", ":2", "::2", "::-1", "5:", "...", ":, :2", ":, 1:", ":, -1:",
        ":, ::2", ":, ::-1", ":, 0", "0, 1", "0, :1", "2, -1", "None", ":, None", "..., None", "1:, :1",
        "tf.constant(1)", "1:2, 5:", ":-1", "0, ...", "0, 0, 0", "::0", "None, :, 1:", ":, tf.constant(1):"],
    3: ["0", "-1", "0, 1", "1:, 0", ":, 1:", ":, :, 1:", ":, :, :1", "0, 1:", "0, :, :1", "..., 0",
        "..., :1", ":, None", ":, :, None", "::-1, ::-1", "0, 0, 0", ":, ::2, ::-1", "None, ..., 1:", "3",
        "1, 0", ":, 0", "..., None", ":1, :1, :1"],
    4: ["0", "0, 0", "0, 0, 1", ":, :1", ":, :, 1:", "..., 1:", "..., ::-1", "2, 0, 0, 1", ":, :, :, None"],
}  # fmt: skip


def make(name, dtype="tf.float32"):
    """Return the expression of a structure."""
    return (STRUCTURES | STRINGS)[name].format(t=dtype)


def expressions():
    """Return pairs of an expression of x (and y), and the expressions of x and y."""
    cases = []

    def add(text, *operands):
        cases.append((text, *operands))

    for name in UNARY:
        for key in (
            ("r2", "e2", "i3", "r4") if name in ("abs", "exp", "sqrt", "sin") else ("r2", "f3")
        ):
            add(f"tf.math.{name}(x / 8)", make(key))
    for name in NN:
        for key in ("r2", "f3", "i3", "e2"):
            add(f"tf.nn.{name}(x - 2)", make(key))
    for name in BINARY:
        dtypes = ["tf.float32"] if name in ("atan2", "xlogy", "xdivy", "divide_no_nan", "multiply_no_nan",
            "nextafter", "polygamma", "zeta", "igamma", "xlog1py", "squared_difference") else ["tf.float32", "tf.int32"]  # fmt: skip
        for dtype in dtypes:
            for key in ("r2", "r3") if dtype == "tf.float32" else ("r2",):
                add(f"tf.math.{name}(x, y)", make(key, dtype), make(key, dtype))
                add(f"tf.math.{name}(x, C(2, {dtype}))", make(key, dtype))
            add(f"tf.math.{name}(C([[2], [3], [4]], {dtype}), x)", make("r2", dtype))
    pairs = [
        ("r2", "C([[10.], [20.], [30.]])"), ("r2", "C([[10.]])"), ("r2", "C([10.])"), ("r2", "C(1.)"),
        ("r2", "C([1., 2., 3.])"), ("r2", "Z([2, 1, 1], tf.float32)"), ("r2", "R([[1., 2., 3.], [], [4.]])"),
        ("r2", "R([[1., 2., 3.]])"), ("o2", "R([[1., 2.], [3., 4.]])"), ("u2", "C([[1., 2.]])"),
        ("u2", "C([1., 2.])"), ("u2", "C([[1.], [2.], [3.]])"), ("u2", "R([[1., 2.], [3., 4.], [5., 6.]])"),
        ("r3", "C([[[1.]], [[2.]], [[3.]]])"), ("r3", "RT.from_row_splits([[1.], [2.], [3.]], [0, 2, 3, 3])"),
        ("r3", "R([[1., 2.], [3.], []])"), ("i3", "C([1., 2.])"), ("i3", "C([[[1., 2.]]])"), ("i3", "C([[[1.]], [[2.]], [[3.]]])"),
        ("i3", "R([[1., 2.], [3.], []])"), ("u3", "C([[[1.], [2.]], [[3.], [4.]]])"), ("u3", "C([[1.], [2.]])"),
        ("f3", "R([[[], [1.]], [], [[2., 3., 4.], []]])"), ("r4", "C([[[[2.]]]])"), ("r4", "C([[[[1.]]], [[[2.]]], [[[3.]]]])"),
        ("e2", "C([[1.], [2.]])"), ("n2", "C([[1.]])"), ("r2", "RT.from_uniform_row_length(C([1., 2., 3.]), 1)"),
        ("v3", "C([1., 2.])"), ("v3", "C([[[1.]], [[2.]], [[3.]]])"),
    ]  # fmt: skip
    for key, other in pairs:
        for symbol in ("+", "*", "-", "/", "<", "=="):
            add(f"x {symbol} y", make(key), other)
        add("y - x", make(key), other)
        add("tf.where(x > 2, x, y)", make(key), other)
    for key in ("r2", "r3"):
        for text in ("-x", "abs(x)", "x + 1", "1 + x", "x // 2", "x % 2", "x ** 2", "2 - x", "2 / x", "x > 1",
                     "x != 2", "x <= 2", "x == 2", "x == None", "x == 'a'"):  # fmt: skip
            for dtype in ("tf.float32", "tf.int64"):
                add(text, make(key, dtype))
    for text in (
        "~x",
        "x & y",
        "x | y",
        "x ^ y",
        "tf.logical_not(x)",
        "tf.logical_and(x, y)",
        "tf.math.logical_xor(x, y)",
    ):
        add(text, "R([[True, False], [], [True]])", "R([[True, True], [], [False]])")
    for name in REDUCTIONS:
        for key, rank in RANK.items():
            axes = [None, *range(-1, rank), (0, 1), [1], *([(1, 2), (0, 2)] if rank > 2 else [])]
            for axis in axes:
                operand = "x > 2" if name in ("any", "all") else "x"
                call = (
                    f"tf.reduce_{name}"
                    if name not in ("variance", "std")
                    else f"tf.math.reduce_{name}"
                )
                if name in ("sum", "max", "mean", "any") or key in ("r2", "f3", "i3"):
                    add(f"{call}({operand}, axis={axis})", make(key))
        for axis in (None, 0, 1, -1):
            operand = "x > 2" if name in ("any", "all") else "x"
            call = (
                f"tf.reduce_{name}" if name not in ("variance", "std") else f"tf.math.reduce_{name}"
            )
            add(f"{call}({operand}, axis={axis}, keepdims=True)", make("r2"))
            if name in ("sum", "prod", "mean", "max"):
                add(f"{call}({operand}, axis={axis})", make("r2", "tf.int32"))
    for key, rank in RANK.items():
        for index in KEYS[rank]:
            add(f"x[{index}]", make(key))
    for key in ("u2", "u3", "v3"):
        for index in (
            ":, 0",
            ":, -1",
            ":, 2",
            ":, 1:",
            ":, ::-1",
            ":, 1, :1" if RANK[key] > 2 else "1, 1",
        ):
            add(f"x[{index}]", make(key))
    properties = [
        *("x.row_splits", "x.row_lengths()", "x.row_starts()", "x.row_limits()", "x.value_rowids()", "x.nrows()"),
        *("x.ragged_rank", "x.shape", "x.bounding_shape()", "x.bounding_shape(axis=0)", "x.bounding_shape(axis=1)"),
        *("x.bounding_shape(axis=[0, 1])", "x.bounding_shape(out_type=tf.int32)", "x.values", "x.flat_values"),
        *("x.nested_row_splits", "x.nested_row_lengths()", "x.nested_value_rowids()", "x.to_tensor()", "x.to_list()"),
        *("x.to_tensor(default_value=9.)", "x.to_sparse()", "x.numpy()", "str(x)", "repr(x)", "x.uniform_row_length"),
        *("x.with_values(x.values)", "x.with_flat_values(x.flat_values * 2)", "x.merge_dims(0, 1)", "x.dtype"),
        *("x.merge_dims(-2, -1)", "x.with_row_splits_dtype(tf.int32)", "x.row_lengths(axis=0)", "x._type_spec"),
        *("x.row_lengths(axis=-1)", "x.merge_dims(1, 0)", "x.row_lengths(axis=5)", "bool(x)", "len(x)", "hash(x)"),
        *("tf.rank(x)", "tf.size(x)", "tf.shape(x)", "tf.identity(x)", "tf.zeros_like(x)", "tf.ones_like(x)"),
        *("tf.ones_like(x, tf.int32)", "tf.cast(x, tf.int32)", "tf.stop_gradient(x)", "tf.expand_dims(x, 0)"),
        *("tf.expand_dims(x, 1)", "tf.expand_dims(x, 2)", "tf.expand_dims(x, -1)", "tf.expand_dims(x, 9)"),
        *("tf.reverse(x, [0])", "tf.reverse(x, [1])", "tf.reverse(x, [-1])", "tf.reverse(x, [0, 1])", "tf.reverse(x, [9])"),
        *("tf.concat([x, x], 0)", "tf.concat([x, x], 1)", "tf.concat([x, x], -1)", "tf.concat([x], 0)", "tf.concat([x, x], 7)"),
        *("tf.stack([x, x])", "tf.stack([x, x], 1)", "tf.stack([x, x], -1)", "tf.stack([x])", "tf.ragged.stack([x, x * 2], 0)"),
        *("tf.tile(x, [2] + [1] * (len(x.shape) - 1))", "tf.tile(x, [1, 2] + [1] * (len(x.shape) - 2))", "tf.tile(x, [2, 3] + [1] * (len(x.shape) - 2))"),
        *("tf.gather(x, [0])", "tf.gather(x, 0)", "tf.gather(x, [[0, 0]])", "tf.gather(x, [5])", "tf.gather(x, R([[0], []], tf.int32))"),
        *("tf.gather_nd(x, [[0]])", "tf.gather_nd(x, [[0, 0]])", "tf.gather_nd(x, [0])", "tf.gather_nd(x, [[9]])"),
        *("tf.ragged.boolean_mask(x, x > 2)", "tf.ragged.boolean_mask(x, x.row_lengths() > 0)", "tf.where(x > 2)"),
        *("tf.split(x, 1)", "tf.split(x, 3)", "tf.split(x, [1, -1])", "tf.squeeze(tf.expand_dims(x, 0), 0)", "tf.squeeze(tf.expand_dims(x, 1), 1)"),
        *("tf.squeeze(x, 0)", "tf.ragged.map_flat_values(tf.square, x)", "tf.one_hot(tf.cast(x, tf.int32), 3)", "tf.add_n([x, x, x])"),
        *("tf.clip_by_value(x, 2., 4.)", "tf.nn.dropout(x, 0.)", "tf.bitcast(x, tf.int32)", "tf.map_fn(lambda r: tf.reduce_sum(r), x)"),
        *("tf.map_fn(lambda r: r * 2, x)", "tf.cumsum(x)", "tf.cumsum(x, axis=1)", "tf.reshape(x, [-1])", "tf.debugging.check_numerics(x, 'm')"),
        *("tf.dynamic_partition(x, x.row_lengths() * 0, 2)", "tf.ragged.stack_dynamic_partitions(x, tf.cast(x.row_lengths() > 0, tf.int32), 2)"),
        *("tf.nn.embedding_lookup(tf.reshape(tf.range(20.), [10, 2]), tf.cast(x, tf.int32))", "tf.RaggedTensor.from_sparse(x.to_sparse())"),
        *("tf.nest.flatten(x, expand_composites=True)", "tf.is_tensor(x)", "tf.type_spec_from_value(x)", "tf.RaggedTensorSpec.from_value(x).is_compatible_with(x)"),
        *("tf.sort(x)", "tf.argmax(x, 1)", "tf.transpose(x)", "tf.convert_to_tensor(x)", "tf.reshape(x, [3, -1])", "tf.unique(x)", "tf.math.top_k(x)"),
        *("tf.strings.as_string(x)", "tf.saturate_cast(x, tf.int8)", "tf.math.scalar_mul(2., x)", "tf.matmul(x, x)", "tf.zeros_like(x, dtype=tf.bool)"),
        *("tf.function(lambda v: v * 2)(x)", "tf.function(lambda v: tf.reduce_sum(v, 1))(x)", "tf.function(lambda v: v.to_tensor())(x)"),
        *("tf.function(lambda v: tf.concat([v, v], 1))(x)", "tf.cond(tf.constant(True), lambda: x, lambda: x * 2)", "tf.function(lambda v: v[1:])(x)"),
        *("tf.function(lambda v: tf.expand_dims(v, 1))(x)", "tf.function(lambda v: v.row_lengths())(x)", "tf.function(lambda v: tf.stack([v, v]))(x)"),
        *("tf.function(lambda v: v + tf.ones_like(v))(x)", "tf.function(lambda v: tf.reduce_max(v, axis=-1))(x)", "tf.function(lambda v: tf.ragged.boolean_mask(v, v > 2))(x)"),
    ]  # fmt: skip
    for text in properties:
        for key in STRUCTURES:
            add(text, make(key))
    for text in (
        *("tf.strings.length(x)", "tf.strings.lower(x)", "tf.strings.upper(x)", "tf.strings.strip(x)", "tf.strings.substr(x, 0, 1)"),
        *("tf.strings.to_hash_bucket_fast(x, 10)", "tf.strings.regex_replace(x, 'b', 'z')", "tf.strings.regex_full_match(x, 'a')"),
        *("tf.strings.join([x, x], '-')", "tf.strings.split(x)", "tf.strings.bytes_split(x)", "tf.strings.unicode_decode(x, 'UTF-8')"),
        *("tf.strings.reduce_join(x, axis=-1)", "tf.strings.reduce_join(x, axis=1, separator='_')", "tf.strings.ngrams(x, 2)"),
        *("x.to_tensor()", "x.to_tensor('?')", "str(x)", "x.to_list()", "x == x", "x[1:]", "tf.concat([x, x], 1)", "tf.gather(x, [1, 0])"),
        *("tf.strings.to_hash_bucket_strong(x, 10, [1, 2])", "tf.strings.unicode_split(x, 'UTF-8')", "tf.io.encode_base64(x)", "tf.identity(x)"),
        *("tf.ragged.cross([x, x])", "tf.ragged.cross_hashed([x, x], num_buckets=10)", "x.to_sparse()", "tf.expand_dims(x, 1)", "x + 'q'"),
        *("tf.strings.unicode_transcode(x, 'UTF-8', 'UTF-16-BE')", "tf.strings.reduce_join(x)", "tf.strings.unicode_script(tf.strings.unicode_decode(x, 'UTF-8'))"),
    ):  # fmt: skip
        for key in STRINGS:
            add(text, make(key))
    for text in MORE:
        for key in ("r2", "u2", "r3", "i3", "f3"):
            add(text, make(key))
    for text in INTEGERS:
        for key in ("r2", "r3", "u2"):
            add(text, make(key, "tf.int32"))
    for text in CONSTRUCTORS:
        add(text)
    return cases


MORE = [
    *(
        f"tf.math.unsorted_segment_{k}(x, C([0, 1, 0]), 2)"
        for k in ("sum", "prod", "max", "min", "mean", "sqrt_n")
    ),
    *(
        "tf.math.unsorted_segment_sum(x, tf.cast(x > 2, tf.int32), 2)",
        "tf.math.unsorted_segment_sum(x, C([5, 0, 1]), 2)",
    ),
    *(
        "tf.complex(x, x)",
        "tf.dtypes.complex(x, x * 0).dtype",
        "tf.nn.sigmoid_cross_entropy_with_logits(labels=x, logits=x)",
    ),
    *(
        "tf.image.adjust_brightness(x, 0.5)",
        "tf.image.adjust_gamma(x, 2.)",
        "tf.image.convert_image_dtype(x, tf.uint8)",
    ),
    *(
        "tf.nn.leaky_relu(x - 3, 0.5)",
        "tf.nn.softmax(x, axis=1)",
        "tf.nn.softmax(x, axis=0)",
        "tf.clip_by_value(x, C(2.), C(3.))",
    ),
    *(
        "tf.one_hot(tf.cast(x, tf.int32), 4, axis=0)",
        "tf.one_hot(tf.cast(x, tf.int32), 4, on_value=5., off_value=-1.)",
    ),
    *(
        "tf.cumsum(x, axis=-1)",
        "tf.cumsum(x, axis=1, reverse=True)",
        "tf.cumsum(x, axis=1, exclusive=True)",
        "tf.cumsum(x, axis=9)",
    ),
    *(
        "tf.reduce_sum(x, axis=9)",
        "tf.reduce_sum(x, axis=C(1))",
        "tf.reduce_sum(x, axis=C([0, 1]))",
        "tf.reduce_max(x, axis=[])",
        "tf.reduce_sum(x, axis='a')",
    ),
    *(
        "tf.expand_dims(tf.expand_dims(x, 0), 0)",
        "tf.squeeze(tf.expand_dims(x, -1), -1)",
        "tf.squeeze(x)",
        "tf.squeeze(x, 9)",
    ),
    *(
        "tf.concat([x, tf.expand_dims(x[0], 0)], 0)",
        "tf.concat([x, x, x], 1)",
        "tf.concat(x, 0)",
        "tf.concat([x, 1.], 0)",
        "tf.stack([x, x, x], axis=5)",
    ),
    *(
        "tf.tile(x, [1])",
        "tf.tile(x, [0] * len(x.shape))",
        "tf.split(x, 2)",
        "tf.split(x, [1, 1])",
        "tf.split(x, 1, axis=1)",
        "tf.unstack(x)",
    ),
    *(
        "tf.gather(x, [2, 0, 1])",
        "tf.gather(x, [0], axis=1)",
        "tf.gather(x, [-1])",
        "tf.gather(x, [0.5])",
        "tf.gather(x, [[0]], batch_dims=1)",
    ),
    *(
        "tf.where(x > 2, x, -1.)",
        "tf.where(x > 2, 1., 0.)",
        "tf.where(x, x, x)",
        "tf.where(x > 2, x)",
        "tf.ragged.boolean_mask(x, [True, False, True])",
    ),
    *(
        "tf.ragged.map_flat_values(lambda v: v * 2, x)",
        "tf.ragged.map_flat_values(tf.add, x, x)",
        "tf.ragged.map_flat_values(lambda v: v[:1], x)",
    ),
    *(
        "list(x)",
        "x.consumers()",
        "x.get_shape()",
        "x.numpy().shape",
        "x.flat_values.shape",
        "x.merge_dims(0, -1)",
        "x.merge_dims(5, 6)",
    ),
    *(
        "x.with_values(1.)",
        "x.with_flat_values(C([1.]))",
        "x.to_tensor(shape=[None, 2] + [None] * (len(x.shape) - 2))",
        "x.to_tensor(shape=[2])",
    ),
    *(
        "x.to_tensor(default_value='a')",
        "x.bounding_shape(axis=7)",
        "x.row_lengths(axis='a')",
        "x.with_row_splits_dtype(tf.float32)",
        "-x + x * x / 2",
    ),
    *(
        "tf.reduce_sum(x * x)",
        "tf.reduce_sum(tf.exp(-x), axis=1)",
        "tf.reduce_mean(tf.concat([x, x], 1), axis=1)",
        "tf.reduce_sum(x[1:], axis=0)",
        "tf.reduce_sum(x[:, :1])",
    ),
    *(
        "tf.reduce_sum(x.to_tensor() ** 2)",
        "tf.reduce_sum(tf.gather(x, [2, 2, 0]) ** 2)",
        "tf.reduce_sum(tf.stack([x, x]) ** 2)",
        "tf.reduce_sum(tf.ragged.boolean_mask(x, x > 1) ** 2)",
    ),
    *(
        "tf.function(lambda v: [v, {'a': v + 1}])(x)",
        "tf.function(lambda v, n: v * n)(x, 3.)",
        "tf.function(lambda v: tf.reduce_sum(v))(x)",
        "tf.function(lambda v: v.to_sparse())(x)",
    ),
    *(
        "tf.function(lambda v: tf.nn.relu(v - 2))(x)",
        "tf.function(lambda v: tf.reduce_max(v, axis=1))(x)",
        "tf.function(lambda v: tf.gather(v, [1, 0]))(x)",
        "tf.function(lambda v: tf.shape(v.flat_values))(x)",
    ),
    *(
        "tf.function(lambda v: v.value_rowids())(x)",
        "tf.function(lambda v: tf.nn.softmax(v))(x)",
        "tf.function(lambda v: tf.reduce_sum(v, axis=0))(x)",
        "tf.function(lambda v: tf.map_fn(tf.reduce_sum, v, fn_output_signature=tf.float32))(x)",
    ),
    *(
        "tf.function(lambda: x * 2)()",
        "tf.while_loop(lambda i, v: i < 3, lambda i, v: (i + 1, v * 2), [C(0), x])[1]",
        "tf.function(lambda v: tf.while_loop(lambda i, v: i < 3, lambda i, v: (i + 1, v * 2), [C(0), v])[1])(x)",
    ),
    *(
        "tf.function(lambda v: tf.cond(tf.reduce_sum(v) > 3, lambda: v + 1, lambda: v - 1))(x)",
        "tf.switch_case(C(1), [lambda: x, lambda: x * 3])",
        "tf.nest.map_structure(lambda t: t, x, expand_composites=True)",
    ),
    *(
        "tf.nest.pack_sequence_as(x, tf.nest.flatten(x, expand_composites=True), expand_composites=True)",
        "tf.nest.flatten(x._type_spec, expand_composites=True)",
        "tf.nest.assert_same_structure(x, x, expand_composites=True)",
    ),
    *(
        "tf.nest.is_nested(x)",
        "len(tf.nest.flatten([x, x]))",
        "tf.function(lambda v: v)(x)._type_spec",
        "tf.function(lambda v: v, input_signature=[x._type_spec])(x)",
        "tf.map_fn(lambda r: tf.reduce_sum(r), x, fn_output_signature=tf.float32)",
    ),
    *(
        "tf.map_fn(lambda r: r, x, fn_output_signature=tf.RaggedTensorSpec([None] * (len(x.shape) - 1), tf.float32, max(x.ragged_rank - 1, 0)))",
        "tf.foldl(lambda a, r: a + tf.reduce_sum(r), x, initializer=0.)",
        "tf.math.count_nonzero(x)",
    ),
    *(
        "tf.experimental.DynamicRaggedShape.from_tensor(x).static_lengths()",
        "tf.experimental.DynamicRaggedShape.from_tensor(x).rank",
        "tf.reshape(x.flat_values, tf.shape(x))",
        "tf.broadcast_to(C(1.), tf.shape(x))",
    ),
]
INTEGERS = [
    *(
        "tf.bitwise.bitwise_and(x, x)",
        "tf.bitwise.bitwise_or(x, 8)",
        "tf.bitwise.bitwise_xor(x, x)",
        "tf.bitwise.invert(x)",
        "tf.bitwise.left_shift(x, x)",
    ),
    *(
        "tf.bitwise.right_shift(x, C(1))",
        "x // 2",
        "x / 2",
        "x % 3",
        "tf.reduce_mean(x, 1)",
        "tf.reduce_sum(x, 0)",
        "tf.reduce_prod(x, -1)",
        "tf.nn.embedding_lookup(tf.reshape(tf.range(14.), [7, 2]), x)",
    ),
    *(
        "tf.gather(tf.range(10), x)",
        "tf.gather(tf.reshape(tf.range(20), [10, 2]), x)",
        "tf.gather(R([[1], [2, 3], [], [4], [5], [6], []]), x)",
        "tf.one_hot(x, 3, dtype=tf.int32)",
        "tf.strings.as_string(x)",
    ),
    *(
        "x.to_tensor(-1)",
        "x.to_sparse()",
        "tf.cast(x, tf.float64)",
        "tf.cast(x, tf.bool)",
        "tf.reduce_any(tf.cast(x, tf.bool), 1)",
        "tf.math.squared_difference(x, x)",
        "tf.zeros_like(x, tf.string)",
        "x == 3",
        "x != x",
        "str(x * 1000)",
    ),
    *(
        "tf.RaggedTensor.from_tensor(x.to_tensor(), padding=0)",
        "tf.ragged.stack_dynamic_partitions(x, x % 2, 2)",
        "tf.math.abs(-x)",
        "tf.sign(x - 2)",
        "tf.maximum(x, 2)",
        "tf.pow(x, 2)",
        "tf.math.floormod(x, 2)",
        "tf.saturate_cast(x * 100, tf.uint8)",
    ),
]
CONSTRUCTORS = [
    *(f"R({p}{o})" for p in ("[]", "[[]]", "[[1, 2], [3]]", "[[], [1]]", "[[[1], []], []]", "[[1], 2]", "1", "[1, 2]",
        "[[1, 2], [3, 4]]", "[[[1, 2], [3, 4]], [[5, 6]]]", "[[[1, 2], [3]], [[4, 5]]]", "[['a'], []]", "[[1.5], [2]]",
        "[(1, 2), (3,)]", "np.array([[1, 2], [3, 4]])", "[np.array([1, 2]), np.array([3])]", "[[True], [False, True]]")
      for o in ("", ", ragged_rank=1", ", ragged_rank=0", ", inner_shape=(2,)", ", ragged_rank=1, inner_shape=(2,)",
        ", dtype=tf.float64", ", row_splits_dtype=tf.int32", ", ragged_rank=2", ", ragged_rank=-1")),
    *(f"RT.from_row_splits(C([1, 2, 3]), {s})" for s in ("[0, 1, 3]", "[0, 3]", "[0, 0, 3, 3]", "[0, 1]", "[1, 3]", "[0, 2, 1, 3]",
        "[]", "[[0, 3]]", "[0., 3.]", "C([0, 3], tf.int32)", "C([0, 3], tf.int64)", "[0, 4]")),
    *(f"RT.from_row_lengths(C([1, 2, 3]), {s})" for s in ("[1, 2]", "[3]", "[0, 3, 0]", "[1]", "[4, -1]", "[]", "[[3]]", "[1, 3]")),
    *(f"RT.from_value_rowids(C([1, 2, 3]), {s})" for s in ("[0, 0, 2]", "[0, 1, 2], 5", "[0, 0, 0], nrows=1", "[0, 2, 1]", "[0, 1]",
        "[0, 1, 2], nrows=2", "[-1, 0, 0]", "[0, 1, 2], nrows=-1", "[0, 0, 0, 1]")),
    *(f"RT.from_row_starts(C([1, 2, 3]), {s})" for s in ("[0, 1]", "[0, 0, 3]", "[1]", "[]", "[0, 4]", "[0]")),
    *(f"RT.from_row_limits(C([1, 2, 3]), {s})" for s in ("[1, 3]", "[0, 3]", "[2]", "[]", "[3, 1]", "[3]")),
    *(f"RT.from_uniform_row_length(C([1, 2, 3, 4]), {s})" for s in ("2", "4", "1", "3", "0", "0, nrows=2", "2, nrows=2", "2, nrows=3", "-1", "[2]")),
    *("RT.from_nested_row_splits([1, 2, 3], [[0, 1, 2], [0, 2, 3]])", "RT.from_nested_row_lengths([1, 2, 3], [[1, 1], [2, 1]])"),
    *("RT.from_nested_value_rowids([1, 2, 3], [[0, 1], [0, 0, 1]])", "RT.from_nested_value_rowids([1, 2, 3], [[0, 1], [0, 0, 1]], [3, 2])"),
    *("RT.from_nested_row_splits([1, 2, 3], [])", "RT.from_nested_row_splits([1, 2, 3], C([0, 3]))", "RT.from_row_splits(1, [0, 1])"),
    *(f"RT.from_tensor({d}{o})" for d in ("[[1, 2, 0], [3, 0, 0]]", "[[[1, 2], [0, 0]], [[3, 4], [5, 6]]]", "[[0.5, 0.]]", "[1, 2]", "Z([2, 0], tf.int32)")
      for o in ("", ", lengths=[1, 2]", ", padding=0", ", ragged_rank=2", ", lengths=[1, 2], padding=0", ", ragged_rank=0", ", row_splits_dtype=tf.int32", ", padding=[0, 0]", ", lengths=[9, 0]", ", lengths=([1, 2], [1, 1, 2])")),
    *("RT.from_sparse(tf.SparseTensor([[0, 0], [0, 1], [2, 0]], [1, 2, 3], [3, 4]))", "RT.from_sparse(tf.SparseTensor([[0, 1]], [1], [2, 2]))"),
    *("RT.from_sparse(1)", "RT.from_sparse(tf.SparseTensor([[0]], [1], [2]))", "RT([1], [0, 1])"),
    *(f"tf.ragged.range({a})" for a in ("[2, 0, 3]", "[1, 2], [3, 5]", "0, [3, 5], 2", "[5, 3], 0, -1", "3", "[0, 1], [2, 3, 4]", "0, [3], 0",
        "[0.5, 1.5], [2., 2.], 0.5", "[[1]]", "[2, 3], dtype=tf.int64", "[2, 3], row_splits_dtype=tf.int32", "[], dtype=tf.int32", "[-2, 1]")),
    *(f"tf.ragged.row_splits_to_segment_ids({a})" for a in ("[0, 3, 3, 5, 6, 9]", "[0]", "[]", "[[0]]", "C([0, 2], tf.int32)", "[0, 2], out_type=tf.int32")),
    *(f"tf.ragged.segment_ids_to_row_splits({a})" for a in ("[0, 0, 0, 2, 2, 3, 4, 4, 4]", "[0], 3", "[], 2", "[0, 1], out_type=tf.int32", "[[0]]", "[1], [2]")),
    *("tf.ragged.stack([C([1, 2]), C([3])])", "tf.ragged.stack([C([1, 2]), C([3])], 1)", "tf.ragged.stack([C(1), C(2)])", "tf.ragged.stack([])", "tf.ragged.stack([C([1]), C([[1]])])"),
    *("tf.ragged.stack([C([1, 2]), C([3, 4])], 1)", "tf.ragged.stack([C([[1, 2]]), R([[1], [2]])])", "tf.concat([R([[1], [2]]), C([[3, 4], [5, 6]])], 1)"),
    *("tf.concat([R([[1], [2]]), C([[3, 4]])], 1)", "tf.concat([R([[1], [2]]), C([[3, 4]])], 0)", "tf.concat([R([[1]]), R([[[1]]])], 0)", "tf.concat([C([[1]]), R([[2, 3]]), C([[4]])], 0)"),
    *("tf.ragged.boolean_mask(C([[1, 2], [3, 4]]), C([[True, False], [True, True]]))", "tf.ragged.boolean_mask(C([1, 2, 3]), C([True, False, True]))"),
    *("tf.ragged.boolean_mask(R([[1, 2], [3]]), [True])", "tf.ragged.boolean_mask(R([[1, 2], [3]]), R([[True], [False]]))", "tf.ragged.boolean_mask(R([[1]]), True)"),
    *("tf.ragged.boolean_mask(R([[1, 2], [3]]), R([[1, 0], [1]]))", "tf.ragged.boolean_mask(R([[[1, 2], [3]], [[4]]]), R([[True, False], [True]]))", "tf.ragged.boolean_mask(C([[[1, 2], [3, 4]]]), C([[True, False]]))"),
    *(f"tf.gather({a})" for a in ("R([[1, 2, 3], [4, 5]]), [[0, 1], [1, 0]], batch_dims=1", "R([[1, 2, 3], [4, 5]]), R([[2], [0, 0]]), batch_dims=1", "R([[1, 2], [4]]), [0, 0], axis=1", "C([[1, 2], [3, 4]]), R([[0, 1], []], tf.int32), axis=1",
        "R([[[1], [2, 3]], [[4, 5], []]]), R([[1], [0]], tf.int32), batch_dims=1", "C([9, 8, 7]), R([[0, 2], [], [1]])", "R([[1], [2, 3]]), R([[0], [1, 0]])", "R([[1, 2], [4, 5]]), [1], axis=1", "R([[1, 2], [4]]), R([[3], [0]]), batch_dims=1",
        "R([[1, 2], [3, 4]]), [1, 0], batch_dims=1", "C([[1, 2, 3], [4, 5, 6]]), R([[0], [1, 2]]), batch_dims=1", "R([['a'], ['b', 'c']]), [1, 1]")),
    *(f"tf.gather_nd({a})" for a in ("R([[1, 2], [3]]), R([[[0, 1]], []], ragged_rank=1, dtype=tf.int64, inner_shape=(2,))", "R([[[1, 2], [3]], [[4]]]), [[0, 1, 0], [1, 0, 0]]", "R([[[1, 2], [3]], [[4]]]), [[[0, 1]], [[1, 0]]]", "R([[1, 2], [3]]), [[]]", "R([[1, 2], [3]]), [[0, 1, 2]]", "C([[1, 2], [3, 4]]), R([[[0, 1]], []], ragged_rank=1, inner_shape=(2,))")),
    *("tf.where(C([True, False]), R([[1, 2], [3]]), R([[4], [5, 6]]))", "tf.where(R([[True, False], [True]]), R([[1, 2], [3]]), 0)", "tf.where(R([[True, False], [True]]), R([[1, 2], [3]]), R([[4, 5], [6]]))", "tf.where(True, R([[1, 2], [3]]), R([[4, 5], [6]]))", "tf.where(R([[True, False], [True]]), R([[1, 2], [3]]))"),
    *("tf.ragged.map_flat_values(tf.add, R([[1], [2, 3]]), R([[1], [2, 3]]))", "tf.ragged.map_flat_values(tf.add, R([[1], [2, 3]]), R([[1, 4], [2]]))", "tf.ragged.map_flat_values(tf.reduce_sum, R([[1], [2, 3]]))", "tf.ragged.map_flat_values(lambda v: 1, 2)", "tf.ragged.map_flat_values(tf.stack, [R([[1], [2, 3]]), R([[4], [5, 6]])], axis=1)"),
    *("tf.map_fn(lambda n: tf.range(n), C([1, 3, 0]), fn_output_signature=tf.RaggedTensorSpec([None], tf.int32))", "tf.map_fn(tf.reduce_mean, R([[1., 2.], [3.]]))", "tf.map_fn(lambda r: r + 1, R([[[1], [2, 3]], []]))", "tf.map_fn(lambda r: tf.ragged.stack([r, r]), R([[1], [2, 3]]), fn_output_signature=tf.RaggedTensorSpec([None, None], tf.int32))"),
    *("tf.ragged.cross([R([['a'], ['b', 'c']]), C([['d'], ['e']])])", "tf.ragged.cross([R([[1], [2, 3]]), R([['x'], ['y']])])", "tf.ragged.cross_hashed([R([['a'], ['b', 'c']]), R([['d'], ['e']])], num_buckets=100, hash_key=123)", "tf.ragged.cross([C([['a', 'b']]), C([['c']])])", "tf.ragged.cross([])"),
    *("tf.ragged.cross([R([['a'], ['b']]), tf.SparseTensor([[0, 0]], ['q'], [2, 1])])", "tf.ragged.cross_hashed([R([[1], [2]]), R([[3], [4]])])"),
    *("tf.ragged.stack_dynamic_partitions(C([1, 2, 3]), C([1, 0, 1]), 2)", "tf.ragged.stack_dynamic_partitions(R([[1], [2, 3]]), C([1, 0]), 3)", "tf.ragged.stack_dynamic_partitions(C([1, 2]), C([5, 0]), 2)", "tf.ragged.stack_dynamic_partitions(R([[1], [2, 3]]), R([[0], [1, 0]]), 2)", "tf.ragged.stack_dynamic_partitions(C([[1, 2], [3, 4]]), C([[0, 1], [1, 0]]), 2)"),
    *(f"tf.RaggedTensorSpec({a})" for a in ("[None, None], tf.int32", "[2, None, 3]", "None, tf.int32, 1", "[None, None], tf.int32, 1, tf.int32", "[None], tf.int32, 1", "None", "[None, None], ragged_rank=1.5", "[None, None, None], ragged_rank=1")),
    *(f"tf.RaggedTensorSpec({a}).is_compatible_with(R([[1], [2, 3]]))" for a in ("[None, None], tf.int32", "[2, None], tf.int32", "[3, None], tf.int32", "[None, None], tf.float32", "[None, None], tf.int32, 1, tf.int32", "[None, None, None], tf.int32, 1")),
    *(f"R([[[1, 2], [3]], [[4]], []]).to_tensor({a})" for a in ("shape=[None, None, 1]", "shape=[2, 1, 3]", "shape=[4, None, None]", "default_value=7", "shape=[None, 2]", "default_value=[7, 8]", "shape=tf.constant([3, 2, 4])")),
    *(f"RT.from_row_lengths(C([[1, 2], [3, 4], [5, 6]]), [1, 0, 2]).to_tensor({a})" for a in ("", "9", "[7, 8]", "[7]", "shape=[None, 3, None]", "shape=[None, None, 3]", "[[7, 8]]", "'a'")),
    *(f"tf.experimental.RowPartition.{a}" for a in ("from_row_lengths([2, 0, 1])", "from_row_splits([0, 2, 3])", "from_value_rowids([0, 0, 2], nrows=4)", "from_uniform_row_length(2, 6)", "from_row_starts([0, 2], nvals=3)", "from_row_limits([1, 3])", "from_row_splits([0, 2, 1])", "from_uniform_row_length(2)")),
    *(f"tf.experimental.RowPartition.from_row_lengths([2, 0, 1]).{a}" for a in ("row_splits()", "value_rowids()", "nrows()", "nvals()", "row_lengths()", "row_starts()", "row_limits()", "offsets_in_rows()", "is_uniform()", "uniform_row_length()", "static_nrows", "static_nvals", "static_uniform_row_length", "with_dtype(tf.int32)")),
    *(f"tf.experimental.DynamicRaggedShape.{a}" for a in ("from_lengths([2, (1, 2), 3])", "from_lengths([2, 3])", "from_tensor(R([[1], [2, 3]]))", "from_tensor(C([[1, 2]]))", "from_lengths([3, (1, 0, 2)]).rank", "from_lengths([2, (1, 2), 3]).inner_shape", "from_lengths([2, (1, 2), 3]).row_partitions", "from_lengths([2, (1, 2), 3]).static_lengths()", "from_lengths([2, (1, 2), 3]).is_uniform(1)", "from_lengths([2, (1, 2), 3])[0]", "from_lengths([2, (1, 2), 3])[1]", "from_lengths([2, (1, 2), 3])[2]", "from_lengths([2, (1, 2), 3]).num_row_partitions", "from_lengths([2, (1, 2), 3]).inner_rank")),
    *("tf.broadcast_to(C([[1], [2]]), tf.experimental.DynamicRaggedShape.from_lengths([2, (1, 2)]))", "tf.broadcast_to(C(1), tf.shape(R([[1], [2, 3]])))", "tf.reshape(C([1, 2, 3]), tf.shape(R([[1], [2, 3]])))", "tf.broadcast_dynamic_shape(tf.shape(R([[1], [2, 3]])), tf.shape(C([[1], [2]])))", "tf.ones(tf.shape(R([[1], [2, 3]])))", "tf.zeros(tf.shape(R([[1], [2, 3]])))", "tf.fill(tf.shape(R([[1], [2, 3]])), 7)"),
    *("tf.matmul(RT.from_row_lengths(tf.ones([3, 2]), [1, 0, 2]), tf.ones([2, 4]))", "tf.matmul(R([[[1., 2.]], [[3., 4.], [5., 6.]]], ragged_rank=1), tf.ones([2, 2, 3]))", "tf.matmul(R([[1., 2.], [3., 4.]]), C([[1.], [2.]]))", "tf.matmul(R([[[1., 2.], [3., 4.]], [[5.]]]), R([[[1.], [2.]], [[3.]]]))"),
]  # fmt: skip


def _encode(tf, value):
    """Convert a value to lists, numbers and strings."""
    if isinstance(value, tf.RaggedTensor):
        return {
            "ragged": _encode(tf, value.to_list()),
            "shape": str(value.shape),
            "dtype": value.dtype.name,
            "splits": value.row_splits.dtype.name,
        }
    if isinstance(value, tf.SparseTensor):
        return {
            "sparse": [_encode(tf, v) for v in (value.indices, value.values, value.dense_shape)]
        }
    if tf.is_tensor(value):
        array = np.asarray(value.numpy())
        return {
            "tensor": _encode(tf, array.tolist()),
            "shape": list(array.shape),
            "dtype": value.dtype.name,
        }
    if isinstance(value, np.ndarray):
        return {"array": [_encode(tf, v) for v in value], "dtype": str(value.dtype)}
    if isinstance(value, list | tuple | tf.data.Dataset):
        return [_encode(tf, v) for v in value]
    if isinstance(value, dict) and any(isinstance(v, tf.SparseTensor) for v in value.values()):
        return {str(k): _encode(tf, v) for k, v in sorted(value.items())}
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, complex):
        return [_encode(tf, value.real), _encode(tf, value.imag)]
    if isinstance(value, float | np.floating):
        number = float(value)
        return float(f"{number:.6g}") if np.isfinite(number) else str(number)
    if isinstance(value, np.generic):
        return value.item()
    return value if value is None or isinstance(value, bool | int | str) else repr(value)


def _make_example(tf, **features):
    """Serialize a `tf.train.Example` of lists of integers, floats or bytes."""
    message = tf.train.Example()
    for key, values in features.items():
        feature, first = message.features.feature[key], values[0]
        kind = {int: feature.int64_list, float: feature.float_list, bytes: feature.bytes_list}
        kind[type(first)].value.extend(values)
    return message.SerializeToString()


def _make_sequence(tf, rows):
    """Serialize a `tf.train.SequenceExample` with rows of integers named "a"."""
    message = tf.train.SequenceExample()
    for row in rows:
        message.feature_lists.feature_list["a"].feature.add().int64_list.value.extend(row)
    return message.SerializeToString()


def _take_flat_values(tf, value):
    return value.values if isinstance(value, tf.SparseTensor) else value.flat_values


def _sum_weighted(tf, value, allows_sparse):
    """Return a sum of the elements of a result with different weights, None if there are no floats."""
    if isinstance(value, list | tuple) and allows_sparse and value:
        parts = [_sum_weighted(tf, part, True) for part in value]
        return None if any(part is None for part in parts) else sum(parts)
    if isinstance(value, tf.RaggedTensor) or (isinstance(value, tf.SparseTensor) and allows_sparse):
        value = _take_flat_values(tf, value)
    if not tf.is_tensor(value) or isinstance(value, tf.SparseTensor) or not value.dtype.is_floating:
        return None
    weights = tf.range(1.0, tf.cast(tf.size(value), tf.float32) + 1)
    return tf.reduce_sum(value * tf.cast(tf.reshape(weights, tf.shape(value)), value.dtype))


def evaluate(tf, case, is_traced=False):
    """Return the result of a case for JSON.

    Args:
      tf: TensorFlow or Meshflow.
      case: An expression, and expressions of its operands.
      is_traced: Whether to compute it in a function that accepts sparse operands of all shapes.
    """
    names = {
        "tf": tf, "np": np, "R": tf.ragged.constant, "RT": tf.RaggedTensor, "C": tf.constant, "Z": tf.zeros,
        "S": tf.SparseTensor, "E": lambda **f: _make_example(tf, **f), "Q": lambda rows: _make_sequence(tf, rows),
    }  # fmt: skip
    text, *operands = case
    try:
        arguments = {name: eval(operand, names) for name, operand in zip("xy", operands)}

        def call(**values):
            return eval(text, names | values)

        compute = call
        if is_traced:
            specs = [
                tf.SparseTensorSpec([None] * len(v.shape), v.dtype) for v in arguments.values()
            ]
            traced = tf.function(
                lambda *v: call(**dict(zip(arguments, v, strict=True))), input_signature=specs
            )
            compute = lambda **values: traced(*values.values())
        x = arguments.get("x")
        is_sparse = isinstance(x, tf.SparseTensor)
        is_float = (is_sparse or isinstance(x, tf.RaggedTensor)) and x.dtype.name == "float32"
        if not is_float:
            return {"value": _encode(tf, compute(**arguments))}
        flat = _take_flat_values(tf, x)
        with tf.GradientTape() as tape:
            tape.watch(flat)
            changed = x.with_values(flat) if is_sparse else x.with_flat_values(flat)
            value = compute(**arguments | {"x": changed})
            target = _sum_weighted(tf, value, is_sparse)
        result = {"value": _encode(tf, value)}
        if target is not None:
            try:
                gradient = tape.gradient(target, flat)
            except (LookupError, TypeError):  # TensorFlow has no gradients of some ops.
                if not is_sparse:
                    raise
                gradient = None
            result["gradient"] = (
                None
                if gradient is None
                else _encode(tf, tf.convert_to_tensor(gradient).numpy().tolist())
            )
        return result
    except Exception as error:
        return {
            "error": type(error).__name__,
            "bases": [base.__name__ for base in type(error).__mro__],
        }


def matches(found, expected, tolerance=1e-3):
    """Compare results; numbers within a tolerance, and error classes by inheritance."""
    if isinstance(expected, dict):
        if "error" in expected:
            return isinstance(found, dict) and expected["error"] in found.get("bases", ())
        return (
            isinstance(found, dict)
            and expected.keys() == found.keys()
            and all(
                matches(found[k], expected[k], 5e-3 if k == "gradient" else tolerance)
                for k in expected
            )
        )
    if isinstance(expected, list):
        return (
            isinstance(found, list)
            and len(found) == len(expected)
            and all(matches(f, e, tolerance) for f, e in zip(found, expected, strict=True))
        )
    if (
        isinstance(expected, float)
        and isinstance(found, int | float)
        and not isinstance(found, bool)
    ):
        return math.isclose(found, expected, rel_tol=tolerance, abs_tol=tolerance)
    return type(found) is type(expected) and found == expected
