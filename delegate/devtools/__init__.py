"""Tools that show what a program does: the debugger, which finds wrong operators, and traces, which need no torch."""
