"""Which requests leave together, and when: plain policies with a clock from outside."""
