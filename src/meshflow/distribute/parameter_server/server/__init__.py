"""Parameter servers: state, write-ahead log, and proxies in other processes."""
