"""Replicas of `tpx serve` on a Ray cluster, behind HAProxy.

Ray places, supervises and restarts processes; HAProxy carries the traffic. `spec` describes the desired
cluster, `policy` decides when to scale and wait and `canary` when to roll back (pure, with an injected
clock), `balancer` generates the proxies' configuration, `replica` and `proxy` are the processes on the
nodes, `supervisor` is the control loop that reconciles the state with the spec, and `client` implements
the commands. Only `client` and `supervisor` import Ray, and only when used.
"""
