"""The text that a person agrees to before each recording, and the signature under it. No recording begins without one."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime

from annotation.recordings.bundle import Consent
from warehouse.core.errors import RecordingRefused

VERSION = "3"
BEFORE_MODELS = ("1", "2")
"""Texts that say nothing of models which those who received a recording ask."""
TEXT = """What you are about to record, and what becomes of it

While the sign says RECORDING, this program stores on this machine: pictures of the screen when you act, the actions you take with mouse and
keyboard, titles and names of the windows you use, what programs tell assistive technology about their windows, and, if you switched the
microphone on, what you say.

It does not store what you type into password fields that it can recognise, nor anything of applications, windows and parts of the screen
that you excluded; e-mail addresses, card numbers, bank accounts, telephone numbers and access tokens are blackened where it finds them. It
does not find everything: do not open anything private while you record. You can pause at any time with the pause keys.

Nothing leaves this machine until you have looked through the recording, deleted what you want to keep to yourself, confirmed it, and sent
it off. If after that you have a model word your thoughts, your words, what you typed and the names of what you used are sent to the address
that you name, and you look through the recording again. A recording that was sent off is used to train and to evaluate programs that
operate computers, and other annotators may see it to judge its quality. Those who received it may have a model, their own or another's, put
your task and your thoughts in other words; for that, the words, what you typed and the names of what you used are sent to it. Record only
what you have the right to share, and no other person's voice or data without their consent. Taking part is voluntary. You may stop at any
time, delete the recording here, and ask those who received it to withdraw it: it is then left out of every later data set.
"""


def text_sha256() -> str:
    return hashlib.sha256(TEXT.encode()).hexdigest()


def sign(name: str, *, with_microphone: bool) -> Consent:
    """A signature under the text as it is now. Raises RecordingRefused for no name."""
    name = " ".join(name.split())
    if len(name) < 2:
        raise RecordingRefused(f"{name!r} is not a signature: write your name, at least two letters. Nothing was recorded.")
    return Consent(name=name, signed_at=datetime.now(UTC), text_version=VERSION, text_sha256=text_sha256(), with_microphone=with_microphone)


def allows_models(consent: Consent) -> bool:
    """Whether those who received a recording may send its words to a model."""
    return consent.text_version not in BEFORE_MODELS


def check(consent: Consent) -> None:
    """Raises RecordingRefused where it was signed under another text."""
    if consent.text_sha256 != text_sha256():
        raise RecordingRefused("The consent was signed under another text: it has to be read and signed again.")
