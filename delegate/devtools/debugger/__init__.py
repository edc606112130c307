"""The debugger: run a program beside torch, find the wrong instructions, and reduce each to the operators at fault."""
