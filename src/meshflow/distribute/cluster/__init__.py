"""The processes of a job: who they are, how they find and trust each other, who watches over them.

From the ground up: `addresses` and `channel` (where processes listen, and lines that only they can write),
`rendezvous` (the meeting point) and `coordination` (how a process joins its job), `supervision` (from
outside); `cluster_spec`, `resolvers` and `managers` say which processes there are.
"""
