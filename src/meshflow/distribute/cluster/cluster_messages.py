"""Protocol buffers that describe clusters, in TensorFlow's format: `tf.train.ClusterDef` and `JobDef`.

Example:
  >>> cluster = tf.train.ClusterDef(job=[tf.train.JobDef(name="worker", tasks={0: "a:1", 1: "b:1"})])
  >>> tf.train.ClusterSpec(tf.train.ClusterDef.FromString(cluster.SerializeToString()))
  ClusterSpec({'worker': ['a:1', 'b:1']})
"""

from __future__ import annotations

from meshflow.environment.protobuf_messages import MessageTable, declare_messages

CLUSTER_TABLE: MessageTable = {
    "JobDef": {"name": (1, "string"), "tasks": (2, "{int32}string")},
    "ClusterDef": {"job": (1, "*JobDef")},
}

_classes = declare_messages("meshflow/cluster.proto", CLUSTER_TABLE)
JobDef, ClusterDef = _classes["JobDef"], _classes["ClusterDef"]
