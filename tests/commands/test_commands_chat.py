"""helios chat: the conversation over a scripted speaker, and the speaker that reaches a server over HTTP."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from helios.commands.speakers import Said, ServerSpeaker, SpeakerError
from helios.commands.terminal_chat import Conversation
from helios.text.deltas import ContentDelta, ReasoningDelta


class ScriptedSpeaker:
    """Gives the next answer of its script; an exception in it is raised where it stands."""

    name = "scripted"

    def __init__(self, *answers: list[Said | BaseException]) -> None:
        self._answers = list(answers)
        self.heard: list[list[dict]] = []
        self.closed = 0

    def answer(self, messages: list[dict]) -> Iterator[Said]:
        self.heard.append([dict(message) for message in messages])
        try:
            for delta in self._answers.pop(0):
                if isinstance(delta, BaseException):
                    raise delta
                yield delta
        finally:
            self.closed += 1


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def converse(
    monkeypatch: pytest.MonkeyPatch,
    speaker: ScriptedSpeaker,
    *lines: str,
    system: str | None = None,
    terminal: bool = False,
) -> str:
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(line + "\n" for line in lines)))
    out = Terminal() if terminal else io.StringIO()
    Conversation(speaker, system, out).run()
    return out.getvalue()


def said(*words: str) -> list[Said]:
    return [ContentDelta(word) for word in words]


def test_a_conversation_remembers_its_turns(monkeypatch: pytest.MonkeyPatch):
    speaker = ScriptedSpeaker(said("Hel", "lo."), said("Fine."))
    shown = converse(monkeypatch, speaker, "Hi", "", "How are you?", system="Be kind.")
    assert shown == "Hello.\nFine.\n"
    assert speaker.heard[1] == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "How are you?"},
    ]


def test_reset_forgets_all_but_the_system_message(monkeypatch: pytest.MonkeyPatch):
    speaker = ScriptedSpeaker(said("a"), said("b"))
    converse(monkeypatch, speaker, "one", "/reset", "two", system="S")
    assert [message["content"] for message in speaker.heard[1]] == ["S", "two"]


def test_quit_leaves_at_once(monkeypatch: pytest.MonkeyPatch):
    speaker = ScriptedSpeaker()
    assert converse(monkeypatch, speaker, "/quit", "never said") == ""
    assert speaker.heard == []


def test_an_unknown_command_is_not_sent_but_a_path_is(monkeypatch: pytest.MonkeyPatch):
    speaker = ScriptedSpeaker(said("a folder"))
    shown = converse(monkeypatch, speaker, "/rest", "/usr/bin is what?")
    assert "there is no command /rest" in shown
    assert len(speaker.heard) == 1


def test_thinking_is_dimmed_in_a_terminal_and_stays_out_of_the_history(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    speaker = ScriptedSpeaker([ReasoningDelta("hm"), ReasoningDelta("m"), ContentDelta("Yes.")], said("ok"))
    shown = converse(monkeypatch, speaker, "Is it?", "Sure?", terminal=True)
    assert shown.startswith("\x1b[2mhmm\x1b[0m\n\nYes.")
    assert speaker.heard[1][1] == {"role": "assistant", "content": "Yes."}


def test_ctrl_c_stops_the_answer_and_keeps_what_was_said(monkeypatch: pytest.MonkeyPatch):
    speaker = ScriptedSpeaker([*said("one ", "two"), KeyboardInterrupt()], said("three"))
    shown = converse(monkeypatch, speaker, "count", "go on")
    assert "one two\n(stopped)\n" in shown
    assert speaker.heard[1][1] == {"role": "assistant", "content": "one two"}
    assert speaker.closed == 2


def test_an_error_is_shown_and_the_conversation_goes_on(monkeypatch: pytest.MonkeyPatch):
    speaker = ScriptedSpeaker([SpeakerError("the queue is full")], said("fine"))
    shown = converse(monkeypatch, speaker, "first", "second")
    assert "(the queue is full)" in shown
    assert [message["content"] for message in speaker.heard[1]] == ["second"]


class FakeServer:
    """Answers POST with the events it is given, and keeps what it heard."""

    def __init__(self) -> None:
        self.events: list[dict] = []
        self.status = 200
        self.bodies: list[dict] = []
        self.keys: list[str | None] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.keys.append(self.headers["Authorization"])
                self._reply(200, json.dumps({"data": [{"id": "tiny"}]}))

            def do_POST(self) -> None:
                server.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                lines = [f"data: {json.dumps(event)}\n\n" for event in server.events]
                if server.status == 200:
                    self._reply(200, "".join([*lines, ": keep-alive\n\n", "data: [DONE]\n\n"]))
                else:
                    self._reply(server.status, json.dumps({"error": {"message": "not now"}}))

            def _reply(self, status: int, body: str) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body.encode())))
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, *args: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()


@pytest.fixture
def server() -> Iterator[FakeServer]:
    server = FakeServer()
    yield server
    server.close()


def chunk(**delta: str | None) -> dict:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
def test_a_server_answers_in_deltas(server: FakeServer, suffix: str):
    server.events = [
        chunk(role="assistant", content=""),
        chunk(reasoning_content="hm"),
        chunk(content="Yes 🫠"),
        {"choices": [], "usage": {"completion_tokens": 3}},
    ]
    speaker = ServerSpeaker(server.url + suffix, "secret", {"temperature": 0})
    messages = [{"role": "user", "content": "Is it?"}]
    assert speaker.name == "tiny"
    assert list(speaker.answer(messages)) == [ReasoningDelta("hm"), ContentDelta("Yes 🫠")]
    assert server.bodies == [{"model": "tiny", "stream": True, "temperature": 0, "messages": messages}]
    assert server.keys == ["Bearer secret"]


def test_a_refusal_is_the_servers_own_sentence(server: FakeServer):
    speaker = ServerSpeaker(server.url, None, {})
    server.status = 503
    with pytest.raises(SpeakerError, match="the server answered 503: not now"):
        list(speaker.answer([]))
    assert server.keys == [None]


def test_an_error_event_ends_the_answer(server: FakeServer):
    server.events = [chunk(content="Ye"), {"error": {"message": "the engine died"}}]
    answer = ServerSpeaker(server.url, None, {}).answer([])
    assert next(answer) == ContentDelta("Ye")
    with pytest.raises(SpeakerError, match="the engine died"):
        next(answer)
