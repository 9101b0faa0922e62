"""Clusters: launchers, monitoring, and roles of servers and workers."""
