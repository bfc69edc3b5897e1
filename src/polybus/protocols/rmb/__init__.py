"""The Reliable Message Bus, both generations: twins, Redis queues, signed HTTP, a backlog with a deadline."""
