"""`tf.saved_model.experimental`: fingerprints, the policy for variables, and resources that programs make themselves."""

from meshflow.saved_model.fingerprint import Fingerprint, read_fingerprint
from meshflow.saved_model.options import VariablePolicy
from meshflow.saved_model.resources import TrackableResource

__all__ = ["Fingerprint", "TrackableResource", "VariablePolicy", "read_fingerprint"]
