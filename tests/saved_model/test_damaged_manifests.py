"""Manifests with changed values: one exception class that names the folder, when the folder is loaded."""

import json
import os
import random

import pytest

import meshflow as tf
from helpers import read_manifest, rounds
from meshflow.checkpoint.array_folder import ArrayFolder

VALUES = [None, -1, 10**9, "x", [], {}, True, 1.5, [1, 2], {"a": 1}, "__class__", 2**70, [[[]]]]


class Translator(tf.Module):
    def __init__(self):
        super().__init__()
        self.weight = tf.Variable([1.0, 2.0])
        words = tf.lookup.KeyValueTensorInitializer(tf.constant(["a"]), tf.constant([1]))
        self.table = tf.lookup.StaticHashTable(words, 0)

    @tf.function(input_signature=[tf.TensorSpec([None, 2])])
    def scale(self, x):
        return x * self.weight

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def look_up(self, words):
        return self.table.lookup(tf.strings.lower(words))


def list_paths(value, path=()):
    """Yield the path of each value of a JSON document."""
    if path:
        yield path
    if isinstance(value, (dict, list)):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield from list_paths(value[key], (*path, key))


def change_value(document, path, generator):
    for key in path[:-1]:
        document = document[key]
    if generator.random() < 0.25:
        del document[path[-1]]
    else:
        document[path[-1]] = generator.choice(VALUES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved")
    tf.saved_model.save(Translator(), str(path))
    for name in ("saved_model.pb", "fingerprint.pb"):
        if (path / name).exists():
            os.remove(path / name)
    return path


def test_flipped_bit_is_harmless_or_data_loss(folder):
    path = folder / "manifest.json"
    data, num_errors = path.read_bytes(), 0
    expected = ArrayFolder(folder).manifest
    for seed in range(rounds(300, 5000)):
        generator, damaged = random.Random(seed), bytearray(data)
        damaged[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
        path.write_bytes(damaged)
        try:
            found = ArrayFolder(folder).manifest
        except tf.errors.DataLossError as error:
            assert str(path) in str(error)
            num_errors += 1
        else:
            # Only white space changed, or the name of the checksum, which old folders lack.
            assert {key: found[key] for key in expected} == expected
    path.write_bytes(data)
    assert num_errors > 200


def test_changed_manifests_are_data_loss_when_they_are_loaded(folder):
    text = json.dumps(read_manifest(folder))
    paths = list(list_paths(json.loads(text)))
    num_errors = 0
    for seed in range(rounds(60, 1000)):
        generator, document = random.Random(seed), json.loads(text)
        change_value(document, generator.choice(paths), generator)
        (folder / "manifest.json").write_text(json.dumps(document))
        try:
            loaded = tf.saved_model.load(str(folder))
        except (tf.errors.DataLossError, OSError) as error:
            assert str(folder) in str(error)
            num_errors += 1
            continue
        # A valid manifest may describe another function, which raises user errors.
        for name, argument in (("scale", tf.ones([1, 2])), ("look_up", tf.constant(["A"]))):
            try:
                getattr(loaded, name, lambda x: x)(argument)
            except (ValueError, TypeError, tf.errors.OpError) as error:
                assert str(error)
    assert num_errors > 30
