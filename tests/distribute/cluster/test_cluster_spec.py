"""Test `tf.train.ClusterSpec` against values of TensorFlow 2.21."""

import pytest

import meshflow as tf

GIVEN = {"worker": ["a:1", "b:2"], "ps": {3: "d:1", 1: "c:1"}}


def test_properties_of_cluster_specs():
    spec = tf.train.ClusterSpec(GIVEN)
    assert repr(spec) == "ClusterSpec({'ps': {1: 'c:1', 3: 'd:1'}, 'worker': ['a:1', 'b:2']})"
    assert spec.jobs == ["worker", "ps"]
    assert spec.as_dict() == {"worker": ["a:1", "b:2"], "ps": {1: "c:1", 3: "d:1"}}
    assert (spec.num_tasks("ps"), spec.task_indices("ps")) == (2, [1, 3])
    assert spec.job_tasks("ps") == [None, "c:1", None, "d:1"]
    assert spec.task_address("worker", 1) == "b:2"
    assert spec == tf.train.ClusterSpec(spec)
    assert spec != tf.train.ClusterSpec({}) and spec != 3
    assert [bool(tf.train.ClusterSpec(c)) for c in ({}, {"a": []})] == [False, True]
    for asked in (spec.num_tasks, spec.task_indices, spec.job_tasks):
        with pytest.raises(ValueError, match="No such job in cluster: 'x'"):
            asked("x")
    with pytest.raises(ValueError, match="No task with index 0 in job 'ps'"):
        spec.task_address("ps", 0)


def test_as_a_message():
    spec = tf.train.ClusterSpec(GIVEN)
    message = spec.as_cluster_def()
    assert isinstance(message, tf.train.ClusterDef)
    assert [job.name for job in message.job] == ["ps", "worker"]
    # Written by TensorFlow, which orders maps differently.
    stored = (
        b"\n\x16\n\x02ps\x12\x07\x08\x03\x12\x03d:1\x12\x07\x08\x01\x12\x03c:1"
        b"\n\x1a\n\x06worker\x12\x07\x08\x01\x12\x03b:2\x12\x07\x08\x00\x12\x03a:1"
    )
    assert tf.train.ClusterDef.FromString(stored) == message
    assert tf.train.ClusterSpec(message) == spec
    built = tf.train.ClusterDef()
    job = built.job.add()
    job.name, job.tasks[0] = "worker", "a:1"
    assert tf.train.ClusterSpec(built).as_dict() == {"worker": ["a:1"]}
    assert built.job[0] == tf.train.JobDef(name="worker", tasks={0: "a:1"})
    server = tf.distribute.Server(built, start=False)
    assert server.server_def.cluster.as_cluster_def() == built


@pytest.mark.parametrize(
    "given, message",
    [
        (3, "`cluster` must be a dictionary"),
        ("abc", "`cluster` must be a dictionary"),
        ({"a": 3}, "The tasks for job 'a' must be a list or a dictionary"),
        ({"a": "x:1"}, "The tasks for job 'a' must be a list or a dictionary"),
        ({"a": None}, "The tasks for job 'a' must be a list or a dictionary"),
        ({"a": [1]}, "Task address 1 must be bytes or unicode"),
        ({"a": {0: 1}}, "Task address 1 must be bytes or unicode"),
        ({1: ["x:1"]}, "Job name 1 must be bytes or unicode"),
    ],
)
def test_invalid_cluster_specs(given, message):
    with pytest.raises(TypeError, match=message):
        tf.train.ClusterSpec(given)


def test_other_forms():
    Spec = tf.train.ClusterSpec
    assert Spec({"a": ("x:1", b"y:1")}).as_dict() == {"a": ["x:1", "y:1"]}
    assert Spec({"a": {"0": "x:1"}}).as_dict() == {"a": ["x:1"]}


def test_names_of_the_modules():
    experimental = tf.distribute.experimental
    assert dir(experimental.partitioners) == [
        "FixedShardsPartitioner", "MaxSizePartitioner", "MinSizePartitioner", "Partitioner",
    ]  # fmt: skip
    for module in (tf.distribute, experimental, tf.distribute.coordinator):
        assert set(dir(module)) == set(module.__all__)


def test_programs_may_connect_to_clusters_of_parameter_servers():
    spec = tf.train.ClusterSpec({"worker": ["localhost:1"], "ps": ["localhost:2"]})
    filters = tf.config.experimental.ClusterDeviceFilters()
    filters.set_device_filters("worker", 0, ["/job:ps"])
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(spec)
    tf.config.experimental_connect_to_cluster(resolver, cluster_device_filters=filters)
    tf.config.experimental_connect_to_cluster(spec, job_name="chief", protocol="grpc")
    with pytest.raises(ValueError, match="must be a `ClusterSpec` or a `ClusterResolver`"):
        tf.config.experimental_connect_to_cluster("localhost:1")
    with pytest.raises(ValueError, match="must be an instance of"):
        tf.config.experimental_connect_to_cluster(spec, cluster_device_filters=["/job:ps"])
    with pytest.raises(NotImplementedError, match="one process per host"):
        tf.config.experimental_connect_to_cluster(tf.train.ClusterSpec({"worker": ["h:1"]}))
    with pytest.raises(NotImplementedError, match="h:1"):
        tf.config.experimental_connect_to_host("h:1")
