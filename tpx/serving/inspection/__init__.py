"""Which parts of tpx work on this machine, and how to enable the rest: `tpx doctor`."""
