"""Language models of transformers: `aot/` exports one to a program file, `runtime/` generates text with that file.

Running needs neither torch nor transformers.
"""
