"""`tf.train`: checkpoints."""

from __future__ import annotations

from types import SimpleNamespace

from meshflow.checkpoint import (
    Checkpoint,
    CheckpointManager,
    CheckpointOptions,
    CheckpointState,
    PythonState,
    checkpoints_iterator,
    get_checkpoint_state,
    latest_checkpoint,
    list_variables,
    load_checkpoint,
    load_variable,
)

__all__ = [
    "Checkpoint",
    "CheckpointManager",
    "CheckpointOptions",
    "CheckpointState",
    "checkpoints_iterator",
    "experimental",
    "get_checkpoint_state",
    "latest_checkpoint",
    "list_variables",
    "load_checkpoint",
    "load_variable",
]

experimental = SimpleNamespace(PythonState=PythonState)
