raise RuntimeError("it is not to be imported")
