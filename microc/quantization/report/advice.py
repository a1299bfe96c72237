"""What to try next, in words: warnings that a report gives, from its own numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from microc.quantization.report.floats import ASKED

FEW = 20
"""Samples below which ranges are likely to miss what is rare."""
WIDER, NARROWER = 2.0, 0.25
"""Times the span that an input has in calibration, beyond which the data compared on are prepared otherwise."""
CLIPPED = 0.01
"""Share of a value's elements beyond its range from which on the data differ from the calibration's."""
SILENT = 0.5
"""Share of channels behind clamps that no sample reaches, from which on the data are not those of the training."""
SAME = 1e-3
"""Variation of an output, relative to its size, below which it says the same whatever is asked."""
LOUD = 0.01
"""Noise at the outputs, relative to the signal, that is worth doing something about: 20 dB."""
DOMINANT = 0.5
"""Share of all noise that makes one value or weight the one to keep finer."""
CHANCE = 1.5
"""Times the accuracy of guessing, below which the float network does not know the data."""
LOST = 0.003
"""Accuracy that is worth speaking of."""
SURE = 2.0
"""Standard deviations that a loss differs from chance by: 95 % (McNemar's test)."""
IN_FLOATS = 0.01
"""Share of multiply-accumulates in floats that is worth speaking of."""


def advice(report: Mapping[str, Any]) -> list[str]:
    """Sentences, the most fundamental first; none where all is well."""
    return [*_inputs(report), *_data(report), *_labels(report), *_accuracy(report), *_noise(report), *_floats(report)]


def _inputs(report: Mapping[str, Any]) -> Iterator[str]:
    if report["samples"] < FEW:
        yield (
            f"{report['samples']} samples are few: ranges miss what is rare. Calibrate with some tens to some hundreds, "
            f"of every kind that the network will see."
        )
    for each in report["inputs"]:
        span, compared = f"{each['low']:.4g} to {each['high']:.4g}", each["compared_high"] - each["compared_low"]
        if each["low"] == each["high"]:
            yield f"{each['input']} is {each['low']:.4g} in all samples: what the network does with other numbers is not seen."
        elif not NARROWER <= compared / (each["high"] - each["low"]) <= WIDER:
            yield (
                f"{each['input']} spans {span} in the calibration data and {each['compared_low']:.4g} to "
                f"{each['compared_high']:.4g} in those compared on: prepare both as the network was trained."
            )
        if each["pixels"]:
            yield (
                f"The samples of {each['input']} are whole numbers, {span}, as pixels are stored, and the network does not scale "
                f"them: was it trained on 0 to 1, or -1 to 1? Then divide them (of pictures: --pixels 0 1)."
            )


def _data(report: Mapping[str, Any]) -> Iterator[str]:
    clamped = [layer for layer in report["layers"] if "silent" in layer]
    silent, channels = (sum(layer[name] for layer in clamped) for name in ("silent", "channels"))
    if silent > SILENT * channels:
        yield (
            f"{silent} of {channels} channels behind clamps are zero in all samples: the data are not those of the training, or "
            f"much of the network does nothing. Look at scaling (--pixels) and the order of channels."
        )
    for output in report["outputs"]:
        if report["evaluated_samples"] > 1 and output["variation"] < SAME:
            yield (
                f"Output {output['name']} of the float network hardly depends on the data: look at their scaling, and whether "
                f"the network is trained."
            )
    beyond = [value for value in report["values"] if value["clipped"] > CLIPPED]
    if beyond:
        worst = max(beyond, key=lambda value: float(value["clipped"]))
        span = f"{worst['low']:.4g} to {worst['high']:.4g}"
        yield (
            f"{100 * worst['clipped']:.1f} % of {worst['value']} are beyond its range, {span}: the data compared on differ from "
            f"those calibrated with. Calibrate with samples of both, or try --ranges minmax."
        )


def _labels(report: Mapping[str, Any]) -> Iterator[str]:
    found = report.get("classification")
    if not found:
        return
    there = [truth for truth, row in enumerate(found["confusion"]) if any(row)]
    if len(there) == 1:
        yield f"All labels are class {there[0]}: the accuracy says nothing about the others. Compare on samples of all (--eval)."
    elif found["float_accuracy"] < CHANCE / len(found["confusion"]):
        yield (
            f"The float network itself is right in {100 * found['float_accuracy']:.1f} % only, which is near guessing: data or "
            f"labels are not what it was trained on. Look at scaling (--pixels), the order of channels, the numbers of classes."
        )


def _accuracy(report: Mapping[str, Any]) -> Iterator[str]:
    found = report.get("classification")
    if not found or abs(found["float_accuracy"] - found["accuracy"]) < LOST:
        return
    lost, gained, samples = found["lost"], found["gained"], found["samples"]
    if lost - gained > SURE * math.sqrt(lost + gained):
        yield (
            f"{lost} of {samples} answers became wrong and {gained} right, which is no chance: {_finer(report)}, or "
            f"calibrate with more samples."
        )
    else:
        yield (
            f"The accuracies differ by {abs(lost - gained)} of {samples} samples, which may be chance: compare on more (--eval)."
        )


def _finer(report: Mapping[str, Any]) -> str:
    """What has less noise than these settings."""
    if any(bits < 8 for layer in report["layers"] for bits in layer["bits"]):
        return "give weights more bits (--weights 8, or --max-drop 1%, which searches those that need them)"
    if report["settings"]["activations"] != "int16":
        return "give activations 16 bits (--activations int16)"
    return "leave the noisiest layers in floats (--float-layer)"


def _noise(report: Mapping[str, Any]) -> Iterator[str]:
    shares = [(v["sensitivity"], v["value"], "value") for v in report["values"] if v.get("sensitivity")]
    shares += [
        (w["sensitivity"], w["layer"], "weights" if w["bits"] < 8 else "layer")
        for w in report["weights"]
        if w.get("sensitivity")
    ]
    total = sum(share for share, *_ in shares)
    if total < LOUD:
        return
    most, name, kind = max(shares)
    if most < DOMINANT * total:
        yield f"Noise comes from many places: {_finer(report)}, which helps more than any one layer."
    elif kind == "weights":
        yield f"The weights of {name} alone cause {100 * most / total:.0f} % of the noise: give them 8 bits (--layer {name}=8)."
    elif kind == "value" and report["settings"]["activations"] != "int16":
        readers = next(v["readers"] for v in report["values"] if v["value"] == name)
        yield (
            f"{name} alone causes {100 * most / total:.0f} % of the noise: give 16 bits to what reads it "
            f"({' '.join(f'--layer {reader}=16' for reader in readers)}), or to all activations (--activations int16)."
        )
    else:
        yield f"{name} alone causes {100 * most / total:.0f} % of the noise: leave it in floats (--float-layer {name})."


def _floats(report: Mapping[str, Any]) -> Iterator[str]:
    left = [each for each in report["floats"]["operators"] if each["reason"] != ASKED]
    if left and report["floats"]["share"] > IN_FLOATS:
        most = max(left, key=lambda each: int(each["macs"]))
        yield (
            f"{100 * report['floats']['share']:.0f} % of the multiply-accumulates stay in floats, most in {most['value']} "
            f"({most['op']}): {most['reason']}. microc operators lists what has an integer form."
        )
