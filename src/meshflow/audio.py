"""`tf.audio`: WAV files."""

from meshflow.ops.audio import decode_wav, encode_wav

__all__ = ["decode_wav", "encode_wav"]
