"""The Golem Service Bus: everything that knows its wire."""
