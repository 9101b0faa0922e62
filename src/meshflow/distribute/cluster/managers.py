"""Resolvers for cluster managers (Slurm, Kubernetes, Compute Engine) and unions of resolvers."""

from __future__ import annotations

import enum
import os
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from meshflow.core.runtime.errors import InvalidValueError
from meshflow.distribute.cluster.cluster_spec import ClusterSpec
from meshflow.distribute.cluster.resolvers import ClusterResolver, SimpleClusterResolver
from meshflow.environment import optional_packages

# The addresses of a job: a list, or a dictionary from task ids.
_Tasks: TypeAlias = list[str] | dict[int, str]

# Maximum number of hosts or tasks of a Slurm job.
_MAX_HOSTS = 1 << 17


def _make_cluster_spec(jobs: Mapping[str, object]) -> ClusterSpec:
    """Create the `ClusterSpec` of addresses by job."""
    return SimpleClusterResolver(jobs).cluster_spec()


# ---- Slurm ---------------------------------------------------------------------------------


def expand_hostlist(hostlist: str) -> list[str]:
    """Expand Slurm's abbreviated list of hosts.

    Args:
      hostlist: List of hosts, such as "n[1-3,7],login".

    Example:
      >>> expand_hostlist("n[08-10,12]-ib,login")
      ['n08-ib', 'n09-ib', 'n10-ib', 'n12-ib', 'login']
    """
    parts = re.findall(r"(?:[^,\[\]]|\[[^\]]*\])+", hostlist)
    return [name for part in parts for name in _expand_host(part.strip())]


def _expand_host(part: str) -> list[str]:
    match = re.fullmatch(r"([^\[\]]*)\[([^\]]*)\](.*)", part)
    if match is None:
        if not part or "[" in part or "]" in part:
            raise InvalidValueError(f"{part!r} is not a list of Slurm hosts, such as 'n[1-3,7]'.")
        return [part]
    prefix, ranges, suffix = match.groups()
    middles: list[str] = []
    for item in ranges.split(","):
        first, dash, last = item.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise InvalidValueError(f"{part!r} is not a list of Slurm hosts, such as 'n[1-3,7]'.")
        numbers = range(int(first), int(last or first) + 1)
        _check_count(len(middles) + numbers.stop - numbers.start, part)
        middles += [str(n).zfill(len(first)) for n in numbers]
    tails = _expand_host(suffix) if suffix else [""]
    _check_count(len(middles) * len(tails), part)
    return [prefix + middle + tail for middle in middles for tail in tails]


def _check_count(count: int, text: str) -> None:
    if count > _MAX_HOSTS:
        raise InvalidValueError(f"{text!r:.100} has more than {_MAX_HOSTS} hosts or tasks.")


def expand_tasks_per_node(tasks_per_node: str) -> list[int]:
    """Expand Slurm's abbreviated list of the number of tasks on each node.

    Args:
      tasks_per_node: List of counts, such as "3(x2),1".

    Example:
      >>> expand_tasks_per_node("3(x2),1")
      [3, 3, 1]
    """
    counts: list[int] = []
    for part in tasks_per_node.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if match is None:
            raise InvalidValueError(
                f"{tasks_per_node!r} are not tasks per node, such as '3(x2),1': {part!r}."
            )
        repetitions = int(match[2] or 1)
        _check_count(len(counts) + repetitions, tasks_per_node)
        counts += [int(match[1])] * repetitions
    return counts


def _read_slurm_variable(name: str) -> str:
    """Read a variable of the current step, or of the job if there is no step."""
    for prefix in ("SLURM_STEP_", "SLURM_JOB_", "SLURM_"):
        value = os.environ.get(prefix + name)
        if value:
            return value
    raise RuntimeError(
        f"SLURM_STEP_{name} not found in environment. Not running inside a SLURM step? Start the "
        "script with srun."
    )


class SlurmClusterResolver(ClusterResolver):
    """Cluster of a Slurm step: every task that `srun` starts is a worker.

    Args:
      jobs: Number of tasks of each job, in the order in which tasks are assigned; by default all
        tasks are workers.
      port_base: Port of the first task of each node.
      gpus_per_node: Number of GPUs of each node; default the GPUs that Slurm assigned to this task.
      gpus_per_task: Number of GPUs of each task; default an equal part of the GPUs of the node.
      tasks_per_node: Number of tasks of each node: an integer, a list, or Slurm's text format;
        default Slurm's value.
      auto_set_gpu: Whether to limit each task to its own GPUs, by `CUDA_VISIBLE_DEVICES`.
      rpc_layer: Protocol, such as "grpc".

    Raises:
      RuntimeError: Outside of a Slurm step, or if the number of tasks differs from the sum of
        `jobs`.
    """

    def __init__(
        self,
        jobs: Mapping[str, int] | None = None,
        port_base: int = 8888,
        gpus_per_node: int | None = None,
        gpus_per_task: int | None = None,
        tasks_per_node: int | str | Sequence[int] | None = None,
        auto_set_gpu: bool = True,
        rpc_layer: str | None = "grpc",
    ) -> None:
        procid = os.environ.get("SLURM_PROCID")
        if procid is None:
            raise RuntimeError(
                "SLURM_PROCID not found in environment. Not running inside a SLURM step? Start the "
                "script with srun."
            )
        rank = int(procid)
        hosts = expand_hostlist(_read_slurm_variable("NODELIST"))
        if tasks_per_node is None:
            tasks_per_node = _read_slurm_variable("TASKS_PER_NODE")
        if isinstance(tasks_per_node, str):
            tasks_per_node = expand_tasks_per_node(tasks_per_node)
        elif isinstance(tasks_per_node, int):
            tasks_per_node = [tasks_per_node] * len(hosts)
        counts: Sequence[int] = tasks_per_node
        if len(counts) != len(hosts):
            raise RuntimeError(
                f"Slurm lists {len(hosts)} hosts {hosts}, but tasks_per_node {list(counts)} is for "
                f"{len(counts)}."
            )
        total = sum(counts)
        self._jobs = dict(jobs) if jobs else {"worker": total}
        if sum(self._jobs.values()) != total:
            raise RuntimeError(
                f"Requested {sum(self._jobs.values())} tasks but only {total} were assigned."
            )
        self.rpc_layer = rpc_layer
        addresses = [
            f"{host}:{port_base + i}"
            for host, count in zip(hosts, counts, strict=True)
            for i in range(count)
        ]
        self._addresses: dict[str, list[str]] = {}
        first = 0
        for job, count in self._jobs.items():
            self._addresses[job] = addresses[first : first + count]
            if first <= rank < first + count:
                self.task_type, self.task_id = job, rank - first
            first += count
        if self.task_type is None:
            raise RuntimeError(f"SLURM_PROCID is {rank}, but there are {total} tasks.")
        node = next(n for n in range(len(counts)) if rank < sum(counts[: n + 1]))
        local = int(os.environ.get("SLURM_LOCALID", rank - sum(counts[:node])))
        self._gpus = _select_gpus(gpus_per_node, gpus_per_task, counts[node], local)
        if auto_set_gpu and self._gpus:
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(self._gpus)

    def get_task_info(self) -> tuple[str | None, int | None]:
        """Return the job and the id of this task."""
        return self.task_type, self.task_id

    def cluster_spec(self) -> ClusterSpec:
        """Return the addresses by job."""
        return _make_cluster_spec(self._addresses)

    def num_accelerators(
        self, task_type: str | None = None, task_id: int | None = None, config_proto: object = None
    ) -> dict[str, int]:
        """Return the number of GPUs of this task."""
        return {"GPU": len(self._gpus)}


def _select_gpus(per_node: int | None, per_task: int | None, tasks: int, local: int) -> list[str]:
    """Select the GPU ids of the task with index `local` on its node."""
    names = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS", "CUDA_VISIBLE_DEVICES")
    listed = next((os.environ[n] for n in names if os.environ.get(n)), "")
    gpus = [g for g in listed.split(",") if g]
    if per_node is not None:
        gpus = gpus[:per_node] if len(gpus) >= per_node else [str(i) for i in range(per_node)]
    count = per_task if per_task is not None else len(gpus) // tasks
    if count * tasks > len(gpus):
        raise RuntimeError(
            f"{tasks} tasks of {count} GPUs each were requested on a node of {len(gpus)} GPUs."
        )
    return gpus[local * count : (local + 1) * count]


# ---- Kubernetes ----------------------------------------------------------------------------


class KubernetesExecutableLocation(enum.Enum):
    """Location of the program: in a pod of the cluster, or outside with a kubectl configuration."""

    WITHIN_CLUSTER = 0
    OFF_CLUSTER = 1


class KubernetesClusterResolver(ClusterResolver):
    """Cluster of pods that have specified labels.

    This process is the task of the pod that has the name of this machine; otherwise set `task_type`
    and `task_id`.

    Args:
      job_to_label_mapping: Label selectors of each job; default {"worker":
        ["job-name=tensorflow"]}.
      tf_server_port: Port of all tasks.
      rpc_layer: Protocol, such as "grpc".
      override_client: `kubernetes.client.CoreV1Api` to use.
      executable_location: A `KubernetesExecutableLocation`.

    Raises:
      ImportError: If the Kubernetes client is not installed.
    """

    def __init__(
        self,
        job_to_label_mapping: Mapping[str, Sequence[str]] | None = None,
        tf_server_port: int = 8470,
        rpc_layer: str | None = "grpc",
        override_client: Any = None,
        executable_location: KubernetesExecutableLocation = (
            KubernetesExecutableLocation.WITHIN_CLUSTER
        ),
    ) -> None:
        if not isinstance(executable_location, KubernetesExecutableLocation):
            raise InvalidValueError(
                f"The executable location {executable_location!r} is not a "
                "KubernetesExecutableLocation."
            )
        self._labels = dict(job_to_label_mapping or {"worker": ["job-name=tensorflow"]})
        self._port, self.rpc_layer = tf_server_port, rpc_layer
        self._client = override_client or _create_kubernetes_client(executable_location)

    def cluster_spec(self) -> ClusterSpec:
        """Return the addresses of the pods by job, in the order of the pod names.

        Raises:
          RuntimeError: If a pod is not running, or if a job has no pods.
        """
        jobs: dict[str, list[str]] = {}
        for job, selectors in self._labels.items():
            pods = [
                pod
                for selector in selectors
                for pod in self._client.list_pod_for_all_namespaces(label_selector=selector).items
            ]
            pods.sort(key=lambda pod: pod.metadata.name)
            for index, pod in enumerate(pods):
                if pod.status.phase != "Running":
                    raise RuntimeError(
                        f'Pod "{pod.metadata.name}" is not running; phase: "{pod.status.phase}"'
                    )
                if self.task_type is None and pod.metadata.name == socket.gethostname():
                    self.task_type, self.task_id = job, index
            if not pods:
                raise RuntimeError(f"No pod has one of the labels {list(selectors)} of job {job}.")
            jobs[job] = [f"{pod.status.host_ip}:{self._port}" for pod in pods]
        return _make_cluster_spec(jobs)


def _create_kubernetes_client(location: KubernetesExecutableLocation) -> Any:
    kubernetes = optional_packages.import_extra(
        "kubernetes",
        "kubernetes",
        "The Kubernetes Python client must be installed before using the Kubernetes Cluster Resolver",
    )
    if location is KubernetesExecutableLocation.WITHIN_CLUSTER:
        kubernetes.config.load_incluster_config()
    else:
        kubernetes.config.load_kube_config()
    return kubernetes.client.CoreV1Api()


# ---- Compute Engine ------------------------------------------------------------------------


class GCEClusterResolver(ClusterResolver):
    """Cluster of the running machines of an instance group of Google Compute Engine.

    Args:
      project: Name of the project.
      zone: Name of the zone.
      instance_group: Name of the instance group.
      port: Port of all tasks.
      task_type: Job of the machines and of this process.
      task_id: Id of this task.
      rpc_layer: Protocol, such as "grpc".
      credentials: Credentials of Google's client; "default" looks them up.
      service: Compute Engine service to use, as created by `googleapiclient.discovery.build`.

    Raises:
      ImportError: If Google's client is not installed.
    """

    def __init__(
        self,
        project: str,
        zone: str,
        instance_group: str,
        port: int,
        task_type: str = "worker",
        task_id: int = 0,
        rpc_layer: str | None = "grpc",
        credentials: Any = "default",
        service: Any = None,
    ) -> None:
        self._project, self._zone, self._group, self._port = project, zone, instance_group, port
        self.task_type, self.task_id, self.rpc_layer = task_type, task_id, rpc_layer
        self._service = service or _create_compute_service(credentials)

    def cluster_spec(self) -> ClusterSpec:
        """Return the addresses of the running machines, in the order of their names."""
        location = {"project": self._project, "zone": self._zone}
        groups, machines = self._service.instanceGroups(), self._service.instances()
        request = groups.listInstances(
            **location, instanceGroup=self._group, body={"instanceState": "RUNNING"}, orderBy="name"
        )
        addresses = []
        while request is not None:
            response = request.execute()
            for item in response.get("items", ()):
                name = item["instance"].split("/")[-1]
                machine = machines.get(**location, instance=name).execute()
                addresses.append(f"{machine['networkInterfaces'][0]['networkIP']}:{self._port}")
            request = groups.listInstances_next(
                previous_request=request, previous_response=response
            )
        if not addresses:
            raise RuntimeError(
                f"The instance group {self._group} of project {self._project} in {self._zone} has no "
                "running machine."
            )
        return _make_cluster_spec({str(self.task_type): addresses})


def _create_compute_service(credentials: Any) -> Any:
    message = "googleapiclient must be installed before using the GCE cluster resolver"
    discovery = optional_packages.import_extra("googleapiclient.discovery", "gce", message)
    if credentials == "default":
        credentials, _ = optional_packages.import_extra("google.auth", "gce", message).default()
    return discovery.build("compute", "v1", credentials=credentials)


# ---- combinations --------------------------------------------------------------------------


class UnionResolver(ClusterResolver):
    """Union of several clusters; the first resolver determines the task of this process.

    Args:
      *args: Resolvers.
      **kwargs: `rpc_layer`, `task_type` and `task_id`; default those of the first resolver.

    Raises:
      TypeError: If an argument is not a resolver.
      ValueError: If there are no resolvers, or if two of them have different addresses for one
        task.

    Example:
      >>> Simple = tf.distribute.cluster_resolver.SimpleClusterResolver
      >>> both = tf.distribute.cluster_resolver.UnionResolver(
      ...     Simple({"worker": ["a:1"]}, task_type="worker", task_id=0), Simple({"ps": ["b:1"]})
      ... )
      >>> both.master("ps", 0)
      'b:1'
    """

    def __init__(self, *args: ClusterResolver, **kwargs: Any) -> None:
        layer, task_type, task_id = (
            kwargs.pop(n, None) for n in ("rpc_layer", "task_type", "task_id")
        )
        if kwargs:
            raise ValueError(f"Unexpected kwargs provided {kwargs!r}")
        if not args:
            raise ValueError("At least one ClusterResolver is required.")
        for resolver in args:
            if not isinstance(resolver, ClusterResolver):
                raise TypeError("All arguments must be a sub-class of `ClusterResolver.`")
        self._resolvers, first = args, args[0]
        self.task_type = first.task_type if task_type is None else task_type
        self.task_id = first.task_id if task_id is None else task_id
        self._layer, self.rpc_layer = layer, layer or first.rpc_layer
        self.environment = first.environment

    def master(
        self, task_type: str | None = None, task_id: int | None = None, rpc_layer: str | None = None
    ) -> str:
        """Return the address of a task, or the first non-empty `master()` of the resolvers."""
        if task_type is not None and task_id is not None:
            return super().master(task_type, task_id, rpc_layer)
        masters = (r.master(rpc_layer=rpc_layer or self._layer) for r in self._resolvers)
        return next(filter(None, masters), "")

    def cluster_spec(self) -> ClusterSpec:
        """Return the addresses by job; lists are concatenated, and tasks with ids keep their ids."""
        jobs: dict[str, _Tasks] = {}
        for resolver in self._resolvers:
            for job, tasks in _to_dict(resolver.cluster_spec()).items():
                jobs[job] = tasks if job not in jobs else _merge_tasks(job, jobs[job], tasks)
        return _make_cluster_spec(jobs)

    def num_accelerators(
        self, task_type: str | None = None, task_id: int | None = None, config_proto: object = None
    ) -> dict[str, int]:
        """Return the number of accelerators by type, as reported by the first resolver."""
        return self._resolvers[0].num_accelerators(task_type, task_id, config_proto)


def _to_dict(spec: Any) -> dict[str, _Tasks]:
    as_dict: Callable[[], dict[str, _Tasks]] | None = getattr(spec, "as_dict", None)
    return dict(spec) if as_dict is None else as_dict()


def _merge_tasks(job: str, first: _Tasks, second: _Tasks) -> _Tasks:
    if isinstance(first, (list, tuple)) and isinstance(second, (list, tuple)):
        return [*first, *second]
    merged, added = (
        dict(enumerate(t)) if isinstance(t, (list, tuple)) else dict(t) for t in (first, second)
    )
    for index, address in added.items():
        if merged.setdefault(index, address) != address:
            raise KeyError(f"Duplicate keys detected when merging two ClusterSpecs: {job}:{index}")
    return merged
