"""Models with losses and metrics between their layers, as tf-keras saves them: added_losses.zip.

Run with TF_USE_LEGACY_KERAS=1 in the environment of TensorFlow.
"""

import json
import tempfile
import zipfile
from pathlib import Path

import tensorflow as tf
from added_losses_case import X, make_model

HERE = Path(__file__).parent

if __name__ == "__main__":
    model = make_model(tf)
    values = {"evaluate": model.evaluate(X, X, verbose=0, return_dict=True)}
    values["losses"] = [float(loss) for loss in (model(X), model.losses)[1]]
    values["layers"] = [layer.name for layer in model.layers]
    entries = model.get_config()["layers"]
    values["config"] = [e for e in entries if e["class_name"] in ("AddLoss", "AddMetric")]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file in ("model.h5", "model.keras"):
            model.save(folder / file)
        model.save(folder / "folder", save_format="tf")
        options = {"shuffle": False, "batch_size": 8, "verbose": 0}
        values["history"] = model.fit(X, X, epochs=3, **options).history
        (folder / "values.json").write_text(json.dumps(values))
        with zipfile.ZipFile(HERE / "added_losses.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(p for p in folder.rglob("*") if p.is_file()):
                archive.write(path, path.relative_to(folder))
