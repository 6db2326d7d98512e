"""The demonstration: two job types, their handlers, and a run in which every number is checked. All data is invented."""
