"""Damaged files of every format that is read."""

FORMATS = (
    *("png", "jpeg", "gif", "bmp", "wav", "npy", "tfrecord", "protos", "csv"),
    *("models", "weights", "manifests", "bundles", "elements", "events", "tars", "graphs"),
    *("safetensors", "saved_manifests", "configurations", "texts", "traces", "requests", "states"),
    *("litert", "modules", "journals"),
)
