"""List `tf.experimental.numpy` expressions that TensorFlow lacks; NumPy computes their values.

They use the names of numpy_expressions.py.
"""

_TEXT = """
tnp.fmod(a, 0.3)|tnp.modf(d)|tnp.frexp(d)|tnp.ldexp(d, [1, 2, 3])|tnp.fmax(n, 2.0)|tnp.fmin(n, 2.0)|tnp.copysign(d, -1.0)|tnp.spacing(d)|tnp.trunc(d)|tnp.rint(d)|tnp.pow(d, 2)
tnp.asin(p)|tnp.acos(p)|tnp.atan(a)|tnp.atan2(a, b)|tnp.asinh(a)|tnp.acosh(1 + p)|tnp.arccosh(1 + p)|tnp.atanh(p)|tnp.radians(d)|tnp.degrees(d)|tnp.i0(d)|tnp.unwrap(d * 5)
tnp.bitwise_left_shift(s, 2)|tnp.left_shift(s, 1)|tnp.bitwise_right_shift(s, 1)|tnp.right_shift(s, 2)|tnp.invert(s)|tnp.bitwise_invert(s)|tnp.bitwise_count(s)|tnp.nan_to_num(n)|tnp.nan_to_num(n, nan=7.0)|tnp.array_equiv(d, [d, d])
tnp.nancumsum(n, 1)|tnp.nancumprod(n, 1)|tnp.cumulative_sum(s)|tnp.cumulative_prod(s)|tnp.cumsum(t, 1)|tnp.nanmax(n)|tnp.nanmin(n, 0)|tnp.nanargmax(n, 1)|tnp.nanargmin(n)|tnp.nanstd(n)|tnp.nanvar(n, 0)|tnp.std(d, ddof=1)|tnp.sum(a, axis=1, where=a > 0)
tnp.median(i, 1)|tnp.nanmedian(n)|tnp.quantile(d, 0.3)|tnp.quantile(i, [0.1, 0.9], axis=1)|tnp.nanquantile(n, 0.5)|tnp.percentile(s, 30)|tnp.nanpercentile(n, [20, 50], axis=1)|tnp.cov(i)|tnp.corrcoef(i)|tnp.histogram(s, 3)|tnp.histogram(d, bins=4, range=(-2, 2))|tnp.histogram(s, [0, 2, 6], weights=s)
tnp.vecdot(a, b)|tnp.matvec(i, d)|tnp.vecmat(d[:2], i)|tnp.convolve(d, [1, 2])|tnp.convolve(d, [1.0, 2.0], 'same')|tnp.correlate(d, [1.0, 2.0])|tnp.ediff1d(s)|tnp.interp([0.5, 2.5], [0, 1, 2, 3], s[:4])|tnp.interp(2.5, s[1:3], d[:2])|tnp.trapezoid(d)|tnp.trapezoid(i, dx=0.5, axis=0)
tnp.polyadd(d, s)|tnp.polysub(s, d)|tnp.polymul(d, [1, 2])|tnp.polyder(d)|tnp.polyint(s, 2)|tnp.polyfit([0.0, 1.0, 2.0], d, 1)|tnp.poly([1.0, 2.0])
tnp.permute_dims(i)|tnp.matrix_transpose(i)|tnp.rollaxis(tnp.ones([2, 3, 4]), 2)|tnp.resize(i, (3, 4))|tnp.concat([i, i], axis=None)|tnp.concat([d, s])|tnp.column_stack([d, s[:3]])|tnp.insert(s, 1, 9)|tnp.delete(s, [0, 2])|tnp.delete(i, 1, 1)|tnp.array_split(s, 3)|tnp.unstack(i, axis=1)|tnp.flip(i, (0, 1))|tnp.repeat(i, [1, 0, 2], axis=1)
tnp.pad(s, 2, 'edge')|tnp.pad(s, (1, 2), 'wrap')|tnp.pad(d, 1, 'linear_ramp', end_values=4)|tnp.choose([1, 0, 1], [d, s[:3]])|tnp.searchsorted([1, 2, 4], [0, 2, 3])|tnp.searchsorted([1.0, 2.0], [1.5], side='right')|tnp.choose([1, 3, 1], [d, s[:3]], mode='clip')|tnp.digitize(d, [0.0, 1.0])|tnp.isin(s, [1, 2])|tnp.take_along_axis(i, s[:2, None] % 3, axis=1)
tnp.sort_complex(z)|tnp.partition(s, 2)[2]|s[tnp.argpartition(s, 1)[1]]|tnp.lexsort([s, s % 2])|tnp.sort(i, None)|tnp.packbits(t)|tnp.unpackbits(u)|tnp.unravel_index(s, (2, 3))|tnp.ravel_multi_index(([0, 1], [2, 1]), (2, 3))
tnp.linspace([0, 1], [1, 3], 3)|tnp.linspace([0, 1], [1, 3], 3, axis=1)|tnp.bartlett(5)|tnp.blackman(5)|tnp.hamming(4)|tnp.hanning(4)|tnp.kaiser(5, 3.0)|tnp.indices((2, 3))|tnp.indices((2, 3), sparse=True)|tnp.tril_indices(3)|tnp.triu_indices(2, 1, 3)|tnp.fromfunction(lambda x, y: x + 2 * y, (2, 3))
tnp.flatnonzero(t)|tnp.argwhere(t)|tnp.extract(t, i)|tnp.unique(s % 3)|tnp.unique(s % 3, return_inverse=True, return_counts=True)|tnp.unique(i % 2, axis=0)|tnp.bincount(s)|tnp.bincount(s, minlength=8, weights=s / 2)|tnp.intersect1d(s, [1, 2, 9])|tnp.union1d(s, [9, 1])|tnp.setdiff1d(s, [1, 2])|tnp.setxor1d(s, [1, 9])|tnp.trim_zeros(s * [0, 1, 0, 2, 0])|tnp.trim_zeros(s * [0, 1, 0, 0, 0], 'f')|tnp.trim_zeros(s * 0)
tnp.can_cast('int32', 'float32')|tnp.can_cast('int32', 'int8', casting='same_kind')|tnp.size(a, 1)|tnp.nan|tnp.zeros(())|tnp.atleast_1d(d, 2)
tnp.linalg.det(i[:, :2])|tnp.linalg.inv(a[:, :2])|tnp.linalg.solve(i[:, :2], [1, 2])|tnp.linalg.norm(a)|tnp.linalg.norm(i, axis=1)|tnp.linalg.norm(d, 1)|tnp.linalg.cholesky([[2.0, 1.0], [1.0, 2.0]])|tnp.linalg.eigh([[2.0, 1.0], [1.0, 2.0]])[0]|tnp.linalg.eigvalsh([[2.0, 1.0], [1.0, 2.0]])|tnp.linalg.matrix_power(i[:, :2], 3)|tnp.linalg.matrix_rank(i)|tnp.linalg.multi_dot([a, b.T, a])|tnp.linalg.pinv(i)|tnp.linalg.slogdet(i[:, :2])|tnp.linalg.svd(d[None] * d[:, None])[1]|abs(tnp.linalg.qr(i)[1])|tnp.linalg.lstsq(a.T, d)[0]|tnp.linalg.cond(a)|tnp.linalg.cross(d, d + 1)|tnp.linalg.tensorinv(tnp.eye(4).reshape(2, 2, 4))|tnp.linalg.tensorsolve(tnp.eye(4).reshape(4, 2, 2), s[:4])|abs(tnp.linalg.eigvals([[0.0, 1.0], [-1.0, 0.0]]))|abs(tnp.linalg.eig([[0.0, 1.0], [-1.0, 0.0]])[0])
tnp.fft.fft(d)|tnp.fft.ifft(z)|tnp.fft.rfft(d)|tnp.fft.irfft(z)|tnp.fft.fft2(a)|tnp.fft.ifft2(a)|tnp.fft.fftn(a)|tnp.fft.ifftn(a)|tnp.fft.rfft2(a)|tnp.fft.irfft2(a)|tnp.fft.rfftn(a)|tnp.fft.irfftn(a)|tnp.fft.hfft(z)|tnp.fft.ihfft(d)|tnp.fft.fftfreq(5)|tnp.fft.rfftfreq(4, d=0.5)|tnp.fft.fftshift(s)|tnp.fft.ifftshift(s)
i.sum()|i.sum(axis=1)|i.prod()|d.std()|d.var()|i.cumsum()|d.cumprod()|i.argmax(axis=1)|i.argmin()|t.any()|t.all(axis=0)|i.ptp() if hasattr(i, 'ptp') else i.max() - i.min()|d.round()|i.squeeze()|i.swapaxes(0, 1)|s.repeat(2)|s.take([0, 1])|i.dot(d)|i.diagonal()|i.trace()|i.nonzero()|s.argsort()|d.copy()|z.conj()|z.real|z.imag|i.itemsize|i.nbytes|s.item(1)
"""


def expressions():
    """Every expression."""
    return [e for line in _TEXT.strip().split("\n") for e in line.split("|")]
