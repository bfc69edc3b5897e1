"""What lies in `deploy/` works: each configuration starts a node, the unit and the image's commands are good."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import promql_parser
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.cli.processes import ANY_PORT, POLYBUS, node, run

DEPLOY = Path(__file__).parents[2] / "deploy"
CONFIGS = sorted(path.stem for path in (DEPLOY / "config").glob("*.toml"))
UNIT = DEPLOY / "systemd" / "polybus.service"
ACCOUNT = "5CcyqxXnJucaCnQQvvUg5EPzj1uoNAxACZvzArHw5aVDvgNH"  # of the key below
MAX_EXPOSURE = 1.5  # of 10; systemd calls up to 2 OK and the best units reach about 1


def moved(name: str, folder: Path) -> Path:
    """A configuration with the folders of a service below `folder`."""
    (folder / "key.txt").write_text("0x" + "01" * 32)
    twins = [{"id": 1, "address": "127.0.0.1:8051", "account": ACCOUNT}]
    (folder / "twins.json").write_text(json.dumps(twins))
    text = (DEPLOY / "config" / f"{name}.toml").read_text(encoding="utf-8")
    file = folder / f"{name}.toml"
    file.write_text(re.sub(r"/(etc|var/lib|run)/polybus/|/tmp/(?=yagna)", f"{folder}/", text))
    return file


def test_there_is_one_for_each_system_and_for_all():
    assert CONFIGS == ["all", "central-net", "gsb", "rmb-rs", "rmb-v2", "spark", "t2", "zbus"]


@pytest.mark.parametrize("name", CONFIGS)
def test_a_configuration_is_good_as_serve_sees_it(name, tmp_path):
    done = run("serve", "--check", "--config", str(moved(name, tmp_path)))
    assert (done.returncode, done.stdout) == (0, b"configuration is good\n"), done.stderr


@pytest.mark.parametrize("name", CONFIGS)
def test_a_configuration_listens_where_it_says(name, tmp_path):
    file = moved(name, tmp_path)
    text = file.read_text()
    # On ports that are free, and with a Redis of the node's own: what this machine has is not ours to use.
    file.write_text(
        re.sub(r"(tcp://[^\":]*|tcp://\[::\]):\d+", r"\1:0", text)
        .replace("//0.0.0.0:", "//127.0.0.1:")
        .replace("//[::]:", "//127.0.0.1:")
        .replace("redis://127.0.0.1:6379", "embedded")
    )
    with node("--config", str(file), cwd=tmp_path) as (_, lines):
        where = [line for line in lines if not line.startswith("redis ")]
        wanted = re.findall(r'"((?:\w+\+)?(?:tcp|unix))://', text)
        assert [address.split(":")[0] for address in where] == wanted


def test_the_unit_passes_systemd_verify(tmp_path):
    systemd = shutil.which("systemd-analyze")
    if systemd is None:
        pytest.skip("no systemd-analyze")
    unit = tmp_path / UNIT.name
    # A program that is there: verify looks for it.
    unit.write_text(UNIT.read_text().replace("/opt/polybus/bin/polybus", POLYBUS))
    done = subprocess.run(
        [systemd, "verify", str(unit)], capture_output=True, text=True, timeout=15
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    judged = subprocess.run(
        [systemd, "security", "--offline=true", f"--threshold={MAX_EXPOSURE * 10:.0f}", str(unit)],
        capture_output=True,
        text=True,
        timeout=15,
    )
    assert judged.returncode == 0, judged.stdout


def test_the_unit_runs_verbs_that_exist_and_waits_longer_than_the_drain():
    text = UNIT.read_text(encoding="utf-8")
    commands = re.findall(r"^Exec\w+=\S+/polybus (.+)$", text, re.MULTILINE)
    assert commands == [
        "serve --check --config /etc/polybus/polybus.toml",
        "serve --config /etc/polybus/polybus.toml",
    ]
    stop = re.search(r"^TimeoutStopSec=(\d+)$", text, re.MULTILINE)
    assert stop is not None
    assert int(stop[1]) > 10


def instructions() -> dict[str, str]:
    """The last of each kind in the Containerfile, lines joined."""
    text = (DEPLOY / "Containerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line[:1].isupper()]
    return {words[0]: words[1] for words in lines}


def test_the_image_runs_a_node_that_is_not_root(tmp_path):
    found = instructions()
    assert found["USER"] not in ("0", "root")
    command = [*json.loads(found["ENTRYPOINT"]), *json.loads(found["CMD"])]
    assert command[:2] == ["polybus", "serve"]
    assert run(*command[1:], "--check").stdout == b"configuration is good\n"
    data = command[command.index("--data") + 1]
    assert data.startswith(found["VOLUME"])


def test_the_health_check_of_the_image_tells_a_node_from_none(tmp_path):
    check = shlex.split(instructions()["HEALTHCHECK"].partition("CMD")[2].strip()[1:-1], posix=True)
    words = [word.rstrip(",") for word in check]
    assert words[:2] == ["python", "-c"]
    with node("--listen", ANY_PORT, "--data", "", cwd=tmp_path) as (_, where):
        code = words[2].replace("127.0.0.1:15555", where[0].removeprefix("tcp://"))
        assert subprocess.run([sys.executable, "-c", code], timeout=15).returncode == 0
    gone = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=15)
    assert gone.returncode == 1


# -- metrics -----------------------------------------------------------------------------------------------------------

DASHBOARD = json.loads((DEPLOY / "grafana" / "polybus.json").read_text(encoding="utf-8"))
QUERIES = [
    (panel["title"], target["expr"]) for panel in DASHBOARD["panels"] for target in panel["targets"]
]


def selected(expression: promql_parser.Expr) -> Iterator[str]:
    """The names of all metrics in a parsed query."""
    found: list[str] = []

    def visit(part: object) -> bool:
        if isinstance(part, promql_parser.VectorSelector) and part.name:
            found.append(part.name)
        return True

    promql_parser.walk(expression, visit)
    yield from found


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The samples of a node, each with its labels."""
    folder = tmp_path_factory.mktemp("node")
    with node("--listen", ANY_PORT, cwd=folder) as (_, where):
        url = where[0].replace("tcp://", "http://") + "/metrics"
        with urlopen(url, timeout=15) as answer:
            text = answer.read().decode()
    labels: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        if family.type != "histogram":
            labels.setdefault(family.name, set())
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
    # Families that have a sample only once something happened, by the names that the text declares.
    for name, kind in re.findall(r"^# TYPE (\S+) (\w+)$", text, re.MULTILINE):
        for suffix in ("_bucket", "_count", "_sum") if kind == "histogram" else ("",):
            labels.setdefault(name + suffix, set())
    return labels


@pytest.mark.parametrize(("title", "query"), QUERIES)
def test_a_panel_asks_for_what_a_node_exports(title, query, exported):
    parsed = promql_parser.parse(query.replace("$__rate_interval", "1m"))
    names = list(selected(parsed))
    assert names, query
    for name in names:
        assert name in exported, f"{title}: no node exports {name}"


WATCH = (DEPLOY.parent / "docs" / "operate" / "watch.md").read_text(encoding="utf-8")
CONDITIONS = re.findall(r"^\| `([^`]+)`", WATCH.partition("What to be woken for")[2], re.MULTILINE)


def test_the_page_about_watching_has_conditions():
    assert len(CONDITIONS) >= 7


@pytest.mark.parametrize("query", CONDITIONS)
def test_a_condition_to_be_woken_for_asks_for_what_a_node_exports(query, exported):
    names = list(selected(promql_parser.parse(query)))
    assert names, query
    for name in names:
        assert name in exported, f"no node exports {name}"


def test_a_query_that_is_wrong_would_be_noticed(exported):
    with pytest.raises(ValueError, match="parenthesis"):
        promql_parser.parse("sum(polybus_up")
    assert list(selected(promql_parser.parse("sum(rate(polybus_absent_total[1m]))"))) == [
        "polybus_absent_total"
    ]
    assert "polybus_absent_total" not in exported


def test_panels_do_not_lie_on_each_other():
    places = [panel["gridPos"] for panel in DASHBOARD["panels"]]
    cells = [
        (x, y)
        for place in places
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert all(place["x"] + place["w"] <= 24 for place in places)
