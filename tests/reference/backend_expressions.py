"""`tf.keras.backend` functions that tf-keras computed once (generate_backend.py).

`a`, `b` are float32 [2, 3]; `i` int32 [2, 3]; `t` booleans [2, 3]; `s` [2, 4, 3] sequences with a mask `m` [2, 4];
`x` images [2, 4, 5, 3]; `v` volumes [2, 3, 4, 5, 2]; `w`, `w3`, `d` kernels; `h`, `p` one-hot and probabilities [3, 4]; `q` probabilities
[2, 5, 4].
"""

EXPRESSIONS = """
K.abs(a)
K.all(i)|K.all(t, axis=0)|K.any(t, axis=1, keepdims=True)|K.any([0., 0.])
K.arange(4)|K.arange(2, 5)|K.arange(0., 1., .25, 'float32')|K.arange(-3)
K.argmax(a)|K.argmin(a, 0)
K.batch_dot(s, s, axes=2)|K.batch_dot(a, b)|K.batch_dot(a, b, 1)|K.batch_dot(s, K.permute_dimensions(s, (0, 2, 1)))|K.batch_dot(a, s, axes=(1, 2))|K.batch_dot(s, a, axes=(2, 1))|K.batch_dot(s, a[:, :2])|K.batch_dot(a[:, 0], b)|K.batch_dot(a, b, axes=0)|K.batch_dot(x, s, axes=(3, 2))
K.batch_flatten(x)|K.flatten(x)
K.batch_normalization(a, b[0], K.exp(b[0]), a[0], a[1])|K.batch_normalization(x, b[0], K.exp(b[0]), None, a[1], axis=-1, epsilon=.1)|K.batch_normalization(K.permute_dimensions(x, (0, 3, 1, 2)), b[0], K.exp(b[0]), a[0], a[1], axis=1)
K.bias_add(x, b[0])|K.bias_add(K.permute_dimensions(x, (0, 3, 1, 2)), b[0], 'channels_first')|K.bias_add(s, s[0])|K.bias_add(s, s)
K.binary_crossentropy(h, p)|K.binary_crossentropy(h, p * 6 - 2, from_logits=True)|K.binary_focal_crossentropy(h, p)|K.binary_focal_crossentropy(h, p, True, .3, 1.5)
K.categorical_crossentropy(h, p)|K.categorical_crossentropy(h, p * 2)|K.categorical_crossentropy(h, p, from_logits=True)|K.categorical_crossentropy(h, p, axis=0)|K.categorical_crossentropy(h[:2], p)|K.categorical_focal_crossentropy(h, p)
K.sparse_categorical_crossentropy([0, 3, 1], p)|K.sparse_categorical_crossentropy([0, 3, 1], p, from_logits=True)|K.sparse_categorical_crossentropy([0, 3, 1], p, ignore_class=3)|K.sparse_categorical_crossentropy([0, 2, 1, 0], p, axis=0)
K.cast(a, 'int32')|K.cast(i, 'float64')|K.cast_to_floatx(i)|K.cast_to_floatx([1, 2])
K.ctc_batch_cost([[0, 1, 1], [2, 1, 0]], q, [[5], [4]], [[3], [2]])|K.ctc_batch_cost(tf.constant([[0., 1.], [2., 2.]]), q, tf.constant([[5], [3]], 'int64'), tf.constant([[2], [2]], 'int64'))|K.ctc_batch_cost([[0], [1]], q, [5, 4], [1, 1])
K.ctc_decode(q, [5, 4])|K.ctc_decode(q, tf.constant([5., 3.]))|K.ctc_decode(q, [5, 4], greedy=False, top_paths=2)
K.to_dense(K.ctc_label_dense_to_sparse(tf.constant([[3, 1, 1], [2, 1, 0]]), tf.constant([3, 2])))
K.clip(a, -.5, .5)|K.clip(a, .5, -.5)|K.clip(a, None, .3)|K.clip(a, 0., None)
K.concatenate([a, b])|K.concatenate([a, b], 0)|K.stack([a, b])|K.stack([a, b], 1)
K.constant([1, 2])|K.constant(3, shape=(2, 2))
K.conv1d(s, w3)|K.conv1d(s, w3, padding='causal', dilation_rate=2)|K.conv1d(s, w3, 2, 'same')|K.conv2d(x, w)|K.conv2d(x, w, (2, 1), 'same')|K.conv2d(x, w, dilation_rate=(2, 2), padding='same')|K.conv2d(x, w, padding='full')
K.conv2d_transpose(x, K.permute_dimensions(w, (0, 1, 3, 2)), (2, 8, 10, 4), (2, 2), 'same')|K.conv3d(v, v[:, :2, :2, :2])|K.depthwise_conv2d(x, d, (2, 2))|K.separable_conv2d(x, d, K.ones((1, 1, 6, 2)), padding='same')
K.cos(a)|K.sin(a)|K.exp(a)|K.log(K.abs(a))|K.pow(a, 2)|K.round(a * 3)|K.sign(a)|K.sqrt(a)|K.square(a)
K.count_params(K.zeros((2, 3)))|K.int_shape(a)|K.ndim(x)|K.dtype(i)|K.dtype(K.variable(1))|K.shape(x)
K.cumprod(a, 1)|K.cumsum(a)
K.dot(a, K.transpose(b))|K.dot(s, w3[0])|K.dot(s, w3)|K.dot(x, w3)
K.elu(a)|K.elu(a, .5)|K.relu(a)|K.relu(a, .1, .5, .2)|K.hard_sigmoid(a * 3)|K.sigmoid(a)|K.softmax(a)|K.softmax(a, 0)|K.softplus(a)|K.softsign(a)|K.tanh(a)
K.equal(i, 1)|K.not_equal(i, 1)|K.greater(a, b)|K.greater_equal(i, 1)|K.less(a, b)|K.less_equal(i, 1)|K.maximum(a, b)|K.minimum(a, b)
K.eval(K.variable([1, 2]))|K.eye(2)|K.zeros((1, 2))|K.ones((2,), 'int32')|K.zeros_like(i)|K.ones_like(a, 'int32')
K.expand_dims(a)|K.expand_dims(a, 1)|K.squeeze(a[:1], 0)
K.foldl(lambda acc, e: acc + e, a)|K.foldr(lambda acc, e: acc - e, a)|K.map_fn(lambda e: e * 2, a)
K.gather(a, [1, 0, 1])|K.one_hot([0, 2], 3)|K.one_hot(i, 4)
K.in_test_phase(a, b)|K.in_train_phase(a, b)|K.in_train_phase(lambda: a, lambda: b, 1)|K.in_train_phase(a, b, tf.constant(True))
K.in_top_k(p, [0, 3, 1], 2)
K.l2_normalize(a, 1)|K.l2_normalize(a)
K.max(a)|K.max(a, 0)|K.min(a, -1, True)|K.sum(i, 0)|K.sum(a, (0, 1))|K.prod(a, 1)|K.mean(t)|K.mean(a, -1, keepdims=True)|K.mean(i)|K.var(a, 0)|K.std(a)|K.var(t)
K.moving_average_update(K.variable([1., 2.]), [3., 5.], .9)|K.update(K.variable(1.), 3.)|K.update_add(K.variable(1.), 3.)|K.update_sub(K.variable(1.), 3.)
K.normalize_batch_in_training(a, b[0], a[0], [0])[0]|K.normalize_batch_in_training(x, b[0], a[0], [0, 1, 2])[2]|K.normalize_batch_in_training(x, b[0], a[0], [0, 1, 2], .1)[0]
K.permute_dimensions(s, (0, 2, 1))|K.transpose(a)
K.pool2d(x, (2, 2))|K.pool2d(x, (2, 2), (2, 2), 'same', pool_mode='avg')|K.pool2d(x, (2, 2), pool_mode='sum')|K.pool3d(v, (2, 2, 2), (1, 2, 1))
K.repeat(a, 2)|K.repeat_elements(a, 2, 1)|K.tile(a, (1, 2))|K.tile(a[0], 3)
K.reshape(a, (3, -1))|K.reverse(a, 1)|K.reverse(a, [0, 1])
K.resize_images(x, 2, 3, 'channels_last')|K.resize_images(x, 2, 2, 'channels_last', 'bilinear')|K.resize_images(K.permute_dimensions(x, (0, 3, 1, 2)), 2, 3, 'channels_first', 'bilinear')|K.resize_volumes(v, 1, 2, 2, 'channels_last')
K.spatial_2d_padding(x, ((1, 0), (2, 1)))|K.spatial_3d_padding(v)|K.temporal_padding(s, (1, 2))|K.spatial_2d_padding(x, data_format='channels_first')
K.stop_gradient(a)|K.switch(t, a, b)|K.switch(tf.constant(0), lambda: a, lambda: b)|K.switch(t, a[0], b[0])
K.rnn(step, s, [K.zeros_like(a)])|K.rnn(step, s, [K.zeros_like(a)], go_backwards=True)|K.rnn(step, s, [K.zeros_like(a)], mask=m)|K.rnn(step, s, [K.zeros_like(a)], mask=m, unroll=True)|K.rnn(step, s, [K.zeros_like(a)], mask=m, zero_output_for_mask=True)|K.rnn(step, K.permute_dimensions(s, (1, 0, 2)), [K.zeros_like(a)], time_major=True)|K.rnn(lambda e, c: (e + c[0] + c[1], [c[0] + e]), s, [a], constants=[b], go_backwards=True, mask=m)
K.backend()|K.is_sparse(a)|K.to_dense(a)|K.learning_phase()|K.get_value(K.random_bernoulli((2,), 1.))|K.get_value(K.random_binomial((2,), 0.))|K.batch_get_value([K.variable(1.), K.variable(2.)])|K.gradients(a, a)
"""


def expressions():
    """Every expression."""
    return [e for line in EXPRESSIONS.strip().split("\n") for e in line.split("|")]


def values(tf, np):
    """Return the names available to the expressions."""
    rng = np.random.default_rng(12)

    def normal(*shape):
        return tf.constant(rng.normal(size=shape).astype("float32"))

    def step(x, states):
        output = 0.5 * states[0] + x
        return output * 2.0, [output]

    scores = np.exp(rng.normal(size=(3, 4)))
    return {
        "tf": tf,
        "K": tf.keras.backend,
        "a": normal(2, 3),
        "b": normal(2, 3),
        "i": tf.constant(rng.integers(0, 3, (2, 3)).astype("int32")),
        "t": tf.constant([[True, False, True], [True, True, False]]),
        "s": normal(2, 4, 3),
        "m": tf.constant([[True, True, False, True], [False, True, True, False]]),
        "x": normal(2, 4, 5, 3),
        "v": normal(2, 3, 4, 5, 2),
        "w": normal(2, 2, 3, 4),
        "w3": normal(2, 3, 4),
        "d": normal(2, 2, 3, 2),
        "h": tf.constant(np.eye(4)[[0, 3, 1]].astype("float32")),
        "p": tf.constant((scores / scores.sum(1, keepdims=True)).astype("float32")),
        "q": tf.nn.softmax(normal(2, 5, 4)),
        "step": step,
    }


def evaluate(expression, tf, np):
    """The results of an expression as arrays, or the exception."""
    tf.keras.backend.reset_uids()
    try:
        result = eval(expression, values(tf, np))
    except Exception as error:
        return error
    return [np.asarray(leaf) for leaf in tf.nest.flatten(result)]
