"""List losses, metrics, regularizers, constraints and activations evaluated by tf-keras
(generate_keras_numbers.py).

Expressions use the names of `values`: `L` losses, `M` metrics, `R` regularizers, `C` constraints,
`A` activations, `I` initializers; `feed(metric, *batches)` returns a metric's result after some
batches, each (labels, predictions[, weights]).
"""

# name -> (labels, predictions) that suit it
PAIRS = {
    "MeanSquaredError": "y, p",
    "MeanAbsoluteError": "y, p",
    "MeanAbsolutePercentageError": "y, p",
    "MeanSquaredLogarithmicError": "y, p",
    "BinaryCrossentropy": "b, p",
    "CategoricalCrossentropy": "h, q",
    "SparseCategoricalCrossentropy": "n, q",
    "CategoricalHinge": "h, p",
    "CosineSimilarity": "y, p",
    "Hinge": "b, z",
    "SquaredHinge": "b, z",
    "KLDivergence": "q[::-1], q",
    "Poisson": "y, p",
}
LOSSES = PAIRS | {
    "LogCosh": "y, p",
    "Huber": "3 * y, p",
    "BinaryFocalCrossentropy": "b, p",
    "CategoricalFocalCrossentropy": "h, q",
}
METRICS = PAIRS | {
    "LogCoshError": "y, p",
    "RootMeanSquaredError": "y, p",
    "Accuracy": "n, n[::-1]",
    "BinaryAccuracy": "b, p",
    "CategoricalAccuracy": "h, p",
    "SparseCategoricalAccuracy": "n, p",
    "TopKCategoricalAccuracy": "h, p",
    "SparseTopKCategoricalAccuracy": "n, p",
}
COUNTS = ("TruePositives", "TrueNegatives", "FalsePositives", "FalseNegatives")
POINTS = (
    "SensitivityAtSpecificity",
    "SpecificityAtSensitivity",
    "PrecisionAtRecall",
    "RecallAtPrecision",
)
OTHERS = """
L.SparseCategoricalCrossentropy(ignore_class=1)(n, q)|L.SparseCategoricalCrossentropy(reduction='none')(ln, lp)|L.SparseCategoricalCrossentropy(reduction='none')(ln[..., None], lp)|L.SparseCategoricalCrossentropy(reduction='none')(n[::-1], h)
L.CategoricalCrossentropy(reduction='none')(h, p)|L.CategoricalCrossentropy(reduction='none')(h[::-1], h)|L.BinaryCrossentropy(reduction='none')(b, 1 - b)|L.sparse_categorical_crossentropy(n, q)|L.MeanSquaredError()(s, t, u)|L.MeanSquaredError()(s, t, u[..., None])|L.MeanSquaredError()(s, t, u[:, :1])|L.MeanSquaredError(reduction='none')(s, t, u)
L.Huber(delta=.2, reduction='none')(y, p)|L.CosineSimilarity(axis=0, reduction='none')(y, p)|L.BinaryFocalCrossentropy(apply_class_balancing=True, gamma=3.)(b, p)|L.CategoricalFocalCrossentropy(alpha=.4, gamma=1.)(h, q)
feed(M.MeanSquaredError(), (s, t, u))|feed(M.MeanSquaredError(), (s, t, w[:3]))|feed(M.RootMeanSquaredError(), (s, t, w[:3]))|feed(M.SparseCategoricalAccuracy(), (n[:, None], p))|feed(M.SparseCategoricalAccuracy(), (ln, lp))|feed(M.SparseCategoricalAccuracy(), (ln, lp, w[:2]))|feed(M.SparseTopKCategoricalAccuracy(k=2), (ln, lp))|feed(M.TopKCategoricalAccuracy(k=2), (h, p, w))|feed(M.BinaryAccuracy(threshold=.3), (b, p))
feed(M.SparseCategoricalCrossentropy(ignore_class=1), (n, q, w))|feed(M.BinaryCrossentropy(from_logits=True, label_smoothing=.1), (b, z))|feed(M.MeanRelativeError(normalizer=[1., 0., 3.]), (y, p))
M.Mean()(s, sample_weight=u)|M.Mean()(s, sample_weight=w[:3])|M.Sum()(s, sample_weight=w[:3])|M.Sum()([1., 3.], sample_weight=[2., 1.])|M.Mean()([1., 3.], sample_weight=[[2.], [1.]])|M.MeanTensor()([[1., 2.], [3., 4.]], sample_weight=[.5, 2.])
feed(M.Precision(top_k=2), (b, p, w))|feed(M.Recall(top_k=1), (b, p))|feed(M.Precision(class_id=1), (b, p, w))|feed(M.Recall(top_k=2, class_id=0), (b, p))|feed(M.Precision(thresholds=.4, top_k=2), (b, p))
feed(M.AUC(thresholds=[.3, .6]), (e, f))|feed(M.AUC(multi_label=True, label_weights=[1., 2., .5]), (b, p))|feed(M.AUC(label_weights=[1., 2., .5]), (b, p, w))|feed(M.AUC(from_logits=True), (b, z))|feed(M.AUC(), (e[:, None], f[:, None]))
feed(M.MeanIoU(num_classes=4), (ln, ln[::-1], u[:2, :, None] + 0 * lp[..., 0]))|feed(M.MeanIoU(num_classes=3, ignore_class=1), (ln, ln[::-1]))|feed(M.IoU(3, [0, 2]), (ln, ln[::-1]))|feed(M.BinaryIoU(threshold=.3), (b, p))|feed(M.BinaryIoU([1], threshold=.3), (b[:, 0], p[:, 0], w))|feed(M.OneHotIoU(3, [0, 1]), (h, p, w))|feed(M.OneHotMeanIoU(3), (h, p))
R.L1()(z)|R.L2(.3)(z)|R.L1L2(.1, .2)(z)|R.l1_l2()(z)|R.OrthogonalRegularizer()(z)|R.OrthogonalRegularizer(.3, 'columns')(z)|C.MaxNorm()(z)|C.MaxNorm(.5, 1)(z)|C.NonNeg()(z)|C.UnitNorm()(z)|C.UnitNorm([0, 1])(z)|C.MinMaxNorm()(z)|C.MinMaxNorm(.5, .9, .3)(z)|C.RadialConstraint()(k3)|C.RadialConstraint()(k4)|C.RadialConstraint()(k5)
A.elu(z)|A.exponential(z)|A.gelu(z)|A.hard_sigmoid(z)|A.linear(z)|A.mish(z)|A.relu(z)|A.selu(z)|A.sigmoid(z)|A.softmax(z)|A.softplus(z)|A.softsign(z)|A.swish(z)|A.tanh(z)|A.relu(z, .1, 1., .25)|A.relu(z, max_value=.5)|A.relu(z, alpha=.3)|A.relu(z, threshold=.7)|A.elu(z, .5)|A.gelu(z, True)|A.softmax(z, 0)
I.Constant([[1., 2.], [3., 4.]])((2, 2))|I.Identity(2.)((2, 3))
tf.nn.log_poisson_loss(y, z, True)|tf.nn.pool(img, [2, 2], 'MAX', dilations=[2, 2])|tf.nn.max_pool_with_argmax(img, 3, 2, 'SAME')[0]|tf.nn.max_pool_with_argmax(img, 3, 2, 'SAME')[1]|tf.nn.max_pool_with_argmax(img, 2, 2, 'VALID', include_batch_in_index=True)[1]|tf.nn.conv2d(img[None], k3, 1, 'SAME')|tf.nn.embedding_lookup([y, z], [0, 5, 2, 11])|tf.nn.moments(tf.constant([1, 2, 4]), [0])[1]|tf.nn.atrous_conv2d_transpose(img, tf.transpose(k3, [0, 1, 3, 2]), [2, 6, 6, 2], 2, 'SAME')|tf.nn.depthwise_conv2d_backprop_input([2, 6, 6, 1], k3[:, :, :1], tf.concat([img, img], -1), [1, 1, 1, 1], 'SAME')|tf.nn.depthwise_conv2d_backprop_filter(img, [3, 3, 1, 2], tf.concat([img, img], -1), [1, 1, 1, 1], 'SAME')
"""


def expressions():
    """The expressions, one by one."""
    found = []
    for name, pair in LOSSES.items():
        for reduction in ("auto", "none", "sum"):
            found.append(f"L.{name}(reduction='{reduction}')({pair})")
            found.append(f"L.{name}(reduction='{reduction}')({pair}, w)")
        found += [f"L.{name}()({pair}, w[:, None])", f"gradient(L.{name}(), {pair})"]
        if "Crossentropy" in name:
            labels = pair.split(",")[0]
            found.append(f"L.{name}(from_logits=True, reduction='none')({labels}, z)")
            if "Sparse" not in name:
                for logits in ("from_logits=True", "from_logits=False"):
                    smooth = f"L.{name}({logits}, label_smoothing=.2, reduction='none')"
                    found.append(f"{smooth}({labels}, {'z' if 'True' in logits else 'q'})")
    for name, pair in METRICS.items():
        parts = ", ".join(f"({v.strip()})[:2]" for v in pair.split(","))
        found.append(f"feed(M.{name}(), ({pair}), ({parts}))")
        found += [f"feed(M.{name}(), ({pair}, {weight}))" for weight in ("w", "w[:, None]", ".5")]
    for name in (*COUNTS, "Precision", "Recall"):
        for arguments in ("", "thresholds=[.2, .5, .8]"):
            found += [
                f"feed(M.{name}({arguments}), (b, p{w}))" for w in ("", ", w", ", w[:, None]")
            ]
    for curve in ("ROC", "PR"):
        for method in ("interpolation", "minoring", "majoring"):
            auc = f"M.AUC(20, '{curve}', '{method}'"
            found += [f"feed({auc}), (e, f, g))", f"feed({auc}, multi_label=True), (b, p, w))"]
    for name in POINTS:
        found += [
            f"feed(M.{name}({v}, num_thresholds=30), (e, f, g))" for v in (0.0, 0.3, 0.7, 1.0)
        ]
        found.append(f"feed(M.{name}(.5, num_thresholds=1), (e, f))")
    for average in (None, "micro", "macro", "weighted"):
        for threshold in (None, 0.4):
            found.append(f"feed(M.F1Score({average!r}, {threshold}), (b, p), (b, y, w))")
            found.append(f"feed(M.FBetaScore({average!r}, 2., {threshold}), (b, p))")
    for aggregation in (None, "uniform_average", "variance_weighted_average"):
        found.append(f"feed(M.R2Score({aggregation!r}), (y, p, w))")
        found.append(f"feed(M.R2Score({aggregation!r}, 2), (y, p))")
    return found + [e for line in OTHERS.split("\n") for e in line.split("|") if e]


def values(tf, keras, np):
    """The names that the expressions use."""
    rng = np.random.default_rng(0)
    shares = lambda *shape: rng.uniform(0.05, 0.95, shape).astype("float32")
    simplex = lambda x: x / x.sum(-1, keepdims=True)
    y, p, labels = shares(6, 3), shares(6, 3), np.array([0, 2, 1, 1, 0, 2])
    outcome = (rng.uniform(size=50) > 0.4).astype("float32")
    arrays = {
        "y": y,
        "p": p,
        "q": simplex(p),
        "z": (4 * p - 2).astype("float32"),
        "b": (y > 0.5).astype("float32"),
        "n": labels,
        "h": np.eye(3, dtype="float32")[labels],
        "w": np.array([1, 0, 2, 0.5, 1, 3], "float32"),
        "s": shares(3, 4, 2),
        "t": shares(3, 4, 2),
        "u": shares(3, 4),
        "ln": rng.integers(0, 3, (2, 4, 4)),
        "lp": simplex(shares(2, 4, 4, 3)),
        "e": outcome,
        "f": (0.3 * outcome + 0.7 * rng.uniform(size=50)).astype("float32"),
        "g": shares(50),
        "k3": shares(3, 3, 1, 2),
        "k4": shares(4, 4, 1, 2),
        "k5": shares(5, 5, 1, 2),
        "img": shares(2, 6, 6, 1),
    }

    def feed(metric, *batches):
        for batch in batches:
            metric.update_state(*batch)
        return metric.result()

    def gradient(loss, y_true, y_pred):
        with tf.GradientTape() as tape:
            tape.watch(y_pred)
            value = loss(y_true, y_pred)
        return tape.gradient(value, y_pred)

    modules = {
        "L": keras.losses,
        "M": keras.metrics,
        "R": keras.regularizers,
        "C": keras.constraints,
        "A": keras.activations,
        "I": keras.initializers,
    }
    tensors = {name: tf.constant(value) for name, value in arrays.items()}
    return tensors | modules | {"tf": tf, "feed": feed, "gradient": gradient}
