"""`tf.audio`: read and write WAV files with 16-bit samples, on the host."""

from __future__ import annotations

import io
import wave
from typing import NamedTuple

import numpy as np

from meshflow.core.dispatch.shape_probing import vary_sizes
from meshflow.core.runtime.errors import InvalidArgumentError
from meshflow.core.values.convert import convert_to_tensor
from meshflow.core.values.dtypes import float32, int32
from meshflow.core.values.specs import TensorSpec
from meshflow.core.values.tensor import Tensor, TensorLike
from meshflow.ops.deferred_host_values import DeferredValue, defer_host_values
from meshflow.ops.files import add_path_to_errors, to_host_strings

__all__ = ["decode_wav", "encode_wav"]

# The integer that represents a sample of 1.0.
_SCALE = 1 << 15


class DecodeWav(NamedTuple):
    """Audio of a WAV file.

    Attributes:
      audio: float32 [samples, channels], from -1 to 1.
      sample_rate: int32 scalar, samples per second.
    """

    audio: Tensor
    sample_rate: Tensor


def _make_wav_spec(
    contents: DeferredValue,
    desired_channels: int = -1,
    desired_samples: int = -1,
    name: str | None = None,
) -> DecodeWav:
    sizes = [None if n < 0 else n for n in (desired_samples, desired_channels)]
    return DecodeWav(TensorSpec(sizes, float32), TensorSpec([], int32))  # type: ignore[arg-type]


@defer_host_values(_make_wav_spec)
@add_path_to_errors
def decode_wav(
    contents: TensorLike,
    desired_channels: int = -1,
    desired_samples: int = -1,
    name: str | None = None,
) -> DecodeWav:
    """Decode a WAV file with 16-bit samples.

    Args:
      contents: The bytes of the file, a string scalar.
      desired_channels: Number of channels in the result; if the file has fewer, its last channel is
        repeated. The default -1 returns all channels.
      desired_samples: Number of samples in the result; if the file has fewer, silence is appended.
        The default -1 returns all samples.
      name: Ignored.

    Returns:
      `audio`, float32 of shape [samples, channels], and `sample_rate`, an int32 scalar.

    Raises:
      InvalidArgumentError: If the bytes are not a WAV file with 16-bit samples.

    Example:
      >>> sound = tf.audio.encode_wav([[0.0], [0.5]], sample_rate=8000)
      >>> audio, rate = tf.audio.decode_wav(sound)
      >>> audio.numpy().ravel().tolist(), int(rate)
      ([0.0, 0.5], 8000)
    """
    data = to_host_strings(contents, "the contents of a WAV file")
    if data.ndim:
        raise InvalidArgumentError(
            f"decode_wav: contents must be scalar, got shape {list(data.shape)}"
        )
    try:
        with wave.open(io.BytesIO(bytes(data[()]))) as file:
            channels, width, rate, count = file.getparams()[:4]
            frames = file.readframes(count)
    # The `wave` module raises exceptions of many classes for damaged files.
    except Exception as error:
        reason = str(error) or "it is truncated"
        raise InvalidArgumentError(
            f"decode_wav: contents must be a WAV file, but could not be read: {reason}"
        ) from None
    if width != 2:
        raise InvalidArgumentError(
            f"decode_wav: can only read 16-bit WAV files, but received {8 * width}"
        )
    if len(frames) < count * channels * width:
        raise InvalidArgumentError(
            f"decode_wav: data too short: the header declares {count} samples, but the file contains "
            f"{len(frames) // (channels * width)}"
        )
    samples = np.frombuffer(frames, "<i2").reshape(count, channels).astype(np.float32) / _SCALE
    samples = vary_sizes(samples, *([] if desired_samples >= 0 else [0]))
    if desired_channels >= 0:
        samples = samples[:, np.minimum(np.arange(desired_channels), channels - 1)]
    if desired_samples >= 0:
        missing = max(desired_samples - count, 0)
        samples = np.pad(samples[:desired_samples], [(0, missing), (0, 0)])
    return DecodeWav(Tensor(np.ascontiguousarray(samples)), convert_to_tensor(rate, dtype="int32"))


def encode_wav(audio: TensorLike, sample_rate: TensorLike, name: str | None = None) -> Tensor:
    """Encode audio as a WAV file with 16-bit samples.

    Args:
      audio: float32 of shape [samples, channels]; values are clipped to [-1, 1].
      sample_rate: Samples per second.
      name: Ignored.

    Returns:
      The bytes of the file, a string scalar.

    Raises:
      InvalidArgumentError: If the rank of `audio` is not 2.

    Example:
      >>> wav = tf.audio.encode_wav([[0.0], [0.5], [-0.5]], sample_rate=8000)
      >>> sound, rate = tf.audio.decode_wav(wav)
      >>> sound[:, 0].numpy().round(3).tolist(), rate.numpy().item()
      ([0.0, 0.5, -0.5], 8000)
    """
    array = convert_to_tensor(audio, dtype="float32").require_value("audio to encode")
    if array.ndim != 2:
        raise InvalidArgumentError(
            f"encode_wav: audio must be 2-dimensional, got shape {list(array.shape)}"
        )
    # TensorFlow rounds halves away from zero.
    scaled = np.trunc(array * _SCALE + np.copysign(np.float32(0.5), array))
    samples = np.clip(scaled, -_SCALE, _SCALE - 1).astype("<i2")
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        rate = int(convert_to_tensor(sample_rate).require_value("a sample rate"))
        file.setparams((array.shape[1], 2, rate, len(samples), "NONE", ""))
        file.writeframes(samples.tobytes())
    return convert_to_tensor(buffer.getvalue())
