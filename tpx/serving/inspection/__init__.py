"""What of tpx can be used on this machine, and what would enable the rest: `tpx doctor`."""
