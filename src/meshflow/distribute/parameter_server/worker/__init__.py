"""Workers: execution of closures, clients of servers, and proxies in the coordinator."""
