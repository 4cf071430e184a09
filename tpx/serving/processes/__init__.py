"""`tpx serve --frontends N`: processes that speak HTTP and gRPC, and one engine process that computes.

```
 supervisor --forks--> frontend 0..N-1: connections, heads, tensors  ==ring, blocks==>  engine: all else
```

`supervisor` starts and restarts the processes. `frontend` is the main loop of a frontend process, in
which `remote` replaces the data plane. `hub` accepts the frontends in the engine, and a `peer` for each
of them calls the data plane. `relayed` has both sides of verbs other than inference. Short requests go
from the ring to `serving/fast_path.py`, and between HTTP or gRPC and the ring in `remote`'s fast path.

The processes communicate over a `channel` in shared memory: a `ring` of frames per direction, and a
`heap` of blocks for large messages. `wire` defines the content of the frames.
"""
