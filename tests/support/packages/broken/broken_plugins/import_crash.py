from broken_plugins.faults import crash

crash()
