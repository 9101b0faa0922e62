"""`tf.experimental.numpy.fft`: NumPy's Fourier transforms on tensors."""

from __future__ import annotations

from jax.numpy import fft as jfft

from meshflow.numpy.jnp_wrappers import of_jax

__all__ = [
    *(
        "fft",
        "fft2",
        "fftfreq",
        "fftn",
        "fftshift",
        "hfft",
        "ifft",
        "ifft2",
        "ifftn",
    ),
    *(
        "ifftshift",
        "ihfft",
        "irfft",
        "irfft2",
        "irfftn",
        "rfft",
        "rfft2",
        "rfftfreq",
        "rfftn",
    ),
]

fft = of_jax(jfft.fft, floating=True)
ifft = of_jax(jfft.ifft, floating=True)
fft2 = of_jax(jfft.fft2, floating=True)
ifft2 = of_jax(jfft.ifft2, floating=True)
fftn = of_jax(jfft.fftn, floating=True)
ifftn = of_jax(jfft.ifftn, floating=True)
rfft = of_jax(jfft.rfft, floating=True)
irfft = of_jax(jfft.irfft, floating=True)
rfft2 = of_jax(jfft.rfft2, floating=True)
irfft2 = of_jax(jfft.irfft2, floating=True)
rfftn = of_jax(jfft.rfftn, floating=True)
irfftn = of_jax(jfft.irfftn, floating=True)
hfft = of_jax(jfft.hfft, floating=True)
ihfft = of_jax(jfft.ihfft, floating=True)
fftfreq = of_jax(jfft.fftfreq, static=["d"])
rfftfreq = of_jax(jfft.rfftfreq, static=["d"])
fftshift = of_jax(jfft.fftshift)
ifftshift = of_jax(jfft.ifftshift)
