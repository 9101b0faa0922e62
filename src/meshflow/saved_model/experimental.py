"""`tf.saved_model.experimental`: fingerprints, the variable policy, and user-defined resources."""

from meshflow.saved_model.fingerprint import Fingerprint, read_fingerprint
from meshflow.saved_model.options import VariablePolicy
from meshflow.saved_model.resources import TrackableResource

__all__ = ["Fingerprint", "TrackableResource", "VariablePolicy", "read_fingerprint"]
