from __future__ import annotations

import io
import json
import logging

import pytest

from polybus.server.config import Log
from polybus.server.log import set_up_logging


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def restore_logging():
    loggers = [logging.getLogger(name) for name in ("polybus", "asyncio")]
    before = [(lo, lo.handlers, lo.level, lo.propagate) for lo in loggers]
    yield
    for logger, handlers, level, propagate in before:
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)


def test_a_pipe_gets_one_json_object_per_line_with_the_connection_id():
    stream = io.StringIO()
    set_up_logging(Log(), stream)
    extra = {"connection": 7, "peer": "127.0.0.1:4711"}
    logging.getLogger("polybus.connection").warning("closed: %s", "bad length", extra=extra)
    line = json.loads(stream.getvalue())
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "warning",
        "logger": "polybus.connection",
        "text": "closed: bad length",
        "connection": 7,
        "peer": "127.0.0.1:4711",
    }


def test_a_terminal_gets_text():
    stream = Terminal()
    set_up_logging(Log(), stream)
    logging.getLogger("polybus.connection").warning("connection %d closed", 7)
    logging.getLogger("polybus.node").info("ready")
    first, second = stream.getvalue().splitlines()
    assert first.endswith("warning connection 7 closed")
    assert second.endswith("info    ready")


def test_the_format_setting_wins_over_the_kind_of_stream():
    stream = Terminal()
    set_up_logging(Log(format="json"), stream)
    logging.getLogger("polybus").error("text")
    assert json.loads(stream.getvalue())["text"] == "text"


def test_lines_below_the_level_are_not_written():
    stream = io.StringIO()
    set_up_logging(Log(level="warning"), stream)
    logging.getLogger("polybus.node").info("quiet")
    assert stream.getvalue() == ""


@pytest.mark.parametrize("form", ["json", "text"])
def test_a_traceback_is_kept(form):
    stream = io.StringIO()
    set_up_logging(Log(format=form), stream)
    try:
        raise KeyError("lost")
    except KeyError:
        logging.getLogger("polybus").exception("a bug")
    assert "KeyError" in stream.getvalue()
    if form == "json":
        assert len(stream.getvalue().splitlines()) == 1
