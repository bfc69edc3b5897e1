"""One room per system; rooms never import each other."""
