"""host_steps."""
