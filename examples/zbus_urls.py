"""The documented URLs of Zbus, opened as a browser would: `python examples/zbus_urls.py [HOST:PORT]`."""

from __future__ import annotations

import json
import sys
from urllib.request import urlopen


def main(address: str = "localhost:15555") -> None:
    def opened(url: str) -> str:
        with urlopen(f"http://{address}{url}", timeout=10) as answer:
            text: str = answer.read().decode()
        return text

    topic = json.loads(opened("/declare/MyTopic"))
    print("topic", topic["topicName"], "with the group", topic["consumeGroupList"][0]["groupName"])
    group = json.loads(opened("/declare/MyTopic/group1?group_filter=abc&&group_mask=16"))
    print("group", group["groupName"], "with the filter", group["filter"])

    opened("/produce/MyTopic?body=hello&&tag=abc")
    with urlopen(f"http://{address}/produce/MyTopic", data=b"world", timeout=10) as answer:
        print("stored at", len(answer.read()), "digits of milliseconds")
    print("messages", json.loads(opened("/query/MyTopic"))["messageDepth"])
    print("left for group1", json.loads(opened("/query/MyTopic/group1"))["messageCount"])

    # A parameter becomes a header of the message, so the first one has no body.
    with urlopen(f"http://{address}/consume/MyTopic/group1", timeout=10) as answer:
        print("consumed by its tag:", answer.headers["tag"], answer.headers["body"])
    opened("/consume/MyTopic")
    print("consumed:", opened("/consume/MyTopic"))
    print("the later form:", json.loads(opened("/MyTopic?cmd=query"))["topicName"])

    print("topics", sorted(json.loads(opened("/query"))["topicTable"]))
    print("tracked", len(json.loads(opened("/tracker"))["serverTable"]), "server")
    for url in ("/empty/MyTopic", "/remove/MyTopic/group1", "/remove/MyTopic"):
        print(url, opened(url).isdigit())


if __name__ == "__main__":
    main(*sys.argv[1:])
