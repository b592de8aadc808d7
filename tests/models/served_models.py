"""Small checkpoints whose tokenizers and chat templates are made as those of well-known models, for tests of what a server does with them:
a Llama that calls tools as Qwen 2.5 does, and a Qwen2-VL."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from models.checkpoints.checkpoint import save
from models.families.templates import TemplateCodec
from models.families.tiny_vision import tiny_vision_policy
from tests.models.chat_models import CONTROL, chat_tokenizer

TOOLS = (
    "{% if tools %}<|im_start|>system\n{% if messages[0]['role'] == 'system' %}{{ messages[0]['content'] }}{% endif %}\n"
    "# Tools\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
    "{% for message in messages %}{% if message['role'] == 'system' and tools and loop.first %}{% elif message['role'] == 'tool' %}"
    "<|im_start|>user\n<tool_response>\n{{ message['content'] }}\n</tool_response><|im_end|>\n"
    "{% elif message['role'] == 'assistant' and message['tool_calls'] %}<|im_start|>assistant"
    "{% if message['content'] %}{{ '\n' + message['content'] }}{% endif %}{% for call in message['tool_calls'] %}"
    "{{ '\n<tool_call>\n{\"name\": \"' }}{{ call['function']['name'] }}{{ '\", \"arguments\": ' }}"
    "{{ call['function']['arguments'] | tojson }}"
    "{{ '}\n</tool_call>' }}{% endfor %}<|im_end|>\n"
    "{% else %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Qwen 2.5's, in short."""
LLAMA_TOOLS = (
    "{% if tools %}<|start_header_id|>system<|end_header_id|>\n\n{% for tool in tools %}{{ tool | tojson }}{% endfor %}<|eot_id|>"
    "{% endif %}"
    "{% for message in messages %}<|start_header_id|>{{ message['role'] }}<|end_header_id|>\n\n"
    "{% if message['tool_calls'] %}{{ '{\"name\": \"' + message['tool_calls'][0]['function']['name'] + '\", \"parameters\": ' }}"
    "{{ message['tool_calls'][0]['function']['arguments'] | tojson }}{{ '}' }}{% else %}{{ message['content'] | trim }}{% endif %}"
    "<|eot_id|>{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
"""Llama 3.1's, in short: a call is the whole answer."""
MISTRAL_TOOLS = (
    "{% for message in messages %}{% if message['role'] == 'user' %}{% if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}{% endif %}"
    "[INST]{{ message['content'] }}[/INST]{% elif message['tool_calls'] %}[TOOL_CALLS][{% for call in message['tool_calls'] %}"
    "{% if call['id'] | length != 9 %}{{ raise_exception('ids have nine characters') }}{% endif %}"
    "{{ '{\"name\": \"' + call['function']['name'] + '\", \"arguments\": ' }}{{ call['function']['arguments'] | tojson }}"
    "{{ ', \"id\": \"' + call['id'] + '\"}' }}{% endfor %}]</s>{% else %}{{ message['content'] }}</s>{% endif %}{% endfor %}"
)
"""Mistral's, in short: special tokens, and a list."""


def small_chat_model(template: str = TOOLS, *, scale: float = 0.2, seed: int = 0) -> tuple[LlamaForCausalLM, TemplateCodec]:
    codec = TemplateCodec(chat_tokenizer(template, (*CONTROL, "<tool_call>", "</tool_call>")))
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(codec.tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=48,
        max_position_embeddings=2048,
        initializer_range=scale,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=codec.eos_token_ids[0],
    )
    return LlamaForCausalLM(config).eval(), codec


def save_chat_model(folder: Path) -> None:
    save(folder, *small_chat_model(), stage="seed_policy", iteration="0000")


def save_vision_model(folder: Path) -> None:
    model, codec = tiny_vision_policy(("click", "finished", "see"), 0, num_hidden_layers=2)
    save(folder, model, codec, stage="seed_policy", iteration="0000")
