"""An arena within its limits: schedules of smaller workspaces, layers row by row, or both, whichever costs the least work."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from microc.driver.compile.budget import fits
from microc.driver.compile.maker import Compiled
from microc.driver.stripes.limit import arena

LITTLE = 1.05
"""Times the instructions that a network may take for smaller workspaces before anything else is tried."""


def within_limits(
    plain: Compiled, lean: Callable[[], Compiled], stream: Callable[[Compiled], Compiled], limits: Sequence[int]
) -> Compiled:
    """``plain``, planned, where it keeps within the limits of the arena; else the network of the fewest instructions that does,
    or the smallest. ``lean``: with smaller workspaces; ``stream``: a network with layers row by row."""

    def fit(made: Compiled) -> bool:
        return fits(made.module, limits)

    if fit(plain):
        return plain
    less = lean()
    if fit(less) and less.module.instructions <= LITTLE * plain.module.instructions:
        return less
    tried = [plain, less, stream(plain)]
    if less is not plain and not any(map(fit, tried)):
        tried.append(stream(less))
    fitting = [made for made in tried if fit(made)]
    if fitting:
        return min(fitting, key=lambda made: made.module.instructions)
    return min(tried, key=lambda made: arena(made.module))
