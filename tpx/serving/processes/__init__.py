"""`tpx serve --frontends N`: processes that speak HTTP and gRPC, and one engine that computes.

```
 supervisor --forks--> frontend 0..N-1: connections, heads, tensors  ==ring, blocks==>  engine: all else
```

`supervisor` starts the processes and starts them again; `frontend` is the process of a frontend, in which
`remote` stands for the data plane; `hub` is the engine's side, which calls the real one, also for what
frontends only hand on (`relayed`, both sides); short requests go from the ring to `serving/express.py`. They
talk over a `channel`: a `ring` of frames in each direction and a `heap` of blocks for what is large, in
memory that they share; `wire` is what the frames say.
"""
