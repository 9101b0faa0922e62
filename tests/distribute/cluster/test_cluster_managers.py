"""Test clusters described by Slurm, Kubernetes and Compute Engine, with mocks of their services."""

import os
import socket
import sys
from types import SimpleNamespace

import pytest

import meshflow as tf
from meshflow.distribute.cluster.managers import expand_hostlist, expand_tasks_per_node

RESOLVERS = tf.distribute.cluster_resolver


def as_dict(spec):
    return spec.as_dict() if hasattr(spec, "as_dict") else spec


@pytest.fixture
def slurm(monkeypatch):
    """Set Slurm's variables: task 3 of 5 on four nodes."""

    def configure(**variables):
        found = {
            "SLURM_PROCID": 3,
            "SLURM_LOCALID": 0,
            "SLURM_STEP_NODELIST": "t02n[13,41-42],x1",
            "SLURM_STEP_TASKS_PER_NODE": "2,1(x3)",
            **variables,
        }
        for name in ("CUDA_VISIBLE_DEVICES", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS"):
            monkeypatch.delenv(name, raising=False)
        for name, value in found.items():
            monkeypatch.setenv(name, str(value))

    return configure


def test_slurm_addresses_of_tasks(slurm):
    slurm()
    resolver = RESOLVERS.SlurmClusterResolver()
    addresses = ["t02n13:8888", "t02n13:8889", "t02n41:8888", "t02n42:8888", "x1:8888"]
    assert as_dict(resolver.cluster_spec()) == {"worker": addresses}
    assert resolver.get_task_info() == ("worker", 3)
    assert resolver.master() == "grpc://t02n42:8888"
    assert resolver.num_accelerators() == {"GPU": 0}


def test_slurm_jobs_get_tasks_in_order(slurm):
    slurm()
    resolver = RESOLVERS.SlurmClusterResolver({"ps": 1, "worker": 4}, port_base=9000)
    spec = as_dict(resolver.cluster_spec())
    assert spec["ps"] == ["t02n13:9000"] and spec["worker"][0] == "t02n13:9001"
    assert (resolver.task_type, resolver.task_id) == ("worker", 2)


def test_slurm_shares_gpus(slurm, monkeypatch):
    slurm(SLURM_PROCID=1, SLURM_LOCALID=1, SLURM_STEP_GPUS="0,1,2,3")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    resolver = RESOLVERS.SlurmClusterResolver()
    assert resolver.num_accelerators() == {"GPU": 2}

    assert os.environ["CUDA_VISIBLE_DEVICES"] == "2,3"
    with pytest.raises(RuntimeError, match="2 tasks of 3 GPUs each"):
        RESOLVERS.SlurmClusterResolver(gpus_per_node=4, gpus_per_task=3)


def test_slurm_mistakes(slurm, monkeypatch):
    slurm()
    with pytest.raises(RuntimeError, match="Requested 2 tasks but only 5 were assigned"):
        RESOLVERS.SlurmClusterResolver({"worker": 2})
    with pytest.raises(RuntimeError, match="lists 4 hosts"):
        RESOLVERS.SlurmClusterResolver(tasks_per_node="1(x5)")
    monkeypatch.delenv("SLURM_PROCID")
    with pytest.raises(RuntimeError, match="Not running inside a SLURM step"):
        RESOLVERS.SlurmClusterResolver()
    assert expand_hostlist("a[09-10]b[1-2],c") == ["a09b1", "a09b2", "a10b1", "a10b2", "c"]
    with pytest.raises(ValueError, match="not a list of Slurm hosts"):
        expand_hostlist("n[1-x]")
    with pytest.raises(ValueError, match="not tasks per node"):
        expand_tasks_per_node("2(3)")


class Pods:
    """A Kubernetes client that knows some pods by label."""

    def __init__(self, **pods):
        self.pods = pods

    def list_pod_for_all_namespaces(self, label_selector):
        name = label_selector.split("=")[1]
        return SimpleNamespace(items=[self.pod(*p) for p in self.pods.get(name, ())])

    def pod(self, name, ip, phase="Running"):
        metadata, status = SimpleNamespace(name=name), SimpleNamespace(host_ip=ip, phase=phase)
        return SimpleNamespace(metadata=metadata, status=status)


def test_kubernetes_lists_running_pods():
    own = socket.gethostname()
    client = Pods(tensorflow=[("~b", "10.0.0.2"), (own, "10.0.0.1")], servers=[("s", "10.0.0.3")])
    resolver = RESOLVERS.KubernetesClusterResolver(override_client=client)
    assert as_dict(resolver.cluster_spec()) == {"worker": ["10.0.0.1:8470", "10.0.0.2:8470"]}
    assert (resolver.task_type, resolver.task_id) == ("worker", 0)
    assert resolver.master() == "grpc://10.0.0.1:8470"
    labels = {"worker": ["job-name=tensorflow"], "ps": ["job-name=servers"]}
    both = RESOLVERS.KubernetesClusterResolver(labels, 7, override_client=client)
    assert as_dict(both.cluster_spec())["ps"] == ["10.0.0.3:7"]


def test_kubernetes_mistakes():
    waiting = Pods(tensorflow=[("a", "10.0.0.1", "Pending")])
    with pytest.raises(RuntimeError, match='Pod "a" is not running; phase: "Pending"'):
        RESOLVERS.KubernetesClusterResolver(override_client=waiting).cluster_spec()
    with pytest.raises(RuntimeError, match="No pod has one of the labels"):
        RESOLVERS.KubernetesClusterResolver(override_client=Pods()).cluster_spec()
    with pytest.raises(ValueError, match="executable location"):
        RESOLVERS.KubernetesClusterResolver(executable_location="here")


class Machines:
    """A Compute Engine service of two pages of machines."""

    pages = [["a", "b"], ["c"]]

    def instanceGroups(self):
        return self

    def instances(self):
        return self

    def listInstances(self, project, zone, instanceGroup, body, orderBy):
        assert (project, zone, instanceGroup) == ("p", "z", "g") and orderBy == "name"
        assert body == {"instanceState": "RUNNING"}
        return self.page(0)

    def page(self, number):
        items = [{"instance": f"https://x/instances/{n}"} for n in self.pages[number]]
        return SimpleNamespace(number=number, execute=lambda: {"items": items})

    def listInstances_next(self, previous_request, previous_response):
        following = previous_request.number + 1
        return self.page(following) if following < len(self.pages) else None

    def get(self, project, zone, instance):
        machine = {"networkInterfaces": [{"networkIP": f"10.0.0.{ord(instance) - 96}"}]}
        return SimpleNamespace(execute=lambda: machine)


def test_compute_engine_lists_the_group():
    resolver = RESOLVERS.GCEClusterResolver("p", "z", "g", 8, task_id=2, service=Machines())
    assert as_dict(resolver.cluster_spec()) == {"worker": [f"10.0.0.{i}:8" for i in (1, 2, 3)]}
    assert resolver.master() == "grpc://10.0.0.3:8"
    empty = Machines()
    empty.pages = [[]]
    with pytest.raises(RuntimeError, match="no running machine"):
        RESOLVERS.GCEClusterResolver("p", "z", "g", 8, service=empty).cluster_spec()


def test_missing_clients_are_named(monkeypatch):

    monkeypatch.setitem(sys.modules, "kubernetes", None)
    monkeypatch.setitem(sys.modules, "googleapiclient", None)
    with pytest.raises(ImportError, match=r"meshflow-tf\[kubernetes\]"):
        RESOLVERS.KubernetesClusterResolver()
    with pytest.raises(ImportError, match=r"meshflow-tf\[gce\]"):
        RESOLVERS.GCEClusterResolver("p", "z", "g", 8)


def test_union_of_resolvers():
    first = RESOLVERS.SimpleClusterResolver(
        {"worker": ["a:1"], "ps": ["p:1"]}, task_type="worker", task_id=0, rpc_layer="grpc"
    )
    second = RESOLVERS.SimpleClusterResolver({"worker": ["b:1"]})
    union = RESOLVERS.UnionResolver(first, second)
    assert as_dict(union.cluster_spec()) == {"worker": ["a:1", "b:1"], "ps": ["p:1"]}
    # Neither names the master.
    assert union.master() == "" and union.task_type == "worker"
    with pytest.raises(TypeError, match="sub-class"):
        RESOLVERS.UnionResolver({"worker": ["a:1"]})
    with pytest.raises(ValueError, match="At least one"):
        RESOLVERS.UnionResolver()
