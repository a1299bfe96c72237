# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.golden [--write]``: which golden texts differ from their files; with --write they no longer do."""

from __future__ import annotations

import sys

from tests.golden.all_texts import FOLDER, TEXTS, files, write


def main(words: list[str]) -> int:
    if words not in ([], ["--write"]):
        sys.stderr.write(f"{__doc__}\n")
        return 2
    if words:
        changed = write()
    else:
        stale = sorted(files() - set(TEXTS))
        known = {path: (FOLDER / path).read_text(encoding="utf-8") for path in files() & set(TEXTS)}
        changed = stale + [path for path, make in TEXTS.items() if known.get(path) != make()]
    sys.stdout.write("".join(f"{path}\n" for path in changed))
    return 0 if words or not changed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
