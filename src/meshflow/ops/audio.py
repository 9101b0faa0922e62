"""`tf.audio`: WAV files of 16-bit samples, read and written on the host."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import numpy as np

from meshflow.core.convert import convert_to_tensor
from meshflow.core.dispatch import static_value
from meshflow.core.dtypes import float32
from meshflow.core.errors import InvalidArgumentError
from meshflow.core.tensor import Tensor, TensorLike
from meshflow.ops.files import host_bytes

__all__ = ["decode_wav", "encode_wav", "wav_bytes"]

_FORMAT = struct.Struct("<HHIIHH")


class DecodeWav(NamedTuple):
    """A decoded file.

    Attributes:
      audio: float32 [samples, channels], from -1 to 1.
      sample_rate: int32 scalar, samples per second.
    """

    audio: Any
    sample_rate: Any


def decode_wav(
    contents: TensorLike,
    desired_channels: int = -1,
    desired_samples: int = -1,
    name: str | None = None,
) -> DecodeWav:
    """Samples of a WAV file of 16-bit PCM.

    Args:
      contents: the file's bytes.
      desired_channels: how many channels to return, the last one repeated where the file has fewer;
        default (-1) all.
      desired_samples: how many samples to return, with zeros after the end; default (-1) all.
      name: ignored.

    Returns:
      `(audio, sample_rate)`: float32 [samples, channels] from -1 to 1, and an int32 scalar.

    Raises:
      InvalidArgumentError: when the bytes are no such file.

    Example:
      >>> import meshflow as tf
      >>> audio, rate = tf.audio.decode_wav(tf.audio.encode_wav([[0.5], [-1.0]], 8000))
      >>> audio.numpy().tolist(), rate.numpy()
      ([[0.5], [-1.0]], np.int32(8000))
    """
    data = host_bytes(contents, "the content of a WAV file")
    if data.ndim:
        raise InvalidArgumentError(f"contents must be scalar but got shape {list(data.shape)}")
    samples, rate = _read(data.item())
    if desired_channels > 0:
        given = samples.shape[1]
        samples = samples[:, [min(i, given - 1) for i in range(desired_channels)]]
    if desired_samples > 0:
        missing = max(desired_samples - len(samples), 0)
        samples = np.pad(samples[:desired_samples], [(0, missing), (0, 0)])
    audio = samples.astype(np.float32) / np.float32(32768)
    return DecodeWav(convert_to_tensor(audio), convert_to_tensor(np.asarray(rate, np.int32)))


def _read(data: bytes) -> tuple[np.ndarray, int]:
    """The samples [samples, channels] as 16-bit integers, and the rate."""
    if len(data) < 12 or data[:4] != b"RIFF" or data[8:12] != b"WAVE":
        raise InvalidArgumentError(
            "decode_wav: expected a file that begins with RIFF and WAVE, got "
            f"{len(data)} bytes that begin with {data[:12]!r}."
        )
    place, form = 12, None
    while place + 8 <= len(data):
        kind, size = data[place : place + 4], int.from_bytes(data[place + 4 : place + 8], "little")
        body = data[place + 8 : place + 8 + size]
        if kind == b"fmt " and len(body) >= _FORMAT.size:
            form = _FORMAT.unpack_from(body)
        elif kind == b"data" and form is not None:
            coding, channels, rate, _, _, bits = form
            if coding not in (1, 0xFFFE) or bits != 16 or not channels:
                raise InvalidArgumentError(
                    f"decode_wav: can only read 16-bit PCM, got coding {coding} with {bits} bits and "
                    f"{channels} channels."
                )
            if len(body) < size:
                raise InvalidArgumentError(
                    f"decode_wav: data too short: {size} bytes are promised, {len(body)} are there."
                )
            count = len(body) // (2 * channels)
            samples = np.frombuffer(body, "<i2", count * channels)
            return samples.reshape(count, channels), rate
        # Chunks begin at even places.
        place += 8 + size + size % 2
    raise InvalidArgumentError("decode_wav: the file has no chunks of format and data.")


def encode_wav(audio: TensorLike, sample_rate: TensorLike, name: str | None = None) -> Tensor:
    """The bytes of a WAV file of 16-bit PCM.

    Args:
      audio: float32 [samples, channels]; values beyond -1 and 1 are clipped.
      sample_rate: samples per second.
      name: ignored.

    Returns:
      A string scalar.

    Raises:
      InvalidArgumentError: for audio of another rank, or a rate that is not positive.
    """
    samples = convert_to_tensor(audio, dtype_hint=float32)._concrete("audio to be encoded")
    return convert_to_tensor(wav_bytes(np.asarray(samples), int(static_value(sample_rate, "rate"))))


def wav_bytes(samples: np.ndarray, rate: int) -> bytes:
    """`encode_wav` of an array."""
    if samples.ndim != 2:
        raise InvalidArgumentError(f"audio must be 2-dimensional, got shape {list(samples.shape)}")
    if not 0 < rate < 1 << 32:
        raise InvalidArgumentError(f"sample_rate must be in (0, 2^32), got: {rate}")
    scaled = np.rint(samples.astype(np.float32) * np.float32(32768))
    data = np.clip(scaled, -32768, 32767).astype("<i2").tobytes()
    channels = samples.shape[1]
    form = _FORMAT.pack(1, channels, rate, rate * channels * 2, channels * 2, 16)
    parts = b"WAVEfmt " + struct.pack("<I", len(form)) + form
    parts += b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", len(parts)) + parts
