"""Private names of JAX, optional packages, and limits from environment variables."""
