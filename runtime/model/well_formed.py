"""Text of foreign code, made safe before it is sent, recorded or shown. Pure."""

__all__ = ["well_formed"]


def well_formed(text: str) -> str:
    """``text`` with a question mark for each half of a surrogate pair, which has no UTF-8.

    JSON may contain such a half, and an error that quotes a record then has it. The encoding of an
    error report would raise for it.
    """
    return text.encode(errors="replace").decode()
