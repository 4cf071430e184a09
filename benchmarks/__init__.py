"""tpx beside its peers on one machine, interleaved: what is printed are ratios, and nothing is asserted."""
