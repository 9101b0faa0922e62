"""Functions of strings and tables: plans of host calls and programs."""
