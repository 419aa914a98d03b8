"""Texts that other people's code made, before they are sent, recorded or shown. Pure."""

__all__ = ["well_formed"]


def well_formed(text: str) -> str:
    """``text`` with a question mark for each half of a surrogate pair, which has no UTF-8.

    JSON may spell such a half, and an error that quotes a record has it then. Whatever encodes the
    error would raise, in the midst of telling why something failed.
    """
    return text.encode(errors="replace").decode()
