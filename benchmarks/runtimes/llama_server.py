"""llama.cpp's own HTTP server: `python llama_server.py FILE PORT STREAMS`, until it is ended."""

import signal
import sys

import xllamacpp

path, port, streams = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
params = xllamacpp.CommonParams()
params.model.path = path
params.model_alias = {"tiny"}
params.n_parallel = streams
params.n_ctx = 512 * streams
params.kv_unified = False
for processors in (params.cpuparams, params.cpuparams_batch):
    processors.n_threads = 1
    processors.poll = 0
params.cache_ram_mib = 0
params.fit_params = False
params.verbosity = -1
params.ui = False
params.hostnames = ["127.0.0.1"]
params.port = port
server = xllamacpp.Server(params)
signal.sigwait({signal.SIGTERM})
