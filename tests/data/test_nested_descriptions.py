"""Descriptions of saved datasets with more levels than Python's stack has frames."""

import json

import pytest

import meshflow as tf
from meshflow.environment.json_documents import compute_json_checksum


@pytest.mark.parametrize("levels", [150, 100_000])
def test_deeply_nested_specs_are_damage(tmp_path, levels):
    tf.data.Dataset.range(2).save(str(tmp_path / "saved"))
    path = tmp_path / "saved" / "spec.json"
    metadata = json.loads(path.read_text())
    del metadata["crc32"]
    spec = json.dumps(metadata["spec"])
    metadata["spec"] = None
    text = json.dumps(metadata).replace("null", '{"tuple": [' * levels + spec + "]}" * levels, 1)
    if levels < 1000:
        text = json.dumps({**json.loads(text), "crc32": compute_json_checksum(json.loads(text))})
    path.write_text(text)
    with pytest.raises(tf.errors.DataLossError, match=r"spec\.json"):
        list(tf.data.Dataset.load(str(tmp_path / "saved")))
