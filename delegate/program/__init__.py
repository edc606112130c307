"""The format of compiled programs: model, file, verifier, text form. Needs only NumPy and flatbuffers."""
