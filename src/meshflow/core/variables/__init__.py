"""Variables, modules that own them, random generators, and updates of parts of variables."""
