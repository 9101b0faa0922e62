"""Connections, shared memory, and messages between the processes of a job."""
