"""Results of `MeshStrategy.explain`: the stages of a pipeline, and the collectives of a step."""

from __future__ import annotations

import dataclasses
from typing import Any

from meshflow.distribute.parallel.stages import summarize_names


@dataclasses.dataclass(frozen=True)
class StageReport:
    """Description of a stage of a pipeline.

    Attributes:
      layers: Names of its layers.
      device: Index of its device along the pipeline's mesh dimension.
      work: Multiplications and additions of the forward pass of a micro-batch.
      weights: Bytes of its trained weights.
      sends: Bytes that it sends to the next stage for each micro-batch.
    """

    layers: tuple[str, ...]
    device: int
    work: float
    weights: int
    sends: int


@dataclasses.dataclass(frozen=True)
class PipelineReport:
    """Description of a pipeline.

    Attributes:
      over: Mesh dimension of the pipeline.
      stages: Its stages in order.
      micro_batches: Number of micro-batches of a step.
      ticks: Number of ticks; the loop of the compiled step has as many iterations.
      bubble: Fraction of the time in which devices are idle if all stages take equally long.
      held: Largest number of micro-batches for which a device keeps inputs or residuals.
      keep: Which of both, "inputs" or "residuals".
      programs: Number of different programs among the stages.
      edge: Bytes of the buffers that are sent to the next stage in a tick.
      sent: Bytes that a device sends to its neighbors in a step.
      held_bytes: Bytes of the inputs, gradients and residuals that a device keeps.
      packed: Bytes of the weights of the largest stage, which every device allocates in a step.
    """

    over: str
    stages: tuple[StageReport, ...]
    micro_batches: int
    ticks: int
    bubble: float
    held: int
    keep: str
    programs: int
    edge: int
    sent: int
    held_bytes: int
    packed: int

    def __str__(self) -> str:
        rows = [("stage", "device", "work", "weights", "sends", "layers")]
        for index, s in enumerate(self.stages):
            numbers = (f"{s.work:,.0f}", f"{s.weights:,}", f"{s.sends:,}")
            rows.append((str(index), str(s.device), *numbers, summarize_names(s.layers)))
        widths = [max(len(row[i]) for row in rows) for i in range(6)]
        lines = [
            "  ".join(
                c.rjust(w) if i < 5 else c for i, (c, w) in enumerate(zip(row, widths, strict=True))
            )
            for row in rows
        ]
        lines.append(
            f"pipeline over {self.over!r}: {self.micro_batches} micro-batches in {self.ticks} ticks, bubble "
            f"{self.bubble:.3f}, {self.held} {self.keep} kept ({self.held_bytes:,} bytes), {self.programs} different programs"
        )
        lines.append(
            f"{self.edge:,} bytes to the next stage in a tick, {self.sent:,} bytes sent to neighbours in a step, "
            f"{self.packed:,} bytes of weights gathered in a step"
        )
        return "\n".join(lines)


@dataclasses.dataclass(frozen=True)
class StepReport:
    """Description of a training step under a `MeshStrategy`; `str` formats it as tables.

    Attributes:
      pipeline: Its pipeline, or None.
      step: The compiled step, as `tf.experimental.dtensor.explain` describes it.
    """

    pipeline: PipelineReport | None
    step: Any

    def __str__(self) -> str:
        parts = [] if self.pipeline is None else [str(self.pipeline), ""]
        memory = ", ".join(f"{name} {n:,}" for name, n in self.step.memory.items())
        return "\n".join([*parts, str(self.step), f"bytes on each device: {memory}"])

    __repr__ = __str__
