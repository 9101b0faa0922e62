"""List recurrent layers whose outputs and gradients tf-keras computed (generate_recurrent.py).

Each case is an expression for a layer, with `L` the layers, and the arguments of its call: `m` is a
mask, `s`, `c` are states [2, 3], `k` a constant [2, 3].
"""

CASES = [
    ("L.SimpleRNN(3)", ""),
    ("L.SimpleRNN(3, 'relu', return_sequences=True, go_backwards=True)", "mask=m"),
    ("L.SimpleRNN(3, use_bias=False, unroll=True)", "initial_state=[s]"),
    ("L.GRU(3)", ""),
    ("L.GRU(3, reset_after=False, return_sequences=True)", "mask=m"),
    ("L.GRU(3, 'relu', 'hard_sigmoid', return_state=True, use_bias=False)", "initial_state=s"),
    ("L.GRU(3, return_sequences=True, go_backwards=True)", "mask=m"),
    ("L.LSTM(3)", ""),
    ("L.LSTM(3, return_sequences=True, return_state=True)", "initial_state=[s, c]"),
    ("L.LSTM(3, return_sequences=True)", "mask=m"),
    ("L.LSTM(3, go_backwards=True, unroll=True)", "mask=m"),
    ("L.LSTM(3, return_state=True, recurrent_activation='hard_sigmoid', activation='elu')", ""),
    ("L.LSTM(3, return_sequences=True, zero_output_for_mask=True)", "mask=m"),
    ("L.RNN(L.LSTMCell(3), return_sequences=True)", "mask=m"),
    ("L.RNN([L.LSTMCell(2), L.GRUCell(3)], return_state=True)", ""),
    ("L.RNN(L.StackedRNNCells([L.SimpleRNNCell(2), L.LSTMCell(3)]), go_backwards=True)", "mask=m"),
    ("L.Bidirectional(L.LSTM(3))", ""),
    ("L.Bidirectional(L.GRU(3, return_sequences=True), merge_mode='sum')", "mask=m"),
    ("L.Bidirectional(L.SimpleRNN(3, return_state=True), merge_mode=None)", "initial_state=[s, c]"),
    ("L.Bidirectional(L.LSTM(3, return_sequences=True), 'mul')", ""),
    ("L.Bidirectional(L.LSTM(2), 'ave', backward_layer=L.GRU(2, go_backwards=True))", ""),
    ("L.TimeDistributed(L.Dense(2))", ""),
]


def prepare(tf, np, number):
    """A layer with weights drawn by the number of the case, its input and the arguments of its call."""
    expression, call = CASES[number]
    rng = np.random.default_rng(number)

    def normal(*shape):
        return tf.constant(rng.normal(size=shape).astype("float32"))

    x, s, c = normal(2, 5, 4), normal(2, 3), normal(2, 3)
    mask = np.array([[True, True, False, True, False], [False, True, True, True, True]])
    layer = eval(expression, {"L": tf.keras.layers})
    kwargs = eval(f"dict({call})", {"m": tf.constant(mask), "s": s, "c": c})
    # Tracing creates the weights without compilation.
    tf.function(lambda x: layer(x, **kwargs)).get_concrete_function(x)
    weights = [(0.6 * rng.normal(size=w.shape)).astype("float32") for w in layer.get_weights()]
    layer.set_weights(weights)
    return layer, x, kwargs


def run(tf, np, number, wraps=(lambda f: f,)):
    """Outputs, and gradients of the input and the weights, by the step in each of the wraps."""
    layer, x, kwargs = prepare(tf, np, number)

    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            outputs = tf.nest.flatten(layer(x, **kwargs))
            loss = tf.add_n([tf.reduce_sum(y * y * y) for y in outputs])
        return [*outputs, *tape.gradient(loss, [x, *layer.trainable_weights])]

    return [[tf.convert_to_tensor(r).numpy() for r in wrap(step)(x)] for wrap in wraps]
