"""Tools that show what a program does: the debugger, which finds the operators that return wrong values."""
