"""Clusters described by `TF_CONFIG`."""

import json

import pytest

import meshflow as tf

Resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver


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
    assert resolver.master() == "a:1"
