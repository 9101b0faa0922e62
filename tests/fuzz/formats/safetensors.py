"""Fuzz safetensors files, alone and as weights of a model."""

import functools
import os
import tempfile

import ml_dtypes
import numpy as np

from fuzz.formats.files import content, written
from fuzz.formats.models import model
from fuzz.formats.protos import tried
from meshflow.files.safetensors import load_file, load_sharded, save_file


@functools.cache
def seeds():
    path = os.path.join(tempfile.gettempdir(), f"{os.getpid()}-seed.safetensors")
    model().save_weights(path)
    found = [content(path)]
    arrays = {"a": np.arange(600.0).reshape(2, 300), "b": np.ones(300, ml_dtypes.bfloat16)}
    save_file(arrays, path, {"format": "tf"})
    shard = os.path.basename(written(content(path), "shard.safetensors"))
    index = (
        f'{{"metadata": {{"total_size": 54}}, "weight_map": {{"a": "{shard}", "b": "{shard}"}}}}'
    )
    return [*found, content(path), index.encode()]


def parse(data):
    if data.lstrip()[:1] == b"{":
        load_sharded(written(data, "case.safetensors.index.json"))
        return
    path = written(data, "case.safetensors")
    # A file of other arrays is not damaged: arrays that do not match are ignored.
    tried(
        lambda: load_file(path),
        lambda: model().load_weights(path, skip_mismatch=True, by_name=True),
    )
