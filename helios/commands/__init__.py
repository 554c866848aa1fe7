"""One file per command of the `helios` program: add_parser() says what it takes, run() does it and returns the exit code.

Modules here stay light, since every `helios --help` imports them all; what is heavy is imported in run().
"""
