"""`make demo`: programs of all five systems at work on one bus, and what the pipelines make of it."""
