"""Load, bind and execute programs. Needs only NumPy, flatbuffers, and the vendor libraries of the delegates."""
