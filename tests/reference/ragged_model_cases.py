"""Define programs with ragged tensors in Keras and tf.data, for TensorFlow and for Meshflow.

`define(tf, folder)` returns the programs by name. ragged_models.json contains the results of
TensorFlow 2.21 with tf-keras, with four digits.
"""

import numpy as np


def define(tf, folder):
    cases = {}

    def case(function):
        cases[function.__name__] = function
        return function

    K = tf.keras
    L = K.layers
    rt = tf.ragged.constant

    def show(x):
        """Convert a result to nested lists of numbers and texts."""
        if isinstance(x, tf.RaggedTensor):
            return ["R", x.shape.as_list(), x.dtype.name, show(x.to_list())]
        if isinstance(x, tf.SparseTensor):
            return ["S", show(x.indices), show(x.values), show(x.dense_shape)]
        if isinstance(x, (tf.Tensor, tf.Variable)):
            x = x.numpy()
        if isinstance(x, (np.ndarray, np.generic)):
            x = x.tolist()
        if isinstance(x, (list, tuple)):
            return [show(i) for i in x]
        if isinstance(x, dict):
            return {k: show(v) for k, v in x.items()}
        if isinstance(x, bytes):
            return x.decode("latin1")
        return x if isinstance(x, (int, str, float, type(None))) else str(x)

    def seed(model):
        """Set weights that do not depend on the library."""
        r = np.random.default_rng(0)
        shapes = [w.shape for w in model.get_weights()]
        model.set_weights([r.normal(size=shape).astype("float32") * 0.3 for shape in shapes])

    X = rt([[1, 2], [3], [], [4, 5, 6]])
    F = rt([[1.0, 2], [3], [], [4, 5, 6]])
    G = rt([[1.0, 2], [3]])
    W = rt([[[1.0, 2], [3, 4]], [[5, 6]], [[7, 8]]], ragged_rank=1)
    S = rt([[b"a", b"b c"], [], [b"d"]])

    @case
    def ds_slices():
        return [show(e) for e in tf.data.Dataset.from_tensor_slices(X)]

    @case
    def ds_slices_spec():
        return [
            str(tf.data.Dataset.from_tensor_slices(X).element_spec),
            str(tf.data.Dataset.from_tensor_slices((X, [1, 2, 3, 4])).batch(2).element_spec),
        ]

    @case
    def ds_slices3():
        return [show(e) for e in tf.data.Dataset.from_tensor_slices(rt([[[1], [2, 3]], [], [[4]]]))]

    @case
    def ds_batch():
        return [show(e) for e in tf.data.Dataset.from_tensor_slices(X).batch(3)]

    @case
    def ds_batch_drop():
        return [
            show(e) for e in tf.data.Dataset.from_tensor_slices(X).batch(3, drop_remainder=True)
        ] + [str(tf.data.Dataset.from_tensor_slices(X).batch(3, drop_remainder=True).element_spec)]

    @case
    def ds_tensors():
        return [show(e) for e in tf.data.Dataset.from_tensors(X)]

    @case
    def ds_map():
        return [show(e) for e in tf.data.Dataset.from_tensor_slices(X).map(lambda r: r * 2)]

    @case
    def ds_map_batched():
        return [
            show(e) for e in tf.data.Dataset.from_tensor_slices(X).batch(2).map(lambda r: r * 2)
        ]

    @case
    def ds_map_sum():
        return [
            show(e)
            for e in tf.data.Dataset.from_tensor_slices(F)
            .batch(2)
            .map(lambda r: tf.reduce_sum(r, 1))
        ]

    @case
    def ds_map_spec():
        return str(
            tf.data.Dataset.from_tensor_slices(F)
            .batch(2)
            .map(lambda r: (tf.reduce_sum(r, 1), r + 1))
            .element_spec
        )

    @case
    def ds_unbatch():
        return [show(e) for e in tf.data.Dataset.from_tensor_slices(X).batch(3).unbatch()]

    @case
    def ds_ragged_batch():
        d = tf.data.Dataset.range(5).map(lambda n: tf.range(n))
        return [show(e) for e in d.ragged_batch(2)] + [str(d.ragged_batch(2).element_spec)]

    @case
    def ds_ragged_batch2():
        d = tf.data.Dataset.range(4).map(lambda n: tf.ones([n, n], tf.int32))
        return [show(e) for e in d.ragged_batch(2)] + [
            str(d.ragged_batch(2, drop_remainder=True).element_spec)
        ]

    @case
    def ds_dense_to_ragged():
        d = (
            tf.data.Dataset.range(5)
            .map(lambda n: tf.range(n))
            .apply(tf.data.experimental.dense_to_ragged_batch(2))
        )
        return [show(e) for e in d]

    @case
    def ds_generator():
        def g():
            yield rt([[1, 2], [3]])
            yield rt([[1], [2, 3, 4]])

        d = tf.data.Dataset.from_generator(
            g, output_signature=tf.RaggedTensorSpec([None, None], tf.int32)
        )
        return [show(e) for e in d] + [str(d.element_spec)]

    @case
    def ds_filter():
        return [
            show(e) for e in tf.data.Dataset.from_tensor_slices(X).filter(lambda r: tf.size(r) > 1)
        ]

    @case
    def ds_cache_take():
        return [
            show(e)
            for e in tf.data.Dataset.from_tensor_slices(X).cache().skip(1).take(2).prefetch(1)
        ]

    @case
    def ds_reduce():
        return show(
            tf.data.Dataset.from_tensor_slices(X).reduce(0, lambda a, r: a + tf.reduce_sum(r))
        )

    @case
    def ds_concat():
        return [
            show(e)
            for e in tf.data.Dataset.from_tensor_slices(X).concatenate(
                tf.data.Dataset.from_tensor_slices(rt([[9, 9]]))
            )
        ]

    @case
    def ds_padded():
        return [
            show(e)
            for e in tf.data.Dataset.from_tensor_slices(X)
            .map(lambda r: r.to_tensor() if isinstance(r, tf.RaggedTensor) else r)
            .padded_batch(2)
        ]

    @case
    def ds_flat_map():
        return [
            show(e)
            for e in tf.data.Dataset.from_tensors(X).flat_map(tf.data.Dataset.from_tensor_slices)
        ]

    @case
    def ds_interleave():
        return [
            show(e)
            for e in tf.data.Dataset.from_tensor_slices(X).interleave(
                lambda r: tf.data.Dataset.from_tensors(r), cycle_length=2
            )
        ]

    @case
    def ds_window():
        return [[show(e) for e in w] for w in tf.data.Dataset.from_tensor_slices(X).window(2)]

    @case
    def ds_bucket():
        return [
            show(e)
            for e in tf.data.Dataset.from_tensor_slices(X)
            .map(lambda r: r)
            .bucket_by_sequence_length(lambda r: tf.size(r), [2], [2, 2])
        ]

    @case
    def ds_strings():
        return [
            show(e)
            for e in tf.data.Dataset.from_tensor_slices([b"a b", b"c", b"d e f"])
            .batch(2)
            .map(tf.strings.split)
        ]

    @case
    def ds_strings_spec():
        return str(
            tf.data.Dataset.from_tensor_slices([b"a b", b"c", b"d e f"])
            .batch(2)
            .map(tf.strings.split)
            .element_spec
        )

    @case
    def ds_dict():
        return [show(e) for e in tf.data.Dataset.from_tensor_slices({"a": X, "b": F}).batch(2)]

    @case
    def ds_parse():
        e = lambda v: tf.train.Example(
            features=tf.train.Features(
                feature={"x": tf.train.Feature(int64_list=tf.train.Int64List(value=v))}
            )
        ).SerializeToString()
        d = (
            tf.data.Dataset.from_tensor_slices([e([1, 2]), e([]), e([3])])
            .batch(2)
            .map(lambda b: tf.io.parse_example(b, {"x": tf.io.RaggedFeature(tf.int64)}))
        )
        return [show(i) for i in d]

    @case
    def parse_partitions():
        e = lambda v, p: tf.train.Example(
            features=tf.train.Features(
                feature={
                    "x": tf.train.Feature(int64_list=tf.train.Int64List(value=v)),
                    "l": tf.train.Feature(int64_list=tf.train.Int64List(value=p)),
                }
            )
        ).SerializeToString()
        b = [e([1, 2, 3], [1, 2]), e([4], [0, 1])]
        return show(
            tf.io.parse_example(
                b,
                {
                    "x": tf.io.RaggedFeature(
                        tf.int64, value_key="x", partitions=[tf.io.RaggedFeature.RowLengths("l")]
                    )
                },
            )
        )

    @case
    def parse_partitions_uniform():
        e = lambda v: tf.train.Example(
            features=tf.train.Features(
                feature={"x": tf.train.Feature(int64_list=tf.train.Int64List(value=v))}
            )
        ).SerializeToString()
        return show(
            tf.io.parse_example(
                [e([1, 2, 3, 4]), e([5, 6])],
                {
                    "x": tf.io.RaggedFeature(
                        tf.int64, partitions=[tf.io.RaggedFeature.UniformRowLength(2)]
                    )
                },
            )
        )

    @case
    def parse_single_ragged():
        e = lambda v: tf.train.Example(
            features=tf.train.Features(
                feature={"x": tf.train.Feature(int64_list=tf.train.Int64List(value=v))}
            )
        ).SerializeToString()
        return show(
            tf.io.parse_single_example(e([1, 2, 3, 4]), {"x": tf.io.RaggedFeature(tf.int64)})
        )

    # keras layers
    @case
    def emb():
        l = L.Embedding(10, 2)
        l.build(None)
        l.set_weights([np.arange(20).reshape(10, 2).astype("float32")])
        return show(l(X))

    @case
    def gap():
        return show(L.GlobalAveragePooling1D()(W))

    @case
    def gmp():
        return show(L.GlobalMaxPooling1D()(W))

    @case
    def dense():
        l = L.Dense(2)
        l.build((None, None, 2))
        l.set_weights([np.eye(2, dtype="float32"), np.ones(2, "float32")])
        return show(l(W))

    @case
    def td():
        l = L.TimeDistributed(L.Dense(1, kernel_initializer="ones"))
        return show(l(W))

    @case
    def lstm():
        l = L.LSTM(2)
        l(W.to_tensor())
        l.set_weights([np.ones(w.shape, "float32") * 0.1 for w in l.get_weights()])
        return show(l(W))

    @case
    def gru_seq():
        l = L.GRU(2, return_sequences=True, return_state=True)
        l(W.to_tensor())
        l.set_weights([np.ones(w.shape, "float32") * 0.1 for w in l.get_weights()])
        return show(l(W))

    @case
    def bidir():
        l = L.Bidirectional(L.LSTM(2, return_sequences=True))
        l(W.to_tensor())
        l.set_weights([np.ones(w.shape, "float32") * 0.1 for w in l.get_weights()])
        return show(l(W))

    @case
    def simple_back():
        l = L.SimpleRNN(2, go_backwards=True)
        l(W.to_tensor())
        l.set_weights([np.ones(w.shape, "float32") * 0.1 for w in l.get_weights()])
        return show(l(W))

    @case
    def lookup():
        return show(L.StringLookup(vocabulary=["a", "d"])(S))

    @case
    def ilookup():
        return show(L.IntegerLookup(vocabulary=[1, 4])(tf.cast(X, tf.int64)))

    @case
    def hashing():
        return show(L.Hashing(5)(S))

    @case
    def disc():
        return show(L.Discretization([2.0, 4.0])(F))

    @case
    def catenc():
        return show(L.CategoryEncoding(7, output_mode="multi_hot")(X))

    @case
    def textvec():
        l = L.TextVectorization(ragged=True)
        l.set_vocabulary(["a", "b", "c"])
        return show(l(tf.constant(["a b", "c", "", "z a"])))

    @case
    def textvec_ragged_in():
        l = L.TextVectorization(split=None, ragged=True)
        l.set_vocabulary(["a", "b", "c"])
        return show(l(S))

    @case
    def activation():
        return [
            show(L.ReLU()(F - 3)),
            show(L.Activation("sigmoid")(F)),
            show(L.LeakyReLU()(F - 3)),
            show(tf.nn.relu(F - 2)),
        ]

    @case
    def dropout():
        return show(L.Dropout(0.5)(F, training=False))

    @case
    def lambda_():
        return show(L.Lambda(lambda x: x * 2)(F))

    @case
    def concat_l():
        return show(L.Concatenate(axis=1)([F, F]))

    @case
    def add_l():
        return show(L.Add()([F, F]))

    @case
    def masking():
        return show(L.Rescaling(2.0)(F))

    @case
    def softm():
        return show(tf.nn.softmax(F))

    @case
    def layernorm():
        return show(L.LayerNormalization()(W))

    @case
    def inp_spec():
        i = K.Input(type_spec=tf.RaggedTensorSpec([None, None], tf.int32, 1))
        return [str(i.shape), str(i.type_spec)]

    def clf(extra=()):
        i = K.Input([None], ragged=True, dtype="int32")
        x = L.Embedding(10, 4)(i)
        x = L.GlobalAveragePooling1D()(x)
        return K.Model(i, L.Dense(1, "sigmoid")(x))

    Y = np.array([[1.0], [0], [1], [0]], "float32")
    X2 = rt([[1, 2], [3], [9], [4, 5, 6]])

    @case
    def fm_call():
        m = clf()
        seed(m)
        return show(m(X2))

    @case
    def fm_fit():
        m = clf()
        seed(m)
        m.compile("sgd", "binary_crossentropy", metrics=["accuracy"])
        h = m.fit(X2, Y, epochs=3, batch_size=2, shuffle=False, verbose=0)
        return [show(h.history), show(m.evaluate(X2, Y, verbose=0)), show(m.predict(X2, verbose=0))]

    @case
    def fm_fit_ds():
        m = clf()
        seed(m)
        m.compile("adam", "binary_crossentropy")
        d = tf.data.Dataset.from_tensor_slices((X2, Y)).batch(2)
        h = m.fit(d, epochs=3, verbose=0)
        return [show(h.history), show(m.predict(d, verbose=0))]

    @case
    def fm_lstm():
        i = K.Input([None], ragged=True, dtype="int32")
        x = L.Embedding(10, 4)(i)
        x = L.LSTM(3)(x)
        m = K.Model(i, L.Dense(1, "sigmoid")(x))
        seed(m)
        m.compile("adam", "mse")
        h = m.fit(X2, Y, epochs=2, batch_size=2, shuffle=False, verbose=0)
        return [show(h.history), show(m.predict(X2, verbose=0))]

    @case
    def fm_seq_tag():
        i = K.Input([None], ragged=True, dtype="int32")
        x = L.Embedding(10, 4)(i)
        x = L.LSTM(3, return_sequences=True)(x)
        m = K.Model(i, L.TimeDistributed(L.Dense(1))(x))
        seed(m)
        m.compile("adam", "mse")
        y = rt([[[1.0], [2]], [[3]], [[9]], [[4], [5], [6]]], ragged_rank=1)
        h = m.fit(X2, y, epochs=2, batch_size=2, shuffle=False, verbose=0)
        return [show(h.history), show(m.predict(X2, verbose=0))]

    @case
    def loss_rag():
        return [
            show(K.losses.MeanSquaredError()(G, G + 1)),
            show(K.losses.mean_squared_error(G, G + 1)),
            show(K.losses.MeanAbsoluteError(reduction="none")(G, G * 2)),
        ]

    @case
    def loss_ce():
        y = rt([[0, 1], [2]])
        p = rt([[[0.1, 0.2, 0.7], [0.3, 0.3, 0.4]], [[0.8, 0.1, 0.1]]], ragged_rank=1)
        return [
            show(K.losses.SparseCategoricalCrossentropy()(y, p)),
            show(K.losses.sparse_categorical_crossentropy(y, p)),
        ]

    @case
    def loss_bce():
        return show(K.losses.binary_crossentropy(rt([[1.0, 0], [1]]), rt([[0.3, 0.4], [0.9]])))

    @case
    def metric_rag():
        m = K.metrics.MeanSquaredError()
        m.update_state(F, F + 2)
        a = K.metrics.Accuracy()
        a.update_state(X, X)
        return [show(m.result()), show(a.result())]

    @case
    def metric_mean():
        m = K.metrics.Mean()
        m.update_state(F)
        return show(m.result())

    @case
    def seq_model():
        m = K.Sequential(
            [
                K.Input([None], ragged=True, dtype="int32"),
                L.Embedding(10, 4),
                L.GlobalMaxPooling1D(),
                L.Dense(1),
            ]
        )
        seed(m)
        return show(m(X2))

    @case
    def subclass():
        class M(K.Model):
            def __init__(s):
                super().__init__()
                s.e = L.Embedding(10, 4)
                s.d = L.Dense(1)

            def call(s, x):
                return s.d(tf.reduce_mean(s.e(x), axis=1))

        m = M()
        m(X2)
        seed(m)
        m.compile("sgd", "mse")
        h = m.fit(X2, Y, epochs=2, batch_size=2, shuffle=False, verbose=0)
        return [show(h.history), show(m.predict(X2, verbose=0))]

    @case
    def fm_ops():
        i = K.Input([None], ragged=True)
        o = tf.reduce_sum(i * 2 + 1, axis=1, keepdims=True)
        m = K.Model(i, o)
        return show(m(F))

    @case
    def fm_out_ragged():
        i = K.Input([None], ragged=True)
        m = K.Model(i, i * 2.0)
        return [show(m(F)), show(m.predict(F, verbose=0)), str(m.output_shape)]

    @case
    def fm_to_tensor():
        i = K.Input([None], ragged=True)
        m = K.Model(i, i.to_tensor())
        return [show(m(F))]

    @case
    def fm_string():
        i = K.Input([], dtype="string")
        x = tf.strings.split(i)
        x = L.StringLookup(vocabulary=["a", "b"])(x)
        x = L.Embedding(4, 2)(x)
        o = tf.reduce_mean(x, 1)
        m = K.Model(i, o)
        seed(m)
        return show(m(tf.constant(["a b", "b", "z z a"])))

    @case
    def fm_save():
        m = clf()
        seed(m)
        m.save(folder + "/m.keras")
        n = K.models.load_model(folder + "/m.keras")
        return show(n(X2))

    @case
    def fm_save_h5():
        m = clf()
        seed(m)
        m.save(folder + "/m.h5")
        n = K.models.load_model(folder + "/m.h5")
        return show(n(X2))

    @case
    def fm_saved():
        m = clf()
        seed(m)
        m.save(folder + "/m")
        n = K.models.load_model(folder + "/m")
        return [show(n(X2)), show(n.predict(X2, verbose=0))]

    @case
    def fn_while():
        @tf.function
        def f(x):
            i = tf.constant(0)
            while i < 3:
                x = x * 2.0
                i += 1
            return x

        return show(f(F))

    @case
    def fn_cond():
        @tf.function
        def f(x, c):
            return tf.cond(c, lambda: x + 1, lambda: x * 2)

        return [show(f(F, tf.constant(True))), show(f(F, tf.constant(False)))]

    @case
    def while_shape():
        r = tf.while_loop(
            lambda i, x: i < 2,
            lambda i, x: (i + 1, tf.concat([x, x], axis=1)),
            [tf.constant(0), F],
            shape_invariants=[tf.TensorShape([]), tf.RaggedTensorSpec([None, None], tf.float32)],
        )
        return show(r[1])

    @case
    def grad_emb():
        e = tf.Variable(np.ones((10, 2), "float32"))
        with tf.GradientTape() as t:
            y = tf.reduce_sum(tf.nn.embedding_lookup(e, X) * 2)
        return show(tf.convert_to_tensor(t.gradient(y, e)))

    @case
    def str_split():
        return show(tf.strings.split(S[0] if False else tf.constant(["a b", "c"])))

    @case
    def str_split_rag():
        return show(tf.strings.split(S))

    @case
    def str_ops():
        return [
            show(tf.strings.length(S)),
            show(tf.strings.upper(S)),
            show(tf.strings.regex_replace(S, "b", "x")),
            show(tf.strings.join([S, S])),
            show(tf.strings.reduce_join(S, axis=1, separator="-")),
            show(tf.strings.substr(S, 0, 1)),
            show(tf.strings.strip(S)),
            show(tf.strings.to_hash_bucket_fast(S, 7)),
            show(tf.strings.as_string(X)),
        ]

    @case
    def ngrams():
        return [
            show(tf.strings.ngrams(rt([[b"a", b"b", b"c"], [b"d"]]), 2)),
            show(
                tf.strings.ngrams(rt([[b"a", b"b", b"c"], [b"d"]]), [1, 2], pad_values=("<", ">"))
            ),
        ]

    @case
    def unicode_():
        return [
            show(tf.strings.unicode_decode(["ab", "ç"], "UTF-8")),
            show(tf.strings.unicode_split(["ab", "ç"], "UTF-8")),
            show(tf.strings.unicode_split_with_offsets(["ab", "ç"], "UTF-8")),
            show(tf.strings.unicode_encode(rt([[97, 98], [99]]), "UTF-8")),
            show(tf.strings.unicode_transcode(S, "UTF-8", "UTF-16-BE")),
        ]

    @case
    def unicode_rag():
        return show(tf.strings.unicode_decode(S, "UTF-8"))

    @case
    def bytes_split():
        return show(tf.strings.bytes_split(S))

    @case
    def table():
        t = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(["a", "d"], [1, 2]), -1)
        return show(t.lookup(S))

    @case
    def sig_keras_predict():
        i = K.Input([None, 2], ragged=True)
        m = K.Model(i, L.LSTM(2)(i))
        seed(m)
        return show(m.predict(W, batch_size=2, verbose=0))

    @case
    def wide():
        i = K.Input([None], ragged=True, dtype="int32", name="a")
        j = K.Input([1], name="b")
        x = L.Embedding(10, 4)(i)
        x = tf.reduce_max(x, 1)
        m = K.Model([i, j], L.Dense(1)(L.Concatenate()([x, j])))
        seed(m)
        m.compile("sgd", "mse")
        h = m.fit([X2, Y], Y, batch_size=2, shuffle=False, epochs=2, verbose=0)
        h2 = m.fit({"a": X2, "b": Y}, Y, batch_size=2, shuffle=False, verbose=0)
        return [show(h.history), show(h2.history)]

    @case
    def train_on_batch():
        m = clf()
        seed(m)
        m.compile("sgd", "mse")
        return [
            show(m.train_on_batch(X2, Y)),
            show(m.predict_on_batch(X2)),
            show(m.test_on_batch(X2, Y)),
        ]

    @case
    def class_w():
        m = clf()
        seed(m)
        m.compile("sgd", "mse")
        return [
            show(
                m.fit(
                    X2,
                    Y,
                    sample_weight=np.array([1.0, 2, 3, 4]),
                    batch_size=2,
                    shuffle=False,
                    verbose=0,
                ).history
            )
        ]

    @case
    def rnn_back_seq():
        l = L.LSTM(2, return_sequences=True, go_backwards=True)
        l(W.to_tensor())
        l.set_weights([np.ones(w.shape, "float32") * 0.1 for w in l.get_weights()])
        return show(l(W))

    @case
    def attrs_save():
        i = K.Input([None], ragged=True, name="i")
        m = K.Model(i, tf.reduce_sum(i.to_tensor(), 1))
        m.save(folder + "/a.keras")
        return show(K.models.load_model(folder + "/a.keras")(F))

    @case
    def slicing():
        i = K.Input([None], ragged=True, name="i")
        m = K.Model(i, [i[:, :2], i + 1.0])
        return show(m(F))

    @case
    def concat_in():
        i = K.Input([None], ragged=True)
        j = K.Input([None], ragged=True)
        m = K.Model([i, j], tf.concat([i, j], 1))
        return show(m([F, F]))

    @case
    def nested():
        i = K.Input([None, None], ragged=True, dtype="int32")
        x = L.Embedding(10, 4)(i)
        m = K.Model(i, tf.reduce_mean(tf.reduce_sum(x, 2), 1))
        seed(m)
        return [str(i.type_spec), str(x.shape), show(m(rt([[[1], [2, 3]], [[4]]])))]

    @case
    def nested_fit():
        i = K.Input([None, None], ragged=True, dtype="int32")
        x = L.Embedding(10, 4)(i)
        m = K.Model(i, L.Dense(1)(tf.reduce_sum(tf.reduce_sum(x, 2), 1)))
        seed(m)
        m.compile("sgd", "mse")
        X3 = rt([[[1], [2, 3]], [[4]], [[1, 1]], [[2], [2]]])
        return [
            show(m.fit(X3, Y, batch_size=2, shuffle=False, epochs=2, verbose=0).history),
            show(m.predict(X3, verbose=0)),
        ]

    @case
    def shapes_():
        i = K.Input([None, 3], ragged=True)
        d = L.Dense(2)(i)
        g = L.GlobalAveragePooling1D()(d)
        r = L.LSTM(4)(i)
        s = L.LSTM(4, return_sequences=True)(i)
        c = L.Concatenate()([d, s])
        return [str(t.shape) + str(t.type_spec).split("(")[0] for t in (i, d, g, r, s, c)]

    @case
    def ds_ragged_batch_of_rows():
        d = tf.data.Dataset.from_tensor_slices(X).ragged_batch(3)
        return [show(e) for e in d] + [str(d.element_spec)]

    @case
    def parse_sorted():
        lists = {
            "i": tf.train.Feature(int64_list=tf.train.Int64List(value=[3, 1])),
            "v": tf.train.Feature(float_list=tf.train.FloatList(value=[1.0, 2.0])),
        }
        e = tf.train.Example(features=tf.train.Features(feature=lists)).SerializeToString()
        return [
            show(tf.io.parse_example([e], {"s": tf.io.SparseFeature("i", "v", tf.float32, 5, s)}))
            for s in (False, True)
        ]

    @case
    def encode_empty_text():
        points = tf.strings.unicode_decode([b"", b""], "UTF-8")
        return show(tf.strings.unicode_encode(points, "UTF-8"))

    @case
    def subclassed_saved():
        class Sum(K.Model):
            def __init__(self):
                super().__init__()
                self.embedding = L.Embedding(10, 2)
                self.dense = L.Dense(2)

            def call(self, inputs):
                rows = tf.reduce_sum(self.embedding(inputs["ids"]), 1)
                return rows + self.dense(inputs["features"])

        def make(rows):
            features = tf.sparse.from_dense(np.eye(len(rows), 5, dtype="float32"))
            return {"ids": rt(rows, dtype=tf.int32), "features": features}

        m = Sum()
        m(make([[1, 2], [3]]))
        seed(m)
        m.save(folder + "/subclassed", save_format="tf")
        return show(K.models.load_model(folder + "/subclassed")(make([[], [4, 5, 6], [1]])))

    @case
    def batch5():
        i = K.Input([None], ragged=True, batch_size=3)
        return str(i.type_spec)

    return cases
