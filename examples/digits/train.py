# SPDX-License-Identifier: Apache-2.0
"""Train the digits network and write it in three formats. Run once; its results are committed beside this script.

    pip install -e .[train,test] && python examples/digits/train.py

Data: scikit-learn's handwritten digits (1,797 images of 8x8, from the UCI repository). Every fifth image is held back
for testing. The network is a depthwise separable CNN; training is plain numpy with Adam, so that nothing heavy is needed.
Writes digits_int8.tflite, digits_float.onnx, digits_qdq.onnx, digits_test.npz, reference.json.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from network import LAYERS, SHAPES, Network, Params
from write_onnx import write_float, write_qdq
from write_tflite import write_int8

HERE = Path(__file__).resolve().parent
EPOCHS, BATCH, RATE = 60, 32, 2e-3


def data() -> tuple[Any, Any, Any, Any]:
    """Images as float32 NHWC in 0..1 and labels: for training and, every fifth one, for testing."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = (digits.images / 16.0).astype(np.float32)[..., None]
    held_back = np.arange(len(images)) % 5 == 0
    return images[~held_back], digits.target[~held_back], images[held_back], digits.target[held_back]


def augmented(images: Any, dice: np.random.Generator) -> Any:
    """Images shifted by up to one pixel in each direction."""
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)))
    rows, columns = dice.integers(0, 3, size=(2, len(images)))
    return np.stack([p[r : r + 8, c : c + 8] for p, r, c in zip(padded, rows, columns, strict=True)])


def train(images: Any, labels: Any) -> Params:
    """Adam on the cross-entropy, with a falling rate; deterministic."""
    dice = np.random.default_rng(7)
    params = {name: dice.normal(0, (2 / np.prod(shape[:-1])) ** 0.5, shape).astype(np.float32) if len(shape) > 1
              else np.zeros(shape, np.float32) for name, shape in SHAPES.items()}  # fmt: skip
    first = {n: np.zeros_like(p) for n, p in params.items()}
    second = {n: np.zeros_like(p) for n, p in params.items()}
    step = 0
    for epoch in range(EPOCHS):
        order = dice.permutation(len(images))
        rate = RATE * 0.5 * (1 + np.cos(np.pi * epoch / EPOCHS))
        for start in range(0, len(order), BATCH):
            chosen = order[start : start + BATCH]
            network = Network(params)
            gradients = network.gradients(augmented(images[chosen], dice), labels[chosen])
            step += 1
            for name, gradient in gradients.items():
                first[name] = 0.9 * first[name] + 0.1 * gradient
                second[name] = 0.999 * second[name] + 0.001 * gradient**2
                corrected = (first[name] / (1 - 0.9**step)) / (np.sqrt(second[name] / (1 - 0.999**step)) + 1e-8)
                params[name] = (params[name] - rate * corrected).astype(np.float32)
    return params


def accuracy_tflite(path: Path, images: Any, labels: Any) -> float:
    """Share of right answers of TFLite Micro."""
    from tflite_micro import runtime

    interpreter = runtime.Interpreter.from_file(str(path))
    right = 0
    for image, label in zip(images, labels, strict=True):
        quantised = np.clip(np.round(image * 255.0) - 128, -128, 127).astype(np.int8)
        interpreter.set_input(quantised[None], 0)
        interpreter.invoke()
        right += int(np.argmax(interpreter.get_output(0)) == label)
    return right / len(labels)


def accuracy_onnx(path: Path, images: Any, labels: Any) -> float:
    """Share of right answers of onnxruntime."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    right = 0
    for image, label in zip(images, labels, strict=True):
        result = session.run(None, {"image": image.transpose(2, 0, 1)[None]})[0]
        right += int(np.argmax(result) == label)
    return right / len(labels)


def main() -> None:
    images, labels, test_images, test_labels = data()
    params = train(images, labels)
    ranges = Network(params).ranges(images)
    write_int8(HERE / "digits_int8.tflite", params, ranges)
    write_float(HERE / "digits_float.onnx", params)
    write_qdq(HERE / "digits_float.onnx", HERE / "digits_qdq.onnx", images[:200])
    np.savez_compressed(
        HERE / "digits_test.npz",
        images=np.round(test_images * 16).astype(np.uint8),
        labels=test_labels.astype(np.uint8),
    )
    reference = {
        "float": float(np.mean(np.argmax(Network(params).forward(test_images), -1) == test_labels)),
        "digits_int8.tflite": accuracy_tflite(HERE / "digits_int8.tflite", test_images, test_labels),
        "digits_float.onnx": accuracy_onnx(HERE / "digits_float.onnx", test_images, test_labels),
        "digits_qdq.onnx": accuracy_onnx(HERE / "digits_qdq.onnx", test_images, test_labels),
        "images": len(test_labels),
        "layers": [layer.name for layer in LAYERS],
    }
    (HERE / "reference.json").write_text(json.dumps(reference, indent=2) + "\n")
    print(json.dumps(reference, indent=2))


if __name__ == "__main__":
    main()
