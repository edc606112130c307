"""Tools that show what a program does: the debugger, traces, the page of a report, differences, and exported graphs."""
