"""The process around the loop: what starts it, talks to it, and sees it die."""
