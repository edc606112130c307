"""From a lowered graph to a Program: values, instructions, lifetimes, memory. Needs torch."""
