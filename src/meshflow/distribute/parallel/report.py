"""What `MeshStrategy.explain` says: the stages of a pipeline, and the collectives of a step."""

from __future__ import annotations

import dataclasses
from typing import Any

from meshflow.distribute.parallel.stages import described

__all__ = ["PipelineReport", "StageReport", "StepReport"]


@dataclasses.dataclass(frozen=True)
class StageReport:
    """A stage.

    Attributes:
      layers: the names of its layers.
      device: its place along the pipeline's mesh dimension.
      work: multiplications and additions of a micro-batch's forward pass.
      weights: bytes of its trained weights.
      sends: bytes that go on to the next stage for each micro-batch.
    """

    layers: tuple[str, ...]
    device: int
    work: float
    weights: int
    sends: int


@dataclasses.dataclass(frozen=True)
class PipelineReport:
    """A pipeline as it runs.

    Attributes:
      over: the mesh dimension.
      stages: the stages in order.
      micro_batches: how many micro-batches a step has.
      ticks: how many ticks; the loop of the compiled step takes as many turns.
      bubble: the share of the time in which devices wait, all stages taking equally long.
      held: the most micro-batches whose inputs a device keeps.
      programs: how many different programs the stages are.
      edge: bytes of the buffers that go from stage to stage in a tick.
      sent: bytes that a device sends to its neighbours in a step.
      held_bytes: bytes of the inputs and gradients that a device keeps, and of what weight passes apart need.
      packed: bytes of the longest stage's weights, which every device has room for in a step.
    """

    over: str
    stages: tuple[StageReport, ...]
    micro_batches: int
    ticks: int
    bubble: float
    held: int
    programs: int
    edge: int
    sent: int
    held_bytes: int
    packed: int

    def __str__(self) -> str:
        rows = [("stage", "device", "work", "weights", "sends", "layers")]
        for number, s in enumerate(self.stages):
            numbers = (f"{s.work:,.0f}", f"{s.weights:,}", f"{s.sends:,}")
            rows.append((str(number), str(s.device), *numbers, described(s.layers)))
        widths = [max(len(row[i]) for row in rows) for i in range(6)]
        lines = [
            "  ".join(
                c.rjust(w) if i < 5 else c for i, (c, w) in enumerate(zip(row, widths, strict=True))
            )
            for row in rows
        ]
        lines.append(
            f"pipeline over {self.over!r}: {self.micro_batches} micro-batches in {self.ticks} ticks, bubble "
            f"{self.bubble:.3f}, {self.held} held ({self.held_bytes:,} bytes), {self.programs} different programs"
        )
        lines.append(
            f"{self.edge:,} bytes to the next stage in a tick, {self.sent:,} bytes sent to neighbours in a step, "
            f"{self.packed:,} bytes of weights together in a step"
        )
        return "\n".join(lines)


@dataclasses.dataclass(frozen=True)
class StepReport:
    """What a training step does under a `MeshStrategy`; `str` gives it as tables.

    Attributes:
      pipeline: the pipeline, or None.
      step: the compiled step, as `tf.experimental.dtensor.explain` explains it.
    """

    pipeline: PipelineReport | None
    step: Any

    def __str__(self) -> str:
        parts = [] if self.pipeline is None else [str(self.pipeline), ""]
        memory = ", ".join(f"{name} {n:,}" for name, n in self.step.memory.items())
        return "\n".join([*parts, str(self.step), f"bytes on each device: {memory}"])

    __repr__ = __str__
