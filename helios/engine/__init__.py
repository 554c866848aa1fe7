"""The loop: from a configuration to a warm engine, and from requests to ids, tick by tick, in a process of its own."""
