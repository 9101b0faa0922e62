"""List `tf.experimental.numpy` expressions evaluated in TensorFlow (generate_numpy.py).

`a`, `b` are float32 [2, 3] (`a` has negative numbers, `p` is in (0, 1)); `d` float64 [3]; `i` int32
[2, 3]; `k` int8 [3]; `u` uint8 [3]; `t` booleans [2, 3]; `z` complex64 [3]; `n` float32 [2, 3] with
NaN; `s` int64 [5]. Python's operators and methods follow NumPy: the front end's behaviour is
enabled.
"""

_REAL = (
    "absolute abs fabs negative positive square exp exp2 expm1 sin cos tan sinh cosh tanh arctan arcsinh "
    "ceil floor fix round around sign signbit sinc deg2rad rad2deg cbrt isnan isinf isfinite isneginf isposinf "
    "isreal iscomplex reciprocal real imag conj conjugate angle"
)
_UNIT = "arcsin arccos arctanh log log2 log10 log1p sqrt"
_BINARY = (
    "add subtract multiply divide true_divide floor_divide mod remainder power float_power maximum minimum "
    "equal not_equal less less_equal greater greater_equal arctan2 hypot logaddexp logaddexp2 nextafter "
    "heaviside isclose allclose array_equal"
)
_LOGIC = "logical_and logical_or logical_xor"
_BITS = "bitwise_and bitwise_or bitwise_xor gcd lcm"
_REDUCTIONS = "sum prod mean max min amax amin std var ptp any all count_nonzero argmax argmin"

_TEXT = """
tnp.asarray([1, 2])|tnp.asarray(1.5)|tnp.asarray([True])|tnp.asarray(a)|tnp.asarray(i, tnp.float64)|tnp.asarray([a[0], d])|tnp.asarray([1, 2.5])|tnp.asarray(np.float32(1))|tnp.asarray(1j)|tnp.asarray(i, float)
tnp.array([1, 2], ndmin=3)|tnp.array(i, dtype=tnp.int8)|tnp.array([[1.0], [2.0]], dtype='float32')|tnp.asanyarray([1])|tnp.ascontiguousarray([1.0])|tnp.copy(k)
tnp.zeros(3)|tnp.zeros([2], int)|tnp.ones([2, 1])|tnp.ones([2], tnp.float32)|tnp.ones_like([1, 2])|tnp.ones_like(a)|tnp.zeros_like(i)|tnp.zeros_like(i, tnp.float32)|tnp.full(2, 1.5)|tnp.full([2, 2], 3)|tnp.full([2], 3, tnp.float32)|tnp.full([2, 3], d)|tnp.full_like(i, 2.5)|tnp.full_like(a, 2)|tnp.full_like(i, 2.5, dtype=tnp.float64)|tnp.empty([2]) * 0|tnp.empty_like(k) * 0
tnp.eye(2)|tnp.eye(2, 3, 1, tnp.int32)|tnp.identity(2)|tnp.tri(3)|tnp.tri(2, 3, -1, tnp.int32)|tnp.diag_indices(2)
tnp.arange(3)|tnp.arange(3.0)|tnp.arange(1, 7, 2)|tnp.arange(0, 1, 0.25, dtype=tnp.float32)|tnp.arange(5, 0, -2)
tnp.linspace(0, 1, 3)|tnp.linspace(0, 1, 3, retstep=True)|tnp.linspace(0, 1, 3, endpoint=False)|tnp.linspace(0, 1, 3, dtype=tnp.float32)|tnp.logspace(0, 2, 3)|tnp.logspace(0, 2, 3, base=2.0)|tnp.geomspace(1, 100, 3)|tnp.geomspace(1.0, 8.0, 3, endpoint=False)
tnp.meshgrid([1, 2], [3, 4, 5])|tnp.meshgrid([1, 2], [3, 4, 5], indexing='ij')|tnp.ix_([0, 2], [1, 3])|tnp.vander([1, 2, 3])|tnp.vander([1.0, 2.0], 3, increasing=True)
tnp.cumsum(i)|tnp.cumsum(i, 1)|tnp.cumsum(k)|tnp.cumsum(a, 0)|tnp.cumprod(a, 1)|tnp.cumprod(k)|tnp.cumsum(i, dtype=tnp.float32)
tnp.average(a)|tnp.average(a, 1)|tnp.average(i, 0)|tnp.average(a, 0, weights=[1, 3])|tnp.average(i, 1, weights=d)|tnp.average(d, weights=[1, 2, 3], returned=True)
tnp.nansum(n)|tnp.nansum(n, 0)|tnp.nanprod(n, 1)|tnp.nanmean(n)|tnp.nanmean(n, 1, keepdims=True)|tnp.nansum(i)
tnp.diff(s)|tnp.diff(a, 1)|tnp.diff(s, 2)|tnp.diff(a, axis=0)|tnp.sort(s)|tnp.sort(a, 0)|tnp.argsort(s)|tnp.argsort(a, axis=0)
tnp.clip(a, -0.5, 0.5)|tnp.clip(i, 1, 3)|tnp.clip(s, None, 3)|tnp.clip(i, 0.5, 2.5)|tnp.clip(a, b, 1.0)
tnp.where([True, False], 1, 2.0)|tnp.where(t, a, i)|tnp.where(t, a, 0)|tnp.where([True, False, True])|tnp.nonzero(i)|tnp.nonzero([0, 1, 2])|tnp.select([t, a > 0], [i, i * 2], 7)|tnp.select([[True, False]], [[1, 2]], 0.5)|tnp.compress([True, False], a, 0)|tnp.compress([0, 1, 1], d)|tnp.count_nonzero(i, axis=0)
tnp.matmul(a, tnp.transpose(b))|tnp.matmul(i, d)|tnp.matmul(d, d)|tnp.dot(2, 3)|tnp.dot(i, d)|tnp.dot(a, 2.0)|tnp.dot(d, d)|tnp.inner(a, b)|tnp.outer(k, d)|tnp.vdot(z, z)|tnp.tensordot(a, b, [[1], [1]])|tnp.tensordot(a, tnp.transpose(b), 1)|tnp.einsum('ij,kj->ik', a, b)|tnp.einsum('ij,j', i, d)|tnp.kron([1, 2], [1, 1])|tnp.kron(a, i)|tnp.cross([1, 2, 3], [4.0, 5.0, 6.0])|tnp.cross(a, b)|tnp.cross([1, 2], [3, 4])|tnp.trace(a)|tnp.trace(i, 1)|tnp.trace(k + tnp.zeros([3, 3], tnp.int8))|tnp.polyval([1, 2, 3], a)|tnp.polyval([1.0, 2.0], 3)
tnp.reshape(s[:4], (2, 2), order='F')|tnp.reshape(i, -1)|tnp.reshape(i, (3, 2))|tnp.ravel(i)|tnp.flatten(i)|tnp.transpose(i)|tnp.transpose(tnp.ones([2, 3, 4]), (1, 0, 2))|tnp.swapaxes(tnp.ones([2, 3, 4]), 0, 2)|tnp.moveaxis(tnp.ones([2, 3, 4]), 0, -1)|tnp.moveaxis(tnp.ones([2, 3, 4]), (0, 1), (1, 2))|tnp.expand_dims(a, 1)|tnp.squeeze(a[:1])|tnp.squeeze(a[:1], 0)|tnp.broadcast_to(d, [2, 3])|tnp.broadcast_arrays(d, a)
tnp.flip(i)|tnp.flip(i, 1)|tnp.fliplr(i)|tnp.flipud(i)|tnp.rot90(i)|tnp.rot90(i, 3)|tnp.roll(s, 2)|tnp.roll(i, 1, 1)|tnp.roll(i, -1)|tnp.roll(i, (1, 2), (0, 1))
tnp.concatenate([i, a])|tnp.concatenate([i, i], 1)|tnp.concatenate([[1], [2.0]])|tnp.stack([d, k])|tnp.stack([d, d], 1)|tnp.hstack([s, s])|tnp.hstack([a, b])|tnp.vstack([d, d])|tnp.vstack([i, i])|tnp.dstack([i, a])|tnp.append(s, [1.5])|tnp.append(i, i, 0)|tnp.append(i, 7)
tnp.split(s[:4], 2)|tnp.split(i, [1], 1)|tnp.split(s, [1, 3])|tnp.hsplit(i, 3)|tnp.vsplit(i, 2)|tnp.dsplit(tnp.ones([1, 2, 4]), 2)|tnp.tile(i, 2)|tnp.tile(d, [2, 2])|tnp.repeat(i, 2)|tnp.repeat(i, 2, 1)|tnp.repeat(s[:2], [1, 2])|tnp.atleast_1d(3)|tnp.atleast_2d(d)|tnp.atleast_3d(i)|tnp.atleast_1d(1, [2])
tnp.pad(i, [[1, 0], [0, 2]], 'constant')|tnp.pad(i, [[1, 1], [2, 2]], 'constant', constant_values=7)|tnp.pad(i, [[1, 1], [1, 1]], 'reflect')|tnp.pad(a, [[1, 1], [1, 1]], 'symmetric')
tnp.take(s, [0, 5])|tnp.take(s, [0, -1], mode='wrap')|tnp.take(i, [1, 0], axis=1)|tnp.take(i, 4)|tnp.take(i, [[0, 1]], 0)|tnp.take_along_axis(i, tnp.argsort(i, 1), 1)|tnp.take_along_axis(a, [[0], [1]], 1)
tnp.diag(d)|tnp.diag(i)|tnp.diag(d, 1)|tnp.diag(i, -1)|tnp.diagflat(i)|tnp.diagonal(i)|tnp.diagonal(i, 1)|tnp.tril(i)|tnp.triu(i, 1)|tnp.tril(a, -1)|tnp.tril(tnp.ones([2, 3, 3]))
tnp.isscalar(1)|tnp.isscalar(d)|tnp.iscomplexobj(z)|tnp.isrealobj(z)|tnp.ndim(a)|tnp.size(a)|tnp.shape(a)|tnp.divmod(7, 3)|tnp.divmod(a, 0.3)|tnp.bitwise_not(i)|tnp.logical_not(i)|tnp.angle(z, deg=True)|tnp.around(a, 1)|tnp.round(a, 2)|tnp.around(i, -1)|tnp.finfo(tnp.float32).eps|tnp.iinfo(tnp.int8).max|tnp.e|tnp.pi|tnp.inf|tnp.issubdtype(tnp.int8, tnp.inexact)
tnp.result_type(i, 1.5).name|tnp.result_type(tnp.int8, tnp.float32).name|tnp.result_type(a, 1.5).name|tnp.result_type('int8', u).name|str(tnp.promote_types('int8', 'float16'))|tnp.result_type(i, a, z).name
i + a|i + 1|i + 1.5|a + 1.5|a + np.float64(1)|a + np.ones(3)|np.ones(3) + a|1.5 + i|i * True|i / 2|i // 2|a // 0.3|i ** 2|i ** 0.5|2 ** s|2.0 ** a|i @ d|a < 0|i <= a|i == a|i != 1|1 < i|k + u|k + a|k * 1.5|u - k|z + i|z * d|-i|abs(a)|i & 1|t ^ t|~t|i % 2|7 % s[1:]|i - [1, 2, 3]|t + i|k / u|tf.cast(a, tf.bfloat16) + a|tf.cast(a, tf.bfloat16) * k|tf.cast(a, tf.float16) + k|tf.cast(a, tf.float16) + tf.cast(i, tf.int16)|tf.constant(1) + tf.constant(2.0)
i.T|i.reshape(6)|i.reshape(3, 2)|i.reshape((3, 2))|i.reshape([-1])|i.ravel()|i.flatten()|i.astype('float32')|i.astype(tnp.int8)|i.astype(float)|a.astype(tnp.int32)|i.transpose()|i.transpose([1, 0])|i.clip(1, 2)|i.data|i.ndim|i.size|i.max()|i.min(axis=0)|i.mean()|a.mean(1)|i.tolist()|len(i)|a.max(1)|a.min()
i[i > 2]|i[[0, 1], [1, 0]]|i[:, [1]]|i[tf.constant([True, False])]|i[:, tf.constant([True, False, True])]|i[None].shape|i[..., 0]|i[tf.constant([1, 0])]|i[-1]|i[0, 1]|i[:, None, 1:]|i[np.array([0, 1, 1])]|i[[[0], [1]], [0, 2]]|s[s % 2 == 0]|tnp.ones([2, 3, 4])[[0, 1], :, [1, 2]].shape|tnp.ones([2, 3, 4])[:, [0, 1], [1, 2]].shape|s[::-2]|i[1, tf.constant([0, 2])]|s[tf.constant(2)]
"""


def expressions():
    """Every expression."""
    found = []
    for name in _REAL.split():
        found += [
            f"tnp.{name}({x})"
            for x in ("a", "i", "z" if name in "real imag conj conjugate angle" else "d")
        ]
    found += [f"tnp.{name}({x})" for name in _UNIT.split() for x in ("p", "1")]
    found += [f"tnp.{name}(k)" for name in ("sin", "sqrt", "floor", "square", "exp", "round")]
    for name in _BINARY.split():
        found += [
            f"tnp.{name}({x})"
            for x in ("a, b", "a, d", "i, a", "k, a[0]", "i, 2", "i, 1.5", "a, 2")
        ]
        found += [f"tnp.{name}({x})" for x in ("i, i", "k, u + 1", "2, 3")]
    found += [
        f"tnp.{name}({x})" for name in _LOGIC.split() for x in ("t, i", "a, 0", "True, False")
    ]
    found += [
        f"tnp.{name}({x})" for name in _BITS.split() for x in ("i, i", "i, 3", "s, 6", "k, s[:3]")
    ]
    for name in _REDUCTIONS.split():
        found += [f"tnp.{name}({x})" for x in ("a", "i", "a, 0", "i, axis=1", "k")]
        if not name.startswith("arg"):
            found += [f"tnp.{name}(a, axis=1, keepdims=True)"] if name != "count_nonzero" else []
    found += [
        f"tnp.{name}({x})"
        for name in ("sum", "prod", "mean")
        for x in ("u", "t", "i, dtype=tnp.float32", "d, (0,)", "[]")
    ]
    return found + [e for line in _TEXT.strip().split("\n") for e in line.split("|") if e]


def values(tf, np):
    """Return the names available to the expressions."""
    rng = np.random.default_rng(5)
    a, b, p = rng.standard_normal([3, 2, 3]).astype(np.float32)
    n = np.array([[1, np.nan, 3], [4, 5, np.nan]], np.float32)
    arrays = {
        "a": a,
        "b": b,
        "p": np.tanh(np.abs(p)),
        "d": np.array([0.5, -1.25, 2.0]),
        "i": np.array([[3, 1, 2], [-4, 6, 5]], np.int32),
        "k": np.array([1, -2, 3], np.int8),
        "u": np.array([4, 0, 6], np.uint8),
        "t": np.array([[True, False, True], [False, False, True]]),
        "z": np.array([1 + 2j, -1j, 3], np.complex64),
        "n": n,
        "s": np.array([4, 1, 3, 5, 2]),
    }
    return {name: tf.constant(array) for name, array in arrays.items()}


def evaluate(expression, tf, np):
    """The leaves of an expression's value: each its dtype, shape and elements (complex ones as pairs)."""
    tnp = tf.experimental.numpy
    found = eval(expression, {"tf": tf, "np": np, "tnp": tnp, **values(tf, np)})
    return [described(leaf, tf, np) for leaf in tf.nest.flatten(found)]


def described(leaf, tf, np):
    """A leaf as JSON has it."""
    array = np.asarray(leaf.numpy() if tf.is_tensor(leaf) else leaf)
    name = array.dtype.name if array.dtype.kind != "U" else "str"
    if array.dtype.kind == "c":
        array = np.stack([array.real, array.imag], -1)
    if array.dtype.name in ("bfloat16", "float16"):
        array = array.astype(np.float32)
    return [name, list(array.shape), array.ravel().tolist()]
