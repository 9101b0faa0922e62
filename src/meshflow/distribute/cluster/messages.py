"""Protocol buffers that describe clusters, in TensorFlow's format: `tf.train.ClusterDef` and `JobDef`.

Example:
  >>> import meshflow as tf
  >>> cluster = tf.train.ClusterDef(job=[tf.train.JobDef(name="worker", tasks={0: "a:1", 1: "b:1"})])
  >>> tf.train.ClusterSpec(tf.train.ClusterDef.FromString(cluster.SerializeToString()))
  ClusterSpec({'worker': ['a:1', 'b:1']})
"""

from __future__ import annotations

from meshflow.environment.messages import Table, declared

__all__ = ["CLUSTERS", "ClusterDef", "JobDef"]

CLUSTERS: Table = {
    "JobDef": {"name": (1, "string"), "tasks": (2, "{int32}string")},
    "ClusterDef": {"job": (1, "*JobDef")},
}

_made = declared("meshflow/cluster.proto", CLUSTERS)
JobDef, ClusterDef = _made["JobDef"], _made["ClusterDef"]
