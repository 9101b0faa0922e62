"""`tf.DeviceSpec`: the parts of a device name."""

from __future__ import annotations

from typing import Any

_KEYS = ("job", "replica", "task", "device_type", "device_index")
# Devices with a short form, such as "/gpu:0", in which case does not matter.
_TYPES = ("CPU", "GPU", "TPU")


class DeviceSpec:
    """A device name in parts; parts that are None are unspecified.

    Args:
      job: Name of the job.
      replica: Index of the replica.
      task: Index of the task.
      device_type: 'CPU', 'GPU', 'TPU', or another name.
      device_index: Index of the device.

    Example:
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
        if device_type is not None and device_type.upper() in _TYPES:
            device_type = device_type.upper()
        self.device_type = device_type
        self.device_index = None if device_index is None else int(device_index)

    @classmethod
    def from_string(cls, spec: str) -> DeviceSpec:
        """Parse a device name such as '/job:worker/task:0/device:GPU:1' or '/gpu:0'.

        Raises:
          ValueError: If the name has an unknown part, or several devices.
        """
        fields: dict[str, Any] = {}
        for part in filter(None, spec.split("/")):
            key, *rest = part.split(":")
            if key in ("job", "replica", "task") and len(rest) == 1:
                fields[key] = rest[0]
                continue
            is_named = key == "device" and bool(rest)
            device_type = rest.pop(0) if is_named else key
            if (not is_named and device_type.upper() not in _TYPES) or len(rest) > 1:
                raise ValueError(f"Unknown attribute {part!r} in device name {spec!r}.")
            if "device_type" in fields:
                raise ValueError(f"Multiple device types are not allowed, got {spec!r}.")
            fields["device_type"] = device_type
            if rest and rest[0] != "*":
                fields["device_index"] = rest[0]
        return cls(**fields)

    parse_from_string = from_string

    def to_string(self) -> str:
        """Return the device name."""
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
        """Return a copy with the given parts replaced."""
        return DeviceSpec(**{**{k: getattr(self, k) for k in _KEYS}, **kwargs})

    def make_merged_spec(self, dev: DeviceSpec) -> DeviceSpec:
        """Return a copy in which the specified parts of `dev` replace the parts of this spec."""
        return self.replace(**{k: v for k in _KEYS if (v := getattr(dev, k)) is not None})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DeviceSpec) and self.to_string() == other.to_string()

    def __hash__(self) -> int:
        return hash(self.to_string())

    def __repr__(self) -> str:
        return f"DeviceSpec({self.to_string()!r})"
