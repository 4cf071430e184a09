"""Through DLPack there and back, with numpy and, where it is installed, with torch, BF16 too."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        x = pb_utils.get_input_tensor_by_name(request, "x")
        assert x.is_cpu()
        assert x.__dlpack_device__() == (1, 0)
        array = np.from_dlpack(x)
        back = pb_utils.Tensor.from_dlpack("y", array * 2)
        assert back.triton_dtype() == "TYPE_FP32"
        outputs = [back]
        b = pb_utils.get_input_tensor_by_name(request, "b")
        if b is not None:
            import torch

            assert b.triton_dtype() == "TYPE_BF16"
            try:
                b.as_numpy()
            except pb_utils.TritonModelException as error:
                assert "BF16" in str(error)
            tensor = torch.from_dlpack(b)
            assert tensor.dtype is torch.bfloat16
            outputs.append(pb_utils.Tensor.from_dlpack("c", tensor * 2))
            whole = torch.utils.dlpack.from_dlpack(x.to_dlpack())
            assert torch.equal(whole, torch.from_numpy(array.copy()))
        return pb_utils.InferenceResponse(outputs)
