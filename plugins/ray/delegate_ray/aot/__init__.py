"""Lowering of many models by many configurations; imports torch in the processes that lower."""
