"""What is said of ONNX operators that microc does not do: why, and what helps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

_CUT_BEFORE = "cut the network before it (--outputs) and do this in the application"
_CUT_BEHIND = "do this in the application and cut the network behind it (--inputs)"

_SEQUENCES = (
    "ConcatFromSequence",
    "SequenceAt",
    "SequenceConstruct",
    "SequenceEmpty",
    "SequenceErase",
    "SequenceInsert",
    "SequenceLength",
    "SequenceMap",
    "SplitToSequence",
)
_STRINGS = (
    "CastMap",
    "CategoryMapper",
    "DictVectorizer",
    "RegexFullMatch",
    "StringConcat",
    "StringNormalizer",
    "StringSplit",
    "TfIdfVectorizer",
)


def _alike(names: Iterable[str], what: str, hint: str) -> Mapping[str, tuple[str, str]]:
    return dict.fromkeys(names, (what, hint))


KNOWN: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        **_alike(
            ("Compress", "NonMaxSuppression", "NonZero", "Unique"),
            "how large its result is depends on data",
            _CUT_BEFORE,
        ),
        **_alike(
            _SEQUENCES,
            "it works on a sequence of tensors",
            "export lists as tensors, or simplify the model with onnxslim, which unfolds sequences of known length",
        ),
        **_alike(
            ("Optional", "OptionalGetElement", "OptionalHasElement"),
            "it works on an optional tensor",
            "export the model with its optional inputs decided",
        ),
        **_alike(
            _STRINGS,
            "it works on strings or dictionaries",
            _CUT_BEHIND,
        ),
        **_alike(("ImageDecoder",), "it decodes files", _CUT_BEHIND),
        **_alike(
            ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"),
            "it is random",
            "give random numbers as an input: cut the network behind it (--inputs)",
        ),
        **_alike(
            ("Adagrad", "Adam", "Gradient", "Momentum"), "it is part of training", "export the model for inference"
        ),
        "MaxRoiPool": ("it divides boxes by rounding", "export RoiAlign with mode max instead"),
    }
)
"""By the operator: what is said, and the hint."""

UNKNOWN = "the operator is unknown to microc"


def reason(code: str, foreign: bool) -> tuple[str, str]:
    """What is said of an operator that has no spelling, and the hint; ``foreign``: of a domain of others."""
    if code in KNOWN:
        return KNOWN[code]
    if foreign:
        return UNKNOWN, "export the model with ONNX's own operators, or teach this one to microc with --plugin"
    return UNKNOWN, "replace the layer, or simplify the model with onnxslim or onnxruntime's offline optimiser"
