"""The format of compiled programs: model, file, verifier, memory planner. Needs only NumPy and flatbuffers."""
