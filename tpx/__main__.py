"""`python -m tpx` is `tpx`."""

from tpx.cli.main import main

main()
