"""Convert text to tokens: one for each byte, numbered as in SentencePiece, and three special ones."""

from collections.abc import Sequence

__all__ = ["BEGIN", "CHAT_TEMPLATE", "END", "TOKENS", "UNKNOWN", "render", "text_of", "tokens_of"]

UNKNOWN, BEGIN, END = range(3)
_FIRST_BYTE = 3
_SPACE = "▁".encode()  # a space in SentencePiece. Without its own token it would take three

TOKENS = [b"<unk>", b"<s>", b"</s>", *(f"<0x{byte:02X}>".encode() for byte in range(256)), _SPACE]
_SPACE_TOKEN = len(TOKENS) - 1

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role == 'assistant' %}A: {% else %}Q: {% endif %}{{ message.content }}\n"
    "{% endfor %}A: "
)


def render(talk: Sequence[str]) -> str:
    """Render a conversation as the chat template does. User and model alternate, and the model is next."""
    turns = [f"{'QA'[number % 2]}: {text}\n" for number, text in enumerate(talk)]
    return f"{''.join(turns)}A: "


def tokens_of(text: str, *, begin: bool = True) -> list[int]:
    """Return the tokens of a text."""
    tokens = [_SPACE_TOKEN if byte == 0x20 else _FIRST_BYTE + byte for byte in text.encode()]
    return [BEGIN, *tokens] if begin else tokens


def text_of(tokens: list[int]) -> str:
    """Return the text of tokens, up to the end token."""
    said = tokens[: tokens.index(END)] if END in tokens else tokens
    return bytes(0x20 if token == _SPACE_TOKEN else max(0, token - _FIRST_BYTE) for token in said).decode(
        errors="replace"
    )
