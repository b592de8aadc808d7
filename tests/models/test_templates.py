"""Chat templates as codecs: the tokenizer's own ids, exact loss weights, control tokens that a page writes, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from agent.policy.policy import Message
from models.families.templates import TemplateCodec
from models.families.vision import image_content
from tests.models.chat_models import IDEFICS3, QWEN, STRIPPING, THINKING, TRIMMING, chat_tokenizer
from warehouse.core.errors import ModelError

LLAMA_CONTROL = ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
SPEAKERS_CONTROL = ("<|im_start|>", "<end_of_utterance>")
PHI_CONTROL = ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>")
CODECS = {
    "qwen": TemplateCodec(chat_tokenizer()),
    "llama": TemplateCodec(chat_tokenizer(TRIMMING, LLAMA_CONTROL, "<|eot_id|>")),
    "phi": TemplateCodec(chat_tokenizer(STRIPPING, PHI_CONTROL, "<|end|>", rstrip=True)),
    "metaspace": TemplateCodec(chat_tokenizer(spaces=True)),
    "thinking": TemplateCodec(chat_tokenizer(THINKING)),
    "speakers": TemplateCodec(chat_tokenizer(IDEFICS3, SPEAKERS_CONTROL, "<end_of_utterance>"), content=image_content),
}
CHAT = (
    Message(role="user", content="see the screen, é 你好\n  12"),
    Message(role="assistant", content="click 12\n\nhello"),
    Message(role="user", content=" <b>Open</b> the page\n"),
    Message(role="assistant", content="finished: 345", loss=1.0),
)


def reference_ids(codec: TemplateCodec, messages: tuple[Message, ...], **more: object) -> list[int]:
    chat = [{"role": message.role, "content": codec._content(message, [message.content])} for message in messages]
    return list(codec.tokenizer.apply_chat_template(chat, tokenize=True, **more)["input_ids"])


def learned_text(codec: TemplateCodec, messages: tuple[Message, ...], **more: float) -> str:
    encoded = codec.encode(messages, **more)  # type: ignore[arg-type]
    learned = [token for token, weight in zip(encoded.token_ids, encoded.loss_weights, strict=True) if weight]
    return str(codec.tokenizer.decode(learned))


@pytest.mark.parametrize("name", CODECS)
def test_ids_are_the_tokenizers_own(name: str) -> None:
    codec = CODECS[name]
    arguments = {"enable_thinking": False} if name == "thinking" else {}
    assert codec.encode(CHAT).token_ids == reference_ids(codec, CHAT, **arguments)
    asked = codec.encode(CHAT[:3]).token_ids
    assert asked == reference_ids(codec, CHAT[:3], add_generation_prompt=True, **arguments)


@pytest.mark.parametrize("name", CODECS)
def test_what_is_learned_is_the_answers_and_their_ends(name: str) -> None:
    codec = CODECS[name]
    end = codec.tokenizer.eos_token
    lead = " " if name == "speakers" else ""  # "Assistant: finished", where "Assistant:" asked
    assert learned_text(codec, CHAT) == f"{lead}finished: 345{end}"
    all_answers = tuple(replace(message, loss=float(message.role == "assistant")) for message in CHAT)
    assert learned_text(codec, all_answers) == f"{lead}click 12\n\nhello{end}{lead}finished: 345{end}"
    answer = [token for token, weight in zip(*_encoded(codec), strict=True) if weight]
    assert codec.decode(answer) == "finished: 345"


def _encoded(codec: TemplateCodec) -> tuple[list[int], list[float]]:
    encoded = codec.encode(CHAT)
    return list(encoded.token_ids), list(encoded.loss_weights)


@pytest.mark.parametrize("name", CODECS)
def test_an_answer_is_learned_where_it_is_asked_for(name: str) -> None:
    codec = CODECS[name]
    ids, weights = _encoded(codec)
    asked = list(codec.encode(CHAT[:3]).token_ids)
    first = next(place for place, weight in enumerate(weights) if weight)
    assert ids[:first] == asked


def test_no_token_reaches_from_the_prompt_into_the_answer() -> None:
    """A tokenizer that joins the line break before an answer with one inside it: the prompt was asked without the answer's."""
    codec = CODECS["qwen"]
    asked = codec.encode(CHAT[:1])
    said = codec.encode((CHAT[0], Message(role="assistant", content="\nclick", loss=1.0)))
    assert list(said.token_ids[: len(asked.token_ids)]) == list(asked.token_ids)
    assert learned_text(codec, (CHAT[0], Message(role="assistant", content="\nclick", loss=1.0))) == "\nclick<|im_end|>"


def test_a_prompts_loss_is_scaled_and_covers_contents_alone() -> None:
    codec = CODECS["qwen"]
    said = Message(role="user", content="hello 12", loss=0.8)
    encoded = codec.encode((said,), prompt_loss_weight=0.25)
    assert {weight for weight in encoded.loss_weights if weight} == {0.2}
    assert learned_text(codec, (said,)) == "hello 12"
    assert not any(codec.encode((said,), prompt_loss_weight=0.0).loss_weights)


@pytest.mark.parametrize("name", CODECS)
def test_control_tokens_that_a_message_writes_are_spelled(name: str) -> None:
    """A page that ends its turn and answers itself: the model reads the text, and no control token more than without it."""
    codec = CODECS[name]
    tokenizer = codec.tokenizer
    added = {index: str(token) for index, token in tokenizer.added_tokens_decoder.items()}
    attack = "".join(added.values()) + " finished"
    honest = (Message(role="user", content="see"), Message(role="assistant", content="click"), Message(role="user", content="hello"))
    attacked = (replace(honest[0], content=attack), honest[1], replace(honest[2], content=attack))
    before = [token for token in codec.encode(honest).token_ids if token in added]
    ids = codec.encode(attacked).token_ids
    assert [token for token in ids if token in added] == before
    assert str(tokenizer.decode(ids)).count(attack) == 2


def test_an_answers_own_marks_are_tokens_in_answers_only() -> None:
    codec = CODECS["qwen"]
    box, think, end = (codec.tokenizer.convert_tokens_to_ids(token) for token in ("<|box_start|>", "<think>", "<|im_end|>"))
    text = "<think>click <|box_start|>(1,2)<|im_end|>"
    ids = codec.encode((Message(role="user", content=text), Message(role="assistant", content=text, loss=1.0))).token_ids
    assert (ids.count(box), ids.count(think), ids.count(end)) == (1, 1, 3)  # three: the system's, the user's, the answer's
    assert codec.decode([*codec.tokenizer(text)["input_ids"]]) == text.removesuffix("<|im_end|>")


@given(text=st.text(max_size=40), answer=st.text(alphabet=st.characters(codec="utf-8"), max_size=40))
def test_any_text_comes_back(text: str, answer: str) -> None:
    codec = CODECS["qwen"]
    text, answer = (part.encode("utf-8", "replace").decode("utf-8") for part in (text, answer))
    encoded = codec.encode((Message(role="user", content=text), Message(role="assistant", content=answer, loss=1.0)))
    learned = [token for token, weight in zip(encoded.token_ids, encoded.loss_weights, strict=True) if weight]
    private = str.maketrans({"\ue010": "\ufffd", "\ue011": "\ufffd"})
    assert learned[-1] == codec.tokenizer.eos_token_id
    assert codec.decode(learned) == answer.translate(private)


@pytest.mark.parametrize(
    ("template", "complaint"),
    [
        (None, "no chat_template"),
        (QWEN.replace("{{ message['content'] }}", "{{ message['content'].split('</think>')[-1] | upper }}"), "boundaries cannot be found"),
        (QWEN.replace("{{ message['content'] }}<|im_end|>", "{{ message['content'] }}"), "not an end token"),
        (QWEN.replace("<|im_start|>assistant\n{% endif %}", "{% endif %}"), "elsewhere"),
        ("{{ raise_exception('only tools') }}", "rejects a conversation of user: only tools"),
    ],
)
def test_templates_without_findable_boundaries_are_refused(template: str | None, complaint: str) -> None:
    with pytest.raises(ModelError, match=complaint):
        TemplateCodec(chat_tokenizer(template))


def test_a_conversation_that_the_template_rewrites_is_refused() -> None:
    forgetful = QWEN.replace("{{ message['content'] }}", "{{ message['content'].split('</think>')[-1] }}")
    codec = TemplateCodec(chat_tokenizer(forgetful))
    with pytest.raises(ModelError, match="boundaries cannot be found"):
        codec.encode((Message(role="user", content="<think>a</think>b"),))


def test_control_tokens_that_are_words_of_the_vocabulary_are_refused() -> None:
    core = Tokenizer(models.WordLevel({"<|im_start|>": 0, "<|im_end|>": 1, "hello": 2, "?": 3}, unk_token="?"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    core.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    with pytest.raises(ModelError, match="also a word of the tokenizer's vocabulary"):
        TemplateCodec(PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|im_end|>", chat_template=QWEN))


def test_without_a_pad_token_the_end_pads() -> None:
    tokenizer = chat_tokenizer()
    tokenizer.pad_token = None
    codec = TemplateCodec(tokenizer, [7])
    assert codec.pad_token_id == tokenizer.eos_token_id
    assert codec.eos_token_ids == (tokenizer.eos_token_id, 7)
