"""The part that runs on the machine that measures. Needs no torch."""
