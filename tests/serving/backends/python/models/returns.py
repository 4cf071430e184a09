"""Returns what execute must not, as a parameter says."""

import json

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        what = json.loads(requests[0].parameters())["what"]
        tensor = pb_utils.Tensor("y", requests[0].inputs()[0].as_numpy())
        good = pb_utils.InferenceResponse([tensor])
        if what == "raise":
            raise pb_utils.TritonModelException("nothing today")
        if what == "rescheduled":
            requests[0].set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
        return {
            "none": None,
            "tuple": (good,),
            "empty": [],
            "many": [good, good],
            "text": ["y"],
            "good": [good],
            "rescheduled": [good],
        }[what]
