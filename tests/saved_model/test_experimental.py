"""Test `tf.saved_model.experimental`, and errors of options."""

import pytest

import meshflow as tf
from meshflow.checkpoint.array_folder import GRAPH_FILE
from meshflow.environment.garbage_collection import collect_garbage
from meshflow.saved_model.graph.format.graph_fingerprints import compute_fingerprint

experimental = tf.saved_model.experimental
read_fingerprint = experimental.read_fingerprint


class Scale(tf.Module):
    def __init__(self, factor=2.0):
        super().__init__()
        self.factor = tf.Variable(factor)

    @tf.function(input_signature=[tf.TensorSpec([None])])
    def __call__(self, x):
        return x * self.factor


def save_and_read_fingerprint(module, folder, **options):
    tf.saved_model.save(module, folder, **options)
    return read_fingerprint(folder)


def test_fingerprints_distinguish_models(tmp_path):
    first = save_and_read_fingerprint(Scale(), tmp_path / "first")
    assert save_and_read_fingerprint(Scale(), tmp_path / "again") == first
    trained = save_and_read_fingerprint(Scale(3.0), tmp_path / "trained")
    assert trained != first and trained.checkpoint_hash != first.checkpoint_hash
    assert trained.signature_def_hash == first.signature_def_hash
    quiet = save_and_read_fingerprint(Scale(), tmp_path / "quiet", signatures={})
    assert quiet.signature_def_hash != first.signature_def_hash
    assert first.singleprint() == "/".join(
        str(getattr(first, f"{name}_hash"))
        for name in ("graph_def_program", "signature_def", "saved_object_graph", "checkpoint")
    )
    # A replaced model gets a new fingerprint.
    assert save_and_read_fingerprint(Scale(3.0), tmp_path / "first") == trained


def test_hashes_are_those_of_tensorflow(stored):
    there = read_fingerprint(stored / "cnn_save")
    index = (stored / "cnn_save" / "variables" / "variables.index").read_bytes()
    here = compute_fingerprint((stored / "cnn_save" / GRAPH_FILE).read_bytes(), index)
    for name in ("signature_def_hash", "saved_object_graph_hash", "checkpoint_hash"):
        assert getattr(here, name) == getattr(there, name) > 0


def test_invalid_fingerprints(tmp_path):
    with pytest.raises(FileNotFoundError, match="SavedModel Fingerprint Error"):
        read_fingerprint(tmp_path)
    (tmp_path / "fingerprint.pb").write_bytes(b"\xff\xff")
    with pytest.raises(RuntimeError, match="SavedModel Fingerprint Error"):
        read_fingerprint(tmp_path)
    with pytest.raises(ValueError, match="fingerprint values"):
        experimental.Fingerprint().singleprint()
    with pytest.raises(ValueError, match="deserialized"):
        experimental.Fingerprint.from_proto("text")


def test_policies_by_value_and_by_name():
    policy = experimental.VariablePolicy
    for given, wanted in (
        (None, policy.NONE),
        ("EXPAND_DISTRIBUTED_VARIABLES", policy.EXPAND_DISTRIBUTED_VARIABLES),
        (policy.SAVE_VARIABLE_DEVICES, policy.SAVE_VARIABLE_DEVICES),
    ):
        for options in (tf.saved_model.SaveOptions, tf.saved_model.LoadOptions):
            found = options(experimental_variable_policy=given)
            assert found.experimental_variable_policy is wanted
    with pytest.raises(ValueError, match="invalid VariablePolicy"):
        tf.saved_model.LoadOptions(experimental_variable_policy="all")


def test_wrong_options():
    with pytest.raises(TypeError, match="list of strings"):
        tf.saved_model.SaveOptions(namespace_whitelist="Test")
    with pytest.raises(ValueError, match="strings"):
        tf.saved_model.SaveOptions(namespace_whitelist=[1])
    with pytest.raises(ValueError, match="function_aliases"):
        tf.saved_model.SaveOptions(function_aliases=["f"])


def test_resources_are_created_on_demand(tmp_path):
    destroyed = []

    class Counter(experimental.TrackableResource):
        def _create_resource(self):
            return tf.Variable(1)

        def _destroy_resource(self):
            destroyed.append(True)

    module = tf.Module()
    module.counter = Counter()
    module.count = tf.function(
        lambda: module.counter.resource_handle.assign_add(1), input_signature=[]
    )
    tf.saved_model.save(module, tmp_path)
    loaded = tf.saved_model.load(tmp_path)
    assert [int(loaded.count()), int(loaded.count())] == [2, 3]
    assert int(module.counter.resource_handle) == 1 and not destroyed
    module.counter = None
    module.count = None
    # A cycle refers to the resource with JAX 0.11.
    collect_garbage()
    assert destroyed
    with pytest.raises(NotImplementedError, match="_create_resource"):
        experimental.TrackableResource().resource_handle
