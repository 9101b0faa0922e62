"""`tf.DeviceSpec`: a device's name in parts."""

from __future__ import annotations

from typing import Any

_KEYS = ("job", "replica", "task", "device_type", "device_index")


class DeviceSpec:
    """Which device, or which devices when parts are left open.

    Args:
      job: name of the job.
      replica: number of the replica.
      task: number of the task.
      device_type: 'CPU', 'GPU' or 'TPU'.
      device_index: number of the device.

    Example:
      >>> import meshflow as tf
      >>> tf.DeviceSpec(job="worker", device_type="GPU", device_index=1).to_string()
      '/job:worker/device:GPU:1'
    """

    def __init__(
        self,
        job: str | None = None,
        replica: int | None = None,
        task: int | None = None,
        device_type: str | None = None,
        device_index: int | None = None,
    ) -> None:
        self.job = job
        self.replica = None if replica is None else int(replica)
        self.task = None if task is None else int(task)
        self.device_type = None if device_type is None else device_type.upper()
        self.device_index = None if device_index is None else int(device_index)

    @classmethod
    def from_string(cls, spec: str) -> DeviceSpec:
        """The spec of a name such as '/job:worker/task:0/device:GPU:1' or '/gpu:0'.

        Raises:
          ValueError: for a part that is not known.
        """
        found: dict[str, Any] = {}
        for part in filter(None, spec.split("/")):
            key, *rest = part.split(":")
            if key in ("job", "replica", "task") and len(rest) == 1:
                found[key] = rest[0]
                continue
            kind = rest.pop(0) if key == "device" and rest else key
            if kind.upper() not in ("CPU", "GPU", "TPU") or len(rest) > 1:
                raise ValueError(f"Unknown attribute {part!r} in device name {spec!r}.")
            found["device_type"] = kind
            if rest and rest[0] != "*":
                found["device_index"] = rest[0]
        return cls(**found)

    parse_from_string = from_string

    def to_string(self) -> str:
        """The name."""
        text = "".join(
            f"/{key}:{value}"
            for key in ("job", "replica", "task")
            if (value := getattr(self, key)) is not None
        )
        if self.device_type is not None:
            index = "*" if self.device_index is None else self.device_index
            text += f"/device:{self.device_type}:{index}"
        return text

    def replace(self, **kwargs: Any) -> DeviceSpec:
        """A copy with other parts."""
        return DeviceSpec(**{**{k: getattr(self, k) for k in _KEYS}, **kwargs})

    def make_merged_spec(self, dev: DeviceSpec) -> DeviceSpec:
        """A copy with the parts that `dev` has."""
        return self.replace(**{k: v for k in _KEYS if (v := getattr(dev, k)) is not None})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeviceSpec) and self.to_string() == other.to_string()

    def __hash__(self) -> int:
        return hash(self.to_string())

    def __repr__(self) -> str:
        return f"DeviceSpec({self.to_string()!r})"
