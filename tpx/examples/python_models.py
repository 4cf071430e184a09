"""`word_count` and `mnist_vote`: models written in Python, one of which calls another model."""

from tpx.examples.example import Example, text_file

WORD_COUNT_CONFIG = """\
# COUNT is how many words are in each element of TEXT.
# Inputs, outputs and batching are completed by auto_complete_config in 1/model.py, which runs in a process of
# its own; with `instance_group [ { count: 4 } ]` there would be four.
backend: "python"
max_batch_size: 8
"""

WORD_COUNT = '''\
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Counts words, and shows on the metrics page how many it has seen."""

    @staticmethod
    def auto_complete_config(auto_complete_model_config):
        auto_complete_model_config.add_input({"name": "TEXT", "data_type": "TYPE_STRING", "dims": [1]})
        auto_complete_model_config.add_output({"name": "COUNT", "data_type": "TYPE_INT32", "dims": [1]})
        auto_complete_model_config.set_max_batch_size(8)
        auto_complete_model_config.set_dynamic_batching()
        return auto_complete_model_config

    def initialize(self, args):
        # a metric lives as long as its family
        self.words = pb_utils.MetricFamily("words_counted", "Words seen", pb_utils.MetricFamily.COUNTER)
        self.seen = self.words.Metric(labels={"model": args["model_name"]})

    def execute(self, requests):
        responses = []
        for request in requests:
            texts = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()
            counts = np.array([[len(text.split()) for text in row] for row in texts], np.int32)
            self.seen.increment(int(counts.sum()))
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("COUNT", counts)]))
        return responses
'''

MNIST_VOTE_CONFIG = """\
# Asks the model mnist five times, each time with the digit moved by a pixel, and gives the mean: business
# logic scripting. The calls run at the same time, and mnist's dynamic batcher computes them together.
name: "mnist_vote"
backend: "python"
max_batch_size: 8
input [ { name: "image" data_type: TYPE_FP32 dims: [ 1, 8, 8 ] } ]
output [ { name: "probabilities" data_type: TYPE_FP32 dims: [ 10 ] } ]
"""

MNIST_VOTE = '''\
import asyncio

import numpy as np
import triton_python_backend_utils as pb_utils

MOVES = ((0, 0), (0, 1), (0, -1), (1, 0), (-1, 0))


class TritonPythonModel:
    """Average another model over slightly shifted images."""

    async def execute(self, requests):
        return list(await asyncio.gather(*map(self.answer, requests)))

    async def answer(self, request):
        image = pb_utils.get_input_tensor_by_name(request, "image").as_numpy()
        opinions = await asyncio.gather(*(self.ask(np.roll(image, move, axis=(2, 3))) for move in MOVES))
        for opinion in opinions:
            if opinion.has_error():
                return pb_utils.InferenceResponse(error=opinion.error())
        votes = [pb_utils.get_output_tensor_by_name(o, "probabilities").as_numpy() for o in opinions]
        mean = np.mean(votes, axis=0, dtype=np.float32)
        return pb_utils.InferenceResponse([pb_utils.Tensor("probabilities", mean)])

    async def ask(self, image):
        request = pb_utils.InferenceRequest(
            model_name="mnist",
            requested_output_names=["probabilities"],
            inputs=[pb_utils.Tensor("image", image)],
        )
        return await request.async_exec()
'''


PYTHON = (
    Example(
        name="word_count",
        description="counts words: a model in Python, with a custom metric",
        config=WORD_COUNT_CONFIG,
        size_bytes=20 * 1024,
        write_files=text_file("1/model.py", WORD_COUNT),
    ),
    Example(
        name="mnist_vote",
        description="averages mnist over five shifts of an image: a Python model that calls another model",
        config=MNIST_VOTE_CONFIG,
        size_bytes=20 * 1024,
        calls=("mnist",),
        write_files=text_file("1/model.py", MNIST_VOTE),
    ),
)
