"""`tpx serve --frontends N`: processes that speak HTTP and gRPC, and one engine process that computes.

```
 supervisor --forks--> frontend 0..N-1: connections, heads, tensors  ==frames, blocks==>  engine: all else
```

`supervisor` starts and restarts the processes. `frontend` is the main loop of a frontend process, in
which `remote` replaces the data plane, with what `remote_requests` knows of models and requests. `hub`
accepts the frontends in the engine, each by a `peer`: `peer_requests` gives its requests to the data plane,
`fast_frames` gives short ones to `serving/fast_path.py`, and both keep `templates` of what repeats. `relayed`
has both sides of verbs other than inference.

The processes communicate over a `channel`: frames over a socket, and large payloads in shared memory
(`serving/transport`). `wire` defines the content of the frames.
"""
