"""Test damaged descriptors of convolutions and products, found by libFuzzer: each raises an error
and does not crash."""

import ctypes

import numpy as np
import pytest

from meshflow.kernels import descriptors, library

# A convolution of one pixel: spatial rank, groups, sizes and strides of three operands, window, bias, epilogue.
ONES = [1, 1, 1]
HUGE = [1, 1, 1 << 40]
# A matrix of 512 columns, and a waveform, its kernel of two channels and its features.
SQUARE = [512, 512, 512, 1]
WINDOWS = [0, 1, 1, 1, 1, 4000, 4000, 1, 1, 32, 2, 80, 1, 32, 64, 1, 32, 3921, 125472, 1, 32, 1, 0, 0, 0, 0, 0]  # fmt: skip
CASES = {
    "a number of types that takes 16 TiB": ([80, -86, 1 << 40], "fff", "too short"),
    "a list that takes 8 TiB": ([0, 1 << 40, 1], "fff", "spatial dimensions"),
    "a negative rank": ([0, -1, 1], "fff", "spatial dimensions"),
    "an unknown computation": ([7, 1, 1], "fff", "unknown computation"),
    "a size of 41 bits": ([1, 1, 1, *ONES, *ONES, *ONES, *ONES, *HUGE, *ONES, 1, 0, 0, 0, 0, 0], "fff", "size"),
    "a negative size": ([3, 2, -1, 1, 1, 1, *[1] * 8, 0], "fff", "size"),
    "a negative stride": ([3, 2, 1, 1, -5, 1, *[1] * 8, 0], "fff", "stride"),
    "no types": ([3, 2, *[1] * 12, 0], "", "operands"),
    "two types": ([1, 1, 1, *ONES * 6, 1, 0, 0, 0, 0, 0], "ff", "operands"),
    "a window with stride zero": ([1, 1, 1, *ONES * 6, 0, 0, 0, 0, 0, 0], "fff", "stride"),
    "a product of fewer rows": ([3, 2, 1, 512, 512, 1, *SQUARE, *SQUARE, 0], "fff", "primitive"),
    "a product of another depth": ([3, 2, *SQUARE, 1, 512, 512, 1, *SQUARE, 0], "fff", "primitive"),
    "a product of fewer columns": ([3, 2, *SQUARE, 512, 1, 512, 1, *SQUARE, 0], "fff", "primitive"),
    "windows of another number of channels": (
        descriptors.with_implementation(WINDOWS, "meshflow:windows"), "fff", "primitive"),
    "nothing": ([], "", "too short"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_damaged_descriptors_are_errors(name):
    descriptor, types, message = CASES[name]
    loaded = library.load()
    if loaded is None:
        pytest.skip("the kernels are not compiled")
    numbers, text = np.array(descriptor, np.int64), ctypes.create_string_buffer(512)
    failed = loaded._query(numbers.ctypes.data, len(numbers), types.encode(), text, len(text))
    assert failed and message in text.value.decode()
