"""The monitor: the web page of a node and the JSON API behind it (DESIGN 8)."""
