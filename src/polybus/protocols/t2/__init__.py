"""The T2 Bus: publish and subscribe with wildcards, exclusive serving, typed protocols over three transports."""
