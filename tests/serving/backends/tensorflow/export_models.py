"""Run by itself, with TensorFlow: writes a model repository, and beside it what the models must answer."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

FLOATS = tf.TensorSpec([None, 2], tf.float32, name="x")


Method = TypeVar("Method", bound=Callable[..., Any])


def taking(*specs: Any) -> Callable[[Method], Method]:
    """A method of Functions that takes tensors of these kinds."""
    made: Callable[[Method], Method] = tf.function(input_signature=list(specs))
    return made


class Functions(tf.Module):  # type: ignore[misc]
    """A signature for each thing that a model may do."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = tf.Variable([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
        self.calls = tf.Variable(0, dtype=tf.int64)
        keys = tf.lookup.KeyValueTensorInitializer(["cat", "dög"], tf.constant([1, 2], tf.int64))
        self.table = tf.lookup.StaticHashTable(keys, -1)

    @taking(FLOATS)
    def multiply(self, x: Any) -> Any:
        return {"product": tf.matmul(x, self.weights), "again": x, "x_plus_1": x + 1}

    @taking(tf.TensorSpec([None, None], tf.string, name="words"))
    def words(self, words: Any) -> Any:
        return {
            "ids": self.table.lookup(words),
            "joined": tf.strings.reduce_join(words, axis=1, separator="\0"),
        }

    @taking(tf.TensorSpec([None, 2], tf.bfloat16, name="x"))
    def halves(self, x: Any) -> Any:
        return {"y": x * 2, "half": tf.cast(x, tf.float16)}

    @taking(tf.TensorSpec([], tf.float32, name="s"), tf.TensorSpec([], tf.string, name="w"))
    def scalars(self, s: Any, w: Any) -> Any:
        return {"t": s + 1, "v": tf.strings.join([w, "!"])}

    @taking(tf.TensorSpec(None, tf.float32, name="x"))
    def any_rank(self, x: Any) -> Any:
        return {"y": x * 2}

    @taking(FLOATS)
    def count(self, x: Any) -> Any:
        calls = self.calls.assign_add(1)
        return {"calls": tf.fill(tf.shape(x)[:1], calls)}

    @taking(tf.TensorSpec([None, None], tf.float32, name="x"))
    def picky(self, x: Any) -> Any:
        return {"y": tf.matmul(x, self.weights)}


def digits(repository: Path) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
    """A small network trained for a moment; returns test images, their digits, and its own answers."""
    keras.utils.set_random_seed(1)
    x, y = load_digits(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(
        (x / 16).astype(np.float32), y, test_size=300, random_state=0
    )
    model = keras.Sequential(
        [
            keras.Input((64,), name="pixels"),
            keras.layers.Reshape((8, 8, 1)),
            keras.layers.Conv2D(8, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy")
    model.fit(x_train, y_train, epochs=6, batch_size=32, verbose=0)
    model.export(repository / "digits" / "1" / "model.savedmodel", verbose=False)
    return x_test, y_test, np.asarray(model.predict(x_test, verbose=0))


def graph(path: Path, *, with_variable: bool) -> None:
    """OUTPUT0 = INPUT0 + 3, where 3 may be a variable that INIT sets."""
    made = tf.Graph()
    v1 = tf.compat.v1
    with made.as_default():
        x = v1.placeholder(tf.float32, [None, 2], name="INPUT0")
        three: Any = tf.constant(3.0)
        if with_variable:
            three = v1.get_variable("three", initializer=3.0, use_resource=False)
            tf.group(three.initializer, name="INIT")
        tf.identity(x + three, name="OUTPUT0")
    path.parent.mkdir(parents=True)
    path.write_bytes(made.as_graph_def().SerializeToString())


def main(repository: Path) -> None:
    functions = Functions()
    names = ("multiply", "words", "halves", "scalars", "any_rank", "count", "picky")
    signatures = {name: getattr(functions, name) for name in names}
    source = repository.parent / "functions.savedmodel"
    tf.saved_model.save(functions, source, signatures={**signatures, "serving_default": functions.multiply})
    tf.saved_model.save(
        functions, repository / "single" / "1" / "model.savedmodel", signatures={"mine": functions.multiply}
    )
    graph(repository / "frozen" / "1" / "model.graphdef", with_variable=False)
    graph(repository / "graph" / "1" / "model.graphdef", with_variable=True)
    images, labels, scores = digits(repository)
    np.savez(repository.parent / "digits.npz", images=images, labels=labels, scores=scores)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
