"""A backend of delegate: linear layers by the BLAS of SciPy."""
