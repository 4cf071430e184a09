"""Encoded images (binary PPM) into what a classifier takes: scaled, normalised, channels first."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        config = pb_utils.get_output_config_by_name(json.loads(args["model_config"]), "image")
        self.dtype = pb_utils.triton_string_to_numpy(config["data_type"])
        self.height, self.width = config["dims"][1:]

    def execute(self, requests):
        responses = []
        for request in requests:
            encoded = pb_utils.get_input_tensor_by_name(request, "encoded").as_numpy()
            images = np.stack([self.image(data) for data in encoded.reshape(-1)])
            tensor = pb_utils.Tensor("image", images.astype(self.dtype))
            responses.append(pb_utils.InferenceResponse(output_tensors=[tensor]))
        return responses

    def image(self, data):
        magic, width, height, largest, pixels = data.split(b"\n", 4)
        if magic != b"P6":
            raise pb_utils.TritonModelException("this is no PPM file")
        image = np.frombuffer(pixels, np.uint8).reshape(int(height), int(width), 3)
        rows = np.arange(self.height) * int(height) // self.height
        columns = np.arange(self.width) * int(width) // self.width
        return (image[rows][:, columns].transpose(2, 0, 1) / float(largest) - 0.5) / 0.25
