"""Compare random pipelines with results of TensorFlow's tf.data."""

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest

import meshflow as tf
from helpers import rounds

FOUND = json.loads((Path(__file__).parents[1] / "reference" / "pipelines.json").read_text())
NAMES = {
    "tf": tf,
    "D": tf.data.Dataset,
    "E": tf.data.experimental,
    "np": np,
    "folder": tempfile.mkdtemp,
}


# Every second one is for `make test-all`.
@pytest.mark.parametrize("text", list(FOUND)[:: rounds(2, 1)])
def test_elements(text):
    elements = []
    try:
        for element in eval(text, dict(NAMES)).as_numpy_iterator():
            elements.append(np.asarray(element).tolist())
    except tf.errors.OpError as error:
        elements.append(type(error).__name__)
    assert elements == FOUND[text]
