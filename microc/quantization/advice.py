"""What to try next, in words: warnings that a report gives, from its own numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

FEW = 20
"""Samples below which ranges are likely to miss what is rare."""
CLIPPED = 0.01
"""Share of a value's elements beyond its range from which on the data differ from the calibration's."""
LOUD = 0.01
"""Noise at the outputs, relative to the signal, that is worth doing something about: 20 dB."""
DOMINANT = 0.5
"""Share of all noise that makes one value or weight the one to keep finer."""
CHANCE = 1.5
"""Times the accuracy of guessing, below which the float network does not know the data."""


def advice(report: Mapping[str, Any]) -> list[str]:
    """Sentences, the most fundamental first; none where all is well."""
    return [*_data(report), *_noise(report), *_accuracy(report)]


def _data(report: Mapping[str, Any]) -> Iterator[str]:
    if report["samples"] < FEW:
        yield (
            f"{report['samples']} samples are few: ranges miss what is rare. Calibrate with some tens to some hundreds, "
            f"of every kind that the network will see."
        )
    found = report.get("classification")
    if found and found["float_accuracy"] < CHANCE / len(found["confusion"]):
        yield (
            f"The float network itself is right in {100 * found['float_accuracy']:.1f} % only, which is near guessing: data or "
            f"labels are not what it was trained on. Look at scaling (--pixels), the order of channels, the numbers of classes."
        )
    beyond = [value for value in report["values"] if value["clipped"] > CLIPPED]
    if beyond:
        worst = max(beyond, key=lambda value: float(value["clipped"]))
        span = f"{worst['low']:.4g} to {worst['high']:.4g}"
        yield (
            f"{100 * worst['clipped']:.1f} % of {worst['value']} are beyond its range, {span}: the data compared on differ from "
            f"those calibrated with. Calibrate with samples of both, or try --ranges minmax."
        )


def _noise(report: Mapping[str, Any]) -> Iterator[str]:
    shares = [(v["sensitivity"], v["value"], "value") for v in report["values"] if v.get("sensitivity")]
    shares += [(w["sensitivity"], w["layer"], "layer") for w in report["weights"] if w.get("sensitivity")]
    total = sum(share for share, *_ in shares)
    if total < LOUD:
        return
    most, name, kind = max(shares)
    if most < DOMINANT * total:
        yield "Noise comes from many places: 16 bits for all activations (--activations int16) help more than any one layer."
    elif kind == "value":
        yield (
            f"{name} alone causes {100 * most / total:.0f} % of the noise: it should keep 16 bits. Leave it in floats "
            f"(--float-layer {name}), or give all activations 16 bits (--activations int16)."
        )
    else:
        yield f"The weights of {name} alone cause {100 * most / total:.0f} % of the noise: give them 8 bits (--layer {name}=8)."


def _accuracy(report: Mapping[str, Any]) -> Iterator[str]:
    found = report.get("classification")
    if (
        found
        and found["changed_count"]
        and found["samples"] < 10 / max(found["float_accuracy"] - found["accuracy"], 1e-9)
    ):
        lost = round(found["samples"] * abs(found["float_accuracy"] - found["accuracy"]))
        yield (
            f"The accuracies differ by {lost} of {found['samples']} samples, which may be chance: compare on more (--eval)."
        )
