"""Cases that tests of several backends run, in tables, and their comparisons with eager."""
