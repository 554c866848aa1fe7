"""The proof that nothing compiles late: what drives an engine over everything it can do, and reports on it."""
