"""Replicas of `tpx serve` on a Ray cluster, and the HAProxy in front of them.

Ray places, supervises and restarts processes; HAProxy carries the traffic. What is here decides and connects:
`spec` what is wanted, `policy` when to scale, wait and roll back (pure, with a clock from outside),
`balancer` the proxies' configuration, `replica` and `proxy` the processes on the nodes, `supervisor` the loop
that makes the state what the spec wants, and `client` the calls of the command line. Only `client` and
`supervisor` import Ray, and only when they are used.
"""
