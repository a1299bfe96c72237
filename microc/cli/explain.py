"""``microc explain``: why a layer costs what it costs."""

from __future__ import annotations

from microc.cli import show
from microc.cli.arguments import Arguments
from microc.cli.compiling import progress
from microc.cli.model_options import chosen_options
from microc.cli.report import advice_here, next_steps
from microc.errors import UsageError


def explain(arguments: Arguments) -> show.Answer:
    """``microc explain``."""
    from microc.device.boards import load_board
    from microc.driver.report import explain as driver
    from microc.driver.report.summary import of_module

    if arguments.board and arguments.target:
        raise UsageError("--board and --target cannot both be given", hint="a board has its core")
    found = driver.explain(
        arguments.model,
        arguments.layer,
        target=arguments.target or "host",
        board=arguments.board or None,
        progress=progress(arguments),
        **chosen_options(arguments),
    )
    data, text = found.to_data(full=arguments.full), found.text(full=arguments.full, width=show.columns())
    if found.kernel is None and arguments.board:
        report = of_module(found.module, load_board(arguments.board)).data
        data["advice"] = advice_here(report["advice"], report, arguments, arguments.model)
        text = "\n\n".join(filter(None, (text, next_steps(data["advice"]))))
    return show.Answer(data, text)
