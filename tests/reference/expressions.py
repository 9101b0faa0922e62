"""Expressions evaluated in TensorFlow once (generate_expressions.py) and in Meshflow by the tests.

`a`, `b` are float32 [2, 3]; `p` positive; `m` float32 [3, 3], positive definite; `v` [5]; `i` int32 [2, 3]; `t` booleans [2, 3];
`x` float32 images [2, 6, 6, 3] in [0, 1]; `w` kernels [3, 3, 3, 4]; `z` complex64 [2, 3].
"""

EXPRESSIONS = """
tf.abs(a)|tf.sign(a)|tf.math.sign(a)|tf.square(a)|tf.sqrt(p)|tf.math.rsqrt(p)|tf.math.reciprocal(p)|tf.exp(a)|tf.math.expm1(a)|tf.math.log(p)|tf.math.log1p(p)
tf.sin(a)|tf.cos(a)|tf.tan(a)|tf.asin(a / 9.)|tf.acos(a / 9.)|tf.atan(a)|tf.sinh(a)|tf.cosh(a)|tf.tanh(a)|tf.asinh(a)|tf.acosh(p + 1.)|tf.atanh(a / 9.)|tf.atan2(a, b)
tf.sigmoid(a)|tf.math.log_sigmoid(a)|tf.math.erf(a)|tf.math.erfc(a)|tf.math.erfinv(a / 9.)|tf.math.ndtri(p / 9.)|tf.math.lgamma(p)|tf.math.digamma(p)|tf.math.bessel_i0(a)|tf.math.bessel_i1(a)|tf.math.bessel_i0e(a)
tf.floor(a)|tf.math.ceil(a)|tf.round(a * 2.)|tf.math.rint(a)|tf.math.floormod(a, p)|tf.math.floordiv(a, p)|tf.math.floordiv(i, 2)|tf.math.mod(i, 3)|tf.truediv(i, 2)|i / 3|i // 2|i % 2|-i|abs(i)
a + b|a - b|a * b|a / p|a ** 2.|p ** a|a @ m|1. - a|2. / p|a > b|a <= b|tf.equal(i, 1)|tf.not_equal(i, 1)|tf.maximum(a, b)|tf.minimum(a, b)|tf.math.squared_difference(a, b)
tf.math.divide_no_nan(a, b * 0.)|tf.math.multiply_no_nan(a, b)|tf.math.xlogy(p, p)|tf.math.xdivy(a, p)|tf.math.xlog1py(p, p)|tf.math.igamma(p, p)|tf.math.igammac(p, p)|tf.math.zeta(p + 1., p)|tf.math.polygamma(1., p)|tf.math.betainc(p, p, p / 9.)
tf.reduce_sum(a)|tf.reduce_sum(a, 0)|tf.reduce_mean(a, 1, keepdims=True)|tf.reduce_max(a, -1)|tf.reduce_min(a)|tf.reduce_prod(a, 1)|tf.reduce_mean(i)|tf.reduce_any(t, 1)|tf.reduce_all(t)|tf.math.reduce_std(a, 0)|tf.math.reduce_variance(a)|tf.reduce_logsumexp(a, 1)|tf.math.reduce_euclidean_norm(a, 1)
tf.argmax(a, 1)|tf.argmin(a)|tf.math.argmax(a, 1, tf.int32)|tf.cumsum(a, 1)|tf.cumsum(a, 1, exclusive=True, reverse=True)|tf.math.cumprod(a, 1, exclusive=True)|tf.math.cumulative_logsumexp(a, 1)|tf.math.count_nonzero(i)|tf.math.zero_fraction(i)|tf.math.top_k(a, 2).values|tf.math.top_k(a, 2).indices|tf.math.in_top_k([0, 2], a, 2)
tf.clip_by_value(a, -.5, .5)|tf.clip_by_norm(a, 1.)|tf.clip_by_norm(a, 1., axes=[1])|tf.clip_by_global_norm([a, b], 1.)[0][1]|tf.linalg.global_norm([a, b])|tf.math.l2_normalize(a, 1)|tf.cast(a, tf.int32)|tf.cast(i, tf.bool)|tf.saturate_cast(a * 200., tf.int8)|tf.math.add_n([a, b, a])|tf.tensordot(a, m, 1)|tf.math.is_nan(a / (b - b))|tf.math.is_finite(a)
tf.math.segment_sum(a, [0, 0])|tf.math.segment_mean(a, [0, 1])|tf.math.unsorted_segment_sum(a, [1, 1], 3)|tf.math.unsorted_segment_mean(a, [1, 1], 3)|tf.math.unsorted_segment_max(a, [1, 0], 2)|tf.math.unsorted_segment_prod(a, [1, 1], 2)|tf.math.unsorted_segment_sqrt_n(a, [1, 1], 2)|tf.math.bincount(i + 5)|tf.math.confusion_matrix([0, 1, 2, 1], [0, 2, 2, 1])|tf.math.polyval([1., 2., 3.], a)|tf.math.real(z)|tf.math.imag(z)|tf.math.conj(z)|tf.math.angle(z)|tf.abs(z)|z * z|tf.math.nextafter(a, b)
tf.linalg.inv(m)|tf.linalg.det(m)|tf.linalg.logdet(m)|tf.linalg.slogdet(m)[1]|tf.linalg.cholesky(m)|tf.linalg.solve(m, tf.transpose(a))|tf.linalg.lstsq(m, tf.transpose(a))|tf.linalg.triangular_solve(m, tf.transpose(a))|tf.linalg.cholesky_solve(tf.linalg.cholesky(m), tf.transpose(a))|tf.linalg.svd(m)[0]|tf.linalg.eigvalsh(m)|tf.linalg.trace(m)|tf.linalg.diag(v)|tf.linalg.diag_part(m)|tf.linalg.set_diag(m, [1., 2., 3.])|tf.linalg.band_part(m, 1, 0)|tf.linalg.expm(m / 9.)|tf.linalg.pinv(a)|tf.linalg.matvec(m, a[0])|tf.linalg.adjoint(m)|tf.norm(a)|tf.norm(a, ord=1, axis=1)|tf.linalg.norm(m, ord='fro', axis=[0, 1])|tf.einsum('ij,kj->ik', a, b)|tf.linalg.cross(a, b)|tf.linalg.matrix_rank(m)|tf.linalg.tensor_diag(v)|tf.linalg.sqrtm(m)
tf.reshape(a, [3, -1])|tf.transpose(x, [0, 3, 1, 2])|tf.expand_dims(a, 1)|tf.squeeze(a[:1])|tf.concat([a, b], -1)|tf.stack([a, b], 1)|tf.unstack(a)[1]|tf.split(v, [2, 3])[1]|tf.tile(a, [2, 1])|tf.repeat(a, 2, axis=0)|tf.pad(a, [[1, 0], [2, 1]])|tf.pad(a, [[1, 0], [2, 1]], 'REFLECT')|tf.pad(a, [[1, 0], [2, 1]], 'SYMMETRIC')|tf.reverse(a, [1])|tf.roll(a, 1, 1)|tf.broadcast_to(v, [2, 5])
tf.gather(a, [2, 0], axis=1)|tf.gather(a, [[0], [2]], axis=1, batch_dims=1)|tf.gather_nd(a, [[0, 1], [1, 2]])|tf.scatter_nd([[1], [3]], [9., 8.], [5])|tf.tensor_scatter_nd_update(a, [[0, 1]], [7.])|tf.tensor_scatter_nd_add(a, [[0], [0]], b)|tf.tensor_scatter_nd_sub(a, [[0, 1]], [7.])|tf.tensor_scatter_nd_min(a, [[0, 1]], [-7.])|tf.where(t, a, b)|tf.where(t)|tf.boolean_mask(a, t)|tf.boolean_mask(x, t[0][:2])
tf.one_hot(i, 3)|tf.one_hot([0, 2], 3, on_value=5, off_value=1, axis=0)|tf.range(1, 10, 3)|tf.range(0., 1., .25)|tf.linspace(0., 1., 5)|tf.eye(2, 3)|tf.fill([2], 4.)|tf.sequence_mask([1, 3], 4)|tf.sort(a, direction='DESCENDING')|tf.argsort(a)|tf.searchsorted(tf.sort(v), a[0])|tf.unique([3, 1, 3])[1]|tf.meshgrid(v, [1., 2.])[0]|tf.shape(x)|tf.size(x)|tf.rank(x)|tf.zeros_like(i)|tf.histogram_fixed_width(a, [-1., 1.], 4)
tf.slice(a, [0, 1], [2, 1])|tf.strided_slice(a, [0, 0], [2, 3], [1, 2])|a[..., ::-1]|a[:, tf.newaxis, 1:]|tf.reverse_sequence(a, [2, 3], seq_axis=1)|tf.space_to_depth(x, 2)|tf.nn.depth_to_space(tf.nn.space_to_depth(x, 2), 2)|tf.space_to_batch(x, [2, 2], [[0, 0], [0, 0]])|tf.bitcast(a, tf.int32)|tf.dynamic_stitch([[0, 2], [1]], [a, b[:1]])|tf.bitwise.bitwise_and(i, 3)|tf.bitwise.left_shift(i + 5, 1)|tf.signal.fft(z)|tf.signal.rfft(a)
tf.nn.relu(a)|tf.nn.relu6(a * 9.)|tf.nn.leaky_relu(a)|tf.nn.elu(a)|tf.nn.selu(a)|tf.nn.gelu(a)|tf.nn.gelu(a, approximate=True)|tf.nn.silu(a)|tf.nn.softplus(a)|tf.nn.softsign(a)|tf.nn.softmax(a)|tf.nn.log_softmax(a, 0)|tf.nn.crelu(a)|tf.nn.bias_add(a, v[:3])|tf.nn.l2_loss(a)|tf.nn.moments(a, [0])[1]|tf.nn.batch_normalization(a, v[:3], p[0], v[:3], v[:3], .01)|tf.nn.local_response_normalization(x, 2)
tf.nn.softmax_cross_entropy_with_logits(tf.nn.softmax(a), b)|tf.nn.sparse_softmax_cross_entropy_with_logits([0, 2], a)|tf.nn.sigmoid_cross_entropy_with_logits(labels=p / 9., logits=a)|tf.nn.weighted_cross_entropy_with_logits(p / 9., a, 2.)|tf.nn.embedding_lookup(m, [0, 2])|tf.nn.embedding_lookup(m, [0, 2], max_norm=1.)
tf.nn.conv2d(x, w, 1, 'SAME')|tf.nn.conv2d(x, w, 2, 'SAME')|tf.nn.conv2d(x, w, 1, 'VALID', dilations=2)|tf.nn.conv2d(x, w, 1, [[0, 0], [2, 1], [0, 1], [0, 0]])|tf.nn.depthwise_conv2d(x, w, [1, 1, 1, 1], 'SAME')|tf.nn.conv2d_transpose(tf.nn.conv2d(x, w, 2, 'SAME'), w, [2, 6, 6, 3], 2)|tf.nn.conv1d(x[:, 0], w[0], 1, 'SAME')|tf.nn.max_pool2d(x, 3, 2, 'SAME')|tf.nn.avg_pool2d(x, 3, 2, 'SAME')|tf.nn.max_pool2d(x, 2, 2, 'VALID')|tf.nn.pool(x, [2, 2], 'AVG')
tf.image.resize(x, [4, 9])|tf.image.resize(x, [4, 9], 'nearest')|tf.image.resize(x, [9, 9], 'lanczos3')|tf.image.flip_up_down(x)|tf.image.rot90(x)|tf.image.central_crop(x, .5)|tf.image.adjust_brightness(x, .2)|tf.image.adjust_contrast(x, 2.)|tf.image.adjust_saturation(x, .5)|tf.image.adjust_hue(x, .1)|tf.image.adjust_gamma(x, 2.)|tf.image.rgb_to_grayscale(x)|tf.image.rgb_to_hsv(x)|tf.image.per_image_standardization(x)|tf.image.total_variation(x)|tf.image.resize_with_crop_or_pad(x, 4, 8)|tf.image.psnr(x, x * .9, 1.)|tf.image.convert_image_dtype(x, tf.uint8)
"""


def expressions():
    """The expressions, one by one."""
    return [e for line in EXPRESSIONS.split("\n") for e in line.split("|") if e]


def values(tf, np):
    """The names that the expressions use."""
    rng = np.random.default_rng(0)
    normal = lambda *shape: rng.normal(size=shape).astype("float32")
    root = normal(3, 3)
    arrays = {
        "a": normal(2, 3),
        "b": normal(2, 3),
        "p": rng.uniform(0.5, 2, (2, 3)).astype("float32"),
        "m": root @ root.T + 3 * np.eye(3, dtype="float32"),
        "v": normal(5),
        "i": rng.integers(-4, 5, (2, 3)).astype("int32"),
        "t": rng.integers(0, 2, (2, 3)).astype(bool),
        "x": rng.uniform(size=(2, 6, 6, 3)).astype("float32"),
        "w": normal(3, 3, 3, 4),
        "z": normal(2, 3) + 1j * normal(2, 3),
    }
    return {name: tf.constant(value) for name, value in arrays.items()} | {"tf": tf}


def gradient(tf, expression, names):
    """Gradients of the sum of squares with respect to the float operands that the expression depends on."""
    watched = [names[n] for n in "abpmvxw"]
    with tf.GradientTape() as tape:
        tape.watch(watched)
        y = eval(expression, dict(names))
        loss = tf.reduce_sum(y * y) if y.dtype == tf.float32 else None
    return None if loss is None else tape.gradient(loss, watched, unconnected_gradients="zero")
