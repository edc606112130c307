"""What a compiled program is: its model, its operators, its file. Needs only NumPy and flatbuffers."""
