"""GET /v1/models: the names that requests may use."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from helios.server.app_state import ServerState
from helios.server.prompts import unknown_model


def models_router(state: ServerState) -> APIRouter:
    router = APIRouter()

    def card(name: str) -> dict[str, Any]:
        about = {"id": name, "object": "model", "created": state.created, "owned_by": "helios"}
        info = state.engine.info
        return about if info is None else about | {"max_model_len": info.max_model_len}

    @router.get("/v1/models")
    async def list_models() -> dict[str, Any]:
        """OpenAI's list of models; also answered while the model still loads."""
        return {"object": "list", "data": [card(name) for name in state.names]}

    @router.get("/v1/models/{name:path}")
    async def one_model(name: str) -> dict[str, Any]:
        if name not in state.names:
            raise unknown_model(name, state.names)
        return card(name)

    return router
