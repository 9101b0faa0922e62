"""Expressions with sparse tensors, generated systematically: function x dtype x structure.

`generate_sparse.py` evaluates them with TensorFlow, and tests/ops/test_sparse_against_tensorflow.py with
Meshflow, eagerly and in functions that accept all shapes. Results are those of `ragged_cases.evaluate`.
"""

# Arguments of SparseTensor by name: several ranks, empty rows, no elements, no rows, wrong orders.
STRUCTURES = {
    "s1": "S([[1], [3]], C([5, 2], {t}), [5])",
    "e1": "S(Z([0, 1], tf.int64), Z([0], {t}), [4])",
    "s2": "S([[0, 1], [0, 3], [2, 0]], C([1, 2, 3], {t}), [3, 4])",
    "t2": "S([[0, 0], [1, 2], [1, 3], [2, 0]], C([4, -5, 6, -3], {t}), [3, 4])",
    "e2": "S(Z([0, 2], tf.int64), Z([0], {t}), [2, 3])",
    "z2": "S(Z([0, 2], tf.int64), Z([0], {t}), [0, 3])",
    "o2": "S([[0, 0]], C([7], {t}), [1, 1])",
    "d2": "S([[0, 0], [0, 1], [1, 0], [1, 1]], C([1, 2, 3, 4], {t}), [2, 2])",
    "u2": "S([[2, 0], [0, 3], [0, 1]], C([3, 2, 1], {t}), [3, 4])",
    "r2": "S([[0, 1], [0, 1], [2, 0]], C([1, 2, 3], {t}), [3, 4])",
    "b2": "S([[0, 1], [0, 9], [2, 0]], C([1, 2, 3], {t}), [3, 4])",
    "s3": "S([[0, 0, 1], [0, 2, 0], [1, 1, 1]], C([1, 2, 3], {t}), [2, 3, 2])",
    "t3": "S([[0, 0, 1], [0, 1, 1], [1, 1, 0], [1, 2, 0]], C([4, 3, 2, 1], {t}), [2, 3, 2])",
    "e3": "S(Z([0, 3], tf.int64), Z([0], {t}), [2, 0, 2])",
    "s4": "S([[0, 0, 1, 0], [1, 0, 0, 2], [1, 0, 1, 1]], C([1, 2, 3], {t}), [2, 1, 2, 3])",
}
STRINGS = {
    "a1": "S([[1], [3]], ['b', 'a'], [5])",
    "a2": "S([[0, 0], [0, 1], [2, 0]], ['a', 'bb', 'c'], [3, 2])",
    "a3": "S([[0, 0, 1], [1, 1, 0]], ['a b', ''], [2, 2, 2])",
}
ALL = list(STRUCTURES)
RANK = {name: int(name[1]) for name in ALL}
SOUND = [name for name in ALL if name != "b2"]
MATRICES = [name for name in ALL if RANK[name] == 2]
UNARY = ["abs", "acos", "ceil", "conj", "cos", "erf", "exp", "floor", "imag", "lgamma", "log1p", "negative",
    "real", "round", "rsqrt", "sigmoid", "sign", "sin", "sinh", "softplus", "sqrt", "square", "tan", "tanh",
    "is_finite", "reciprocal", "asin", "atan", "asinh", "acosh", "atanh", "cosh", "digamma", "expm1", "is_nan",
    "log", "rint", "erfinv"]  # fmt: skip
NN = ["relu", "relu6", "elu", "selu", "leaky_relu", "softmax", "gelu", "silu", "softsign"]
# Expressions of all structures.
ANY = [
    *("x.indices", "x.values", "x.dense_shape", "x.shape", "x.dtype", "x.get_shape()", "x._type_spec", "str(x.shape)"),
    *("tf.sparse.to_dense(x)", "tf.sparse.to_dense(x, default_value=-1)", "tf.sparse.to_dense(x, validate_indices=False)"),
    *("tf.sparse.to_dense(x, -1, False)", "tf.sparse.to_dense(x, default_value=[1, 2])", "tf.sparse.to_dense(x, default_value='a')"),
    *("tf.sparse.reorder(x)", "tf.sparse.transpose(x)", "tf.sparse.expand_dims(x)", "tf.sparse.expand_dims(x, 0)"),
    *("tf.sparse.expand_dims(x, 1)", "tf.sparse.expand_dims(x, -2)", "tf.sparse.expand_dims(x, 7)", "tf.sparse.expand_dims(x, -9)"),
    *("tf.sparse.reshape(x, [-1])", "tf.sparse.reshape(x, [2, -1])", "tf.sparse.reshape(x, [1, 1, -1])", "tf.sparse.reshape(x, [-1, -1])"),
    *("tf.sparse.reshape(x, [5, 5])", "tf.sparse.reshape(x, x.dense_shape)", "tf.sparse.reshape(x, 3)", "tf.sparse.reshape(x, [-2])"),
    *("tf.sparse.reset_shape(x)", "tf.sparse.reset_shape(x, x.dense_shape + 2)", "tf.sparse.reset_shape(x, x.dense_shape - 1)"),
    *("tf.sparse.reset_shape(x, [9])", "tf.sparse.reset_shape(x, [9, 9])", "tf.sparse.reset_shape(x, [9, 9, 9])"),
    *("tf.sparse.retain(x, x.values > 1)", "tf.sparse.retain(x, [True])", "tf.sparse.retain(x, x.values > 100)", "tf.sparse.retain(x, x.values * 0)"),
    *("tf.sparse.softmax(x)", "tf.sparse.fill_empty_rows(x, 9)", "tf.sparse.fill_empty_rows(x, 9.)", "tf.sparse.fill_empty_rows(x, [9])"),
    *("tf.sparse.add(x, x)", "tf.sparse.add(x, tf.sparse.to_dense(x))", "tf.sparse.add(tf.sparse.to_dense(x), x)", "tf.sparse.add(x, x, threshold=5)"),
    *("tf.sparse.add(x, 1.)", "tf.sparse.add(x, tf.ones([2, 3]))", "tf.sparse.maximum(x, x)", "tf.sparse.minimum(x, -x)", "tf.sparse.maximum(x, 1)"),
    *("tf.sparse.map_values(tf.square, x)", "tf.sparse.map_values(tf.add, x, x)", "tf.sparse.map_values(tf.add, x, 2)", "tf.sparse.map_values(tf.reduce_sum, x)"),
    *("tf.sparse.map_values(tf.multiply, x, y=x)", "tf.sparse.map_values(lambda v: v[:1], x)", "tf.sparse.map_values(tf.abs, -x)"),
    *("tf.sparse.concat(0, [x, x])", "tf.sparse.concat(-1, [x, x])", "tf.sparse.concat(1, [x, x, x])", "tf.sparse.concat(0, [x])", "tf.sparse.concat(7, [x, x])", "tf.sparse.concat(0, x)"),
    *("tf.sparse.concat(0, [x, tf.sparse.transpose(x)])", "tf.sparse.concat(0, [x, tf.sparse.transpose(x)], expand_nonconcat_dims=True)", "tf.sparse.concat(0, [x, 1.])"),
    *("tf.sparse.split(x, 2, 0)", "tf.sparse.split(x, 3, -1)", "tf.sparse.split(x, 1, 1)", "tf.sparse.split(sp_input=x, num_split=9, axis=0)", "tf.sparse.split(x, 2, 5)", "tf.sparse.split(x, 0, 0)"),
    *("tf.sparse.slice(x, [0] * len(x.shape), x.dense_shape)", "tf.sparse.slice(x, [1] * len(x.shape), x.dense_shape)", "tf.sparse.slice(x, [0] * len(x.shape), [2] * len(x.shape))", "tf.sparse.slice(x, [0], [2])"),
    *("tf.sparse.slice(x, [0] * len(x.shape), [0] * len(x.shape))", "tf.sparse.slice(x, [9] * len(x.shape), [2] * len(x.shape))", "tf.sparse.slice(x, [-1] * len(x.shape), [2] * len(x.shape))"),
    *("tf.sparse.sparse_dense_matmul(x, tf.sparse.to_dense(x), adjoint_b=True)", "tf.sparse.sparse_dense_matmul(x, tf.ones([4, 2]))", "tf.sparse.sparse_dense_matmul(x, tf.ones([3, 2]), adjoint_a=True)"),
    *("tf.sparse.sparse_dense_matmul(tf.ones([2, 3]), x)", "tf.sparse.sparse_dense_matmul(x, x)", "tf.sparse.sparse_dense_matmul(x, x, adjoint_a=True)", "tf.sparse.sparse_dense_matmul(x, x, adjoint_b=True)"),
    *("tf.sparse.to_indicator(tf.cast(x, tf.int64), 8)", "tf.sparse.to_indicator(tf.cast(x, tf.int32), 2)", "tf.sparse.to_indicator(x, 8)"),
    *("tf.sparse.bincount(tf.cast(x, tf.int32))", "tf.sparse.bincount(tf.cast(x, tf.int64), axis=-1)", "tf.sparse.bincount(tf.cast(x, tf.int32), weights=x)", "tf.sparse.bincount(tf.cast(x, tf.int32), weights=x, axis=-1)"),
    *("tf.sparse.bincount(tf.cast(x, tf.int32), binary_output=True)", "tf.sparse.bincount(tf.cast(x, tf.int32), minlength=12)", "tf.sparse.bincount(tf.cast(x, tf.int32), maxlength=3, axis=-1)"),
    *("tf.math.bincount(tf.cast(x, tf.int32), axis=-1)", "tf.math.bincount(tf.cast(x, tf.int32))", "tf.math.bincount(tf.cast(x, tf.int32), axis=-1, minlength=9)", "tf.math.bincount(tf.cast(x, tf.int32), axis=-1, binary_output=True)"),
    *("tf.io.serialize_sparse(x).shape", "tf.io.deserialize_many_sparse(tf.stack([tf.io.serialize_sparse(x)] * 2), x.dtype)", "tf.io.deserialize_many_sparse(tf.io.serialize_many_sparse(x), x.dtype)"),
    *("tf.io.serialize_many_sparse(x).shape", "tf.io.deserialize_many_sparse(tf.io.serialize_sparse(x), x.dtype)", "tf.io.deserialize_many_sparse(tf.stack([tf.io.serialize_sparse(x)]), x.dtype, rank=2)", "tf.io.deserialize_many_sparse(tf.stack([tf.io.serialize_sparse(x)]), tf.int8)"),
    *("tf.io.serialize_sparse(x)", "tf.io.serialize_many_sparse(x)"),
    *("tf.cast(x, tf.int32)", "tf.cast(x, tf.float64)", "tf.cast(x, tf.bool)", "tf.identity(x)", "tf.shape(x)", "tf.shape(x, out_type=tf.int64)", "tf.size(x)", "tf.rank(x)", "tf.zeros_like(x)", "tf.ones_like(x)"),
    *("tf.convert_to_tensor(x)", "tf.is_tensor(x)", "bool(x)", "len(x)", "tf.reduce_sum(x)", "tf.constant(1.) + x", "x + x", "x * 2.", "x * x", "x / 2.", "2. * x", "2. / x", "-x", "x == x", "x[0]", "x > 1", "x ** 2", "abs(x)"),
    *("x * tf.sparse.to_dense(x)", "x / (tf.sparse.to_dense(x) + 1)", "x * tf.ones([4])", "x * tf.ones([3, 1])", "x * tf.ones([1] * len(x.shape))", "tf.multiply(x, x)", "tf.math.count_nonzero(x)", "x * tf.ones([2, 2, 2, 2, 2])"),
    *("x.with_values(x.values * 3)", "x.with_values([1.])", "tf.SparseTensor.from_value(x)", "tf.nest.flatten(x, expand_composites=True)", "tf.type_spec_from_value(x)", "tf.nest.map_structure(lambda t: t, x, expand_composites=True)"),
    *("tf.SparseTensorSpec.from_value(x).is_compatible_with(x)", "tf.nest.is_nested(x)", "tf.nest.pack_sequence_as(x, tf.nest.flatten(x, expand_composites=True), expand_composites=True)"),
    *("tf.cond(tf.constant(True), lambda: x, lambda: x)", "tf.while_loop(lambda i, v: i < 3, lambda i, v: (i + 1, tf.sparse.map_values(tf.multiply, v, 2)), [C(0), x])[1]", "tf.map_fn(tf.sparse.reduce_sum, x, fn_output_signature=tf.float32)"),
    *("tf.map_fn(lambda v: v, x)", "tf.map_fn(lambda v: tf.sparse.to_dense(v), x, fn_output_signature=tf.float32)", "tf.switch_case(C(1), [lambda: x, lambda: tf.square(x)])", "tf.stop_gradient(x)", "tf.add_n([x, x])"),
    *("tf.RaggedTensor.from_sparse(x)", "tf.sets.size(x)", "tf.sets.union(x, x)", "tf.sets.intersection(tf.cast(x, tf.int32), tf.cast(x, tf.int32))", "tf.sets.difference(tf.cast(x, tf.int64), tf.cast(x, tf.int64))", "tf.sets.union(tf.cast(x, tf.int32), tf.cast(x, tf.int32))", "tf.sets.size(tf.cast(x, tf.int32))"),
    *("tf.edit_distance(x, x)", "tf.edit_distance(x, x, normalize=False)", "tf.strings.as_string(x)", "tf.concat([x, x], 0)", "tf.stack([x, x])", "tf.transpose(x)", "tf.reshape(x, [-1])", "tf.expand_dims(x, 0)", "tf.gather(x, [0])", "tf.matmul(x, x)"),
    *("tf.sparse.cross([x, x])", "tf.sparse.cross([tf.cast(x, tf.int64), tf.cast(x, tf.int64)])", "tf.sparse.cross_hashed([tf.cast(x, tf.int64), tf.cast(x, tf.int64)], num_buckets=100)", "tf.sparse.cross_hashed([tf.cast(x, tf.int64)], hash_key=5)"),
    *("tf.nn.embedding_lookup_sparse(tf.reshape(tf.range(20.), [10, 2]), tf.cast(x, tf.int32), None)", "tf.nn.embedding_lookup_sparse(tf.reshape(tf.range(20.), [10, 2]), tf.cast(x, tf.int64), x, combiner='sum')"),
    *("tf.nn.embedding_lookup_sparse(tf.reshape(tf.range(20.), [10, 2]), tf.cast(x, tf.int64), x, combiner='sqrtn')", "tf.nn.embedding_lookup_sparse(tf.reshape(tf.range(20.), [10, 2]), tf.cast(x, tf.int64), x, combiner='mean', max_norm=3.)"),
    *(f"tf.nn.safe_embedding_lookup_sparse(tf.reshape(tf.range(20.), [10, 2]), tf.cast(x, tf.int64){o})" for o in ("", ", x", ", combiner='sum'", ", x, combiner='sqrtn'", ", default_id=1", ", x, combiner='sum', default_id=2", ", max_norm=2.", ", x - 2")),
    *("tf.nn.embedding_lookup(tf.reshape(tf.range(20.), [10, 2]), tf.cast(x, tf.int32))", "tf.nn.embedding_lookup_sparse(tf.ones([10]), tf.cast(x, tf.int32), None)", "tf.nn.embedding_lookup_sparse(tf.reshape(tf.range(20.), [10, 2]), x, None)"),
    *("tf.reduce_sum(tf.sparse.sparse_dense_matmul(tf.sparse.transpose(x), tf.sparse.to_dense(x)) ** 2)", "tf.reduce_sum(tf.sparse.to_dense(tf.sparse.softmax(x)) ** 2)", "tf.sparse.reduce_sum(tf.sparse.add(x, tf.sparse.map_values(tf.exp, x)), 0)", "tf.sparse.to_dense(tf.sparse.reshape(tf.sparse.concat(0, [x, x]), [-1]))"),
    *("tf.sparse.from_dense(tf.sparse.to_dense(x))", "tf.sparse.to_dense(tf.sparse.slice(x, [0] * len(x.shape), [2] * len(x.shape))) ** 2", "[tf.sparse.to_dense(p) for p in tf.sparse.split(x, 2, 0)]"),
]  # fmt: skip
# Ops on tensors of other dtypes.
DTYPED = [
    *("tf.sparse.to_dense(x)", "tf.sparse.reorder(x)", "tf.sparse.transpose(x)", "tf.sparse.add(x, x)", "tf.sparse.add(x, tf.sparse.to_dense(x))", "tf.sparse.concat(0, [x, x])", "tf.sparse.reduce_sum(x, 0)", "tf.sparse.reduce_max(x, 1)"),
    *("tf.sparse.reduce_sum(x, 1, output_is_sparse=True)", "tf.sparse.maximum(x, x)", "tf.sparse.minimum(x, x)", "tf.sparse.softmax(x)", "tf.sparse.fill_empty_rows(x, C(1, x.dtype))", "tf.sparse.slice(x, [0, 0], [2, 2])", "tf.sparse.split(x, 2, 1)"),
    *("tf.sparse.sparse_dense_matmul(x, tf.sparse.to_dense(x), adjoint_b=True)", "tf.sparse.sparse_dense_matmul(tf.sparse.to_dense(x), x, adjoint_b=True)", "tf.sparse.reshape(x, [-1])", "tf.sparse.expand_dims(x, 0)", "tf.sparse.reset_shape(x)", "tf.sparse.retain(x, [True] * x.values.shape[0])"),
    *("tf.sparse.to_indicator(x, 8)", "tf.sparse.bincount(x)", "tf.sparse.bincount(x, axis=-1)", "tf.square(x)", "tf.abs(x)", "-x", "x * C(2, x.dtype)", "x / C(2, x.dtype)", "tf.io.deserialize_many_sparse(tf.io.serialize_many_sparse(x), x.dtype)"),
    *("tf.cast(x, tf.int64)", "tf.sets.union(x, x)", "tf.sets.size(x)", "tf.edit_distance(x, x)", "tf.strings.as_string(x)", "tf.sparse.from_dense(tf.sparse.to_dense(x))", "tf.sparse.map_values(tf.identity, x)", "tf.RaggedTensor.from_sparse(x)", "tf.zeros_like(x)", "tf.sparse.add(x, x, threshold=3)"),
]  # fmt: skip
STRING_OPS = [
    *("tf.sparse.to_dense(x)", "tf.sparse.to_dense(x, '?')", "tf.sparse.reorder(x)", "tf.sparse.transpose(x)", "tf.sparse.concat(0, [x, x])", "tf.sparse.concat(-1, [x, x])", "tf.sparse.slice(x, [0] * len(x.shape), [1] * len(x.shape))"),
    *("tf.sparse.split(x, 2, 0)", "tf.sparse.reshape(x, [-1])", "tf.sparse.expand_dims(x, 0)", "tf.sparse.reset_shape(x)", "tf.sparse.retain(x, x.values == 'a')", "tf.sparse.fill_empty_rows(x, 'q')", "tf.sparse.map_values(tf.strings.length, x)", "tf.sparse.map_values(tf.strings.upper, x)"),
    *("tf.strings.length(x)", "tf.strings.upper(x)", "tf.strings.to_hash_bucket_fast(x, 9)", "tf.io.deserialize_many_sparse(tf.io.serialize_many_sparse(x), tf.string)", "tf.sparse.cross([x, x])", "tf.sparse.cross([x, x], separator='-')", "tf.sparse.cross_hashed([x, x], num_buckets=50)"),
    *("tf.sets.union(x, x)", "tf.sets.size(x)", "tf.sets.intersection(x, x)", "tf.sets.difference(x, x)", "tf.edit_distance(x, x)", "tf.sparse.add(x, x)", "tf.sparse.reduce_sum(x)", "tf.sparse.maximum(x, x)", "tf.sparse.softmax(x)", "tf.cast(x, tf.int32)", "tf.identity(x)", "tf.RaggedTensor.from_sparse(x)"),
    *("x._type_spec", "x * 2", "tf.sparse.from_dense(tf.sparse.to_dense(x))", "tf.strings.regex_replace(x, 'a', 'b')", "tf.strings.strip(x)", "tf.sparse.map_values(tf.strings.to_number, x)", "tf.zeros_like(x)", "tf.io.serialize_sparse(x)", "tf.function(lambda v: tf.sparse.to_dense(v))(x)"),
    *("tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(['a', 'c'], [1, 2]), -1).lookup(x)", "tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(['a', 'c'], [1, 2]), -1)[x]"),
]  # fmt: skip
PAIRS = [("s2", "t2"), ("t2", "s2"), ("s2", "e2"), ("d2", "d2"), ("s2", "u2"), ("u2", "s2"), ("r2", "s2"), ("s2", "d2"),
    ("s1", "e1"), ("s3", "t3"), ("t3", "s3"), ("s2", "s1"), ("s2", "b2"), ("e2", "e2"), ("z2", "z2"), ("s2", "s3")]  # fmt: skip
PAIRED = [
    *("tf.sparse.add(x, y)", "tf.sparse.add(x, y, threshold=2)", "tf.sparse.add(x, y, threshold=C(4.5))", "tf.sparse.maximum(x, y)", "tf.sparse.minimum(x, y)", "tf.sparse.map_values(tf.add, x, y)", "tf.sparse.concat(0, [x, y])", "tf.sparse.concat(-1, [x, y, x])"),
    *("tf.sparse.concat(0, [x, y], expand_nonconcat_dims=True)", "tf.sparse.concat(-1, [y, x], expand_nonconcat_dims=True)", "tf.sparse.add(x, tf.sparse.to_dense(y))", "tf.sparse.add(tf.sparse.to_dense(y), x)", "x * tf.sparse.to_dense(y)", "x / tf.sparse.to_dense(y)"),
    *("tf.sparse.sparse_dense_matmul(x, tf.sparse.to_dense(y), adjoint_b=True)", "tf.sparse.sparse_dense_matmul(x, tf.sparse.to_dense(y), adjoint_a=True)", "tf.sparse.sparse_dense_matmul(tf.sparse.to_dense(y), x, adjoint_b=True)", "tf.sparse.sparse_dense_matmul(x, y, adjoint_b=True)", "tf.sparse.sparse_dense_matmul(x, y, adjoint_a=True)"),
    *("tf.sets.union(tf.cast(x, tf.int32), tf.cast(y, tf.int32))", "tf.sets.intersection(tf.cast(x, tf.int32), tf.cast(y, tf.int32))", "tf.sets.difference(tf.cast(x, tf.int32), tf.cast(y, tf.int32))", "tf.sets.difference(tf.cast(x, tf.int32), tf.cast(y, tf.int32), aminusb=False)", "tf.edit_distance(tf.cast(x, tf.int32), tf.cast(y, tf.int32))"),
    *("tf.sparse.cross([tf.cast(x, tf.int64), tf.cast(y, tf.int64)])", "tf.nn.embedding_lookup_sparse(tf.reshape(tf.range(20.), [10, 2]), tf.cast(abs(x), tf.int64), y)", "tf.sparse.bincount(tf.cast(abs(x), tf.int32), weights=y)", "tf.reduce_sum(tf.sparse.to_dense(tf.sparse.add(x, y)) ** 2)", "tf.sparse.reduce_sum(tf.sparse.maximum(x, y), 0) ** 2"),
    *("tf.nn.safe_embedding_lookup_sparse(tf.reshape(tf.range(20.), [10, 2]), tf.cast(x, tf.int64), y)", "tf.nest.assert_same_structure(x, y, expand_composites=True)", "x._type_spec.most_specific_compatible_type(y._type_spec)", "x._type_spec.is_compatible_with(y)"),
]  # fmt: skip
REDUCTIONS = ["None", "0", "1", "-1", "[0]", "[0, 1]", "[-1, 0]", "5", "-7", "C(0)", "C([0])"]
SINGLE = [
    *(f"S({a})" for a in ("[[0, 1]], [1.], [2, 2]", "[[0, 1]], [1., 2.], [2, 2]", "[[0, 1]], [1.], [2]", "[0, 1], [1.], [2, 2]", "[[0, 1]], 1., [2, 2]", "[[0, 1]], [1.], 4", "[], [], [2]", "Z([0, 1], tf.int64), [], [2]",
        "[[0.5]], [1.], [2]", "[[0]], ['a'], [2]", "C([[0]], tf.int32), [1], [2]", "[[0]], [1], C([2], tf.int32)", "[[5]], [1], [2]", "[[-1]], [1], [2]", "[[0]], [1], [-2]", "np.array([[0]]), np.array([1]), np.array([2])", "[[]], [3.], []", "[[0]], [[1]], [2]", "[[0]], [None], [2]", "None, [1], [2]", "'a', [1], [2]")),
    *(f"tf.sparse.from_dense({a})" for a in ("[1, 0, 2]", "[[0., 0.], [0., 3.]]", "[[[1], [0]], [[0], [2]]]", "['a', '', 'b']", "[True, False]", "Z([2, 0])", "Z([0, 2])", "3", "[0., float('nan'), -0.]", "C([0, 1], tf.int64)", "C([0, 1j], tf.complex64)", "R([[1], []])", "Z([3, 3], tf.int32)")),
    *(f"tf.sparse.eye({a})" for a in ("2", "2, 3", "3, 1", "0", "2, dtype=tf.int32", "2, 2, tf.bool", "-1", "C(2)", "2, C(3)", "[2]", "2, dtype=tf.complex64")),
    *(f"tf.sparse.mask(tf.IndexedSlices({v}, C({i}), C([9, 2])), {m})" for v in ("C([[1., 2.], [3., 4.]])", "C([1, 2])") for i in ("[3, 5]", "[3, 3]") for m in ("[3]", "[]", "[3, 5]", "C([1])", "[9]")),
    *(f"tf.sparse.segment_{k}({a})" for k in ("sum", "mean", "sqrt_n") for a in ("C([[1., 2.], [3., 4.], [5., 6.]]), C([0, 1]), C([0, 0])", "C([1., 2., 3.]), C([0, 2, 2]), C([0, 0, 1])", "C([1., 2., 3.]), C([0, 1]), C([0, 2])", "C([1., 2., 3.]), C([0, 1]), C([0, 1]), num_segments=4", "C([1., 2., 3.]), C([0, 1]), C([0, 1]), num_segments=1",
        "C([1., 2., 3.]), C([0, 1]), C([1, 0])", "C([1., 2., 3.]), C([0, 7]), C([0, 1])", "C([1., 2., 3.]), C([0, -1]), C([0, 1])", "C([1., 2., 3.]), C([0, 1, 2]), C([0, 1])", "C([1, 2, 3]), C([0, 1]), C([0, 0])", "C([1., 2., 3.]), C([], tf.int32), C([], tf.int32)", "C([1., 2., 3.], tf.float64), C([0, 1], tf.int64), C([0, 1], tf.int64)", "C([1., 2., 3.]), C([], tf.int32), C([], tf.int32), num_segments=3", "C([1., 2., 3.]), C([0, 1]), C([-1, 1])")),
    *(f"tf.sparse.bincount({a})" for a in ("[1, 1, 3]", "[[1, 2], [2, 2]], axis=-1", "[[1, 2], [2, 2]]", "[[1, 2], [2, 2]], weights=[[1., 2.], [3., 4.]]", "[1, 1, 3], weights=[1, 2, 3]", "[1, -1]", "[], minlength=3", "[1.5]", "[1, 2], axis=1", "[1, 2], axis=2", "[1, 2], weights=[1]", "[1, 5], maxlength=3", "[[1, 2], [0, 5]], axis=-1, minlength=8, binary_output=True", "[1, 2], minlength=-1", "R([[1, 1], [], [3]]), axis=-1", "3", "[1, 1], weights=[2., 3.], binary_output=True", "[[[1]]], axis=-1")),
    *(f"tf.sparse.cross({a})" for a in ("[['a'], ['b']]", "[[['a'], ['b']], [['c', 'd'], ['e', 'f']]]", "[[['a']], S([[0, 0]], ['z'], [1, 1])]", "[S([[0, 0]], ['z'], [2, 1]), [['b'], ['c']]]", "[[['a']], [['b'], ['c']]]", "[[['a']], [['b']]], separator='+'", "[C([[1]]), C([[2]])]", "[]", "[[[1.5]]]", "['a', 'b']")),
    *(f"tf.sparse.cross_hashed({a})" for a in ("[[['a'], ['b']], [['c', 'd'], ['e', 'f']]], num_buckets=100", "[[['a']], S([[0, 0]], ['z'], [1, 1])]", "[[['a']]], num_buckets=-1", "[C([[1, 2]]), C([[3]])], 7", "[[['a']]], hash_key=1, num_buckets=1000")),
    *(f"tf.SparseTensorSpec({a})" for a in ("", "[None, 3]", "[2], tf.int32", "None, tf.string", "[None, None], 'int64'", "3", "[1.5]", "[2], 'foo'")),
    *(f"tf.SparseTensorSpec({a}).is_compatible_with({v})" for a in ("[None, 3], tf.int32", "[2, 3], tf.int32", "None, tf.int32", "[2, 3]", "[3]") for v in ("S([[0, 1]], [1], [2, 3])", "tf.SparseTensorSpec([2, 3], tf.int32)", "C([1])", "1")),
    *(f"tf.io.parse_example({e}, {{'a': {f}}})['a']" for e in ("[E(a=[1, 2]), E(), E(a=[3])]", "[E(a=[1.5])]", "[E(a=[b'x', b'y']), E(a=[b'z'])]", "C([], tf.string)", "E(a=[1, 2])", "['bad']") for f in ("tf.io.VarLenFeature(tf.int64)", "tf.io.VarLenFeature(tf.float32)", "tf.io.VarLenFeature(tf.string)", "tf.io.VarLenFeature(tf.int32)")),
    *(f"tf.io.parse_single_example({e}, {{'a': {f}}})['a']" for e in ("E(a=[1, 2])", "E()", "E(a=[b'x'])") for f in ("tf.io.VarLenFeature(tf.int64)", "tf.io.VarLenFeature(tf.string)")),
    *(f"tf.io.parse_example([E(i=[3, 0], v=[1., 2.]), E(), E(i=[1], v=[5.])], {{'a': tf.io.SparseFeature({a})}})['a']" for a in ("'i', 'v', tf.float32, 5", "['i'], 'v', tf.float32, [5]", "'i', 'v', tf.float32, 2", "'i', 'v', tf.int64, 5", "'i', 'w', tf.float32, 5", "'v', 'i', tf.int64, 5", "index_key='i', value_key='v', dtype=tf.float32, size=5, already_sorted=True", "['i', 'i'], 'v', tf.float32, [5, 4]", "'i', 'v', tf.float32, None", "['i'], 'v', tf.float32, 5")),
    *(f"tf.io.parse_single_example({e}, {{'a': tf.io.SparseFeature({a})}})['a']" for e in ("E(i=[3, 0], v=[1., 2.])", "E()", "E(i=[3], v=[1., 2.])", "E(i=[0, 3], j=[1, 0], v=[1., 2.])", "E(i=[-1], v=[1.])") for a in ("'i', 'v', tf.float32, 5", "['i', 'j'], 'v', tf.float32, [5, 2]")),
    *(f"tf.io.parse_sequence_example([Q([[1, 2], [], [3]]), Q([])], sequence_features={{'a': {f}}})[1]['a']" for f in ("tf.io.VarLenFeature(tf.int64)", "tf.io.VarLenFeature(tf.float32)")),
    *(f"tf.io.parse_single_sequence_example(Q([[1, 2], [], [3]]), sequence_features={{'a': {f}}})[1]['a']" for f in ("tf.io.VarLenFeature(tf.int64)", "tf.io.VarLenFeature(tf.string)")),
    *(f"tf.nn.ctc_loss({a})" for a in ("S([[0, 0], [0, 1], [1, 0]], C([1, 2, 1]), [2, 2]), tf.reshape(tf.range(24.) % 5, [4, 2, 3]) / 3, None, [4, 3], blank_index=0", "S([[0, 0]], C([2]), [2, 1]), tf.reshape(tf.range(24.) % 5, [4, 2, 3]) / 3, None, [4, 4], blank_index=0", "S([[0, 0], [0, 1], [1, 0]], C([1, 0, 1]), [2, 2]), tf.reshape(tf.range(24.) % 5, [4, 2, 3]) / 3, None, [4, 3], blank_index=-1")),
    *(f"tf.data.Dataset.{a}" for a in ("from_tensor_slices(S([[0, 1], [2, 0]], [1., 2.], [3, 2]))", "from_tensors(S([[0, 1], [2, 0]], [1., 2.], [3, 2]))", "from_tensor_slices(S([[0, 1], [2, 0]], [1., 2.], [3, 2])).batch(2)", "from_tensor_slices(S([[0, 1], [2, 0]], [1., 2.], [3, 2])).batch(2, drop_remainder=True)", "from_tensor_slices(S([[0, 1], [2, 0]], [1., 2.], [3, 2])).batch(2).unbatch()",
        "from_tensors(S([[0, 1], [2, 0]], [1., 2.], [3, 2])).unbatch()", "from_tensor_slices(S([[0, 1], [2, 0]], [1., 2.], [3, 2])).map(tf.sparse.to_dense)", "from_tensor_slices(S([[0, 1], [2, 0]], [1., 2.], [3, 2])).map(lambda v: v * 2.).batch(3)", "from_tensor_slices(S([[0, 1], [2, 0]], [1., 2.], [3, 2])).padded_batch(2)", "from_tensor_slices(S([[0, 1], [2, 0]], [1., 2.], [3, 2])).filter(lambda v: tf.sparse.reduce_sum(v) > 0)",
        "range(3).map(lambda i: tf.fill([i], i)).apply(tf.data.experimental.dense_to_sparse_batch(2, [4]))", "range(3).map(lambda i: tf.fill([i], i)).sparse_batch(3, [None])", "range(3).map(lambda i: tf.fill([i], i)).sparse_batch(3, [1])", "range(3).map(lambda i: tf.sparse.SparseTensor([[0]], [i], [i + 1])).batch(3)", "from_tensor_slices((S([[0, 1], [2, 0]], [1., 2.], [3, 2]), [1, 2, 3])).batch(2)", "from_tensor_slices({'a': S([[0], [2]], ['x', 'y'], [3])}).batch(3)",
        "from_tensor_slices(S([[0]], [1], [2]))", "from_tensor_slices(S([[2, 0], [0, 1]], [2., 1.], [3, 2])).batch(3)", "from_tensors(S([[0, 1]], [1], [1, 2])).batch(2)", "from_tensors(S([[0, 1]], [1], [1, 2])).repeat(2).batch(2)", "from_generator(lambda: [S([[0]], [1.], [3]), S([[2]], [5.], [3])], output_signature=tf.SparseTensorSpec([3]))", "from_generator(lambda: [S([[0]], [1.], [3])], output_signature=tf.SparseTensorSpec([4]))",
        "from_generator(lambda: [S([[0]], [1.], [3]), S([[2]], [5.], [4])], output_signature=tf.SparseTensorSpec([None])).batch(2)", "from_tensors(S([[0, 1], [2, 0]], [1., 2.], [3, 2])).flat_map(tf.data.Dataset.from_tensor_slices)", "zip((tf.data.Dataset.range(3), tf.data.Dataset.from_tensor_slices(S([[0, 1], [2, 0]], [1., 2.], [3, 2])))).batch(2)", "from_tensor_slices(S([[0, 1], [2, 0]], [1., 2.], [3, 2])).window(2).flat_map(lambda w: w.batch(2))",
        "from_tensor_slices(S([[0, 1], [2, 0]], [1., 2.], [3, 2])).concatenate(tf.data.Dataset.from_tensor_slices(S([[0, 1]], [7.], [1, 2]))).batch(4)", "from_tensor_slices(S([[0, 1], [2, 0]], [1., 2.], [3, 2])).prefetch(1).cache().take(1)", "from_tensor_slices(S([[0, 1], [2, 0]], [1., 2.], [3, 2])).enumerate().batch(2)", "from_tensor_slices(S([[0, 1], [2, 0]], [1., 2.], [3, 2])).scan(0., lambda s, v: (s + 1., v * s))", "from_tensor_slices(S([[0, 1], [2, 0]], [1., 2.], [3, 2])).interleave(lambda v: tf.data.Dataset.from_tensors(v))", "from_tensor_slices(S([[0, 0, 1], [1, 1, 0]], [1., 2.], [2, 2, 2])).batch(2)")),
    *("tf.data.Dataset.from_tensor_slices(S([[0, 1], [2, 0]], [1., 2.], [3, 2])).element_spec", "tf.data.Dataset.from_tensor_slices(S([[0, 1], [2, 0]], [1., 2.], [3, 2])).batch(2).element_spec", "tf.data.Dataset.from_tensor_slices(S([[0, 1], [2, 0]], [1., 2.], [3, 2])).batch(2, drop_remainder=True).element_spec", "tf.data.Dataset.range(3).map(lambda i: tf.fill([i], i)).sparse_batch(3, [4]).element_spec", "tf.data.Dataset.from_tensor_slices(S([[0, 1], [2, 0]], [1., 2.], [3, 2])).map(lambda v: v * 2.).element_spec", "tf.data.Dataset.from_tensor_slices(S([[0, 1], [2, 0]], [1., 2.], [3, 2])).reduce(0., lambda s, v: s + tf.sparse.reduce_sum(v))"),
    *("tf.io.deserialize_many_sparse(tf.stack([tf.io.serialize_sparse(S([[1]], [2.], [3])), tf.io.serialize_sparse(S([[4]], [5.], [6]))]), tf.float32)", "tf.io.deserialize_many_sparse(tf.stack([tf.io.serialize_sparse(S([[1]], [2.], [3])), tf.io.serialize_sparse(S([[4, 0]], [5.], [6, 1]))]), tf.float32)", "tf.io.deserialize_many_sparse(C([['a', 'b', 'c']]), tf.float32)", "tf.io.deserialize_many_sparse(C([['a', 'b']]), tf.float32)", "tf.io.deserialize_many_sparse(tf.zeros([0, 3], tf.string), tf.float32)"),
]  # fmt: skip


def is_traced(case):
    """Check whether a case is also evaluated in a function: those of two structures are."""
    return case[1:2] in ((STRUCTURES[key].format(t="tf.float32"),) for key in ("t2", "s3"))


def expressions():
    """Return lists of an expression of x (and y), and the expressions of x and y."""
    cases = []

    def add(text, *keys, dtype="tf.float32"):
        cases.append((text, *[(STRUCTURES | STRINGS)[k].format(t=dtype) for k in keys]))

    for text in ANY:
        for key in ALL:
            add(text, key)
    for name in ("sum", "max"):
        for axis in REDUCTIONS:
            for options in (
                "",
                ", keepdims=True",
                ", output_is_sparse=True",
                ", keepdims=True, output_is_sparse=True",
            ):
                for key in (
                    ALL if axis in ("None", "0", "-1", "[0, 1]") else ("s2", "s3", "e2", "u2")
                ):
                    add(f"tf.sparse.reduce_{name}(x, axis={axis}{options})", key)
    for name in UNARY:
        for key in ("s2", "e2", "s3"):
            add(f"tf.math.{name}(x)", key)
    for name in NN:
        for key in ("t2", "e2"):
            add(f"tf.nn.{name}(x)", key)
    for text in DTYPED:
        for dtype in (
            "tf.float64",
            "tf.int32",
            "tf.int64",
            "tf.complex64",
            "tf.bool",
            "tf.uint8",
            "tf.float16",
        ):
            for key in ("s2", "e2", "u2"):
                add(text, key, dtype=dtype)
    for text in STRING_OPS:
        for key in STRINGS:
            add(text, key)
    for text in PAIRED:
        for pair in PAIRS:
            add(text, *pair)
    for rank, perms in {
        "s2": ("[0, 1]", "[1, 0]", "[0]", "[0, 0]", "[2, 1]", "[-1, 0]"),
        "s3": ("[1, 0, 2]", "[2, 0, 1]", "[0, 1]"),
        "s4": ("[3, 1, 0, 2]", "[0, 2, 1, 3]"),
        "u2": ("[1, 0]", "[0, 1]"),
    }.items():
        for perm in perms:
            add(f"tf.sparse.transpose(x, {perm})", rank)
            add(f"tf.sparse.transpose(x, perm=C({perm}))", rank)
    for text in SINGLE:
        add(text)
    return cases
