"""The processes of a job: discovery, authentication and supervision.

Modules from the bottom up: `addresses` and `channel` (listening sockets and signed messages),
`rendezvous` and `coordination` (connecting the processes of a job), `supervision` (monitoring by a
launcher); `cluster_spec`, `resolvers` and `managers` describe the processes of a job.
"""
