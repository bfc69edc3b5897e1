"""Zbus: MQ and RPC over HTTP-like messages, with trackers; all of it is here."""
