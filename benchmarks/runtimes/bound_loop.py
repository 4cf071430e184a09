"""ONNX Runtime's `Run` in a loop, on one thread and memory bound once: CPU time per call, as JSON."""

import argparse
import json
from pathlib import Path
from time import perf_counter_ns, process_time_ns

from benchmarks.models import GAP, IDENTITY, MNIST
from benchmarks.payloads import inputs

MODELS = {model.name: model for model in (IDENTITY, MNIST, GAP)}
CALLS = 100
"""Calls between two looks at the clock."""
WARM_UP_S = 0.1


def main() -> None:
    """Call the model for so many seconds."""
    import onnxruntime

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("onnx", type=Path)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("seconds", type=float)
    given = parser.parse_args()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(given.onnx), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    feed = dict(inputs(MODELS[given.model]))
    for name, array in feed.items():
        binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
    for output, array in zip(session.get_outputs(), session.run(None, feed), strict=True):
        binding.bind_ortvalue_output(output.name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
    run, bound = session._sess.run_with_iobinding, binding._iobinding  # without the wrapper's checks
    calls = spent_ns = 0
    for seconds in (WARM_UP_S, given.seconds):
        calls, began_ns, ends_ns = 0, process_time_ns(), perf_counter_ns() + seconds * 1e9
        while perf_counter_ns() < ends_ns:
            for _ in range(CALLS):
                run(bound, None)
            calls += CALLS
        spent_ns = process_time_ns() - began_ns
    print(json.dumps({"compute_us": spent_ns / calls / 1000}))


if __name__ == "__main__":
    main()
