"""`tf.keras.callbacks`: hooks that run during training, evaluation and prediction."""

from meshflow.keras.callbacks import experimental
from meshflow.keras.callbacks.backup import BackupAndRestore
from meshflow.keras.callbacks.logging import CSVLogger, LambdaCallback, LearningRateScheduler
from meshflow.keras.callbacks.monitoring import (
    EarlyStopping,
    ModelCheckpoint,
    ReduceLROnPlateau,
    TerminateOnNaN,
)
from meshflow.keras.callbacks.remote import BaseLogger, RemoteMonitor, SidecarEvaluatorModelExport
from meshflow.keras.callbacks.tensorboard import TensorBoard
from meshflow.keras.engine.training.callbacks import Callback, CallbackList, History, ProgbarLogger
from meshflow.keras.engine.training.find_nan import FindNaN

__all__ = [
    "BackupAndRestore",
    "BaseLogger",
    "CSVLogger",
    "Callback",
    "CallbackList",
    "EarlyStopping",
    "FindNaN",
    "History",
    "LambdaCallback",
    "LearningRateScheduler",
    "ModelCheckpoint",
    "ProgbarLogger",
    "ReduceLROnPlateau",
    "RemoteMonitor",
    "SidecarEvaluatorModelExport",
    "TensorBoard",
    "TerminateOnNaN",
    "experimental",
]
