"""Model server with TensorFlow Serving's REST and gRPC protocols; see `meshflow serve`."""

from meshflow.serving.application import application
from meshflow.serving.server import serve
from meshflow.serving.versions import Settings
