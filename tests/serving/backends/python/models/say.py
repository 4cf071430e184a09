"""Does as the text in its input says: what pb_utils is and does, as seen by a model."""

import ctypes
import json
import os
import resource
import signal
import sys
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.args = args
        self.kept = []
        while os.path.exists(os.path.join(pb_utils.get_model_dir(), "held")):
            time.sleep(0.01)

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        words = pb_utils.get_input_tensor_by_name(request, "say").as_numpy().reshape(-1)[0].decode()
        verb, _, rest = words.partition(" ")
        result = getattr(self, verb)(request, rest)
        if result is None or isinstance(result, (pb_utils.InferenceResponse, list)):
            return result
        return text(result)

    def facts(self, request, rest):
        return json.dumps(
            {
                "id": request.request_id(),
                "correlation": request.correlation_id(),
                "flags": request.flags(),
                "timeout": request.timeout(),
                "parameters": json.loads(request.parameters()),
                "outputs": sorted(request.requested_output_names()),
                "inputs": [tensor.name() for tensor in request.inputs()],
                "absent": pb_utils.get_input_tensor_by_name(request, "nothing") is None,
                "directory": os.path.basename(pb_utils.get_model_dir()),
                "kind": self.args["model_instance_kind"],
                "version": self.args["model_version"],
                "arguments": sys.argv,
            }
        )

    def trace(self, request, rest):
        trace = request.trace()
        child = pb_utils.InferenceRequest(model_name="double", requested_output_names=["y"], trace=trace)
        return repr((trace.get_context(), child.trace() is trace))

    def fail(self, request, rest):
        raise ValueError(rest)

    def refuse(self, request, rest):
        code, _, message = rest.partition(" ")
        return pb_utils.InferenceResponse(
            error=pb_utils.TritonError(message, getattr(pb_utils.TritonError, code))
        )

    def parameters(self, request, rest):
        tensor = pb_utils.Tensor("said", np.array([b"ok"], dtype=np.object_))
        return pb_utils.InferenceResponse([tensor], parameters={"text": "t", "number": 3, "flag": True})

    def nothing(self, request, rest):
        return pb_utils.InferenceResponse([])

    def other_type(self, request, rest):
        return pb_utils.InferenceResponse([pb_utils.Tensor("said", np.array([1.5, 2.5], dtype=np.float64))])

    def sender(self, request, rest):
        sender = request.get_response_sender()
        sender.send(text("by sender"))
        try:
            sender.send(text("once more"))
        except pb_utils.TritonModelException as error:
            sys.stderr.write(f"refused: {error}\n")
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        try:
            sender.send(text("after the end"))
        except pb_utils.TritonModelException as error:
            sys.stderr.write(f"refused: {error}\n")

    def later(self, request, rest):
        sender = request.get_response_sender()

        def send():
            time.sleep(0.05)
            sender.send(text("later"), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

        threading.Thread(target=send).start()

    def forget(self, request, rest):
        request.get_response_sender()

    def sleep(self, request, rest):
        time.sleep(float(rest))
        return "slept"

    def sleep_as(self, request, rest):
        name, _, seconds = rest.partition(" ")
        path = os.path.join(pb_utils.get_model_dir(), "sleeps_" + name)
        with open(path + ".new", "w") as file:
            file.write(str(os.getpid()))
        os.rename(path + ".new", path)
        time.sleep(float(seconds))
        return "slept"

    def cancelled(self, request, rest):
        open(rest + ".asked", "w").close()
        for _ in range(2000):
            if request.is_cancelled():
                open(rest, "w").close()
                error = pb_utils.TritonError("given up", pb_utils.TritonError.CANCELLED)
                return pb_utils.InferenceResponse(error=error)
            time.sleep(0.01)
        return "never cancelled"

    def die(self, request, rest):
        os.kill(os.getpid(), signal.SIGKILL)

    def leave(self, request, rest):
        os._exit(3)

    def crash(self, request, rest):
        ctypes.string_at(0)

    def huge(self, request, rest):
        return str(len(bytearray(1 << 46)))

    def limited(self, request, rest):
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        before = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20), before[1]))
        try:
            held = []
            while True:
                held.append(np.ones(1 << 20))
        finally:
            held.clear()
            resource.setrlimit(resource.RLIMIT_AS, before)

    def fill(self, request, rest):
        held = []
        while len(held) < 100:
            held.append(np.ones(1 << 20))
        time.sleep(60)

    def pid(self, request, rest):
        return str(os.getpid())

    def free_memory(self, request, rest):
        return str(pb_utils.shared_memory.free_memory())

    def large(self, request, rest):
        return "x" * int(rest)

    def keep(self, request, rest):
        self.kept.append(request.inputs()[0])
        return str(len(self.kept))

    def log(self, request, rest):
        pb_utils.Logger.log("plain " + rest)
        pb_utils.Logger.log_warn("warning " + rest)
        pb_utils.Logger.log_error("error " + rest)
        pb_utils.Logger.log_verbose("verbose " + rest)
        return "logged"

    def metrics(self, request, rest):
        counter = pb_utils.MetricFamily("calls", "How often", pb_utils.MetricFamily.COUNTER)
        gauge = pb_utils.MetricFamily("level", "How high", pb_utils.MetricFamily.GAUGE)
        histogram = pb_utils.MetricFamily("sizes", "How large", pb_utils.MetricFamily.HISTOGRAM)
        calls = counter.Metric(labels={"model": "say", "who": rest})
        calls.increment(2)
        calls.increment(1.5)
        level = gauge.Metric()
        level.set(5)
        level.increment(-2)
        sizes = histogram.Metric(labels={"a": "b"}, buckets=[1, 10])
        for size in (0.5, 5, 50):
            sizes.observe(size)
        again = pb_utils.MetricFamily("calls", "How often", pb_utils.MetricFamily.COUNTER)
        other = pb_utils.MetricFamily("calls", "Otherwise", pb_utils.MetricFamily.COUNTER)
        self.kept.append(other)
        refused = [
            told(wrong)
            for wrong in (
                lambda: calls.increment(-1),
                lambda: calls.set(1),
                lambda: level.observe(1),
                lambda: sizes.value(),
                lambda: histogram.Metric(labels={"c": "d"}),
                lambda: histogram.Metric(labels={"c": "d"}, buckets=(1, 2)),
                lambda: histogram.Metric(labels={"c": "d"}, buckets=[2, 1]),
                lambda: counter.Metric(buckets=[]),
                lambda: counter.Metric(labels=[("a", "b")]),
                lambda: counter.Metric(labels={"a": 1}),
                lambda: counter.Metric(labels={"a b": "c"}),
                lambda: pb_utils.MetricFamily("calls", "How often", pb_utils.MetricFamily.GAUGE),
                lambda: pb_utils.MetricFamily("nv_mine", "No", pb_utils.MetricFamily.COUNTER),
            )
        ]
        self.kept += [counter, gauge, histogram, calls, level, sizes, again]
        same = other.Metric(labels={"model": "say", "who": rest})
        histogram.Metric(labels={"only": "+Inf"}, buckets=[]).observe(3)
        return json.dumps({"values": [calls.value(), level.value(), same.value()], "refused": refused})

    def metric_outlives_its_family(self, request, rest):
        family = pb_utils.MetricFamily("short_gauge", "Gone", pb_utils.MetricFamily.GAUGE)
        sizes = pb_utils.MetricFamily("short_sizes", "Gone", pb_utils.MetricFamily.HISTOGRAM)
        gauge = family.Metric()
        size = sizes.Metric(buckets=[1])
        gauge.set(3)
        del family, sizes
        wrong = (lambda: gauge.set(1), lambda: gauge.increment(1), gauge.value, lambda: size.observe(1))
        return json.dumps([told(each) for each in wrong])

    def forget_metrics(self, request, rest):
        self.kept.clear()
        return "ok"

    def load(self, request, rest):
        pb_utils.load_model(rest)
        return str(pb_utils.is_model_ready(rest))

    def load_with(self, request, rest):
        name, _, path = rest.partition(" ")
        config = json.dumps(
            {"name": name, "backend": "python", "max_batch_size": 0, "input": IO, "output": OUT}
        )
        with open(path, "rb") as file:
            pb_utils.load_model(name, config, {"file:1/model.py": file.read()})
        return str(pb_utils.is_model_ready(model_name=name, model_version="1"))

    def unload(self, request, rest):
        pb_utils.unload_model(rest)
        return str(pb_utils.is_model_ready(rest))


IO = [{"name": "say", "data_type": "TYPE_STRING", "dims": [-1]}]
OUT = [{"name": "said", "data_type": "TYPE_STRING", "dims": [-1]}]


def told(wrong):
    try:
        wrong()
    except pb_utils.TritonModelException as error:
        return str(error)
    return "nothing"


def text(words):
    tensor = pb_utils.Tensor("said", np.array([words.encode()], dtype=np.object_))
    return pb_utils.InferenceResponse(output_tensors=[tensor])
