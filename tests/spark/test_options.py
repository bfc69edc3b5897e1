"""Options are understood in all their forms, and refused with their name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from polybus.errors import ConfigError
from polybus.spark.options import ANY_TOPIC, DEFAULT_URL, KNOWN, parse_options


def test_defaults_read_everything_of_the_local_node():
    options = parse_options({"topics": "orders"})
    assert str(options.place) == "tcp://127.0.0.1:15555"
    assert options.starting == {ANY_TOPIC: "earliest"}
    assert options.ending == {ANY_TOPIC: "latest"}
    assert parse_options({}, streaming=True).starting == {ANY_TOPIC: "latest"}


@pytest.mark.parametrize("text", ["a,b/*", " a , b/* ", '["a", "b/*"]', "['a', 'b/*']"])
def test_topics_come_as_a_list_or_as_json(text):
    assert parse_options({"topics": text}).topics == ("a", "b/*")


def test_positions_come_as_words_times_and_per_topic():
    given = {"startingOffsets": '{"a": 7, "b": "latest", "c": "1970-01-01T00:00:01Z"}'}
    assert parse_options(given).starting == {
        ANY_TOPIC: "earliest",
        "a": 7,
        "b": "latest",
        "c": "@1000",
    }
    given = {"endingOffsets": "1970-01-01 00:00:02"}
    assert parse_options(given).ending == {ANY_TOPIC: "@2000"}


def test_tls_files_may_stand_in_the_address_or_beside_it():
    options = parse_options({"url": "polybus+tls://host:1?ca=a.pem", "tlsCert": "c", "tlsKey": "k"})
    assert options.place.address.options == {"ca": "a.pem", "cert": "c", "key": "k"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("url", "http://host"),
        ("topics", "a//b"),
        ("topics", "[1"),
        ("topics", "['a'"),
        ("startingOffsets", "17"),
        ("startingOffsets", '{"a": -2}'),
        ("endingOffsets", "{"),
        ("rowsPerPartition", "0"),
        ("maxRowsPerTrigger", "many"),
        ("failOnDataLoss", "maybe"),
        ("includeHeader", "true"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_name_of_the_option(name, value):
    with pytest.raises(ConfigError, match=f"(?i)option {name}: "):
        parse_options({name: value})


@pytest.mark.parametrize("topics", ["orders", "orders,prices/*"])
def test_a_position_of_a_topic_that_is_not_read_is_refused(topics):
    given = {"topics": topics, "startingOffsets": '{"order": 17}'}
    with pytest.raises(ConfigError, match="option startingOffsets: order is not among the topics"):
        parse_options(given)
    parse_options({"topics": "orders,prices/*", "endingOffsets": '{"orders": 1, "prices/x": 2}'})


def test_tls_files_without_tls_are_refused():
    with pytest.raises(ConfigError, match="option url: TLS"):
        parse_options({"tlsCa": "a.pem"})


def test_the_page_lists_every_option_with_its_default():
    page = (Path(__file__).parents[2] / "docs" / "spark" / "README.md").read_text(encoding="utf-8")
    table = page.partition("## Options")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("| `")]
    listed = {name: row[1].strip() for row in rows for name in re.findall(r"`(\w+)`", row[0])}
    assert sorted(listed) == sorted(KNOWN.values())
    defaults = parse_options({"topics": "t"})
    assert listed["url"] == f"`$POLYBUS_URL`, `{DEFAULT_URL}`"
    for name, value in {
        "retrySeconds": int(defaults.place.patience),
        "rowsPerPartition": defaults.rows_per_partition,
        "minPartitions": defaults.min_partitions,
        "failOnDataLoss": defaults.fail_on_data_loss,
        "includeHeaders": defaults.include_headers,
        "pushdown": defaults.pushdown,
    }.items():
        assert listed[name] == str(value).lower(), name
