"""Types of string options that several classes and functions accept."""

from __future__ import annotations

from typing import Literal, TypeAlias

DataFormat: TypeAlias = Literal["channels_first", "channels_last"]
# Borders of convolutions and pools; the case does not matter.
Padding: TypeAlias = Literal["valid", "same", "VALID", "SAME"]
CausalPadding: TypeAlias = Padding | Literal["causal", "CAUSAL"]
# Pixels outside of an image.
FillMode: TypeAlias = Literal["constant", "nearest", "reflect", "wrap"]
# Methods that resize images.
Interpolation: TypeAlias = Literal[
    "bilinear",
    "nearest",
    "bicubic",
    "area",
    "lanczos3",
    "lanczos5",
    "gaussian",
    "mitchellcubic",
]
# Encodings of integers by preprocessing layers, and their former names.
OutputMode: TypeAlias = Literal[
    "int", "one_hot", "multi_hot", "count", "tf_idf", "binary", "tf-idf"
]
# Whether larger or smaller values of a monitored metric are better.
MonitorMode: TypeAlias = Literal["auto", "min", "max"]
SaveFormat: TypeAlias = Literal["keras", "keras_v3", "h5", "hdf5", "tf", "tensorflow"]
# Output of training: none, a progress bar, or one line per epoch.
Verbosity: TypeAlias = Literal["auto"] | int
