"""`tf.distribute.cluster_resolver`: descriptions of the processes of a job."""

from meshflow.distribute.cluster.managers import (
    GCEClusterResolver,
    KubernetesClusterResolver,
    KubernetesExecutableLocation,
    SlurmClusterResolver,
    UnionResolver,
)
from meshflow.distribute.cluster.resolvers import (
    ClusterResolver,
    SimpleClusterResolver,
    TFConfigClusterResolver,
)
from meshflow.distribute.tpu.resolver import TPUClusterResolver

__all__ = [
    "ClusterResolver",
    "GCEClusterResolver",
    "KubernetesClusterResolver",
    "KubernetesExecutableLocation",
    "SimpleClusterResolver",
    "SlurmClusterResolver",
    "TFConfigClusterResolver",
    "TPUClusterResolver",
    "UnionResolver",
]
