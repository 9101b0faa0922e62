"""Continue with a model that TensorFlow trained and saved: fine-tune it, serve it, and run it in
LiteRT with a profile.

The model, in `digits_from_tensorflow.tar.xz`, recognizes handwritten digits in white on black. Here
it learns digits in black on white, starting with the saved state of its optimizer. The example
needs the extras keras, export, records, serving, cli, lite and demo; steps whose packages are
missing are skipped with a message.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np

import meshflow as tf

STORED = Path(__file__).with_name("digits_from_tensorflow.tar.xz")


def load_model(folder: Path) -> tf.keras.Model:
    """The model that TensorFlow saved: its layers, as it was compiled, and its optimizer's state."""
    with tarfile.open(STORED) as archive:
        archive.extractall(folder, filter="data")
    return tf.keras.models.load_model(folder / "digits")


def load_images() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Digits in black on white, float32 [n, 8, 8, 1] in [0, 1], with integer labels."""
    train, test = tf.keras.datasets.digits.load_data()
    return tuple((1 - x[..., None].astype(np.float32) / 255, y) for x, y in (train, test))  # type: ignore[return-value]


def served(folder: Path, images: np.ndarray) -> np.ndarray:
    """Return the answer of a server of the saved model over HTTP."""
    command = [
        sys.executable,
        "-m",
        "meshflow",
        "serve",
        str(folder),
        "--name",
        "digits",
        "--port",
        "0",
    ]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    server = subprocess.Popen(
        [*command, "--max-batch", "8"], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert server.stdout is not None
    try:
        address = server.stdout.readline().split(" at ")[1].strip()
        body = json.dumps({"instances": images.tolist()}).encode()
        with urllib.request.urlopen(f"{address}:predict", body, timeout=60) as answer:
            return np.array(json.load(answer)["predictions"], np.float32)
    finally:
        server.terminate()
        server.wait()
        server.stdout.close()


def in_litert(path: Path, images: np.ndarray) -> np.ndarray:
    """Return the predictions of LiteRT."""
    run = tf.lite.Interpreter(model_path=str(path)).get_signature_runner()
    (name,) = run.get_input_details()
    return next(iter(run(**{name: images}).values()))


def has(*packages: str) -> bool:
    """Return whether packages are installed; print the missing ones."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        print(f"left out, as {', '.join(missing)} is not installed")
    return not missing


def run(folder: Path, epochs: int) -> dict[str, Any]:
    """Run all steps; return their results.

    Args:
        folder: folder for files.
        epochs: number of epochs on the new images.
    """
    (images, labels), (test_images, test_labels) = load_images()
    model, found = load_model(folder), {}
    found["steps in TensorFlow"] = int(model.optimizer.iterations)
    before = model.evaluate(test_images, test_labels, verbose=0)[1]
    model.fit(images, labels, batch_size=32, epochs=epochs, verbose=0)
    after = model.evaluate(test_images, test_labels, verbose=0)[1]
    found |= {"accuracy before": before, "accuracy after": after}
    expected = model.predict(test_images[:8], verbose=0)
    model.save(folder / "served" / "1", save_format="tf")
    if has("starlette", "uvicorn"):
        answers = served(folder / "served", test_images[:8])
        found["largest difference served"] = float(np.abs(answers - expected).max())
    if has("ai_edge_litert"):
        path = folder / "digits.tflite"
        path.write_bytes(tf.lite.TFLiteConverter.from_keras_model(model).convert())
        found["bytes in LiteRT"] = path.stat().st_size
        found["largest difference in LiteRT"] = float(
            np.abs(in_litert(path, test_images[:8]) - expected).max()
        )
        found["profile"] = tf.profiler.profile_model(path, batch=8)
    return found


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, help="where files stay; default a temporary folder")
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        for name, value in run(folder, options.epochs).items():
            print(f"{name}:\n{value}" if name == "profile" else f"{name}: {value:.6g}")


if __name__ == "__main__":
    main()
