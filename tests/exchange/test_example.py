"""Test the example that continues to train a model of TensorFlow."""

import importlib.util
import pathlib

import pytest

pytest.importorskip("sklearn", reason="needs the extra demo")

PATH = pathlib.Path(__file__).parent.parent.parent / "examples" / "take_over_from_tensorflow.py"
spec = importlib.util.spec_from_file_location("take_over_from_tensorflow", PATH)
example = importlib.util.module_from_spec(spec)
spec.loader.exec_module(example)


def test_model_is_loaded_compiled_with_optimizer_state(tmp_path):
    model = example.load_model(tmp_path)
    assert type(model).__name__ == "Sequential"
    assert int(model.optimizer.iterations) == 675
    (images, labels), _ = example.load_images()
    # In white on black, as it was trained.
    found = model.evaluate(1 - images[:200], labels[:200], verbose=0, return_dict=True)
    assert set(found) == {"loss", "accuracy"}
    assert found["accuracy"] > 0.97


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_model_is_fine_tuned_served_and_profiled(tmp_path):
    found = example.run(tmp_path, epochs=10)
    assert found["accuracy before"] < 0.3 < 0.93 < found["accuracy after"]
    for name in ("served", "in LiteRT"):
        assert found.get(f"largest difference {name}", 0) < 1e-4
    if "profile" in found:
        assert "Convolution" in str(found["profile"])
