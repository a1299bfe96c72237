"""``microc quantize``: a float network becomes an integer one, and what that costs and brings is told."""

from __future__ import annotations

from microc.cli import show
from microc.cli.arguments import Arguments
from microc.cli.compiling import progress
from microc.cli.files import check_places
from microc.cli.model_options import chosen_options
from microc.cli.quantized import paragraphs
from microc.cli.session import pixels


def quantize(arguments: Arguments) -> show.Answer:
    """``microc quantize``."""
    from microc import quantization

    assert arguments.model is not None and arguments.output is not None and arguments.data is not None
    check_places(**{"-o": arguments.output, "--html": arguments.html})
    found = quantization.quantize(
        arguments.model,
        arguments.data,
        activations=arguments.activations,
        weights=arguments.weights,
        block=arguments.block,
        scales=arguments.scales,
        bits=dict(arguments.layers),
        float_layers=arguments.float_layers,
        weight_only=arguments.weight_only,
        dynamic_range=arguments.dynamic_range,
        board=arguments.board,
        flash=arguments.flash,
        ram=arguments.ram,
        time=arguments.time,
        max_drop=arguments.max_drop,
        ranges=arguments.ranges,
        evaluate=arguments.evaluation,
        labels=arguments.labels,
        pixels=pixels(arguments),
        seed=arguments.seed,
        progress=progress(arguments),
        **chosen_options(arguments),
    )
    path = found.save(arguments.output)
    if arguments.html is not None:
        found.save_report(arguments.html)
    text = "\n\n".join(paragraphs(found.report, arguments.model.name, str(path), arguments.full))
    return show.Answer({"file": str(path), **found.report}, text)
