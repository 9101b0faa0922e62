"""Test that DTensor with several clients, started by `meshflow launch`, equals one process."""

import numpy as np
from typer.testing import CliRunner

from distribute.launching import WORKERS, environment
from distribute.workers import clients
from meshflow.cli.commands import app
from meshflow.experimental import dtensor


def test_clients_equal_one_process(tmp_path):
    options = ["launch", "--workers", "2", "--devices-per-worker", "2"]
    arguments = [*options, str(WORKERS / "clients.py"), str(tmp_path)]
    done = CliRunner().invoke(app, arguments, env={"TF_CONFIG": None, **environment()})
    assert done.exit_code == 0, done.output
    devices = [f"CPU:{i}" for i in range(4)]
    expected = clients.results(
        lambda dims: dtensor.create_mesh(dims, devices=devices), tmp_path / "one"
    )
    for number in range(2):
        found = np.load(tmp_path / f"{number}.npz")
        assert found["client"] == number and found["clients"] == 2
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6, err_msg=name)
