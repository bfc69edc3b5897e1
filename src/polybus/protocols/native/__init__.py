"""The native wire: what the SDK, Spark and other nodes speak."""
