"""The report as one HTML page, without server or network. It is made without torch."""
