"""Test `meshflow show` and `meshflow predict`: signatures of saved models, and calls."""

import numpy as np
import pytest
from typer.testing import CliRunner

import meshflow as tf
from meshflow.cli.commands import app


def run_command(*words, code=0):
    result = CliRunner().invoke(app, [*map(str, words)])
    assert result.exit_code == code, result.output
    return result.output


class Named(tf.Module):
    """Two functions, one of strings, and one with an argument that is no tensor."""

    def __init__(self):
        super().__init__()
        self.weight = tf.Variable(tf.ones([3, 2]))

    @tf.function(input_signature=[tf.TensorSpec([None, 3])])
    def __call__(self, x):
        return {"y": x @ self.weight, "rows": tf.shape(x)[0]}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def louder(self, words):
        return tf.strings.upper(words)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved")
    module = Named()
    tf.saved_model.save(module, path, {"serving_default": module.__call__, "loud": module.louder})
    return path


def test_all_is_shown(folder, stored):
    lines = run_command("show", folder).splitlines()
    place = lines.index("signature serving_default (tensorflow/serving/predict)")
    assert lines[0] == "tags: serve" and "signature loud (tensorflow/serving/predict)" in lines
    shown = [line[2:].rpartition("  ")[0] for line in lines[place + 1 : place + 4]]
    assert shown == ["in  x: float32 [None, 3]", "out rows: int32 []", "out y: float32 [None, 2]"]
    place = lines.index("function __call__")
    assert lines[place + 1] == "  (x=float32 [None, 3])"
    only = run_command("show", folder, "--signature", "loud").splitlines()
    assert only[1].startswith("  in  words: string [None]") and len(only) == 3
    # One of TensorFlow's, with its ops.
    lines = run_command("show", stored / "mlp_save", "--ops").splitlines()
    assert any(line.endswith("training=False, mask=None)") for line in lines)
    assert lines[-1].startswith("ops: ") and "MatMul" in lines[-1]


def test_signatures_run_on_arrays_of_files(folder, tmp_path):
    x, words = np.arange(6.0).reshape(2, 3), np.array(["a", "bc"])
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "all.npz", x=x, words=words)
    assert "rows: int32 []\n2\n" in run_command("predict", folder, "--input", f"x={tmp_path}/x.npy")
    run_command("predict", folder, "--input", f"x={tmp_path}/all.npz:x", "--out", tmp_path / "out")
    assert np.load(tmp_path / "out" / "y.npy").tolist() == [[3.0, 3.0], [12.0, 12.0]]
    given = ("--signature", "loud", "--input", f"words={tmp_path}/all.npz:words")
    run_command("predict", folder, *given, "--out", tmp_path)
    assert np.load(tmp_path / "output_0.npy").tolist() == [b"A", b"BC"]


def test_missing_parts_are_reported(folder, tmp_path):
    np.savez(tmp_path / "all.npz", x=np.ones([1, 3]))
    np.save(tmp_path / "object.npy", np.array([{}], object))
    assert "no signature 'other'" in run_command("show", folder, "--signature", "other", code=1)
    assert "none with all of ['gpu']" in run_command("show", folder, "--tags", "gpu", code=1)
    assert "SavedModel file does not exist" in run_command("show", tmp_path, code=1)
    assert "takes the tensors ['x']" in run_command("predict", folder, code=1)
    assert "all.npz:KEY" in run_command(
        "predict", folder, "--input", f"x={tmp_path}/all.npz", code=1
    )
    assert "allow_pickle" in run_command(
        "predict", folder, "--input", f"x={tmp_path}/object.npy", code=1
    )


@pytest.mark.parametrize("option", ["--isolated", "--no-isolated"])
def test_control_sequences_of_terminals_are_shown_as_text(tmp_path, option):
    module = tf.Module()
    spec = tf.TensorSpec([2], tf.float32)
    function = tf.function(lambda x: {"y": x}, input_signature=[spec])
    tf.saved_model.save(module, str(tmp_path), signatures={"\x1b[31mred": function})
    text = run_command("show", tmp_path, option)
    assert "\x1b" not in text and "\\x1b[31mred" in text
