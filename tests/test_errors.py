"""The error tree: numbers for programs, texts and hints for people."""

from __future__ import annotations

import inspect

import pytest

from polybus import errors
from polybus.errors import (
    ALL,
    BY_CODE,
    LimitExceeded,
    NoSuchTopic,
    PolybusError,
    fields_of,
    from_code,
)


def test_codes_are_unique_and_every_error_has_a_hint():
    assert len(BY_CODE) == len(ALL)
    assert all(cls.hint and cls.__doc__ for cls in ALL)


def test_every_error_of_the_tree_is_drawn_in_the_docstring():
    assert errors.__doc__ is not None
    assert [cls.__name__ for cls in ALL if cls.__name__ not in errors.__doc__] == []


def test_an_error_crosses_a_wire_with_its_class_text_and_data():
    error = LimitExceeded("too many", limit=1, actual=2)
    copy = from_code(error.code, error.text, fields_of(error))
    assert type(copy) is LimitExceeded
    assert (str(copy), vars(copy)) == (str(error), vars(error))


@pytest.mark.parametrize("cls", ALL)
def test_an_error_that_a_peer_named_has_all_its_fields(cls):
    copy = from_code(cls.code, "said elsewhere")
    for name in inspect.signature(cls.__init__).parameters:
        if name not in ("self", "args", "kwargs"):
            assert getattr(copy, name) in ("said elsewhere", "", b"", 0)


def test_an_unknown_number_becomes_the_root_class():
    assert type(from_code(9999, "from the future")) is PolybusError


def test_the_text_names_what_is_missing():
    with pytest.raises(NoSuchTopic, match="prices"):
        raise NoSuchTopic("prices")
