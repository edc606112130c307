from broken_plugins.faults import hang

hang()
