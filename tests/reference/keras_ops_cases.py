"""`keras.ops` that Keras 3 computed once (generate_keras_ops.py).

`a`, `b` are float32 [2, 3]; `i` int32 [2, 3]; `j` int8 [2, 3]; `t` booleans [2, 3]; `v` a row of float32 [5], `u` one with NaN;
`c` complex64 [3]; `s` a symmetric positive definite matrix [3, 3]; `x` images [2, 6, 5, 4]; `g` float32 images [1, 6, 7, 3] from 0 to 1.
"""

EXPRESSIONS = """
abs(a)|abs(i)|absolute(a)|fabs(i)|negative(i)|sign(a)|sign(i)|square(j)|square(a)|conj(c)|conjugate(c)|real(c)|imag(c)|angle(c)
sqrt(i * i)|rsqrt(a * a + 1)|cbrt(a)|cbrt(i)|reciprocal(a)|exp(a)|exp(i)|exp2(a)|expm1(a)|log(abs(a))|log1p(abs(a))|log2(abs(a))|log10(abs(a))
sin(a)|cos(i)|tan(a)|arcsin(a / 9)|arccos(a / 9)|arctan(a)|sinh(a)|cosh(a)|tanh(a)|arcsinh(a)|arccosh(abs(a) + 1)|arctanh(a / 9)|sinc(a)|i0(a)
erf(a)|erfc(a)|erfinv(a / 9)|deg2rad(a)|rad2deg(i)|ceil(a)|ceil(i)|floor(a)|floor(i)|trunc(a)|trunc(i)|round(a * 9, 1)|round(i)
isfinite(u)|isinf(u)|isnan(u)|isneginf(u)|isposinf(u)|isreal(c)|signbit(a)|logical_not(t)|logical_not(i)|bitwise_invert(i)|bitwise_not(j)
add(a, b)|add(i, 1)|add(i, 1.5)|add(j, i)|add(j, 1)|add(i, a)|subtract(a, i)|multiply(i, 2.0)|divide(i, i + 9)|divide(a, 2)|true_divide(j, 2)|divide_no_nan(a, i * 0)
power(a, 2)|power(i, 2)|power(abs(a), b)|maximum(a, i)|minimum(i, 1)|fmax(u, 0.0)|fmin(u, 0.0)|mod(i, 4)|mod(a, 0.3)|fmod(a, 0.3)|floor_divide(i, 2)|floor_divide(a, 0.3)
arctan2(a, b)|hypot(a, b)|hypot(i, i)|logaddexp(a, b)|logaddexp2(a, b)|heaviside(a, 0.5)|nextafter(a, b)|gcd(i, 6)|lcm(i, 6)
equal(a, b)|equal(i, 1.0)|not_equal(i, 1)|greater(a, 0)|greater_equal(a, b)|less(i, a)|less_equal(i, 2)|logical_and(t, a > 0)|logical_or(i, t)|logical_xor(t, True)
bitwise_and(i, 6)|bitwise_or(i, j)|bitwise_xor(i, 3)|bitwise_left_shift(i, 2)|left_shift(j, 1)|bitwise_right_shift(i, 1)|right_shift(i, 1)
cast(a, 'int32')|cast(i, 'float16')|cast(t, 'float32')|saturate_cast(a * 200, 'uint8')|clip(a, -0.5, 0.5)|clip(i, 1, 3)|nan_to_num(u)|nan_to_num(u, 1.0, 2.0, -3.0)|isclose(a, a + 1e-7)|allclose(a, b)
ldexp(a, i)|polar(abs(a), b)|view(i, 'float32')|view_as_complex(stack([a, b], -1))|view_as_real(c)
sum(a)|sum(i, 0)|sum(j)|sum(t, 1)|mean(i)|mean(a, 0, keepdims=True)|mean(t)|var(a)|var(i, 1)|std(a, 0)|std(j)|all(t)|all(i, 1)|any(t, 0)|any(a)|ptp(a, 1)|ptp(i)
max(a)|max(i, 0)|max(t)|max(a, 1, initial=9.0)|min(a)|min(i, 1, keepdims=True)|min(a, initial=-9.0)|amax(a, 0)|amin(i)|prod(a, 1)|prod(i)|prod(j)|logsumexp(a)|logsumexp(a, 1, True)
median(a)|median(i, 0)|median(a, 1, keepdims=True)|nansum(u)|nanprod(u)|nanmean(u)|nanvar(u)|nanstd(u)|nanmax(u)|nanmin(u)|nanmedian(u)|nanquantile(u, 0.4)|nanpercentile(u, 40)
argmax(a)|argmax(a, 1)|argmin(i, 0, keepdims=True)|nanargmax(u)|nanargmin(u)|count_nonzero(i)|count_nonzero(t, 0)|cumsum(a, 1)|cumsum(i)|cumsum(t)|cumsum(j, 0)|cumprod(a, 0)|nancumsum(u[:3])|nancumprod(u[:3])
quantile(a, 0.3)|quantile(a, [0.2, 0.7], 1)|quantile(i, 0.5)|quantile(a, 0.3, method='lower')|percentile(a, 30, 0)|average(a)|average(a, 1, weights=[1.0, 2.0, 3.0])|average(i, 0)|corrcoef(a)
bincount(abs(i))|bincount([1, 2, 2], minlength=5)|bincount([1, 2, 2], weights=[0.5, 1.0, 2.0])|digitize(a, [-0.5, 0.0, 0.5])|digitize(i, [1, 3])|searchsorted([1.0, 2.0, 3.0], [2.0, 2.5])|searchsorted([1, 2, 3], [2, 3], 'right')
histogram(v, 4)|histogram(i[0], 3, (0, 6))|trapezoid(a)|trapezoid(a, dx=0.5, axis=0)|trapezoid(v, x=v * v)|trapezoid(i)
array([1, 2])|array([1.5], 'float16')|copy(a)|zeros([2])|zeros([2], 'int32')|ones((2, 1))|full([2], 3)|full([2], 3.5, 'int32')|full((2, 2), [1, 2])|zeros_like(i)|ones_like(i, 'float32')|full_like(a, 2)
arange(4)|arange(1, 7, 2)|arange(0.0, 1.0, 0.25)|arange(3, dtype='float32')|arange(5, 1, -1)|linspace(0, 1, 5)|linspace(1.0, 2.0, 4, endpoint=False)|linspace(0, 1, 3, retstep=True)|linspace(array([0.0, 1.0]), array([1.0, 3.0]), 3, axis=1)|logspace(0, 2, 4)|geomspace(1, 100, 3)
eye(3)|eye(3, dtype='int32')|identity(2)|tri(3)|tri(2, 4, 1, 'int32')|bartlett(5)|blackman(5)|hamming(5)|hanning(5)|kaiser(5, 4.0)|meshgrid(v, v[:2])|meshgrid(v, v[:2], indexing='ij')|vander(v)|vander(v, 3, True)|vander(i[0])
reshape(a, [3, 2])|reshape(a, -1)|ravel(a)|transpose(a)|transpose(x, [0, 2, 1, 3])|moveaxis(x, 1, -1)|moveaxis(x, [0, 1], [-1, -2])|swapaxes(x, 0, 2)|expand_dims(a, 1)|expand_dims(a, (0, 2))|squeeze(ones([1, 2, 1]))|squeeze(ones([1, 2, 1]), 0)|broadcast_to(v, [2, 5])
concatenate([a, b])|concatenate([a, i], 1)|append(a, b)|append(a, b, 0)|stack([a, b], 1)|stack([i, a])|vstack([a, b])|hstack([a, b])|hstack([v, v])|dstack([a, b])|dstack([v, v])
split(a, 3, 1)|split(v, [1, 3])|array_split(v, 2)|array_split(v, 3)|vsplit(a, 2)|hsplit(a, 3)|hsplit(v, 5)|dsplit(x[0], 2)|repeat(a, 2)|repeat(a, 2, 0)|repeat(v, [1, 0, 2, 1, 1])|tile(a, 2)|tile(v, [2, 2])
pad(a, ((1, 1), (1, 1)))|pad(a, [[0, 1], [2, 0]])|pad(v, 2, 'reflect')|pad(v, 2, 'symmetric')|pad(i, ((1, 1), (1, 1)), constant_values=7)|flip(a)|flip(a, 1)|fliplr(a)|flipud(a)|rot90(a)|rot90(a, 3)|rot90(x, 1, (1, 2))|roll(a, 1)|roll(a, 2, 1)
diag(v)|diag(a, 1)|diagflat(a)|diagonal(a)|diagonal(x, 0, 1, 2)|diagonal(a, 1)|trace(a)|trace(i)|trace(j, 1)|tril(a)|triu(a, 1)|tril(i, -1)|diff(v)|diff(a, 1, 0)|diff(v, 2)
take(a, [0, 2], 1)|take(a, [0, -1])|take(v, [[1, 2], [3, -4]])|take_along_axis(a, [[1], [0]], 1)|take_along_axis(a, argsort(a, 1), 1)|get_item(a, (0, slice_of(1, 3)))|where(t, a, b)|where(t, 1, 0)|where(t, i, 0.5)|where(t)|nonzero(i)|select([a > 0, b > 0], [a, b], 9.0)
isin(i, [1, 3])|isin(i, [1, 3], invert=True)|sort(a)|sort(a, 0)|argsort(a)|argsort(i, 0)|argsort(a, None)|size(x)|ndim(x)|shape(x)|unravel_index([5, 7], (2, 6))|unique([3, 1, 3, 2])|unique([3, 1, 3], return_index=True, return_inverse=True, return_counts=True)
rearrange(x, 'b (h p) w c -> b h (w c) p', p=2)|rearrange(x, 'b h w c -> b c h w')
matmul(a, transpose(b))|matmul(i, transpose(i))|matmul(j, transpose(j))|matmul(i, transpose(a))|dot(a, transpose(b))|dot(v, v)|dot(x, transpose(b)[:1] * ones([4, 1]))|inner(a, b)|outer(v, v)|outer(a, i)|vdot(a, b)|kron(a, b)|cross(a, b)|cross(i, i + 1)
tensordot(a, b, [[1], [1]])|tensordot(a, transpose(b), 1)|tensordot(i, i, 2)|einsum('ij,kj->ik', a, b)|einsum('ij->ji', i)|einsum('bhwc,c->bhw', x, v[:4])|correlate(v, v[:3])|correlate(v, v[:2], 'same')|correlate(v, v[:2], 'full')|cdist(a, b)
cholesky(s)|cholesky(s, upper=True)|cholesky_inverse(cholesky(s))|det(s)|slogdet(s)|logdet(s)|eigh(s)[0]|inv(s)|pinv(a)|lu_factor(s)[0]|matrix_rank(s)|matrix_rank(a)|abs(qr(s)[0])|abs(qr(a, 'complete')[1])|svd(s, compute_uv=False)|abs(svd(a, False)[2])|linalg.eig(s)[0]
norm(a)|norm(a, 1, 1)|norm(a, 'fro')|norm(a, 'nuc')|norm(i)|norm(a, axis=1, keepdims=True)|norm(v, 3)|norm(s, 2)|solve(s, v[:3])|solve(s, s)|solve_triangular(s, v[:3], lower=True)|solve_triangular(s, s)|lstsq(transpose(a), v[:3])
jvp(lambda q: q * q, (a,), (b,))
relu(a)|relu(i)|relu6(a * 9)|sigmoid(a)|log_sigmoid(a)|softplus(a)|softsign(a)|silu(a)|swish(a)|selu(a)|hard_sigmoid(a * 9)|hard_silu(a * 9)|hard_swish(a)|hard_tanh(a * 9)|tanh_shrink(a)|sparse_plus(a * 2)|sparse_sigmoid(a * 2)
elu(a)|elu(a, 0.5)|celu(a)|celu(a, 0.5)|gelu(a)|gelu(a, False)|leaky_relu(a)|leaky_relu(a, 0.3)|glu(x)|threshold(a, 0.1, -1.0)|hard_shrink(a, 0.3)|soft_shrink(a, 0.3)|squareplus(a)|squareplus(a, 2)
softmax(a)|softmax(a, 0)|softmax(x, (1, 2))|softmax(a, None)|log_softmax(a)|log_softmax(x, (1, 3))
one_hot([1, 2, -1], 3)|one_hot(i, 6, axis=1)|one_hot([0], 2, dtype='int32')|multi_hot(array([0, 4]), 5)|multi_hot(array([[0, 1], [2, 2]]), 4)
binary_crossentropy(cast(t, 'float32'), sigmoid(a))|binary_crossentropy(cast(t, 'float32'), a, from_logits=True)|categorical_crossentropy(softmax(b), softmax(a))|categorical_crossentropy(softmax(b), a, True)|sparse_categorical_crossentropy([0, 2], softmax(a))|sparse_categorical_crossentropy([0, 2], a, True)
moments(x, [0, 1])|moments(a, 1, keepdims=True)|batch_normalization(x, v[:4], abs(v[:4]), -1)|batch_normalization(x, v, abs(v), 2, v, v, 0.1)|layer_normalization(a)|layer_normalization(x, v[:4], v[:4])|layer_normalization(x, axis=(1, 2))|rms_normalization(a)|rms_normalization(x, v[:4])|normalize(a)|normalize(a, 0, 1)|normalize(a, 1, 3)|psnr(a, b, 2.0)
dot_product_attention(x, x, x)|dot_product_attention(x, x, x, is_causal=True)|dot_product_attention(x, x, x, bias=ones([1, 5, 6, 6]) * 0.5, mask=reshape(arange(36) > 5, [1, 1, 6, 6]))
ctc_loss([[1, 2], [2, 0]], transpose(x[..., 0], [0, 2, 1]), [2, 1], [5, 4])|ctc_decode(transpose(x[..., 0], [0, 2, 1]), [5, 4])[0]|depth_to_space(x, 2)|space_to_depth(x[:, :4, :4], 2)
max_pool(x, 2)|max_pool(x, (2, 1), 1, 'same')|average_pool(x, 2)|average_pool(x, 3, 2, 'same')|max_pool(x[0], 2)|adaptive_average_pool(x, 3)|adaptive_max_pool(x, (2, 3))
conv(x, ones([3, 3, 4, 2]), 2, 'same')|conv(x, ones([2, 2, 4, 3]), dilation_rate=2)|conv(x, ones([2, 2, 2, 4]))|conv(x[0], ones([3, 4, 2]), padding='valid')|depthwise_conv(x, ones([2, 2, 4, 3]))|depthwise_conv(x, ones([3, 3, 4, 1]), 2, 'same')|separable_conv(x, ones([2, 2, 4, 1]), ones([1, 1, 4, 2]))
conv_transpose(x, ones([3, 3, 2, 4]), 2)|conv_transpose(x, ones([3, 3, 2, 4]), 2, 'same')|conv_transpose(x, ones([2, 2, 2, 4]), 2, 'valid', 1)|conv_transpose(x, ones([3, 3, 2, 4]), 2, 'same', 1)|conv_transpose(x, ones([2, 2, 2, 4]), 3)
unfold(x, 2)|unfold(x, (2, 3), 1, 1, 2)|fold(unfold(x, 2), (5, 4), 2)|fold(unfold(x, 2, 1, 1, 2), (5, 4), 2, 1, 1, 2)
top_k(a, 2)|top_k(i, 1)|in_top_k([0, 2], a, 2)|segment_sum(a, array([1, 0]), 3)|segment_max(v, array([0, 0, 2, 2, 2]), 3)|segment_min(v, array([0, 0, 1, 1, 1]))|segment_prod(v, array([1, 0, 1, 0, 1]), 2)
fft((a, b))|fft2((a, b))|ifft2((a, b))|rfft(v)|rfft(v, 8)|irfft(rfft(v), 5)|irfft((v, v))|extract_sequences(v, 3, 2)|stft(v, 3, 2, 4)|stft(v, 4, 1, 4, None, False)|stft(v, 4, 2, 4, 'hamming')
cond(True, lambda: 1, lambda: 2)|switch(2, [lambda q: q, lambda q: q * 2], array(3))|while_loop(lambda q, w: q < 5, lambda q, w: (q + 1, w * 2), (0, 1.0))|while_loop(lambda q: q < 9, lambda q: (q + 2,), (0,), maximum_iterations=2)|fori_loop(1, 4, lambda n, q: q * n, 1)|scan(lambda c, q: (c + q, c * q), 0.0, v)|scan(lambda c, q: (c + q, c), 0.0, v, reverse=True)|scan(lambda c, q: (c + 1, c), 0, length=3)
associative_scan(lambda p, q: p + q, v)|associative_scan(lambda p, q: p * q, a, axis=1)|associative_scan(lambda p, q: p + q, v, reverse=True)|map(lambda q: q * 2, a)|vectorized_map(lambda q: q + 1, v)
scatter([[0], [2]], [1.0, 2.0], [4])|scatter_update(a, [[0, 1], [1, 2]], [9.0, 8.0])|scatter_update(v, [[0], [0]], [1.0, 2.0], 'add')|scatter_update(v, [[1]], [9.0], 'max')|slice(a, [0, 1], [2, 2])|slice_update(a, [1, 1], [[5.0, 6.0]])|unstack(a)|unstack(a, axis=1)|dtype(a)|is_tensor(a)|stop_gradient(a)|convert_to_tensor([1, 2], 'float32')|convert_to_tensor(v, 'int32')
image.resize(g, (3, 4))|image.resize(g, (9, 9), 'nearest')|image.resize(g, (3, 3), crop_to_aspect_ratio=True)|image.resize(g, (8, 8), pad_to_aspect_ratio=True, fill_value=0.5)|image.resize(g, (4, 4), 'bicubic')|image.resize(cast(g * 255, 'uint8'), (3, 4))|image.rgb_to_grayscale(g)|image.rgb_to_hsv(g)|image.hsv_to_rgb(g)
image.pad_images(g, 1, 2, 3, 4)|image.pad_images(g, 1, 0, target_height=9, target_width=9)|image.crop_images(g, 1, 2, 1, 1)|image.crop_images(g, 1, 1, target_height=3, target_width=4)|image.extract_patches(g, 2)|image.extract_patches(g, (2, 3), 1, padding='same')|image.sobel_edges(g)|image.gaussian_blur(g)|image.gaussian_blur(g, (3, 3), (0.7, 1.1))
image.map_coordinates(a, [[0.5, 1.0], [0.2, 3.5]], 1)|image.map_coordinates(v, [[0.6, 5.5]], 0, 'nearest')|image.map_coordinates(v, [[-1.3, 5.5]], 1, 'wrap')|image.affine_transform(g, array([1.1, 0.1, -1.0, -0.2, 0.9, 1.0, 0.0, 0.0]))|image.affine_transform(g, array([1.0, 0.0, 0.6, 0.0, 1.0, 0.4, 0.01, 0.0]), 'nearest')|image.perspective_transform(g, [[0.0, 0.0], [6.0, 0.0], [0.0, 5.0], [6.0, 5.0]], [[1.0, 0.0], [6.0, 1.0], [0.0, 4.0], [5.0, 5.0]])
image.scale_and_translate(a, (4, 5), [2.0, 1.5], [0.0, 0.5], (0, 1), 'linear')
sum([1, 2], 5)|reshape(a, [4])|concatenate([a, v])|split(a, 2, 1)|one_hot([1], None)|qr(s, 'raw')|softmax(a, 3)|glu(a)|diag(x)|max_pool(x, (2, 2, 2))|image.resize(a, (2, 2))
quantile(a, [[0.1, 0.2]], 1)|round(i * 15, -1)|round(j * 5, -1)|meshgrid(a, v[:2])|convert_to_tensor([1, 0], 'bool')|linspace(0, 1, 4, False, True, 'float16')|tensordot(j, j, 2)|cholesky(-s)|moveaxis(a, 0, 5)|swapaxes(a, 0, 4)|split(v, 0)
arctan2(cast(a, 'float16'), 2.5)|cbrt(cast(i, 'int64'))|hypot(i, cast(i, 'int64'))|deg2rad(i)|var(c)|add(cast(v[:3], 'float64'), c)|argsort(2)|fori_loop(0, 3, lambda n, q: q + n, a)|convert_to_numpy(3)|clip(a, 2, 1)|angle(-1.0)|image.rgb_to_grayscale(cast(g * 255, 'uint8'))|max(zeros([0, 3]))|amin(zeros([0]))|max(zeros([0, 3]), 0, initial=2.0)|take(v, 1.0)|fabs(c)|view_as_complex(a)|image.gaussian_blur(g, 3)
"""


def expressions():
    """Every expression."""
    return [e for line in EXPRESSIONS.strip().splitlines() for e in line.split("|")]


def values(np):
    """The arrays that expressions name."""
    r = np.random.RandomState(7)
    draw = lambda *shape: r.uniform(-1, 1, shape).astype("float32")
    a, b, v, x = draw(2, 3), draw(2, 3), draw(5), draw(2, 6, 5, 4)
    u = v.copy()
    u[[1, 3]] = np.nan, np.inf
    root = draw(3, 3)
    return {
        "a": a,
        "b": b,
        "i": np.array([[1, 2, 3], [0, 5, 4]], "int32"),
        "j": np.array([[1, -2, 3], [0, 5, 4]], "int8"),
        "t": np.array([[True, False, True], [False, False, True]]),
        "v": v,
        "u": u,
        "c": (draw(3) + 1j * draw(3)).astype("complex64"),
        "s": root @ root.T + np.eye(3, dtype="float32"),
        "x": x,
        "g": r.uniform(0, 1, (1, 6, 7, 3)).astype("float32"),
    }


def evaluate(expression, ops, np):
    """The result of an expression as a list of arrays, or the exception that it raised."""
    names = {n: getattr(ops, n) for n in dir(ops) if not n.startswith("_")}
    names |= {k: ops.convert_to_tensor(v) for k, v in values(np).items()}
    names["slice_of"] = slice
    try:
        result = eval(expression, {}, names)
        return [np.asarray(part) for part in flat(result)]
    except Exception as error:
        return error


def flat(result):
    """The leaves of nested lists and tuples."""
    if isinstance(result, (list, tuple)):
        return [leaf for part in result for leaf in flat(part)]
    return [] if result is None else [result]
