"""`python -m helios` is the `helios` program."""

import sys

from helios.cli import main

sys.exit(main())
