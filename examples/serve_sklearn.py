"""Train a classifier with scikit-learn, serve it as ONNX, and ask it over the network.

pip install 'tpx[onnx]' scikit-learn skl2onnx 'tritonclient[http]'
python examples/serve_sklearn.py models
"""

import sys
from pathlib import Path

import numpy as np
import tritonclient.http
from skl2onnx import to_onnx
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression

import tpx


def train(repository: Path) -> LogisticRegression:
    """Write the trained model into the repository; no config.pbtxt is needed."""
    flowers = load_iris()
    classifier = LogisticRegression(max_iter=1000).fit(flowers.data, flowers.target)
    directory = repository / "iris" / "1"
    directory.mkdir(parents=True, exist_ok=True)
    # zipmap off: probabilities as an array, not as a list of maps
    converted = to_onnx(classifier, np.zeros((1, 4), np.float32), options={"zipmap": False})
    (directory / "model.onnx").write_bytes(converted.SerializeToString())
    return classifier


def main(repository: Path) -> None:
    classifier = train(repository)
    rows = load_iris().data[::40].astype(np.float32)
    with tpx.serve(repository) as server, server.client("http") as client:
        given = tritonclient.http.InferInput("X", list(rows.shape), "FP32")
        given.set_data_from_numpy(rows)
        answer = client.infer("iris", [given])
        probabilities = answer.as_numpy("probabilities")
    print(np.round(probabilities, 3))
    assert np.allclose(probabilities, classifier.predict_proba(rows), atol=1e-4)
    print(f"The server's answers are scikit-learn's. Serve it yourself: tpx serve {repository}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "models"))
