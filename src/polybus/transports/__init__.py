"""Ways in and out: memory, Unix, TCP and TLS behind one Session contract, with bounded outgoing queues."""
