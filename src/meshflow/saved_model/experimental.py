"""`tf.saved_model.experimental`: fingerprints, the variable policy, and user-defined resources."""

from meshflow.saved_model.manifest.fingerprint import Fingerprint, read_fingerprint
from meshflow.saved_model.manifest.resources import TrackableResource
from meshflow.saved_model.options import VariablePolicy

__all__ = ["Fingerprint", "TrackableResource", "VariablePolicy", "read_fingerprint"]
