"""The pure part: no I/O, no threads, no wall clock, no global random. Everything here is decided from its arguments."""
