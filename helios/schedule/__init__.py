"""Who runs next: requests, the policy that shares a tick's tokens, and the scheduler that writes the ticks."""
