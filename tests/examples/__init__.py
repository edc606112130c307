"""Tests of the programs in examples/: they run as their pages say, and wrong arguments are messages."""
