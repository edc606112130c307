"""What a program file may nest: deeper is refused at saving and at loading, so that a forged file cannot exhaust us."""

MAX_DEPTH = 64  # nesting of expressions, of lists in arguments, of blocks, and of trees
MAX_EXPR_NODES = 4096  # nodes of one expression, counted as often as they occur
