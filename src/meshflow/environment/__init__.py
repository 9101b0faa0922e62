"""What Meshflow finds around it: private names of JAX, optional packages, limits from environment variables."""
