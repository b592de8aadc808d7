"""What is private in a text is found, what is not stays; also across pauses, in words that were said, and in what was read off pixels."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from field_names import OTHER_NAMES, SECRET_NAMES
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageDraw, ImageFont

from annotation.recorder.privacy.secrecy import Typed, why_secret
from annotation.recorder.privacy.secret_names import is_secret_name
from annotation.recorder.screen.accessibility import Focus
from annotation.recorder.screen.camera import Frame
from annotation.recorder.screen.exclusions import Exclusions
from annotation.recorder.screen.pixels import blacken, boxes_in_words
from annotation.recorder.screen.snapshots import cover
from annotation.recorder.screen.text_reader import SeenWord, Tesseract, find_text_reader
from annotation.recorder.screen.windows import SeenWindow
from annotation.recordings.bundle import Box, ScreenElement
from annotation.recordings.redaction import MIN_LITERAL, Redactor, is_random

TOKEN = "ghp_" + "aB3dE6gH9jK2mN5pQ8rS1tU4vW7xY0zA2bC4"
CARD = "4539 1488 0343 6467"


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("write to lena.fischer@posteo.de today", "write to [e-mail] today"),
        (f"the card {CARD}, please", "the card [card], please"),
        ("the order 4539 1488 0343 6468", "the order 4539 1488 0343 6468"),
        (f"export TOKEN={TOKEN}", "export TOKEN=[token]"),
        ("key 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08", "key [token]"),
        ("internationalization_of_everything is long", "internationalization_of_everything is long"),
        ("call +49 30 1234567 now", "call [telephone] now"),
        ("nothing private here at 12:30, see page 42", "nothing private here at 12:30, see page 42"),
    ],
)
def test_private_parts_are_named_in_brackets(text: str, redacted: str):
    assert Redactor().redact(text)[0] == redacted


def test_an_address_that_was_typed_with_a_pause_is_one():
    assert Redactor().redact_run(["ask lena.fis", "cher@posteo.de\n"]) == [("ask [e-mail]", ("e-mail",)), ("[e-mail]\n", ("e-mail",))]


def test_what_was_learned_is_found_wherever_it_stands():
    redactor = Redactor()
    redactor.learn("Tulip-42-rain")
    assert redactor.redact("it is tulip-42-rain!")[0] == "it is [password]!"
    assert [finding.kind for finding in redactor.find("it is Tu1ip-42-rain", loose=True)] == ["password"], "misread by a letter"
    assert redactor.find("a tuli in the rain", loose=True) == []
    redactor.learn(CARD, "card")
    assert redactor.redact("card 4539 1488 0", loose=True)[0] == "card [card]", "a picture from before the last digits"
    element = ScreenElement(role="input", text="use 4539 1488", box=Box(x=0, y=0, width=9, height=9))
    assert cover(element, redactor).text == "use [card]"


LETTERS = st.characters(exclude_categories=("Cs",)) | st.sampled_from("ßẞİŉǰΐﬃﬁſsſ aAéÉΣσς")


@settings(max_examples=300, deadline=None)
@given(
    before=st.text(LETTERS, max_size=12),
    after=st.text(LETTERS, max_size=12),
    secret=st.text(LETTERS, min_size=4, max_size=12),
    case=st.sampled_from([str, str.upper, str.lower, str.casefold]),
    loose=st.booleans(),
)
def test_what_was_learned_is_found_in_any_text_whole(before: str, after: str, secret: str, case: Callable[[str], str], loose: bool):
    secret = secret.strip()
    shown = case(secret)
    assume(len(secret) >= MIN_LITERAL and shown.casefold() == secret.casefold())
    redactor = Redactor()
    redactor.learn(secret)
    found = redactor.find(before + shown + after, loose=loose)
    assert any(one.start <= len(before) and len(before) + len(shown) <= one.end for one in found), found


def test_what_was_learned_is_found_beside_letters_that_have_no_single_capital():
    redactor = Redactor()
    redactor.learn("Tulip-42-rain")
    redactor.learn("Maßkrug!7")
    assert redactor.redact("Straße: tulip-42-rain, ŉ")[0] == "Straße: [password], ŉ"
    assert redactor.redact("MASSKRUG!7 / maßkrug!7 ß")[0] == "[password] / [password] ß"
    assert redactor.redact("ßß Tulip-42-r ß", loose=True)[0] == "ßß [password] ß", "its beginning, in its place"


def test_random_words_are_distinguished_from_long_ones():
    assert is_random("9f86d081884c7d659a2feaa0c55ad015") and is_random("Zx81kQp0vB7tLw3Yc5Rn")
    assert not is_random("counterrevolutionaries2") and not is_random("aaaaaaaaaaaaaaaaaaaaaaa1")


def test_numbers_and_addresses_that_were_said_are_taken_out():
    digits = "four five three nine one four eight eight oh three four three six four six seven"
    said = f"my card is {digits} thanks".split()
    kinds = Redactor().redact_words(said)
    assert kinds[3:19] == ["card"] * 16 and kinds[:3] == [None] * 3 and kinds[19] is None
    address = ["write", "to", "lena", "at", "posteo", "dot", "de", "and", "save"]
    assert Redactor().redact_words(address) == ["e-mail"] * 7 + [None] * 2, "too much rather than too little"
    assert Redactor().redact_words(["one", "two", "three", "go"]) == [None] * 4
    redactor = Redactor()
    redactor.learn("correct horse")
    redactor.learn("Maßkrug")
    said = ["the", "Correct", "horse", "and", "MASSKRUG", "horse", "ß"]
    assert redactor.redact_words(said) == [None, "password", "password", None, "password", None, None]


def test_the_boxes_of_private_words_are_found_in_a_line():
    words = [
        SeenWord(text=text, box=Box(x=x, y=10, width=40, height=12), line=(1,))
        for x, text in ((0, "card"), (50, "4539"), (100, "1488"), (150, "0343"), (200, "6467"), (250, "ends"))
    ]
    assert {box.x + 2 for box in boxes_in_words(words, Redactor())} == {50, 100, 150, 200}


def picture(lines: list[str]) -> np.ndarray:
    image = Image.new("RGB", (560, 40 * len(lines) + 20), "white")
    font = ImageFont.load_default(18)
    for number, line in enumerate(lines):
        ImageDraw.Draw(image).text((20, 14 + 40 * number), line, fill="black", font=font)
    return np.asarray(image)


@pytest.mark.skipif(find_text_reader() is None, reason="tesseract-ocr is not installed (scripts/setup.sh installs it as root on Debian)")
def test_private_text_is_found_in_pixels_and_only_the_changed_part_is_read_again():
    reader, redactor = Tesseract(), Redactor()
    page = picture(["Dear reader", "mail lena.fischer@posteo.de", f"pay with {CARD}", "nothing here"])
    boxes = boxes_in_words(reader.words(page), redactor)
    again = " ".join(word.text for word in Tesseract().words(blacken(page, boxes)))
    assert "posteo" not in again and "4539" not in again and "6467" not in again
    assert "Dear" in again and "nothing" in again
    changed = page.copy()
    changed[134:176] = picture(["", "", "", "ask udo@mailbox.org"])[134:176]
    words = reader.words(changed)
    assert {"Dear", "reader"} <= {word.text for word in words}, "kept from before"
    assert any(box.y > 120 for box in boxes_in_words(words, redactor))


def window(title: str = "Notes", application: str = "Editor", box: Box | None = None, **more: object) -> SeenWindow:
    box = box or Box(x=0, y=0, width=100, height=100)
    return SeenWindow(window_id=1, pid=7, title=title, application=application, box=box, inner=box, is_active=True, **more)


def frame(number: int, *, letters_at: int | None = None) -> Frame:
    pixels = np.zeros((100, 100, 3), dtype=np.uint8)
    if letters_at is not None:
        pixels[40:52, letters_at : letters_at + 40] = 255
    return Frame(number=number, since_s=float(number), until_s=float(number), pixels=pixels)


def typed(text: str = "hello there", **more: object) -> Typed:
    known = Focus(time_s=0.0, pid=7, role="input", name="Remarks")
    given = {"focus": [known], "windows": [(window(),)], "clicked": "", "before": frame(1), "after": frame(2, letters_at=10)}
    return Typed(text=text, **(given | more))


@pytest.mark.parametrize(
    ("what", "why"),
    [
        (typed(), None),
        (typed(focus=[Focus(time_s=0.0, pid=7, role="input", is_password=True)]), "password"),
        (typed(focus=[Focus(time_s=0.0, pid=7, role="input"), Focus(time_s=1.0, pid=7, role="input", is_password=True)]), "password"),
        (typed(windows=[(window("Unlock Keyring"),)]), "password"),
        (typed(focus=[Focus(time_s=0.0, pid=7, role="input", name="Your passphrase")]), "password"),
        (typed(focus=[], clicked="PIN"), "password"),
        (typed(focus=[Focus(time_s=0.0, pid=7, role="textarea", tail="$ sudo ls\n[sudo] password for me: ")]), "password"),
        (typed(focus=[]), None),
        (typed(focus=[], after=frame(2)), "unseen"),
        (typed(focus=[Focus(time_s=0.0, pid=99, role="input")], after=frame(2)), "unseen"),
        (typed(after=frame(2)), None),
        (typed(focus=[Focus(time_s=0.0, pid=7, role="textarea", tail="$ read -s key\n")], after=frame(2)), "unseen"),
        (typed(focus=[Focus(time_s=0.0, pid=7, role="textarea", tail="$ ")]), None),
    ],
)
def test_passwords_are_recognised_by_role_title_name_prompt_and_by_not_showing(what: Typed, why: str | None):
    assert why_secret(what, "keep") == why


@pytest.mark.parametrize("name", [*SECRET_NAMES, "Passphrase:", "Passwörter: altes Passwort", "wachtwoord", "API-Key", "Lösenord"])
def test_what_fields_for_secrets_are_called(name: str):
    assert is_secret_name(name)
    assert why_secret(typed(focus=[Focus(time_s=0.0, pid=7, role="input", name=name)]), "keep") == "password"


@pytest.mark.parametrize("name", OTHER_NAMES)
def test_what_other_fields_are_called(name: str):
    assert not is_secret_name(name) and why_secret(typed(clicked=name), "keep") is None


def test_typing_into_silent_programs_can_be_hidden_altogether():
    assert why_secret(typed(focus=[]), "hide") == "text" and why_secret(typed(), "hide") is None


def test_excluded_windows_are_masked_where_nothing_lies_above_them():
    exclusions = Exclusions(titles=("*bank*",), applications=("chat",), regions=(Box(x=90, y=0, width=10, height=5),))
    bank = window("My Bank - Browser", "Browser", Box(x=0, y=0, width=50, height=50))
    above = window("Notes", "Editor", Box(x=20, y=20, width=60, height=60))
    mask = exclusions.mask([(above, bank)], 100, 100)
    assert mask is not None and mask[10, 10] and mask[2, 95] and not mask[30, 30] and not mask[70, 70]
    assert exclusions.hides_point(10, 10, [above, bank]) and not exclusions.hides_point(30, 30, [above, bank])
    assert exclusions.hides(window("x", "Team Chat")) and exclusions.hides(window("x", "KeePassXC")) and not exclusions.hides(above)
    assert Exclusions().mask([(above, bank)], 100, 100) is None
