import a_vendor_library_that_is_absent  # noqa: F401
