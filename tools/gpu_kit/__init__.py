"""The GPU kit: what proves tpx on a GPU machine that has no network (`make gpu-kit`)."""
