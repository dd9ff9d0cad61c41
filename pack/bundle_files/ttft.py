"""Both programs of the bundle; the launchers say which."""

import os
import sys

name = sys.argv.pop(1)
sys.argv[0] = name
sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(__file__)), "site"))

from tracer.cli import daemon_main, main  # noqa: E402

daemon_main() if name == "ttftd" else main()
