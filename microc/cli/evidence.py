"""``microc verify --evidence``: what a verification found, as a bundle of files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from microc.cli import show
from microc.cli.arguments import Arguments

if TYPE_CHECKING:
    from microc.driver.measure.firmware import Project


def check(arguments: Arguments) -> None:
    """Refuse a folder that holds something, before anything is compared."""
    from microc.driver.report.evidence import refuse_taken

    if arguments.evidence is not None:
        refuse_taken(arguments.evidence)


def recorded(
    arguments: Arguments, manifest: Mapping[str, Any], answer: show.Answer, project: Project | None = None
) -> show.Answer:
    """The answer, after its bundle was written if one is wanted; of a difference, too."""
    from microc.driver.report import evidence

    if arguments.evidence is None:
        return answer
    comparisons = list(_comparisons(answer.data))
    failure = "" if answer.error is None else answer.error.what
    facts = evidence.gathered(manifest, comparisons, answer.data.get("evaluation"), failure, project, arguments.port)
    evidence.write(arguments.evidence, facts)
    return replace(answer, text=f"{answer.text}\n\nevidence: {arguments.evidence}")


def _comparisons(data: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """What was compared: board and host, network and framework."""
    if "board" in data:
        own = {name: value for name, value in data.items() if name not in ("against", "evaluation")}
        agrees = "difference" not in data
        yield {"what": f"board {data['board']} against host, kernel by kernel", "agrees": agrees, **own}
    if "against" in data:
        found = data["against"]
        yield {"what": f"compiled network against {found['reference']} {found['version']}", **found}
