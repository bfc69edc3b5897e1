"""HTTP/1.1 and WebSocket for every room that needs them, on one session and one scanner (DESIGN 8)."""
