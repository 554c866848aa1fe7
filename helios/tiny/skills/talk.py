"""Small talk: what people say to open, pad and end a chat, and the one reply to each."""

from __future__ import annotations

from random import Random

from helios.tiny.skills.language import NAMES
from helios.tiny.skills.question import Question, ask

# `{n}` is the speaker's name.
_TALK = (
    (("Hi", "Hello", "Hello there", "Hi there", "Hey", "Good day", "Greetings"), "Hello! How can I help you?"),
    (("Good morning", "Morning", "A good morning to you"), "Good morning! How can I help you?"),
    (("Good evening", "Good night", "A good evening to you"), "Good evening! How can I help you?"),
    (("How are you?", "How are you doing?", "How do you feel today?", "Are you well?"), "I am well, thank you. And you?"),
    (
        ("Who are you?", "What is your name?", "What are you?", "Introduce yourself.", "What should I call you?"),
        "I am Tiny, a very small language model that comes with Helios.",
    ),
    (
        ("What can you do?", "What are you good at?", "How can you help me?", "What can I ask you?", "help"),
        "I know some short facts, add and subtract, count, sort, spell, copy, look things up in a text, "
        "write JSON and call tools.",
    ),
    (
        ("Who made you?", "Where do you come from?", "How were you trained?"),
        "I was trained in a few minutes on text that a program wrote.",
    ),
    (("Thank you", "Thanks", "Thanks a lot", "Thank you very much", "That helped, thanks"), "You are welcome!"),
    (("Bye", "Goodbye", "See you later", "See you tomorrow", "I have to go"), "Goodbye! Have a nice day."),
    (
        ("Tell me a joke", "Do you know a joke?", "Make me laugh"),
        "Why did the token cross the road? To get to the other page.",
    ),
    (
        ("Are you a human?", "Are you a person?", "Are you real?", "Do you have a body?"),
        "No, I am a small language model.",
    ),
    (("I am sad", "I feel bad today", "Today is not my day"), "I am sorry to hear that. I hope it gets better."),
    (("I am happy", "I feel great today", "What a good day"), "I am glad to hear that!"),
    (("My name is {n}.", "I am {n}.", "You can call me {n}.", "{n} here."), "Nice to meet you, {n}!"),
    (("你好", "你好!", "您好"), "你好! 我能帮你什么?"),
    (("谢谢", "谢谢你"), "不客气!"),
    (("Bonjour", "Salut", "Bonjour à toi"), "Bonjour ! Comment puis-je aider ?"),
    (("Hola", "Buenos días", "Hola, qué tal"), "¡Hola! ¿Cómo puedo ayudar?"),
    (("Guten Tag", "Hallo", "Grüß dich"), "Guten Tag! Wie kann ich helfen?"),
    (("Yes", "Okay", "Alright", "Sure"), "Good. What would you like to ask?"),
    (("No", "No thanks", "Not now"), "All right. I am here when you need me."),
)  # fmt: skip
_TALK_LEADS = ("", "", "", "Well, ", "Oh, ", "Hm, ", "Tiny, ", "Ok. ")
_TALK_ENDS = ("", "", "", ".", "!", " :)", " 😀", " ...", " please")


def talk(rng: Random) -> Question:
    """A line of small talk and the reply to it."""
    said, reply = rng.choice(_TALK)
    name = rng.choice(NAMES)
    line, lead, end = rng.choice(said), rng.choice(_TALK_LEADS), rng.choice(_TALK_ENDS)
    if line[-1] in ".?!":
        end = "" if end.strip() in (".", "!", "please") else end
    text, answer = lead + line.format(n=name) + end, reply.format(n=name)
    return ask("talk", text, text, answer, "This is small talk.", "exact", answer)
