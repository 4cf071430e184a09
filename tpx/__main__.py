"""Run `tpx` as `python -m tpx`."""

from tpx.cli.main import main

main()
