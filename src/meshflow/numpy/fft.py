"""`tf.experimental.numpy.fft`: NumPy's Fourier transforms on tensors."""

from __future__ import annotations

from jax.numpy import fft as jfft

from meshflow.numpy.jnp_wrappers import wrap_jnp

__all__ = [
    *("fft", "fft2", "fftfreq", "fftn", "fftshift", "hfft", "ifft", "ifft2", "ifftn", "ifftshift"),
    *("ihfft", "irfft", "irfft2", "irfftn", "rfft", "rfft2", "rfftfreq", "rfftn"),
]

fft = wrap_jnp(jfft.fft, floating=True)
ifft = wrap_jnp(jfft.ifft, floating=True)
fft2 = wrap_jnp(jfft.fft2, floating=True)
ifft2 = wrap_jnp(jfft.ifft2, floating=True)
fftn = wrap_jnp(jfft.fftn, floating=True)
ifftn = wrap_jnp(jfft.ifftn, floating=True)
rfft = wrap_jnp(jfft.rfft, floating=True)
irfft = wrap_jnp(jfft.irfft, floating=True)
rfft2 = wrap_jnp(jfft.rfft2, floating=True)
irfft2 = wrap_jnp(jfft.irfft2, floating=True)
rfftn = wrap_jnp(jfft.rfftn, floating=True)
irfftn = wrap_jnp(jfft.irfftn, floating=True)
hfft = wrap_jnp(jfft.hfft, floating=True)
ihfft = wrap_jnp(jfft.ihfft, floating=True)
fftfreq = wrap_jnp(jfft.fftfreq, static=["d"])
rfftfreq = wrap_jnp(jfft.rfftfreq, static=["d"])
fftshift = wrap_jnp(jfft.fftshift)
ifftshift = wrap_jnp(jfft.ifftshift)
