"""Process-wide services that do not depend on tensors: devices, transfers, scopes, names and errors."""
