"""Clusters described by `TF_CONFIG`."""

import json
import os

import pytest

import meshflow as tf

resolvers = tf.distribute.cluster_resolver
Resolver = resolvers.TFConfigClusterResolver


def configure(monkeypatch, text):
    monkeypatch.setenv("TF_CONFIG", text if isinstance(text, str) else json.dumps(text))


def test_reads_the_cluster(monkeypatch):
    cluster = {"chief": ["c:1"], "worker": ["a:1", "b:2"]}
    configure(monkeypatch, {"cluster": cluster, "task": {"type": "worker", "index": 1}})
    resolver = Resolver(rpc_layer="grpc")
    assert resolver.cluster_spec() == cluster
    assert (resolver.task_type, resolver.task_id) == ("worker", 1)
    assert resolver.master() == "grpc://b:2" and resolver.master("chief", 0, "http") == "http://c:1"


def test_without_the_variable_there_is_no_cluster(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    assert Resolver().cluster_spec() == {} and Resolver().master() == ""


def test_bad_variables_are_explained(monkeypatch):
    configure(monkeypatch, "{cluster")
    with pytest.raises(ValueError, match="not JSON"):
        Resolver()
    configure(monkeypatch, {"cluster": {"worker": ["a:1"]}})
    with pytest.raises(ValueError, match='no "task"'):
        Resolver()
    configure(monkeypatch, {"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 3}})
    with pytest.raises(ValueError, match="worker:3"):
        Resolver()


def test_simple_resolver():
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        {"worker": ["a:1"]}, task_type="worker", task_id=0
    )
    # As in TensorFlow, only a task that is asked for.
    assert resolver.master() == "" and resolver.master("worker", 0) == "a:1"


def test_simple_resolver_properties():
    resolver = resolvers.SimpleClusterResolver(
        {"worker": ["a:1", "b:1"]}, master="m:2", num_accelerators={"GPU": 8}, rpc_layer="grpc"
    )
    assert resolver.num_accelerators() == {"GPU": 8}
    assert resolver.master() == "grpc://m:2" and resolver.master("worker", 1) == "grpc://b:1"
    assert resolvers.SimpleClusterResolver({}).master() == ""


def test_the_session_master_of_tf_config(monkeypatch):
    task = '"task": {"type": 12, "index": "0"}'
    config = (
        f'{{"cluster": {{"12": ["a:1"]}}, "session_master": "m:2", "rpc_layer": "grpc", {task}}}'
    )
    monkeypatch.setenv("TF_CONFIG", config)
    resolver = resolvers.TFConfigClusterResolver()
    assert (resolver.task_type, resolver.task_id) == ("12", 0)
    # As it is, without the protocol.
    assert resolver.master() == "m:2"


def test_single_task_cluster_has_no_master(monkeypatch):
    configure(monkeypatch, {"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}})
    assert Resolver().master() == "" and Resolver().environment is None
    assert Resolver(environment="cloud").environment == "cloud"


def test_a_union_of_resolvers():
    simple, union = resolvers.SimpleClusterResolver, resolvers.UnionResolver
    first = simple(
        {"worker": ["a:1", "b:1"]}, task_type="worker", task_id=0, master="m:1", rpc_layer="grpc"
    )
    second = simple({"worker": ["c:1", "a:1"], "ps": ["p:1"]})
    both = union(first, second)
    assert both.cluster_spec().as_dict() == {"worker": ["a:1", "b:1", "c:1", "a:1"], "ps": ["p:1"]}
    assert (both.task_type, both.task_id, both.rpc_layer) == ("worker", 0, "grpc")
    assert both.master() == "grpc://m:1" and both.master("ps", 0) == "grpc://p:1"
    other = union(second, first, task_type="ps", task_id=0, rpc_layer="http")
    assert (other.task_type, other.task_id, other.master()) == ("ps", 0, "http://m:1")
    with pytest.raises(KeyError, match="Duplicate keys"):
        union(first, simple({"worker": {1: "x:1"}})).cluster_spec()
    with pytest.raises(TypeError, match="must be a string"):
        simple({}, master=3)


def test_gpus_of_a_slurm_task(monkeypatch):
    settings = {"PROCID": "1", "STEP_NUM_TASKS": "3", "STEP_TASKS_PER_NODE": "2,1"}
    for name, value in {**settings, "STEP_NODELIST": "a,b"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    resolver = resolvers.SlurmClusterResolver(gpus_per_node=4, gpus_per_task=2)
    assert resolver.get_task_info() == ("worker", 1)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "2,3"
