"""Jobs that a scheduler starts: one file says what to do, and each run does what is left of it."""
