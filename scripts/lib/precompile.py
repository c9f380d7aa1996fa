"""Puts bytecode beside the modules of a build: a cold start compiles none. Run by the Python that the artifacts are for.

usage: pythonX.Y precompile.py FOLDER…

Lambda's folders are read-only, so that what is not shipped compiled is compiled at every cold start. The bytecode says nothing of
its source's time (`unchecked-hash`), which unpacking changes; a Python of another version passes over it.
"""

from __future__ import annotations

import compileall
import sys
from pathlib import Path
from py_compile import PycInvalidationMode


def precompile(folder: Path) -> bool:
    """Compiles every module below `folder`; whether all could be."""
    return bool(compileall.compile_dir(folder, quiet=1, force=True, invalidation_mode=PycInvalidationMode.UNCHECKED_HASH))


if __name__ == "__main__":
    sys.exit(0 if all(map(precompile, map(Path, sys.argv[1:]))) else 1)
