"""Tiny real tokenizers for tests: byte-level BPE trained here, chat templates of the structures in use."""

from __future__ import annotations

import re
from functools import cache
from typing import Any, Literal

__all__ = ["tiny_tokenizer", "tokenizer_with"]

_CORPUS = [
    "system user assistant tool tool_call tool_response name arguments number answer",
    '<tool_call>{"name": "answer", "arguments": {"text": "42"}}</tool_call>',
    "The quick brown fox jumps over the lazy dog. 0123456789",
]
_CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_CHATML_TOOLS = (
    "{% if tools %}<|im_start|>system\n"
    "{% if messages[0]['role'] == 'system' %}{{ messages[0]['content'] }}\n{% endif %}"
    "Tools:{% for t in tools %}\n{{ t | tojson }}{% endfor %}<|im_end|>\n{% endif %}"
    "{% for m in messages %}"
    "{% if m['role'] == 'system' and tools and loop.first %}"
    "{% elif m['role'] == 'tool' %}"
    "{% if loop.first or messages[loop.index0 - 1]['role'] != 'tool' %}<|im_start|>user{% endif %}\n"
    "<tool_response>\n{{ m['content'] }}\n</tool_response>"
    "{% if loop.last or messages[loop.index0 + 1]['role'] != 'tool' %}<|im_end|>\n{% endif %}"
    "{% else %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}"
    "{% for c in m['tool_calls'] or [] %}\n"
    '<tool_call>\n{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>'
    "{% endfor %}<|im_end|>\n{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_THINKING = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['role'] == 'assistant' and not loop.last and '</think>' in m['content'] %}"
    "{{ m['content'].split('</think>')[-1].lstrip('\\n') }}"
    "{% else %}{{ m['content'] }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# The structure of Mistral's templates since 2024: tools before the last question, ids of nine letters, and turns
# that alternate.
_MISTRAL = (
    "{% if messages[0]['role'] == 'system' %}{% set system_message = messages[0]['content'] %}"
    "{% set loop_messages = messages[1:] %}{% else %}{% set loop_messages = messages %}{% endif %}"
    "{% set user_messages = loop_messages | selectattr('role', 'equalto', 'user') | list %}"
    "<s>{% for m in loop_messages %}"
    "{% if m['role'] == 'user' %}"
    "{% if tools and m == user_messages[-1] %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}"
    "[INST]{% if loop.last and system_message is defined %}{{ system_message + '\n\n' }}{% endif %}"
    "{{ m['content'] }}[/INST]"
    "{% elif m['tool_calls'] %}[TOOL_CALLS][{% for c in m['tool_calls'] %}"
    "{% if c.id | length != 9 %}{{ raise_exception('ids have nine letters') }}{% endif %}"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}, "id": "{{ c.id }}"}'
    "{% if not loop.last %}, {% endif %}{% endfor %}]</s>"
    "{% elif m['role'] == 'assistant' %}{{ m['content'] }}</s>"
    "{% elif m['role'] == 'tool' %}"
    '[TOOL_RESULTS]{"content": {{ m[\'content\'] | tojson }}, "call_id": "{{ m.tool_call_id }}"}[/TOOL_RESULTS]'
    "{% endif %}{% endfor %}"
)
_TEMPLATES = {"chatml": _CHATML, "chatml_tools": _CHATML_TOOLS, "thinking": _THINKING, "mistral": _MISTRAL}


@cache
def _backend() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|pad|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(_CORPUS, trainer)
    return backend


def tiny_tokenizer(kind: Literal["chatml", "chatml_tools", "thinking", "mistral"] = "chatml") -> Any:
    """A tokenizer of some 370 ids: without a tool section, with one, with thinking stripped from history, or
    with the structure of Mistral's template.
    """
    if kind == "mistral":
        return tokenizer_with(_MISTRAL)
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=_backend(),
        pad_token="<|pad|>",
        eos_token="<|im_end|>",
        additional_special_tokens=["<|im_start|>"],
        chat_template=_TEMPLATES[kind],
    )


# What chat templates write that real tokenizers hold as one token each.
_SPECIAL = re.compile(r"<\|[\w ]+\|>|<｜[^｜<>]+｜>|\[/?[A-Z_]{3,}\]|</?s>|<(?:start|end)_of_turn>")
_TAGS = re.compile(r"</?(?:think|tool_call|tool_response|arg_key|arg_value)>")


def tokenizer_with(chat_template: str, eos: str = "") -> Any:
    """A small tokenizer for any published chat template, whose special tokens and tags it holds as tokens.

    Args:
        chat_template: in Jinja.
        eos: the end-of-sequence token; "" for the first one of the template that looks like an end of turn.
    """
    from tokenizers import AddedToken
    from transformers import PreTrainedTokenizerFast

    found = list(dict.fromkeys(_SPECIAL.findall(chat_template)))
    ends = ("<|im_end|>", "<|eot_id|>", "<｜end▁of▁sentence｜>", "<|return|>", "<|end|>", "</s>", "<end_of_turn>")
    eos = eos or next((end for end in ends if end in found), "<|endoftext|>")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=_backend(), pad_token="<|pad|>", bos_token="<|bos|>", eos_token=eos,
        additional_special_tokens=found, chat_template=chat_template,
    )  # fmt: skip
    tags = dict.fromkeys(_TAGS.findall(chat_template))
    tokenizer.add_tokens([AddedToken(tag, normalized=False, special=False) for tag in tags])
    return tokenizer
