"""`python -m interlock.cli` is the `interlock` command."""

import sys

from interlock.cli import main

sys.exit(main())
