"""The interface to the environment: private names of JAX, optional packages, and limits from
environment variables.
"""
