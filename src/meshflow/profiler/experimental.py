"""`tf.profiler.experimental`: profiles of this process, and of others by address."""

from meshflow.profiler import client, server
from meshflow.profiler.annotations import Trace
from meshflow.profiler.sessions import Profile, ProfilerOptions, start, stop

__all__ = ["Profile", "ProfilerOptions", "Trace", "client", "server", "start", "stop"]
