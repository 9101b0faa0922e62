"""Test that the stubs of `tf.experimental.numpy` equal the functions."""

import pytest

import numpy_stubs as stubs


@pytest.mark.parametrize("stem", list(stubs.MODULES))
def test_stubs_equal_the_functions(stem):
    path = stubs.FOLDER / f"{stem}.pyi"
    assert stubs.is_stub_equal(stubs.stub(stubs.MODULES[stem]), path), (
        "run python tests/numpy_stubs.py"
    )


def test_a_stub_with_another_parameter_differs(tmp_path):
    text = stubs.stub(stubs.MODULES["fft"])
    changed = tmp_path / "fft.pyi"
    changed.write_text(text.replace("norm: str | None", "norm: int | None"))
    assert text != changed.read_text() and not stubs.is_stub_equal(text, changed)
