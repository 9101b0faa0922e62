"""One model, many meshes: data, model and spatial parallelism change no number beyond rounding."""

import json
from pathlib import Path

import numpy as np
import pytest

import forked

pytestmark = pytest.mark.long
PROGRAM = Path(__file__).with_name("on_eight_devices.py")


@pytest.fixture(scope="module")
def everything():
    """Return the program's results by name of the parallelism."""
    code, text = forked.run(PROGRAM.read_text(), after="import jax", MESHFLOW_TIER="compile")
    assert code == 0, text
    return json.loads(text.splitlines()[-1])


@pytest.mark.parametrize("name", ["cnn", "transformer"])
def test_every_parallelism_has_the_same_loss_curve(everything, name):
    found = everything[name]
    curves = {kind: values for kind, values in found.items() if "part" not in kind}
    assert list(curves) == [
        *("one", "mirrored 2", "mirrored 8"),
        *("data", "model", "spatial", "combined"),
    ]
    expected = np.array(curves.pop("one"))
    assert len(expected) == 8 and expected[-1] < expected[0]
    for kind, values in curves.items():
        np.testing.assert_allclose(values, expected, rtol=1e-5, err_msg=kind)
    # The weights are split as asked.
    whole = found["data: kernel's part"][1]
    assert found["model: kernel's part"][1] * 4 == whole
    assert found["combined: kernel's part"][1] * 2 == whole


def test_split_images_equal_one_device_bit_for_bit(everything):
    found = everything["forward"]
    assert found["equal dropout masks"]
    assert [r["layer"] for r in found["layers"] if not r["equal"]] == []
    split = [r for r in found["layers"] if r["layout"][:3] == ["batch", "height", "width"]]
    assert len(split) >= len(found["layers"]) - 4
