"""`tpx doctor`: which parts of tpx work on this machine, and how to enable the rest."""
