"""The HTTP side: OpenAI's API over FastAPI, health, metrics and the live capture page."""
