"""`meshflow launch --hosts` and TF_CONFIG over a real network: network namespaces, each with its own sshd.

Needs root, `ip` and `sshd`; skipped elsewhere.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from distribute.cluster import strangers
from distribute.launching import WORKERS, environment, finish

SURVIVING = WORKERS / "surviving.py"
SSHD = "/usr/sbin/sshd"
BRIDGE, NETWORK = f"mf{os.getpid()}", f"10.{os.getpid() % 200 + 20}.77"
LAUNCHER = f"{NETWORK}.254"


def _allowed():
    if os.geteuid() or not (shutil.which("ip") and Path(SSHD).exists()):
        return False
    made = subprocess.run(["ip", "netns", "add", f"{BRIDGE}x"], capture_output=True).returncode == 0
    if made:
        run("ip", "netns", "del", f"{BRIDGE}x")
    return made


def run(*command):
    subprocess.run([str(c) for c in command], check=True, capture_output=True)


pytestmark = [
    pytest.mark.skipif(not _allowed(), reason="needs root, ip, and sshd"),
    pytest.mark.timeout(300),
]


class Hosts:
    """Two machines on one network, and ssh to them."""

    def __init__(self, folder):
        self.folder = folder
        self.names = [f"{BRIDGE}n{i}" for i in (1, 2)]
        self.addresses = [f"{NETWORK}.{i}" for i in (1, 2)]
        for key in ("key", "host"):
            run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key)
        (folder / "config").write_text(
            f"Host *\nIdentityFile {folder}/key\nStrictHostKeyChecking no\n"
            "UserKnownHostsFile /dev/null\nLogLevel ERROR\n"
        )
        (folder / "bin").mkdir()
        ssh = folder / "bin" / "ssh"
        ssh.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/config "$@"\n')
        ssh.chmod(0o755)
        Path("/run/sshd").mkdir(exist_ok=True)
        run("ip", "link", "add", BRIDGE, "type", "bridge")
        run("ip", "addr", "add", f"{LAUNCHER}/24", "dev", BRIDGE)
        run("ip", "link", "set", BRIDGE, "up")
        for name, address in zip(self.names, self.addresses, strict=True):
            run("ip", "netns", "add", name)
            run(
                "ip", "link", "add", f"{name}v", "type", "veth", "peer", "name", "e0", "netns", name
            )
            run("ip", "link", "set", f"{name}v", "master", BRIDGE, "up")
            run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", "e0")
            run("ip", "-n", name, "link", "set", "e0", "up")
            run("ip", "-n", name, "link", "set", "lo", "up")
            options = (f"AuthorizedKeysFile={folder}/key.pub", "StrictModes=no", "UsePAM=no")
            run(
                *("ip", "netns", "exec", name, SSHD, "-h", folder / "host", "-p", 22),
                *(word for option in options for word in ("-o", option)),
                *("-o", f"PidFile={folder}/{name}.pid", "-E", folder / f"{name}.log"),
            )

    def close(self):
        for name in self.names:
            found = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True)
            for pid in found.stdout.split():
                os.kill(int(pid), signal.SIGKILL)
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
        subprocess.run(["ip", "link", "del", BRIDGE], capture_output=True)

    def running(self, name):
        """Processes of the workers on a machine."""
        found = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True)
        lines = {pid: Path(f"/proc/{pid}/cmdline") for pid in found.stdout.split()}
        return [p for p, line in lines.items() if line.exists() and "python" in line.read_text()]

    def launch(self, *arguments, timeout=200, **extra):
        """Code and output of the launcher."""
        process = self.start(*arguments, **extra)
        try:
            text, _ = process.communicate(timeout=timeout)
        finally:
            process.kill()
        return process.returncode, text

    def start(self, *arguments, **extra):
        path = f"{self.folder}/bin:{os.environ['PATH']}"
        command = "from meshflow.cli import main; main()"
        return subprocess.Popen(
            [sys.executable, "-c", command, "launch", *map(str, arguments)],
            env=environment(1, PATH=path, **extra),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    made = Hosts(tmp_path_factory.mktemp("hosts"))
    try:
        yield made
    finally:
        made.close()


def weights(folder):
    with np.load(folder / "weights.npz") as found:
        return [found[k] for k in found.files]


@pytest.fixture(scope="module")
def undisturbed(hosts, tmp_path_factory):
    """Return the weights of a job on this machine only."""
    folder = tmp_path_factory.mktemp("undisturbed")
    code, text = hosts.launch("--workers", 2, SURVIVING, folder)
    assert code == 0, text
    return weights(folder)


def assert_same_bits(found, expected):
    for a, b in zip(found, expected, strict=True):
        assert a.tobytes() == b.tobytes()


def test_a_killed_worker_of_another_machine_is_started_again(hosts, undisturbed, tmp_path):
    """Test that the launcher finds its own address, and the network devices between the workers."""
    code, text = hosts.launch(
        *("--workers", 2, "--hosts", ",".join(hosts.addresses), "--max-restarts", 1),
        *(SURVIVING, tmp_path, "kill@4@1"),
    )
    assert code == 0, text
    assert "Restart 1 of 1" in text
    assert_same_bits(weights(tmp_path), undisturbed)
    assert not any(hosts.running(name) for name in hosts.names)


def test_workers_beside_the_launcher_and_elsewhere(hosts, undisturbed, tmp_path):
    user = f"root@{hosts.addresses[1]}"
    code, text = hosts.launch("--workers", 2, "--hosts", f"localhost,{user}", SURVIVING, tmp_path)
    assert code == 0, text
    assert_same_bits(weights(tmp_path), undisturbed)


def _words(address):
    """An IPv4 address as the kernel writes it."""
    return "".join(f"{int(part):02X}" for part in reversed(address.split(".")))


def test_a_job_over_hosts_listens_on_its_network_only(hosts, tmp_path):
    """Test that strangers cannot disturb the job or read its secret."""
    own = {_words(address) for address in hosts.addresses}

    def elsewhere():
        found = set()
        for name in hosts.names:
            files = ("ip", "netns", "exec", name, "cat", "/proc/net/tcp", "/proc/net/tcp6")
            text = subprocess.run(files, capture_output=True, text=True).stdout
            lines = [line.split() for line in text.splitlines()]
            places = {words[1] for words in lines if words[3] == "0A"}
            found |= {place for place in places if not place.endswith(":0016")}  # sshd
        assert {place.split(":")[0] for place in found} <= own
        return strangers.listeners(strangers.descendants(job.pid))

    arguments = ("--workers", 2, "--hosts", ",".join(hosts.addresses))
    job = hosts.start(*arguments, WORKERS / "waiting.py", tmp_path)
    found, text = strangers.attack_job(job, tmp_path, LAUNCHER, elsewhere)
    assert {address for address, _ in found} <= {
        _words(LAUNCHER),
        "0" * 16 + "FFFF0000" + _words(LAUNCHER),
    }
    assert "was refused at the meeting point: it does not" in text


def test_workers_end_with_the_launcher(hosts, tmp_path):
    arguments = (
        "--workers",
        2,
        "--hosts",
        ",".join(hosts.addresses),
        SURVIVING,
        tmp_path,
        "sleep@3@0",
    )
    process = hosts.start(*arguments)
    deadline = time.monotonic() + 60
    while not (tmp_path / "backup").exists():
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 20
    while any(hosts.running(name) for name in hosts.names):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_lost_connection_ends_the_job(hosts, tmp_path):
    """Test a worker that becomes silent without a signal or a closed connection."""
    arguments = (
        *("--workers", 2, "--hosts", ",".join(hosts.addresses), "--watchdog", 3),
        *(SURVIVING, tmp_path, "sleep@3@0"),
    )
    process = hosts.start(*arguments)
    deadline = time.monotonic() + 60
    while not (tmp_path / "backup").exists():
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    run("ip", "link", "set", f"{hosts.names[1]}v", "down")
    try:
        text, _ = process.communicate(timeout=60)
        assert process.returncode != 0
        assert "for 3 s" in text
        deadline = time.monotonic() + 30
        while hosts.running(hosts.names[1]):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        process.kill()
        run("ip", "link", "set", f"{hosts.names[1]}v", "up")


def test_workers_configured_by_tf_config_only(hosts, undisturbed, tmp_path):
    """Workers started by hand on each machine."""
    cluster = {"worker": [f"{address}:4711" for address in hosts.addresses]}
    started = [
        subprocess.Popen(
            ["ip", "netns", "exec", name, sys.executable, "-u", str(SURVIVING), str(tmp_path)],
            env=environment(
                1,
                TF_CONFIG=json.dumps(
                    {"cluster": cluster, "task": {"type": "worker", "index": number}}
                ),
            ),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for number, name in enumerate(hosts.names)
    ]
    outputs = finish(started)
    assert all("trained" in text for text in outputs), outputs
    assert_same_bits(weights(tmp_path), undisturbed)


RAY_DRIVER = """
import ray
from meshflow.distribute import ray as on_ray

def train():
    import os, numpy as np, meshflow as tf
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(2,))])
        model.compile("sgd", "mse")
    x = np.arange(16, dtype="float32").reshape(8, 2) / 10
    history = model.fit(x, x[:, :1], epochs=2, verbose=0, batch_size=4)
    return os.environ["TF_CONFIG"], history.history["loss"]

ray.init(address="auto", log_to_driver=False)
(first, a), (second, b) = on_ray.run(train, workers=2, devices_per_worker=1)
assert a == b, (a, b)
print("nodes", sorted({n["NodeManagerAddress"] for n in ray.nodes()}))
print("config", first)
"""


@pytest.mark.skipif(
    shutil.which("ray", path=Path(sys.executable).parent) is None, reason="needs Ray"
)
def test_ray_on_two_machines(hosts, tmp_path):
    """Every node has room for one worker."""
    ray = Path(sys.executable).parent / "ray"
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}
    options = ("--num-cpus", "1", "--object-store-memory", str(100 << 20))
    known = environment(
        1,
        RAY_USAGE_STATS_ENABLED=0,
        RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO=0,
        PATH=os.environ["PATH"],
        **token,
    )

    def inside(number, *command):
        words = ["ip", "netns", "exec", hosts.names[number], *map(str, command)]
        done = subprocess.run(
            words,
            env=known,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=200,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    script = tmp_path / "driver.py"
    script.write_text(RAY_DRIVER)
    first, second = hosts.addresses
    folders = [f"/tmp/{name}" for name in hosts.names]  # sockets' paths must be short
    try:
        common = (*options, "--disable-usage-stats")
        inside(
            0, ray, "start", "--head", "--include-dashboard=false", "--port", 6379,
            "--node-ip-address", first, "--temp-dir", folders[0], *common,
        )  # fmt: skip
        inside(
            1, ray, "start", "--address", f"{first}:6379", "--node-ip-address", second, *common
        )  # fmt: skip
        text = inside(0, sys.executable, script)
        assert f"nodes {sorted(hosts.addresses)}" in text
        assert all(address in text.split("config")[1] for address in hosts.addresses)
    finally:
        for number in (0, 1):
            for pid in subprocess.run(
                ["ip", "netns", "pids", hosts.names[number]], capture_output=True, text=True
            ).stdout.split():
                line = Path(f"/proc/{pid}/cmdline")
                if line.exists() and "ray" in line.read_text():
                    os.kill(int(pid), signal.SIGKILL)
            shutil.rmtree(folders[number], ignore_errors=True)
