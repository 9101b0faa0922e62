"""Places to write to: the memory's store, and a server of this machine that speaks S3."""

import contextlib
import os
import uuid

import fsspec


def memory():
    """Return a new path in the memory store, which lives as long as the process."""
    return f"memory://{uuid.uuid4().hex}"


@contextlib.contextmanager
def s3():
    """A new bucket's address, on a server of this machine that runs as long as the block."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    wanted = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "someone",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "NO_PROXY": "127.0.0.1",
    }
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        store = fsspec.filesystem("s3", skip_instance_cache=True)
        # The server's memory is that of the process.
        bucket = uuid.uuid4().hex
        store.mkdir(bucket)
        yield f"s3://{bucket}/new"
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        for kind in ("s3", "s3a"):
            fsspec.get_filesystem_class(kind).clear_instance_cache()
        server.stop()
