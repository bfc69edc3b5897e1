"""The bus itself: who answers, who waits, who listens; no sockets, no wall clock, no wire bytes."""
