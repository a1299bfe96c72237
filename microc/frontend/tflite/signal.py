"""Spellings of TFLite Micro's custom operators for signals; their options are a flexbuffer map."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from microc.frontend.tflite.application import Application
from microc.frontend.tflite.spelling import Spelling
from microc.graph.ir import Attr, TensorType

_RFFT_DTYPES = ("int16", "int32", "float32")


def number(application: Application, name: str, low: int = 0, high: int = (1 << 31) - 1) -> int:
    """An option, which must be there and within bounds."""
    value = application.operator.custom.get(name)
    if not isinstance(value, (int, bool)) or not low <= value <= high:
        application.broken(f"option {name} is {value!r}, not {low}..{high}")
    return int(value)


def window(application: Application) -> None:
    """SignalWindow: samples times a window, shifted to the right."""
    operands = (application.value(0), application.value(1))
    application.result("signal_window", operands, {"shift": number(application, "shift", 0, 30)})


def fft_auto_scale(application: Application) -> None:
    """SignalFftAutoScale: samples shifted to the left as far as they go, and how far."""
    application.results("fft_auto_scale", (application.value(0),), {})


def rfft(application: Application) -> None:
    """SignalRfft: the spectrum of rows, filled up with zeros."""
    length = number(application, "fft_length", 4, 1 << 16)
    application.result("rfft", (application.value(0),), {"fft_length": length})


def irfft(application: Application) -> None:
    """SignalIrfft: the rows of a spectrum."""
    length = number(application, "fft_length", 4, 1 << 16)
    application.result("irfft", (application.value(0),), {"fft_length": length})


def energy(application: Application) -> None:
    """SignalEnergy: squares of the spectrum's magnitudes."""
    attrs: dict[str, Attr] = {"start": number(application, "start_index"), "end": number(application, "end_index")}
    application.result("signal_energy", (application.value(0),), attrs)


def filter_bank(application: Application) -> None:
    """SignalFilterBank: energies summed by triangular channels that overlap."""
    operands = [application.value(position) for position in range(6)]
    sizes = [application.type(operand).size for operand in operands]
    frequencies, firsts, widths = (application.constant(position).astype(np.int64) for position in (3, 4, 5))
    for starts, size in ((frequencies, sizes[0]), (firsts, min(sizes[1:3]))):
        if len(starts) != len(widths) or min(starts, default=0) < 0 or max(starts + widths, default=0) > size:
            application.broken("a channel reaches beyond the spectrum or the weights")
    channels = number(application, "num_channels", 1, 1 << 15)
    application.result("filter_bank", operands, {"channels": channels})


def square_root(application: Application) -> None:
    """SignalFilterBankSquareRoot: roots, scaled down by a computed number of bits."""
    application.result("filter_bank_square_root", (application.value(0), application.value(1)), {})


def spectral_subtraction(application: Application) -> None:
    """SignalFilterBankSpectralSubtraction: the signal less the noise, whose estimate is state."""
    data = application.value(0)
    channels = application.rank(data, 1)[0]
    if number(application, "num_channels", 1) != channels:
        application.broken(f"num_channels differs from the signal's {channels}")
    names = ("smoothing", "one_minus_smoothing", "alternate_smoothing", "alternate_one_minus_smoothing")
    attrs: dict[str, Attr] = {name: number(application, name, 0, 1 << 16) for name in (*names, "min_signal_remaining")}
    attrs |= {name: number(application, name, 0, 31) for name in ("smoothing_bits", "spectral_subtraction_bits")}
    attrs["clamping"] = bool(number(application, "clamping", 0, 1))
    builder = application.builder
    name = builder.file.unique(f"{application.target().name}_noise")
    noise = builder.define_state(name, TensorType((channels,), "uint32"), None, application.where)
    application.results("spectral_subtraction", (data, noise), attrs)
    builder.updates[noise] = application.target(1).name


def pcan(application: Application) -> None:
    """SignalPCAN: gain control by the noise."""
    operands = [application.value(position) for position in range(3)]
    application.result("pcan", operands, {"snr_shift": number(application, "snr_shift", 0, 63)})


def log(application: Application) -> None:
    """SignalFilterBankLog: scaled natural logarithms."""
    attrs: dict[str, Attr] = {
        "input_correction_bits": number(application, "input_correction_bits", 0, 31),
        "output_scale": number(application, "output_scale", 0, 1 << 16),
    }
    application.result("filter_bank_log", (application.value(0),), attrs)


SPELLINGS: Mapping[str, Spelling] = {
    "CUSTOM:SignalEnergy": Spelling(energy, ("uint32",)),
    "CUSTOM:SignalFftAutoScale": Spelling(fft_auto_scale, ("int16",)),
    "CUSTOM:SignalFilterBank": Spelling(filter_bank, ("uint64",)),
    "CUSTOM:SignalFilterBankLog": Spelling(log, ("int16",)),
    "CUSTOM:SignalFilterBankSpectralSubtraction": Spelling(spectral_subtraction, ("uint32",)),
    "CUSTOM:SignalFilterBankSquareRoot": Spelling(square_root, ("uint32",)),
    "CUSTOM:SignalIrfft": Spelling(irfft, _RFFT_DTYPES),
    "CUSTOM:SignalPCAN": Spelling(pcan, ("uint32",)),
    "CUSTOM:SignalRfft": Spelling(rfft, _RFFT_DTYPES),
    "CUSTOM:SignalWindow": Spelling(window, ("int16",)),
}
