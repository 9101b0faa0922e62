"""A Python function run once into a jaxpr, with its captures and writes; calls back to the host; the passes in force."""
